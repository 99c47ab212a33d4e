"""The posterior of a new condition's latents given posterior draws of everything else.

Each draw is a model of its own, in which the latents of the new condition have a posterior and its observations a
probability; draws that expected the observations count for more (docs/mathematics.md, equation 40). The latents are
searched for in every draw as :mod:`lvmogp.conditions.new_condition` does it in one model, with fewer points.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from scipy.special import ndtr, ndtri

from lvmogp.algebra.gaussians import log_density
from lvmogp.conditions.drawn_curves import Few, Members, few
from lvmogp.conditions.drawn_model import DrawnModel, chunks
from lvmogp.conditions.known_latents import KnownLatents
from lvmogp.conditions.new_condition import (
    NoisePrior,
    Search,
    Target,
    chosen_starts,
    noise_at,
    normal_nodes,
    unit_nodes,
    weighted_points,
)
from lvmogp.ground.compiling import compiled
from lvmogp.ground.padding import rounded_up
from lvmogp.kernels.covariances import gram
from lvmogp.model.process import Conditional
from lvmogp.typing import Array, Float, HostFloat, HostInt, Scalar

MOST_MEMBERS = 512
_SEARCH = Search(n_starts=6, newton_steps=8, n_prior_starts=32, most_trained_starts=32)
_PARTICLES, _FEWEST_PARTICLES, _MOST_PARTICLES = 2**14, 32, 512  # of all draws, and of each
# Members of conditions with many observations: each costs their cube.
_FEWEST_MEMBERS, _MANY_OBSERVATIONS = 64, 64


class DrawnCondition(eqx.Module):
    """A new condition as weighted particles, K in each draw, in the coordinates of the draw, and aligned.

    ``log_weights`` are those of draw and particle together: the weights add up to one over both.
    """

    latents: Float[Array, "S K Q_H"]
    aligned: Float[Array, "S K Q_H"]
    noise: Float[Array, "S K"]
    log_weights: Float[Array, "S K"]
    seen: Few

    @property
    def weights(self) -> HostFloat:
        """Weight of each particle of each draw."""
        return np.exp(np.asarray(self.log_weights, dtype=float))

    @property
    def latent_mean(self) -> Float[Array, " Q_H"]:
        """Posterior mean of the aligned latents."""
        return jnp.einsum("sk,skq->q", jnp.exp(self.log_weights), self.aligned)

    @property
    def latent_variance(self) -> Float[Array, " Q_H"]:
        """Posterior variance of each aligned latent."""
        return jnp.einsum("sk,skq->q", jnp.exp(self.log_weights), (self.aligned - self.latent_mean) ** 2)


def drawn_condition(
    model: DrawnModel,
    latents: Float[Array, "S K Q_H"],
    noise: Float[Array, "S K"],
    log_weights: Float[Array, "S K"],
    seen: Few,
) -> DrawnCondition:
    """Particles in the coordinates of their draws, aligned as the draws are."""
    return DrawnCondition(latents, latents @ model.rotations, noise, log_weights, seen)


def trained_under_draws(model: DrawnModel, number: int, *, n_columns: int) -> DrawnCondition:
    """A trained condition in the same terms: one particle in each draw, which knows its observations already."""
    latents, noise = model.draws.latents[:, [number]], model.noise[:, [number]]
    nothing = few(np.empty((0, n_columns)), np.empty(0))
    return drawn_condition(model, latents, noise, model.draws.log_weight[:, None], nothing)


def infer_under_draws(model: DrawnModel, seen: Few, known: KnownLatents) -> DrawnCondition:
    """Posterior of a new condition given its observations and features; without the former, the prior of each draw."""
    n_observed = int(np.sum(np.asarray(seen.present)))
    prior = _noise_priors(model)
    known = eqx.tree_at(lambda tree: tree.values, known, known.values.astype(model.draws.latents.dtype))
    n_theta = len(known.unknown) + (not prior.shared)
    if n_observed == 0 or n_theta == 0:
        found = _from_prior(model, prior, known, seen)
        return found if n_observed == 0 else _reweighted(model, prior, known, found)
    nodes = jnp.asarray(unit_nodes(_particles_each(model.n_draws), 1 + n_theta))
    # Each draw moves the quasi-random points by an amount of its own, so that their errors average out over draws.
    shifts = jnp.asarray(unit_nodes(_padded(model.n_draws), 1 + n_theta)[: model.n_draws])
    starts = _starts(model, known, n_theta)
    found = []
    for some, conditionals in chunks(model):
        of_draws = jax.tree.map(lambda leaf, some=some: leaf[some], (prior, starts, shifts))
        found.append(_infer(conditionals, of_draws, seen, known, nodes))
    latents, noise, log_weights = (jnp.concatenate(parts) for parts in zip(*found, strict=True))
    joint = model.draws.log_weight[:, None] + log_weights
    return drawn_condition(model, latents, noise, joint - logsumexp(joint), seen)


def _noise_priors(model: DrawnModel) -> NoisePrior:
    # log σ² of a new condition under each draw: as the draw says that those of all conditions are spread.
    log_noise, spread = jnp.log(model.draws.noise_variance), model.draws.noise_spread
    if log_noise.shape[1] == 1:
        return NoisePrior(log_noise[:, 0], jnp.zeros_like(log_noise[:, 0]), shared=True)
    if spread is None:  # of a file that was written before draws kept it
        return NoisePrior(jnp.mean(log_noise, axis=1), jnp.std(log_noise, axis=1), shared=False)
    return NoisePrior(jnp.log(spread.median), spread.deviation, shared=False)


def _particles_each(n_draws: int) -> int:
    return int(np.clip(_PARTICLES // _padded(n_draws), _FEWEST_PARTICLES, _MOST_PARTICLES))


def _padded(n_points: int) -> int:
    return 1 << max(n_points - 1, 0).bit_length()  # what Sobol's points are balanced for


def _from_prior(model: DrawnModel, prior: NoisePrior, known: KnownLatents, seen: Few) -> DrawnCondition:
    n_unknown, n_draws = len(known.unknown), model.n_draws
    n_theta = n_unknown + (not prior.shared)
    n_each = -(-MOST_MEMBERS // n_draws) if n_theta else 1
    thetas = jnp.asarray(_shifted_normals(n_draws, n_each, n_theta)) if n_theta else jnp.zeros((n_draws, n_each, 0))
    noise = _noises(thetas, prior)
    log_weights = jnp.broadcast_to(model.draws.log_weight[:, None] - np.log(n_each), noise.shape)
    latents = jax.vmap(jax.vmap(known.filled))(thetas[..., :n_unknown])
    return drawn_condition(model, latents, noise, log_weights, seen)


def _reweighted(model: DrawnModel, prior: NoisePrior, known: KnownLatents, condition: DrawnCondition) -> DrawnCondition:
    # Nothing of the condition itself is left to be found, but its observations tell draws apart (equation 40).
    evidence = [
        _log_evidence(conditionals, jax.tree.map(lambda leaf, some=some: leaf[some], prior), condition.seen, known)
        for some, conditionals in chunks(model)
    ]
    joint = condition.log_weights + jnp.concatenate(evidence)[:, None]
    return eqx.tree_at(lambda tree: tree.log_weights, condition, joint - logsumexp(joint))


@compiled
def _log_evidence(conditionals: Conditional, priors: NoisePrior, seen: Few, known: KnownLatents) -> Float[Array, " S"]:
    """Log p(y | draw) up to a constant, where θ has no coordinates."""

    def one_draw(draw: tuple[Conditional, NoisePrior]) -> Scalar:
        found = _log_posterior(draw[0], seen, known, draw[1])(jnp.zeros(0, seen.values.dtype))
        return jnp.where(jnp.isfinite(found), found, -jnp.inf)

    return jax.lax.map(one_draw, (conditionals, priors))


def _shifted_normals(n_draws: int, n_each: int, n_dimensions: int) -> HostFloat:
    # Well spread in each draw, and moved by an amount of its own, so that those of all draws are too.
    points, shifts = (unit_nodes(_padded(count), n_dimensions)[:count] for count in (n_each, n_draws))
    return np.asarray(ndtri(np.clip((points + shifts[:, None]) % 1, 1e-10, 1 - 1e-10)))


def _noises(thetas: Float[Array, "S K T"], prior: NoisePrior) -> Float[Array, "S K"]:
    return jax.vmap(lambda own, of_draw: jax.vmap(lambda theta: noise_at(theta, of_draw))(own))(thetas, prior)


def _starts(model: DrawnModel, known: KnownLatents, n_theta: int) -> Float[Array, "S starts T"]:
    # Latents of the draw's own conditions and points of the prior, with the mean noise where that is sought.
    trained = model.draws.latents[:, :: -(-model.draws.latents.shape[1] // _SEARCH.most_trained_starts)]
    trained = trained[..., known.unknown]
    n_latent = trained.shape[2]
    from_prior = jnp.asarray(normal_nodes(_SEARCH.n_prior_starts, n_latent))
    spread = jnp.broadcast_to(from_prior, (model.n_draws, *from_prior.shape))
    return jnp.pad(jnp.concatenate([trained, spread], axis=1), ((0, 0), (0, 0), (0, n_theta - n_latent)))


@compiled
def _infer(
    conditionals: Conditional,
    of_draws: tuple[NoisePrior, Float[Array, "S starts T"], Float[Array, "S cube"]],
    seen: Few,
    known: KnownLatents,
    nodes: Float[Array, "K cube"],
) -> tuple[Float[Array, "S K Q_H"], Float[Array, "S K"], Float[Array, "S K"]]:
    """Latents, noise and log p(y, θ)/r(θ) of K points in each draw."""

    def one_draw(draw: tuple[Conditional, NoisePrior, Array, Array]) -> tuple[Array, Array, Array]:
        process, prior, starts, shift = draw
        target = _log_posterior(process, seen, known, prior)
        own_nodes = jnp.clip((nodes + shift) % 1, 1e-10, 1 - 1e-10)
        thetas, log_weights = weighted_points(
            target, chosen_starts(target, starts, _SEARCH.n_starts), own_nodes, own_nodes, _SEARCH
        )
        n_latent = thetas.shape[1] - (not prior.shared)
        noise = jax.vmap(lambda theta: noise_at(theta, prior))(thetas)
        return jax.vmap(known.filled)(thetas[:, :n_latent]), noise, log_weights

    return jax.lax.map(one_draw, (conditionals, *of_draws))


def _log_posterior(process: Conditional, seen: Few, known: KnownLatents, prior: NoisePrior) -> Target:
    """Log p(θ) + log p(y | θ, draw) up to a constant that is the same for all draws (equation 40)."""
    inputs = process.input_features(seen.inputs) * seen.present[:, None]
    input_gram = gram(process.input_kernel, seen.inputs) * jnp.outer(seen.present, seen.present)

    def target(theta: Float[Array, " T"]) -> Scalar:
        n_latent = theta.shape[0] - (not prior.shared)
        latent, noise = known.filled(theta[:n_latent]), noise_at(theta, prior)
        features = process.latent_features(latent[None])[0]
        scale = process.latent_kernel.evaluate(latent, latent)
        covariance = scale * input_gram - process.explained(inputs, features, inputs, features)
        # Without jitter: a point whose covariance cannot be factorised is a point without weight.
        factor = jnp.linalg.cholesky(covariance + jnp.diag(seen.noise(noise)))
        return log_density(seen.values - process.mean(inputs, features), factor) - theta @ theta / 2

    return target


def members_of(condition: DrawnCondition, most_members: int = MOST_MEMBERS) -> tuple[Members, HostFloat]:
    """A bounded number of components that stand for all particles, with their weights.

    Where there are more, systematic resampling: every 1/P of the cumulated weight has its particle, in an order
    in which neighbours have similar latents.
    """
    n_observed = int(np.sum(np.asarray(condition.seen.present)))
    affordable = MOST_MEMBERS * _MANY_OBSERVATIONS // max(n_observed, _MANY_OBSERVATIONS)
    most = min(max(affordable, _FEWEST_MEMBERS), most_members)
    weights = condition.weights.reshape(-1)
    places = np.flatnonzero(weights > 0)
    if len(places) > most:
        order = _by_neighbourhood(np.asarray(condition.aligned).reshape(len(weights), -1))
        ends = np.cumsum(weights[order])
        drawn = np.searchsorted(ends, (np.arange(most) + 0.5) / most * ends[-1])
        places, counts = np.unique(order[drawn], return_counts=True)
        weights = counts / most
    else:
        weights = weights[places] / weights[places].sum()
    # Few different numbers of components, the last of them without weight, share few compiled programs.
    size = rounded_up(len(places))
    weights, places = np.pad(weights, (0, size - len(places))), np.resize(places, size)
    n_each = condition.noise.shape[1]
    latents = condition.latents.reshape(-1, condition.latents.shape[2])
    return Members(jnp.asarray(places // n_each), latents[places], condition.noise.reshape(-1)[places]), weights


def _by_neighbourhood(latents: HostFloat) -> HostInt:
    """An order of points along a curve that fills space (Morton's): their bits, one of each dimension in turn."""
    latents = latents[:, np.ptp(latents, axis=0) > 0]
    if latents.shape[1] == 0:
        return np.arange(len(latents))
    n_bits = min(8, 62 // latents.shape[1])
    cells = (ndtr(latents) * 2**n_bits).astype(np.int64).clip(0, 2**n_bits - 1)
    code = np.zeros(len(latents), dtype=np.int64)
    for bit in reversed(range(n_bits)):
        for dimension in range(latents.shape[1]):
            code = 2 * code + (cells[:, dimension] >> bit & 1)
    return np.argsort(code, kind="stable")
