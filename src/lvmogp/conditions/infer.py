"""The posterior of a new condition from a few observations, with the trained model fixed.

Given h and a process, the observations are Gaussian, y | h ~ N(m(X), κ_h(X, X) + σ²I) (docs/mathematics.md, equations
18 to 22 and 39), so that p(h | y) can be evaluated exactly, and is often multimodal. It is represented by weighted
particles under each process; processes that expected the observations count for more (equation 40).

Where noise is per condition, log σ² of the new one joins the latents, and so does log ρ² of its own curve; θ = (h, z)
collects them, z being standard normal a priori. Coordinates of h that are known from the condition's features are no
part of θ (equation 43).

The paper's own answer is here too: the one Gaussian over the latents that maximises the bound (equation 21).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from scipy.special import ndtri

from lvmogp.algebra.constraints import positive
from lvmogp.algebra.gaussians import LOG_2PI, kl_to_standard_normal, log_density
from lvmogp.conditions.condition import (
    MOST_PARTICLES,
    Condition,
    KnownLatents,
    condition_of_gaussian,
    condition_of_particles,
)
from lvmogp.conditions.curves import MOST_EXACT, FewObservations, compressed
from lvmogp.conditions.ensemble import ClosedForm, Ensemble, NoisePrior, chunks, of_processes
from lvmogp.conditions.search import (
    Search,
    Target,
    chosen_starts,
    normal_nodes,
    shifted,
    unit_nodes,
    weighted_points,
)
from lvmogp.ground.compiling import compiled
from lvmogp.ground.padding import doubled
from lvmogp.inference.optimise import maximise
from lvmogp.kernels.psi_statistics import LatentGaussians
from lvmogp.model.posterior import Posterior, curve_moments, marginals
from lvmogp.model.process import Process, at_inputs
from lvmogp.typing import Array, Float, HostFloat, Scalar

# One process is searched thoroughly; of many, errors average out.
SEARCH = Search()
_BRIEF_SEARCH = Search(n_scouts=0, n_starts=6, newton_steps=8, n_prior_starts=32, most_trained_starts=32)
_PARTICLES_OF_ALL, _FEWEST_EACH, _MOST_EACH = 2**14, 32, 512
# The search for one Gaussian: how many starts, how wide each, how long and how exact.
_N_STARTS = 8
_START_VARIANCE = 0.1
_MOST_ITERATIONS, _LEAST_GAIN = 200, 1e-4
_NEVER_TRAINED = (-1, -1)


def latent_and_noise(
    theta: Float[Array, " T"], known: KnownLatents, prior: NoisePrior
) -> tuple[Float[Array, " Q_H"], Scalar, Scalar]:
    """Return the coordinates, σ² and ρ² of a condition at θ = (h, z); the noise may be one of all."""
    n_unknown = known.unknown.shape[0]
    return known.filled(theta[:n_unknown]), *prior.at(theta[n_unknown:])


def log_posterior(process: Process, seen: FewObservations, known: KnownLatents, prior: NoisePrior) -> Target:
    """Return log p(θ) + log p(y | θ) as a function of θ, up to a constant (equations 19, 40 and 43)."""
    explained, inputs = at_inputs(process.explained, seen.features(process))
    gram = seen.gram_with(process, seen)

    def target(theta: Float[Array, " T"]) -> Scalar:
        latent, noise, own = latent_and_noise(theta, known, prior)
        features, scale = process.latents(latent[None])[0], process.scales(latent, own)  # c(h), k_H(h, h) and ρ²
        covariance = jnp.tensordot(scale, gram, axes=1)
        covariance -= explained.covariance(inputs, features, inputs, features, _NEVER_TRAINED)
        factor = seen.factor(covariance, noise)
        likelihood = log_density(seen.values - explained.mean(inputs, features), factor)
        if seen.compressed is not None:
            # What compression left out: −½ [(n − m) log 2πσ² + (‖y‖² − ‖Qᵀy‖² + k_H(h, h) tr(K − AAᵀ))/σ²]
            left_out = seen.compressed.excess_squares + scale @ seen.compressed.residual
            likelihood -= (seen.compressed.excess_count * (LOG_2PI + jnp.log(noise)) + left_out / noise) / 2
        return likelihood - theta @ theta / 2

    return target


def starting_points(ensemble: Ensemble, known: KnownLatents, search: Search) -> Float[Array, "S starts T"]:
    """Return where the search starts: trained latents and points of the prior, with the mean noise where sought."""
    every = -(-ensemble.latents.shape[1] // search.most_trained_starts)
    trained = ensemble.latents[:, ::every][..., known.unknown]
    n_unknown = trained.shape[2]
    prior = jnp.asarray(normal_nodes(search.n_prior_starts, n_unknown), ensemble.dtype)
    spread = jnp.broadcast_to(prior, (ensemble.n_processes, *prior.shape))
    n_noise = ensemble.noise_prior.n_unknown
    return jnp.pad(jnp.concatenate([trained, spread], axis=1), ((0, 0), (0, 0), (0, n_noise)))


def infer(ensemble: Ensemble, seen: FewObservations, known: KnownLatents) -> Condition:
    """Infer a condition from its observations and features; without observations it is as the prior says."""
    n_theta = known.unknown.shape[0] + ensemble.noise_prior.n_unknown
    if seen.n_present == 0:
        return _from_prior(ensemble, known, seen, n_theta)
    seen = summarised(ensemble, seen) if n_theta else seen
    search = SEARCH
    if ensemble.n_processes > 1:
        search = _BRIEF_SEARCH._replace(n_particles=_particles_each(ensemble.n_processes))
    nodes = jnp.asarray(unit_nodes(max(search.n_scouts, search.n_particles), 1 + n_theta), ensemble.dtype)
    starts, shifts = starting_points(ensemble, known, search), _shifts(ensemble, 1 + n_theta)
    found = []
    for some, processes in chunks(ensemble):
        given = of_processes((ensemble.noise_prior, starts, shifts), some)
        found.append(_inferred(processes, given, seen, known, nodes, search))
    latents, noise, own, log_weights = (jnp.concatenate(parts) for parts in zip(*found, strict=True))
    joint = ensemble.log_weights[:, None] + log_weights
    return condition_of_particles(ensemble, latents, noise, own, joint - logsumexp(joint), seen)


def summarised(ensemble: Ensemble, seen: FewObservations) -> FewObservations:
    """Return observations as they are used: many of them are compressed where one process serves all latents."""
    if ensemble.fit is None or ensemble.processes is None:
        return seen
    if seen.n_present <= max(MOST_EXACT, sum(ensemble.processes.inputs.sizes)):  # fewer than features: nothing saved
        return seen
    typical = np.exp(np.mean(np.log(np.asarray(ensemble.noise, dtype=float))))
    return compressed(ensemble.processes, seen, jnp.asarray(typical, ensemble.dtype))


def _particles_each(n_processes: int) -> int:
    return int(np.clip(_PARTICLES_OF_ALL // doubled(n_processes), _FEWEST_EACH, _MOST_EACH))


def _shifts(ensemble: Ensemble, n_dimensions: int) -> Float[Array, "S cube"]:
    # Each of many processes moves the quasi-random points by an amount of its own, so that their errors average out.
    n_processes = ensemble.n_processes
    if n_processes == 1:
        return jnp.zeros((1, n_dimensions), ensemble.dtype)
    return jnp.asarray(unit_nodes(doubled(n_processes), n_dimensions)[:n_processes], ensemble.dtype)


@compiled
def _inferred(
    processes: Process,
    of_processes: tuple[NoisePrior, Float[Array, "S starts T"], Float[Array, "S cube"]],
    seen: FewObservations,
    known: KnownLatents,
    nodes: Float[Array, "P cube"],
    search: Search,
) -> tuple[Float[Array, "S K Q_H"], Float[Array, "S K"], Float[Array, "S K"], Float[Array, "S K"]]:
    """Return latents, σ², ρ² and log p(y, θ)/r(θ) of K points under each process."""
    # Many points leave little doubt about where the latents are, and cost more each.
    few_points = seen.values.shape[0] <= search.many_points
    n_starts = search.n_starts if few_points else min(search.n_starts, search.n_starts_of_many_points)

    def one_process(given: tuple[Process, NoisePrior, Array, Array]) -> tuple[Array, Array, Array, Array]:
        process, prior, starts, shift = given
        target = log_posterior(process, seen, known, prior)
        if starts.shape[1] == 0:  # nothing is left to be found, but observations tell processes apart (equation 40)
            thetas, log_weights = starts[:1], jax.vmap(target)(starts[:1])
            log_weights = jnp.where(jnp.isfinite(log_weights), log_weights, -jnp.inf)
        else:
            best = chosen_starts(target, starts, n_starts)
            thetas, log_weights = weighted_points(target, best, shifted(nodes, shift), search)
        return *jax.vmap(lambda theta: latent_and_noise(theta, known, prior))(thetas), log_weights

    return jax.lax.map(one_process, (processes, *of_processes))


def _from_prior(ensemble: Ensemble, known: KnownLatents, seen: FewObservations, n_theta: int) -> Condition:
    # Well spread under each process, and moved by an amount of its own, so that those of all are too.
    prior, n_processes = ensemble.noise_prior, ensemble.n_processes
    n_each = -(-MOST_PARTICLES // n_processes) if n_theta else 1
    nodes = jnp.asarray(unit_nodes(doubled(n_each), n_theta)[:n_each])
    moved = shifted(nodes, jnp.asarray(_shifts(ensemble, n_theta)[:, None], nodes.dtype))
    thetas = jnp.asarray(ndtri(np.asarray(moved)), ensemble.dtype)
    of_process = jax.vmap(latent_and_noise, in_axes=(0, None, None))
    latents, noise, own = jax.vmap(of_process, in_axes=(0, None, 0))(thetas, known, prior)
    log_weights = jnp.broadcast_to(ensemble.log_weights[:, None] - np.log(n_each), noise.shape)
    return condition_of_particles(ensemble, latents, noise, own, log_weights, seen)


# The one Gaussian of the paper


class _Candidate(eqx.Module):
    # q(h) over the coordinates that are not known, and the standardised log noise.
    mean: Float[Array, " U"]
    noise_deviation: Scalar
    variance: Float[Array, " U"] = positive()
    fixed: tuple[str, ...] = eqx.field(static=True, default=())


_Setting = tuple[Posterior, FewObservations, NoisePrior, KnownLatents]


def _bound(candidate: _Candidate, setting: _Setting) -> Scalar:
    # −½ Σ_n [log 2πσ_n² + ((y_n − aᵀw)² + aᵀΓa + ψ k(x, x))/σ_n²] − KL(q(h) ‖ p(h)), equation 21; the divergence is
    # that of the coordinates that are not known.
    model, seen, prior, known = setting
    curve, first = curve_moments(model, _latents(candidate, known)), jnp.zeros(1, int)
    mean, variance = marginals(model.input_basis, curve, seen.inputs[None], first)
    own_noise = prior.at(candidate.noise_deviation[None])[0]
    noise = jnp.where(seen.present > 0, own_noise + seen.error_variances, 1.0)
    squares = (seen.values - mean[0]) ** 2 + variance[0]
    fit = -jnp.sum(seen.present * (LOG_2PI + jnp.log(noise) + squares / noise)) / 2
    log_noise_prior = -(candidate.noise_deviation**2) / 2
    return fit + log_noise_prior - kl_to_standard_normal(candidate.mean, candidate.variance)


_compiled_bound = compiled(_bound)


def _latents(candidate: _Candidate, known: KnownLatents) -> LatentGaussians:
    variance = known.filled(candidate.variance, fill=0.0)
    return LatentGaussians(known.filled(candidate.mean)[None], variance[None], known.n_uncertain)


def infer_gaussian(ensemble: Ensemble, fit: ClosedForm, seen: FewObservations, known: KnownLatents) -> Condition:
    """Maximise the bound over q(h) from the trained latents that explain the observations best and from the prior."""
    shared, unknown = ensemble.noise_prior.shared, np.asarray(known.unknown)
    prior = NoisePrior(ensemble.noise_prior.mean[0], ensemble.noise_prior.deviation[0], None, shared)
    setting = (fit.posterior, seen, prior, known)
    candidates = np.vstack([np.asarray(ensemble.latents[0])[:, unknown], normal_nodes(_N_STARTS, len(unknown))])

    def at(mean: HostFloat) -> _Candidate:
        return _Candidate(
            mean=jnp.asarray(mean, ensemble.dtype),
            noise_deviation=jnp.zeros((), ensemble.dtype),
            variance=jnp.full(len(unknown), _START_VARIANCE, ensemble.dtype),
            fixed=("noise_deviation",) if shared else (),
        )

    best = at(candidates[0])
    if len(unknown) or not shared:
        heights = [float(_compiled_bound(at(mean), setting)) for mean in candidates]
        chosen = candidates[np.argsort(heights)[::-1][:_N_STARTS]]
        runs = [
            maximise(_bound, at(mean), setting, max_iterations=_MOST_ITERATIONS, tolerance=_LEAST_GAIN)
            for mean in chosen
        ]
        best = max(runs, key=lambda run: run.bound).tree
    return condition_of_gaussian(ensemble, _latents(best, known), *prior.at(best.noise_deviation[None]))
