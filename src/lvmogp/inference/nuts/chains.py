"""Markov chains by the No-U-Turn sampler, several at a time, in pieces between which they can be stopped."""

import math
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from threadpoolctl import threadpool_limits

from lvmogp.algebra.constraints import FreeStructure, join
from lvmogp.ground.compiling import compiled
from lvmogp.inference.nuts.gibbs import redrawn_latents
from lvmogp.inference.nuts.likelihoods import log_likelihood
from lvmogp.inference.nuts.priors import Priors, log_prior
from lvmogp.inference.nuts.unknowns import Unknowns
from lvmogp.inference.optimise import StopFit
from lvmogp.inference.threads import n_threads, side_by_side
from lvmogp.model.layouts import LikelihoodData, SparseData
from lvmogp.typing import Array, Float, Scalar

# Steps of one compiled call, between two of which a chain can be stopped: about a second's worth.
_FIRST_PIECE, _LONGEST_PIECE = 5, 50
_PIECE_SECONDS = 1.0
# Paths of up to 2⁵ leapfrog steps while a chain learns how to move, and 2⁶ afterwards. Left alone, paths become longer,
# because the latent space turns without end; what does not depend on its orientation is no better for it.
_DEEPEST_TREES = (5, 6)
# More than the usual 0.8: noise that varies among conditions makes a posterior narrow in places, where chains of larger
# steps get stuck. On others it costs next to nothing, as paths end at their greatest depth.
_ACCEPTANCE = 0.9
_FIRST_STEP_SIZE = 0.1
# Conditions whose latents are drawn anew after each step.
_REDRAWN_AT_ONCE = 8
# Few observations can be explained in ways that are far from the fit, and chains that start hot find them. Many make a
# landscape too rugged for that, where the fit is the better guide: on 117 rise times of Servo hot chains end as high as
# the others or higher, on 2000 synthetic outputs sixteen units of the log posterior lower.
FEW_OBSERVATIONS = 500
# Chains that start hot: the inverse temperature that they start at, the share of the warm-up in which they cool down,
# the steps that they take at each temperature, and the fewest temperatures that are not as bad as a random start.
_HOTTEST = 0.1
_SHARE_OF_COOLING = 0.6
_STEPS_AT_A_TEMPERATURE = 8
_FEWEST_TEMPERATURES = 8


class SamplerSettings(NamedTuple):
    """Numbers of chains, of steps in which each of them learns how to move, and of draws that each of them keeps."""

    n_chains: int
    n_warmup: int
    n_draws: int
    seed: int

    @property
    def n_steps(self) -> int:
        """Steps of one chain."""
        return self.n_warmup + self.n_draws

    @property
    def n_temperatures(self) -> int:
        """Temperatures that a chain which starts hot goes through; none where a short warm-up leaves no time for it."""
        number = int(_SHARE_OF_COOLING * self.n_warmup) // _STEPS_AT_A_TEMPERATURE
        return number if number >= _FEWEST_TEMPERATURES else 0


class Target(eqx.Module):
    """The posterior to be drawn from, a function of the free vector of the unknowns."""

    data: LikelihoodData
    fixed_leaves: tuple[Array, ...]
    structure: FreeStructure = eqx.field(static=True)
    priors: Priors = eqx.field(static=True)

    @property
    def first_latent(self) -> int:
        """Place in the free vector where the latents begin: after the kernels, of which some leaves may be fixed."""
        tree = jax.tree.unflatten(self.structure.structure, range(len(self.structure.declarations)))
        n_kernel_leaves = len(jax.tree.leaves((tree.input_kernel, tree.latent_kernel)))
        n_free = sum(not fixed for _, fixed in self.structure.declarations[:n_kernel_leaves])
        return sum(math.prod(shape) for shape in self.structure.free_shapes[:n_free])

    def unknowns(self, vector: Float[Array, " free"]) -> Unknowns:
        """The point that a free vector stands for."""
        return join(vector, self.fixed_leaves, self.structure)


class Trace(NamedTuple):
    """What a chain remembers of its steps, each with a leading axis of steps."""

    position: Any
    log_posterior: Any
    energy: Any
    n_leapfrogs: Any
    acceptance: Any
    diverging: Any


class Chain(NamedTuple):
    """The draws of one chain, on the host, the step size that it settled on, and how long it took."""

    trace: Trace
    step_size: float
    seconds: float


def log_posterior(target: Target, vector: Float[Array, " free"], coldness: Scalar | float = 1.0) -> Scalar:
    """β log p(Y | H, θ) + log p(H, θ), up to a constant (equation 53); the ``coldness`` β of the posterior is one."""
    unknowns = target.unknowns(vector)
    return coldness * log_likelihood(unknowns, target.data) + log_prior(unknowns, target.priors)


def _potential(target: Target, coldness: Scalar) -> Callable[[Array], Scalar]:
    # The only minus sign: samplers walk in valleys.
    return lambda vector: -log_posterior(target, vector, coldness)


def _sampler(target: Target, n_warmup: int, coldness: Scalar) -> tuple[Callable[..., Any], Callable[..., Any]]:
    from numpyro.infer.hmc import hmc  # takes a second to import, and only chains need it

    start, step = hmc(_potential(target, coldness), algo="NUTS")
    configured = partial(
        cast(Any, start),  # whose own signature leaves out that depths may be two
        num_warmup=n_warmup,
        target_accept_prob=_ACCEPTANCE,
        max_tree_depth=_DEEPEST_TREES,
        step_size=_FIRST_STEP_SIZE,
    )
    return configured, step


@compiled
def _start(target: Target, vector: Array, variances: Array, key: Array, coldness: Array, n_warmup: int) -> Any:
    start, _ = _sampler(target, n_warmup, coldness)
    return start(vector, inverse_mass_matrix=variances, rng_key=key)


@compiled
def _advance(
    target: Target, state: Any, n_steps: Array | np.ndarray, coldness: Array, n_warmup: int
) -> tuple[Any, Trace]:
    # How many steps is a value, so that pieces of any length share one program; so is the temperature.
    start, step = _sampler(target, n_warmup, coldness)
    start(state.z, rng_key=state.rng_key)  # tells the sampler how to adapt; its state is not used

    def walk(number: Array, carried: tuple[Any, Trace]) -> tuple[Any, Trace]:
        state, trace = carried
        state = _with_redrawn_latents(target, step(state), coldness)
        return state, jax.tree.map(lambda kept, value: kept.at[number].set(value), trace, _seen(state))

    return jax.lax.fori_loop(0, n_steps, walk, (state, _empty_trace(state)))


@compiled
def _at_temperature(target: Target, state: Any, coldness: Array) -> Any:
    energy, slope = jax.value_and_grad(_potential(target, coldness))(state.z)
    return state._replace(potential_energy=energy, z_grad=slope)


def _with_redrawn_latents(target: Target, state: Any, coldness: Array) -> Any:
    # A condition between two places that explain it seldom crosses over by itself, and can be asked cheaply.
    unknowns = target.unknowns(state.z)
    n_conditions, n_latent = unknowns.latents.shape
    if isinstance(target.data, SparseData) or n_latent == 0:
        return state
    key, next_key = jax.random.split(state.rng_key)
    conditions = (state.i * _REDRAWN_AT_ONCE + jnp.arange(min(_REDRAWN_AT_ONCE, n_conditions))) % n_conditions
    latents = redrawn_latents(unknowns, target.data, conditions, key, coldness)
    vector = jax.lax.dynamic_update_slice(state.z, latents.reshape(-1), (target.first_latent,))
    energy, slope = jax.value_and_grad(_potential(target, coldness))(vector)
    moved = state._replace(z=vector, potential_energy=energy, z_grad=slope)
    kept = jax.lax.cond(jnp.isfinite(energy), lambda: moved, lambda: state)
    return kept._replace(rng_key=next_key)


def _seen(state: Any) -> Trace:
    return Trace(state.z, -state.potential_energy, state.energy, state.num_steps, state.accept_prob, state.diverging)


def _empty_trace(state: Any) -> Trace:
    return jax.tree.map(lambda value: jnp.zeros((_LONGEST_PIECE, *value.shape), value.dtype), _seen(state))


class _Walk(NamedTuple):
    # A chain on its way: where the sampler is, whether it started hot, the pieces of its trace on the host, steps and
    # seconds so far.
    state: Any
    hot: bool
    pieces: tuple[Trace, ...] = ()
    n_steps: int = 0
    seconds: float = 0.0


def _one_piece_on(target: Target, walk: _Walk, settings: SamplerSettings) -> _Walk:
    began = time.perf_counter()
    n_next = _piece_length(walk, settings)
    state, coldness = walk.state, _coldness(walk, settings)
    if _changes_temperature(walk, settings):
        state = _at_temperature(target, state, coldness)
    state, trace = jax.block_until_ready(_advance(target, state, np.asarray(n_next), coldness, settings.n_warmup))
    kept = jax.tree.map(lambda values: np.asarray(values)[:n_next], trace)
    pieces = walk.pieces if walk.n_steps < settings.n_warmup else (*walk.pieces, kept)
    return _Walk(state, walk.hot, pieces, walk.n_steps + n_next, walk.seconds + time.perf_counter() - began)


def _coldness(walk: _Walk, settings: SamplerSettings) -> Array:
    # β (equation 53): a chain that starts hot cools down by equal factors.
    number = walk.n_steps // _STEPS_AT_A_TEMPERATURE
    is_hot = walk.hot and number < settings.n_temperatures
    value = _HOTTEST ** (1 - number / settings.n_temperatures) if is_hot else 1.0
    return jnp.asarray(value, walk.state.z.dtype)


def _changes_temperature(walk: _Walk, settings: SamplerSettings) -> bool:
    number, within = divmod(walk.n_steps, _STEPS_AT_A_TEMPERATURE)
    return walk.hot and within == 0 and 0 < number <= settings.n_temperatures


def _piece_length(walk: _Walk, settings: SamplerSettings) -> int:
    # About a second long, and never across the end of the warm-up or of a temperature.
    limit = settings.n_warmup if walk.n_steps < settings.n_warmup else settings.n_steps
    number = walk.n_steps // _STEPS_AT_A_TEMPERATURE
    if walk.hot and number < settings.n_temperatures:
        limit = (number + 1) * _STEPS_AT_A_TEMPERATURE
    pace = walk.n_steps / walk.seconds if walk.n_steps else _FIRST_PIECE
    return min(max(int(pace * _PIECE_SECONDS), 1), _LONGEST_PIECE, limit - walk.n_steps)


def run_chains(
    target: Target,
    starts: Float[Array, "chains free"],
    variances: Float[Array, "chains free"],
    settings: SamplerSettings,
    report: Callable[[int, int, float], None] | None = None,
    *,
    hot: Collection[int] = (),
) -> tuple[dict[int, Chain], bool]:
    """The chains that began, by their numbers, and whether all were allowed to end.

    Parameters
    ----------
    target
        What to draw from.
    starts, variances
        Where each chain starts, and a guess of the posterior variance of each coordinate.
    settings
        How many chains, and how long.
    report
        Called after each piece with its chain, the steps of all chains so far and the log posterior; may raise
        :class:`lvmogp.StopFit` to keep the draws so far.
    hot
        Numbers of chains that start hot: most of the likelihood is taken away and given back in steps (equation 53), so
        that they forget where they started.
    """
    keys = jax.random.split(jax.random.key(settings.seed), settings.n_chains)
    n_steps = dict.fromkeys(range(settings.n_chains), 0)
    chains: dict[int, Chain] = {}

    def take_report(number: int, walk: _Walk) -> None:
        n_steps[number] = walk.n_steps
        if report is not None:
            report(number, sum(n_steps.values()), -float(walk.state.potential_energy))

    # A program of one chain on one thread, as many at once as there are cores.
    with threadpool_limits(limits=1):
        walks = [
            _started(target, start, variance, key, settings, hot=number in hot)
            for number, (start, variance, key) in enumerate(zip(starts, variances, keys, strict=True))
        ]
        # Compiled before threads ask for it at once.
        _advance(target, walks[0].state, np.asarray(0), _coldness(walks[0], settings), settings.n_warmup)
        if hot:
            _at_temperature(target, walks[0].state, _coldness(walks[0], settings))
        side_by_side(
            [partial(_walked, target, walk, settings) for walk in walks],
            take_report,
            chains.__setitem__,
            threads=n_threads(),
        )
    return dict(sorted(chains.items())), all(n_steps[number] == settings.n_steps for number in n_steps)


def _started(
    target: Target, start: Array, variance: Array, key: Array, settings: SamplerSettings, *, hot: bool
) -> _Walk:
    coldness = jnp.asarray(_HOTTEST if hot and settings.n_temperatures else 1.0, start.dtype)
    return _Walk(_start(target, start, variance, key, coldness, settings.n_warmup), hot)


def _walked(target: Target, walk: _Walk, settings: SamplerSettings, report: Callable[[_Walk], None]) -> Chain:
    try:
        while walk.n_steps < settings.n_steps:
            walk = _one_piece_on(target, walk, settings)
            report(walk)
    except StopFit:
        pass  # the draws so far are kept
    return _chain(walk)


def _chain(walk: _Walk) -> Chain:
    empty = jax.tree.map(lambda values: np.asarray(values)[:0], _empty_trace(walk.state))
    trace = jax.tree.map(lambda *parts: np.concatenate(parts), empty, *walk.pieces)
    return Chain(trace, float(walk.state.adapt_state.step_size), walk.seconds)
