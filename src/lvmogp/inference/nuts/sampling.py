"""From a variational fit to draws from the posterior, with an account of how they were found."""

import dataclasses
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.algebra.constraints import FreeStructure, split
from lvmogp.ground.compiling import compiled
from lvmogp.inference.nuts.chains import FEW_OBSERVATIONS, Chain, SamplerSettings, Target, run_chains
from lvmogp.inference.nuts.diagnostics import SamplingDiagnostics, agreement, chain_weights, diagnostics
from lvmogp.inference.nuts.likelihoods import fitted_values
from lvmogp.inference.nuts.parameters import ChainParameters, OwnNoise, Priors, chain_parameters
from lvmogp.inference.restarts import SAMPLING, Progress, Report
from lvmogp.kernels.covariances import Kernel, gram
from lvmogp.model.draws import Draws, NoiseSpread
from lvmogp.model.layouts import Data, GridData, SparseData, likelihood_data
from lvmogp.model.parameters import Parameters
from lvmogp.typing import Array, Float, Int

# Guesses of the posterior variance of the logarithms of hyperparameters, and of ε_d of noise variances.
_LOG_VARIANCE = 0.05
_DEVIATION_VARIANCE = 0.5
# Observations and pairs of conditions whose values are followed.
_MOST_FOLLOWED = 64


def sample_posterior(
    starts: Sequence[Parameters],
    data: Data,
    priors: Priors,
    settings: SamplerSettings,
    on_progress: Report = None,
) -> tuple[Draws | None, SamplingDiagnostics]:
    """Draw from the posterior of latents and hyperparameters, given data in standardised units.

    Chains start from variational fits, the best one first, whose inducing points serve where the likelihood is sparse.
    ``on_progress`` is called about once a second; it may raise :class:`lvmogp.StopFit` to end with the draws so far. If
    there are none, ``None`` takes their place.
    """
    began = time.perf_counter()
    _, fixed_leaves, structure = split(chain_parameters(starts[0], starts[0].latent_mean))
    target = Target(likelihood_data(data, starts[0]), fixed_leaves, structure, priors)
    vectors, variances = [], []
    for number in range(settings.n_chains):
        start = starts[number % len(starts)]
        vectors.append(split(_drawn(start, np.random.default_rng([settings.seed, number])))[0])
        variances.append(_guessed_variances(start, structure))

    def report(chain: int, n_done: int, log_posterior: float) -> None:
        share = n_done / (settings.n_chains * settings.n_steps)
        where = (starts[0].latent_mean.shape[1], chain + 1, settings.n_chains, SAMPLING, n_done)
        if on_progress is not None:
            on_progress(Progress(*where, log_posterior, share))

    # Every other chain, so that half of them start from the fit all the same.
    tempered = range(1, settings.n_chains, 2) if data.n_observations <= FEW_OBSERVATIONS else ()
    chains, completed = run_chains(
        target, jnp.stack(vectors), jnp.stack(variances), settings, report, tempered=tempered
    )
    return _gathered(target, chains, starts[0], settings, completed, time.perf_counter() - began)


def _drawn(parameters: Parameters, rng: np.random.Generator) -> ChainParameters:
    # A draw from q(H), so that chains start apart.
    def drawn(mean: Array, variance: Array) -> Array:
        noise = rng.standard_normal(mean.shape)
        return jnp.asarray(np.asarray(mean) + np.sqrt(np.asarray(variance)) * noise, mean.dtype)

    latents, known = drawn(parameters.latent_mean, parameters.latent_variance), parameters.known
    return chain_parameters(
        parameters, latents, None if known is None else drawn(known.missing_mean, known.missing_variance)
    )


def _guessed_variances(parameters: Parameters, structure: FreeStructure) -> Float[Array, " free"]:
    # A variance for each entry of the free vector: of latents those of q(H), which stand in their place.
    known = parameters.known
    scales = chain_parameters(parameters, parameters.latent_variance, None if known is None else known.missing_variance)
    guesses = jax.tree.map(lambda leaf: jnp.full(leaf.shape, _LOG_VARIANCE, scales.latents.dtype), scales)
    noise = guesses.noise
    if isinstance(noise, OwnNoise):
        noise = dataclasses.replace(noise, deviations=jnp.full_like(noise.deviations, _DEVIATION_VARIANCE))
    guesses = dataclasses.replace(guesses, latents=scales.latents, known=scales.known, noise=noise)
    pairs = zip(jax.tree.leaves(guesses), structure.declarations, strict=True)
    return jnp.concatenate([leaf.reshape(-1) for leaf, (_, fixed) in pairs if not fixed])


def _gathered(
    target: Target,
    by_number: dict[int, Chain],
    like: Parameters,
    settings: SamplerSettings,
    completed: bool,
    seconds: float,
) -> tuple[Draws | None, SamplingDiagnostics]:
    begun = [number for number, chain in by_number.items() if len(chain.trace.energy)]
    chains = [by_number[number] for number in begun]
    if not chains:
        return None, diagnostics([], np.empty(0), {}, settings, completed=False, seconds=seconds)
    lengths = [len(chain.trace.energy) for chain in chains]
    positions = jnp.asarray(np.concatenate([chain.trace.position for chain in chains]))
    weights = chain_weights(chains)
    log_weight = np.log(np.repeat(weights, lengths))
    draws = as_draws(
        _points(target, positions),
        like,
        chain=jnp.asarray(np.repeat(begun, lengths)),
        log_weight=jnp.asarray(log_weight - np.logaddexp.reduce(log_weight)),
    )
    followed = {"log posterior": np.concatenate([chain.trace.log_posterior for chain in chains])[:, None]}
    followed |= _followed(target, positions, len(like.latent_mean))
    # Chains × draws × numbers, as long as the shortest chain.
    by_chain = {
        name: np.stack([own[: min(lengths)] for own in np.split(np.asarray(values), np.cumsum(lengths)[:-1])])
        for name, values in followed.items()
    }
    found = agreement(by_chain, weights)
    return draws, diagnostics(chains, weights, found, settings, completed=completed, seconds=seconds)


def as_draws(
    points: ChainParameters, like: Parameters, *, chain: Int[Array, " draws"], log_weight: Float[Array, " draws"]
) -> Draws:
    """Return points with a leading axis of S draws as draws, whose kernels hold fixed what the user holds fixed."""

    def as_described(kernel: Kernel, described: Kernel) -> Kernel:
        return jax.tree.unflatten(jax.tree.structure(described), jax.tree.leaves(kernel))

    noise = points.noise
    return Draws(
        input_kernel=as_described(points.input_kernel, like.input_kernel),
        latent_kernel=as_described(points.latent_kernel, like.latent_kernel),
        latents=jax.vmap(lambda point: point.coordinates)(points),
        noise_variance=noise.variance,
        chain=chain,
        log_weight=log_weight,
        noise_spread=NoiseSpread(noise.median, noise.spread) if isinstance(noise, OwnNoise) else None,
    )


@compiled
def _points(target: Target, positions: Float[Array, "draws free"]) -> ChainParameters:
    return jax.vmap(target.parameters)(positions)


def _followed(target: Target, positions: Float[Array, "draws free"], n_conditions: int) -> dict[str, Array]:
    # Numbers that are the same however the latent space is turned, of some observations and pairs of conditions.
    layout = target.data.observed if isinstance(target.data, SparseData) else target.data
    present = np.ones(layout.outputs.size) if isinstance(layout, GridData) else np.asarray(layout.present)
    pairs = np.stack(np.triu_indices(n_conditions, 1), axis=1)
    followed = []
    for all_of in (np.flatnonzero(present), pairs):
        evenly = np.linspace(0, max(len(all_of) - 1, 0), min(_MOST_FOLLOWED, len(all_of)))
        followed.append(jnp.asarray(all_of[np.unique(evenly.round().astype(int))]))
    return _follow(target, positions, *followed)


@compiled
def _follow(
    target: Target, positions: Float[Array, "draws free"], places: Int[Array, " n"], pairs: Int[Array, "pairs 2"]
) -> dict[str, Array]:
    def follow(position: Float[Array, " free"]) -> dict[str, Array]:
        point = target.parameters(position)
        covariance = gram(point.latent_kernel, point.coordinates)
        return {
            "predictions": fitted_values(point, target.data).reshape(-1)[places],
            "latent kernel matrix": covariance[pairs[:, 0], pairs[:, 1]],
            "noise": jnp.log(point.noise.variance),
        }

    return jax.lax.map(follow, positions)
