"""The posterior of a condition's latents from a few observations, with the trained model fixed.

Given h and the model's q(v), the observations are Gaussian (docs/mathematics.md, equations 18 to 22): with
a_n = L_X⁻¹k_u(x_n) as rows of A and c = L_H⁻¹k_u(h),

    y | h ~ N(A M c, κ_h(X, X) + σ²I),   κ_h(x, x') = k_H(h, h) k_X(x, x') + Σ_jk c_j c_k aᵀS_jk a' − |c|² aᵀa'.

So p(h | y) can be evaluated exactly, and is often multimodal. It is represented by weighted particles: Newton
steps from many starts give a mixture of local Gaussian approximations, from which quasi-random points are
drawn and weighted by the exact posterior. Everything is deterministic.

Where noise is per condition, log σ² of the new one joins the latents, with a prior fitted to the trained ones;
θ = (h, z) collects both, z being standard normal a priori. Coordinates of h that are known from the condition's
features are no part of θ (equation 43).
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp, ndtri
from scipy.stats import qmc

from lvmogp.algebra.gaussians import LOG_2PI, log_density
from lvmogp.algebra.linalg import whiten
from lvmogp.conditions.evidence import Evidence
from lvmogp.conditions.known_latents import KnownLatents, known_latents
from lvmogp.ground.compiling import compiled
from lvmogp.ground.padding import rounded_up
from lvmogp.kernels.covariances import diagonal
from lvmogp.model.inducing_features import Basis
from lvmogp.model.posterior import Curves, Posterior, Projection, curves_at, positive_part
from lvmogp.typing import Array, Float, HostFloat, Scalar

Target = Callable[[Array], Scalar]
_POINTS_AT_ONCE = 64


class Search(NamedTuple):
    """How thoroughly the latents of a new condition are looked for; the page of a model searches in the same way."""

    n_particles: int = 512
    n_scouts: int = 1024
    n_starts: int = 32
    n_starts_of_many_points: int = 12
    many_points: int = 8
    n_prior_starts: int = 64
    most_trained_starts: int = 128
    newton_steps: int = 20
    step_fractions: tuple[float, ...] = (1.0, 0.3, 0.1, 0.01)
    widening: float = 1.5
    prior_share: float = 0.1


SEARCH = Search()


class NoisePrior(eqx.Module):
    """log σ² of a new condition: N(mean, deviation²); a deviation of zero for noise shared by all.

    Under posterior draws there is one for each of them.
    """

    mean: Float[Array, "*S"]
    deviation: Float[Array, "*S"]
    shared: bool = eqx.field(static=True)


class ConditionPosterior(eqx.Module):
    """A condition as weighted particles: latents, noise, and the curve at each given the evidence."""

    latents: Float[Array, "P Q_H"]
    noise: Float[Array, " P"]
    log_weights: Float[Array, " P"]
    curves: Curves
    evidence: Evidence
    factor: Float[Array, "P m m"]
    solution: Float[Array, "P m"]

    @property
    def weights(self) -> Float[Array, " P"]:
        """Weights of the particles, summing to one."""
        return jnp.exp(self.log_weights)

    @property
    def effective_size(self) -> Scalar:
        """Number of equally weighted particles that would be worth as much."""
        return 1 / jnp.sum(self.weights**2)

    @property
    def latent_mean(self) -> Float[Array, " Q_H"]:
        """Posterior mean of the latents."""
        return self.weights @ self.latents

    @property
    def latent_variance(self) -> Float[Array, " Q_H"]:
        """Posterior variance of each latent."""
        return self.weights @ (self.latents - self.latent_mean) ** 2


def noise_prior(model: Posterior) -> NoisePrior:
    """Distribution of the trained conditions' log noise."""
    log_noise = jnp.log(model.parameters.noise_per_condition)
    shared = model.parameters.noise_variance.shape[0] == 1
    return NoisePrior(jnp.mean(log_noise), jnp.std(log_noise), shared)


def noise_at(theta: Float[Array, " T"], prior: NoisePrior) -> Scalar:
    """The noise variance of θ = (h, z), or the one shared by all."""
    if prior.shared:
        return jnp.exp(prior.mean)
    return jnp.exp(prior.mean + prior.deviation * theta[-1])


def _latent_at(theta: Float[Array, " T"], known: KnownLatents) -> Float[Array, " Q_H"]:
    return known.filled(theta[: known.unknown.shape[0]])


def log_posterior(
    theta: Float[Array, " T"],
    model: Posterior,
    seen: Evidence,
    projection: Projection,
    prior: NoisePrior,
    known: KnownLatents | None = None,
) -> Scalar:
    """Log p(θ) + log p(y | θ) up to a constant (equations 19 and 43); unless told, nothing of h is known.

    ``projection`` is the model's covariance at the inputs of the evidence, which serves all θ.
    """
    latent = theta[: model.latent_basis.points.shape[1]] if known is None else _latent_at(theta, known)
    noise = noise_at(theta, prior)
    features = model.latent_basis.features(latent[None])[0]  # c(h)
    prior_variance = model.latent_basis.kernel.evaluate(latent, latent)
    mean = seen.features @ (model.mean @ features)
    covariance = (
        prior_variance * seen.gram + projection.at(features) - (features @ features) * (seen.features @ seen.features.T)
    )
    factor = seen.factor(covariance, noise)
    likelihood = log_density(seen.values - mean, factor)
    # What compression left out: −½ [(n − m) log 2πσ² + (‖y‖² − ‖Qᵀy‖² + k_H(h, h) tr(K − AAᵀ))/σ²]
    left_out = seen.excess_squares + prior_variance * seen.residual
    likelihood -= (seen.excess_count * (LOG_2PI + jnp.log(noise)) + left_out / noise) / 2
    return likelihood - theta @ theta / 2


class _Mixture(NamedTuple):
    # A Gaussian mixture over θ; the last component is the prior.
    log_shares: Float[Array, " K"]
    means: Float[Array, "K T"]
    factors: Float[Array, "K T T"]

    def component_log_densities(self, thetas: Float[Array, "P T"]) -> Float[Array, "P K"]:
        """Log N(θ; μ_k, Σ_k)."""
        return jax.vmap(
            lambda theta: jax.vmap(lambda mean, factor: log_density(theta - mean, factor))(self.means, self.factors)
        )(thetas)

    def draw(self, nodes: Float[Array, "P cube"]) -> Float[Array, "P T"]:
        """Push quasi-random points of the unit cube through the mixture; the first coordinate picks the component."""
        ends = jnp.cumsum(jnp.exp(self.log_shares))
        chosen = jnp.minimum(jnp.searchsorted(ends, nodes[:, 0]), len(ends) - 1)
        return self.means[chosen] + jnp.einsum("pij,pj->pi", self.factors[chosen], ndtri(nodes[:, 1:]))


@lru_cache(maxsize=32)
def unit_nodes(n_points: int, n_dimensions: int) -> HostFloat:
    """Quasi-random points of the unit cube, the same in every call."""
    if n_dimensions == 0:
        return np.empty((n_points, 0))
    # Scrambled with a fixed seed: deterministic, and never exactly 0 or 1.
    nodes = qmc.Sobol(n_dimensions, scramble=True, rng=np.random.default_rng(0)).random(n_points)
    return np.clip(nodes, 1e-10, 1 - 1e-10)


def normal_nodes(n_points: int, n_dimensions: int) -> HostFloat:
    """Quasi-random standard normal points, the same in every call."""
    return np.asarray(ndtri(unit_nodes(n_points, n_dimensions)))


def starting_points(model: Posterior, prior: NoisePrior, known: KnownLatents) -> HostFloat:
    """Where the search starts: trained latents and points of the prior, with the mean noise where that is sought."""
    unknown = np.asarray(known.unknown)
    trained = np.asarray(model.parameters.latents.mean)[:, unknown]
    trained = trained[:: -(-len(trained) // SEARCH.most_trained_starts)]
    starts = np.vstack([trained, normal_nodes(SEARCH.n_prior_starts, len(unknown))])
    return np.pad(starts, ((0, 0), (0, 0 if prior.shared else 1)))


def infer(model: Posterior, seen: Evidence, known: KnownLatents | None = None) -> ConditionPosterior:
    """Posterior of a new condition given its evidence; with none, the prior over what is not known of it."""
    known = known_latents(model, None) if known is None else known
    prior = noise_prior(model)
    starts = starting_points(model, prior, known)
    n_theta = starts.shape[1]
    dtype = model.mean.dtype
    if n_theta == 0:  # all is known: a single particle
        return condition_on(model, seen, known.values[None], jnp.exp(prior.mean)[None], jnp.zeros(1, dtype))
    particles = _particles(
        model,
        seen,
        prior,
        known,
        jnp.asarray(starts, dtype),
        jnp.asarray(unit_nodes(SEARCH.n_scouts, 1 + n_theta), dtype),
        jnp.asarray(unit_nodes(SEARCH.n_particles, 1 + n_theta), dtype),
    )
    # By the program that reading a file runs too, so that a model read is the same bit for bit.
    return condition_on(model, seen, *particles)


@compiled
def _particles(
    model: Posterior,
    seen: Evidence,
    prior: NoisePrior,
    known: KnownLatents,
    starts: Float[Array, "S T"],
    scout_nodes: Float[Array, "P0 cube"],
    nodes: Float[Array, "P cube"],
) -> tuple[Float[Array, "P Q_H"], Float[Array, " P"], Float[Array, " P"]]:
    # Latents, noise and log weights.
    projection = model.covariance.projection(seen.features)

    def target(theta: Float[Array, " T"]) -> Scalar:
        return log_posterior(theta, model, seen, projection, prior, known)

    # Many points leave little doubt about where the latents are, and cost more each.
    n_starts = SEARCH.n_starts if seen.values.shape[0] <= SEARCH.many_points else SEARCH.n_starts_of_many_points
    thetas, log_weights = weighted_points(target, chosen_starts(target, starts, n_starts), scout_nodes, nodes, SEARCH)
    latents = jax.vmap(lambda theta: _latent_at(theta, known))(thetas)
    noise = jax.vmap(lambda theta: noise_at(theta, prior))(thetas)
    return latents, noise, jax.nn.log_softmax(log_weights)


def weighted_points(
    target: Target,
    starts: Float[Array, "K T"],
    scout_nodes: Float[Array, "P0 cube"],
    nodes: Float[Array, "P cube"],
    search: Search,
) -> tuple[Float[Array, "P T"], Float[Array, " P"]]:
    """Points θ with log target(θ)/r(θ), r being a mixture of local Gaussians and the prior (equation 20)."""
    proposal = _local_gaussians(target, starts, search)
    # One round of scouts tells which local Gaussians carry the mass (one step of expectation-maximisation).
    scouts = proposal.draw(scout_nodes)
    log_weights, responsibilities = _importance(target, proposal, scouts)
    shares = jax.nn.softmax(log_weights) @ responsibilities
    shares = shares.at[-1].set(jnp.maximum(shares[-1], search.prior_share)) + 1e-4
    proposal = proposal._replace(log_shares=jnp.log(shares / jnp.sum(shares)))
    thetas = proposal.draw(nodes)
    return thetas, _importance(target, proposal, thetas)[0]


def chosen_starts(target: Target, starts: Float[Array, "S T"], n_wanted: int) -> Float[Array, "K T"]:
    """Of many starts the best, for half of those wanted; the other half spread over the rest."""
    order = jnp.argsort(-jax.vmap(target)(starts))
    n_best = min(n_wanted // 2, starts.shape[0])
    spread = np.unique(np.linspace(n_best, starts.shape[0] - 1, n_wanted - n_best).astype(int))
    return starts[order[np.r_[np.arange(n_best), spread]]]


class _Peak(NamedTuple):
    # A point on its way up, its height, and eigenvalues with eigenvectors of the curvature there.
    theta: Float[Array, " T"]
    height: Scalar
    values: Float[Array, " T"]
    vectors: Float[Array, "T T"]


def _peak_near(target: Target, start: Float[Array, " T"], search: Search) -> _Peak:
    # Newton steps, each the best of several lengths. Derivatives appear once, for the sake of the time to compile.
    def gradient_twice(theta: Float[Array, " T"]) -> tuple[Array, Array]:
        gradient = jax.grad(target)(theta)
        return gradient, gradient

    def visit(number: Array, peak: _Peak) -> _Peak:
        hessian, gradient = jax.jacfwd(gradient_twice, has_aux=True)(peak.theta)
        values, vectors = jnp.linalg.eigh(-hessian)
        values = jnp.maximum(jnp.abs(values), 1.0)  # never wider than the prior
        step = vectors @ ((vectors.T @ gradient) / values)
        step = step / jnp.maximum(jnp.linalg.norm(step), 1.0)
        tries = jnp.stack([peak.theta, *(peak.theta + fraction * step for fraction in search.step_fractions)])
        heights = jax.vmap(target)(tries)
        best = jnp.argmax(jnp.where(jnp.isfinite(heights), heights, -jnp.inf))
        chosen = jnp.where(number < search.newton_steps, best, 0)  # the last visit only looks
        return _Peak(tries[chosen], heights[chosen], values, vectors)

    begin = _Peak(start, jnp.zeros((), start.dtype), jnp.zeros_like(start), jnp.zeros((len(start),) * 2, start.dtype))
    return jax.lax.fori_loop(0, search.newton_steps + 1, visit, begin)


def _local_gaussians(target: Target, starts: Float[Array, "K T"], search: Search) -> _Mixture:
    n_theta = starts.shape[1]
    means, heights, values, vectors = jax.vmap(lambda start: _peak_near(target, start, search))(starts)
    factors = vectors * jnp.sqrt(search.widening / values)[:, None, :]
    factors = jax.vmap(lambda factor: jnp.linalg.qr(factor.T)[1].T)(factors)  # lower triangular, same FFᵀ
    factors = factors * jnp.sign(jnp.diagonal(factors, axis1=1, axis2=2))[:, None, :]
    # Square-rooted evidence of each local Gaussian: peaks lead, but none takes all before it is scouted.
    evidences = heights - jnp.sum(jnp.log(values), axis=1) / 2
    log_shares = jax.nn.log_softmax(evidences / 2)
    prior_mean, prior_factor = jnp.zeros((1, n_theta), means.dtype), jnp.eye(n_theta, dtype=means.dtype)[None]
    return _Mixture(
        jnp.append(log_shares + jnp.log(1 - search.prior_share), jnp.log(search.prior_share)),
        jnp.concatenate([means, prior_mean]),
        jnp.concatenate([factors, prior_factor]),
    )


def _importance(
    target: Target, proposal: _Mixture, thetas: Float[Array, "P T"]
) -> tuple[Float[Array, " P"], Float[Array, "P K"]]:
    # Log weights, and how much of each point belongs to each component of the proposal.
    joint = proposal.component_log_densities(thetas) + proposal.log_shares
    log_proposal = logsumexp(joint, axis=1)
    heights = jax.vmap(target)(thetas)
    log_weights = jnp.where(jnp.isfinite(heights), heights, -jnp.inf) - log_proposal
    return log_weights, jnp.exp(joint - log_proposal[:, None])


def _condition_on(
    model: Posterior,
    seen: Evidence,
    latents: Float[Array, "P Q_H"],
    noise: Float[Array, " P"],
    log_weights: Float[Array, " P"],
) -> ConditionPosterior:
    """Curves at weighted latents, each conditioned on the evidence."""
    shapes = curves_at(model, latents)

    def one_particle(weights: Array, spread: Array, prior_variance: Array, variance: Array) -> tuple[Array, Array]:
        covariance = prior_variance * seen.gram + seen.features @ spread @ seen.features.T
        factor = seen.factor(covariance, variance)
        residual = seen.values - seen.features @ weights
        return factor, jax.scipy.linalg.cho_solve((factor, True), residual)

    factor, solution = jax.vmap(one_particle)(shapes.weights, shapes.spread, shapes.prior_variance, noise)
    return ConditionPosterior(latents, noise, log_weights, shapes, seen, factor, solution)


condition_on = compiled(_condition_on)


def block_components(
    input_basis: Basis, condition: ConditionPosterior, inputs: Float[Array, "B b Q_X"]
) -> tuple[Float[Array, "B P b"], Float[Array, "B P b"]]:
    """Mean and variance of f at blocks of inputs under each particle (equation 22)."""
    seen = condition.evidence

    def one_block(points: Float[Array, "b Q_X"]) -> tuple[Array, Array]:
        features = input_basis.features(points)
        own = diagonal(input_basis.kernel, points)
        to_evidence = seen.cross_gram(input_basis, points)

        def one_particle(shape: Curves, factor: Array, solution: Array) -> tuple[Array, Array]:
            spread_features = features @ shape.spread
            covariance = shape.prior_variance * to_evidence + spread_features @ seen.features.T
            mean = features @ shape.weights + covariance @ solution
            prior = shape.prior_variance * own
            explained = jnp.sum(whiten(factor, covariance.T) ** 2, axis=0)
            variance = prior + jnp.sum(spread_features * features, axis=1) - explained
            return mean, positive_part(variance, prior)

        return jax.vmap(one_particle)(condition.curves, condition.factor, condition.solution)

    return jax.lax.map(one_block, inputs)


components = compiled(block_components)


def in_blocks(inputs: HostFloat) -> HostFloat:
    """Rows padded and reshaped to (B, b, Q_X), in few different shapes."""
    size = min(_POINTS_AT_ONCE, 1 << max(len(inputs) - 1, 0).bit_length())
    n_blocks = rounded_up(-(-len(inputs) // size))
    padded = np.pad(inputs, ((0, n_blocks * size - len(inputs)), (0, 0)), mode="edge")
    return padded.reshape(n_blocks, size, inputs.shape[1])
