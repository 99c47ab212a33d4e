"""From a variational fit to draws from the posterior, with an account of how they were found."""

import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.algebra.constraints import split
from lvmogp.ground.compiling import compiled
from lvmogp.inference.nuts.chains import FEW_OBSERVATIONS, Chain, SamplerSettings, Target, run_chains
from lvmogp.inference.nuts.diagnostics import Convergence, SamplingDiagnostics, agreement, chain_weights, diagnostics
from lvmogp.inference.nuts.likelihoods import fitted_values
from lvmogp.inference.nuts.parameters import ChainParameters, OwnNoise, Priors, chain_parameters
from lvmogp.inference.options import Options, or_default
from lvmogp.inference.restarts import SAMPLING, Progress, Report
from lvmogp.kernels.covariances import gram
from lvmogp.model.draws import Draws, NoiseSpread
from lvmogp.model.layouts import Data, GridData, SparseData, likelihood_data
from lvmogp.model.parameters import Parameters
from lvmogp.typing import Array, Float, HostFloat, Int

# Few data can be explained in many ways, of which each chain finds one, and steps are quick: many chains. Steps in
# which each learns how to move, and draws that it keeps; where chains are many, they need not be long.
_CHAINS_WITH_FEW_OBSERVATIONS, _CHAINS = 16, 4
_LONG_CHAINS, _SHORT_CHAINS = (300, 250), (160, 60)
# Guesses of the posterior variance of the logarithms of hyperparameters, and of ε_d of noise variances.
_LOG_VARIANCE = 0.05
_DEVIATION_VARIANCE = 0.5
# Observations and pairs of conditions whose values are followed.
_MOST_FOLLOWED = 64


def sampling_settings(options: Options, n_observations: int) -> tuple[Priors, SamplerSettings]:
    """Return what Markov chains need to know."""
    usual = _CHAINS_WITH_FEW_OBSERVATIONS if n_observations <= FEW_OBSERVATIONS else _CHAINS
    n_chains = or_default(options.n_chains, usual)
    n_warmup, n_draws = _LONG_CHAINS if n_chains < _CHAINS_WITH_FEW_OBSERVATIONS else _SHORT_CHAINS
    n_warmup, n_draws = or_default(options.n_warmup, n_warmup), or_default(options.n_draws, n_draws)
    return options.priors or Priors(), SamplerSettings(n_chains, n_warmup, n_draws, seed=options.random_state)


def sample_posterior(
    starts: Sequence[Parameters], data: Data, priors: Priors, settings: SamplerSettings, on_progress: Report = None
) -> tuple[Draws | None, SamplingDiagnostics]:
    """Draw from the posterior of latents and hyperparameters, given data in standardised units.

    Chains start from variational fits, the best one first, whose inducing points serve where the likelihood is sparse.
    ``on_progress`` is called about once a second; it may raise :class:`lvmogp.StopFit` to end with the draws so far. If
    there are none, ``None`` takes their place.
    """
    began = time.perf_counter()
    _, fixed_leaves, structure = split(chain_parameters(starts[0], starts[0].latent_mean))
    target = Target(likelihood_data(data, starts[0]), fixed_leaves, structure, priors)
    rngs = [np.random.default_rng([settings.seed, number]) for number in range(settings.n_chains)]
    begin = [_start(starts[number % len(starts)], target.places(), rng) for number, rng in enumerate(rngs)]
    vectors, variances = (jnp.stack(parts) for parts in zip(*begin, strict=True))

    def report(chain: int, n_done: int, log_posterior: float) -> None:
        share = n_done / (settings.n_chains * (settings.n_warmup + settings.n_draws))
        where = (starts[0].latent_mean.shape[1], chain + 1, settings.n_chains, SAMPLING, n_done)
        if on_progress is not None:
            on_progress(Progress(*where, log_posterior, share))

    # Every other chain, so that half of them start from the fit all the same.
    tempered = range(1, settings.n_chains, 2) if data.n_observations <= FEW_OBSERVATIONS else ()
    ended, completed = run_chains(target, vectors, variances, settings, report, tempered=tempered)
    begun = {number: chain for number, chain in ended.items() if len(chain.positions)}
    chains, draws, found = list(begun.values()), None, {}
    if chains:
        lengths = [len(chain.positions) for chain in chains]
        points = _points(target, jnp.asarray(np.concatenate([chain.positions for chain in chains])))
        log_weight = np.log(np.repeat(chain_weights(chains), lengths))
        log_weight = jnp.asarray(log_weight - np.logaddexp.reduce(log_weight))
        draws = as_draws(points, starts[0], chain=jnp.asarray(np.repeat([*begun], lengths)), log_weight=log_weight)
        found = _agreement(target, points, chains)
    return draws, diagnostics(chains, found, settings, completed=completed, seconds=time.perf_counter() - began)


def _start(parameters: Parameters, places: ChainParameters, rng: np.random.Generator) -> tuple[HostFloat, HostFloat]:
    # A draw from q(H), so that chains start apart, with a variance for each entry of the free vector.
    vector = np.array(split(chain_parameters(parameters, parameters.latent_mean))[0])
    variances = np.full(vector.shape, _LOG_VARIANCE)
    uncertain = [(places.latents, parameters.latent_variance)]
    if places.known is not None and parameters.known is not None:
        uncertain.append((places.known.missing_mean, parameters.known.missing_variance))
    for where, variance in uncertain:
        variances[where] = variance
        vector[where] += np.sqrt(variance) * rng.standard_normal(variance.shape)
    if isinstance(places.noise, OwnNoise):
        variances[places.noise.deviations] = _DEVIATION_VARIANCE
    if places.own is not None:
        variances[places.own.deviations] = _DEVIATION_VARIANCE
    return vector, variances


def as_draws(
    points: ChainParameters, like: Parameters, *, chain: Int[Array, " draws"], log_weight: Float[Array, " draws"]
) -> Draws:
    """Return points with a leading axis of S draws as draws, whose kernels hold fixed what the user holds fixed."""
    noise, own = points.noise, points.own
    return Draws(
        kernels=jax.tree.unflatten(jax.tree.structure(like.kernels), jax.tree.leaves(points.kernels)),
        latents=jax.vmap(lambda point: point.coordinates)(points),
        noise_variance=noise.variance,
        chain=chain,
        log_weight=log_weight,
        noise_spread=NoiseSpread(noise.median, noise.spread) if isinstance(noise, OwnNoise) else None,
        own_scale=None if own is None else own.scale,
        own_spread=None if own is None else own.spread,
    )


@compiled
def _points(target: Target, positions: Float[Array, "draws free"]) -> ChainParameters:
    return jax.vmap(target.parameters)(positions)


def _agreement(target: Target, points: ChainParameters, chains: list[Chain]) -> dict[str, Convergence]:
    # Of numbers that are the same however the latent space is turned, of some observations and pairs of conditions.
    layout = target.data.observed if isinstance(target.data, SparseData) else target.data
    present = np.ones(layout.outputs.size) if isinstance(layout, GridData) else np.asarray(layout.present)
    some = []
    for all_of in (np.flatnonzero(present), np.stack(np.triu_indices(points.latents.shape[1], 1), axis=1)):
        evenly = np.linspace(0, max(len(all_of) - 1, 0), min(_MOST_FOLLOWED, len(all_of)))
        some.append(jnp.asarray(all_of[np.unique(evenly.round().astype(int))]))
    log_posterior = np.concatenate([chain.statistics.log_posterior for chain in chains])[:, None]
    followed = {"log posterior": log_posterior, **_follow(target, points, *some)}
    # Chains × draws × numbers, as long as the shortest chain.
    lengths = [len(chain.positions) for chain in chains]
    by_chain = {
        name: np.stack([own[: min(lengths)] for own in np.split(np.asarray(values), np.cumsum(lengths)[:-1])])
        for name, values in followed.items()
    }
    return agreement(by_chain, chain_weights(chains))


@compiled
def _follow(
    target: Target, points: ChainParameters, places: Int[Array, " n"], pairs: Int[Array, "pairs 2"]
) -> dict[str, Array]:
    def follow(point: ChainParameters) -> dict[str, Array]:
        # Of all terms that tell conditions apart.
        covariances = [gram(kernel, point.coordinates)[pairs[:, 0], pairs[:, 1]] for kernel in point.kernels.of_latents]
        return {
            "predictions": fitted_values(point, target.data).reshape(-1)[places],
            "latent kernel matrix": jnp.concatenate([*covariances, jnp.zeros(0)]),
            "noise": jnp.log(point.noise.variance),
        }

    return jax.lax.map(follow, points)
