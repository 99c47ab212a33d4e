"""Markov chains by the No-U-Turn sampler, several at a time, in pieces between which they can be stopped."""

import math
import time
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import Annotated, Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from threadpoolctl import threadpool_limits

from lvmogp.algebra.constraints import FreeStructure, join
from lvmogp.ground.compiling import compiled
from lvmogp.ground.rules import ANY_VALUE
from lvmogp.inference.nuts.likelihoods import log_likelihood, redrawn_latents
from lvmogp.inference.nuts.parameters import ChainParameters, Priors, log_prior
from lvmogp.inference.optimise import StopFit, n_threads, side_by_side
from lvmogp.model.layouts import LikelihoodData, SparseData
from lvmogp.typing import Array, Bool, Float, Int, Scalar

# Steps of one compiled call, between two of which a chain can be stopped: about a second's worth.
_FIRST_PIECE, _LONGEST_PIECE, _PIECE_SECONDS = 5, 50, 1.0
# Paths of up to 2⁵ leapfrog steps while a chain learns how to move, and 2⁶ afterwards. Left alone, paths become longer,
# because the latent space turns without end; what does not depend on its orientation is no better for it.
_DEEPEST_TREES = (5, 6)
# More than the usual 0.8: noise that varies among conditions makes a posterior narrow in places, where chains of larger
# steps get stuck. On others it costs next to nothing, as paths end at their greatest depth.
_ACCEPTANCE = 0.9
_FIRST_STEP_SIZE = 0.1
# Conditions whose latents are drawn anew after each step.
_REDRAWN_AT_ONCE = 8
# Few observations can be explained in ways that are far from the fit, and tempered chains find them. Many make a
# landscape too rugged for that, where the fit is the better guide: on 117 rise times of Servo tempered chains end as
# high as the others or higher, on 2000 synthetic outputs sixteen units of the log posterior lower.
FEW_OBSERVATIONS = 500
# Tempered chains: the inverse temperature that they start at, the share of the warm-up in which they cool down, the
# steps that they take at each temperature, and the fewest temperatures that are not as bad as a random start.
_LEAST_BETA, _SHARE_OF_COOLING = 0.1, 0.6
_STEPS_AT_A_TEMPERATURE, _FEWEST_TEMPERATURES = 8, 8


class SamplerSettings(NamedTuple):
    """Numbers of chains, of steps in which each of them learns how to move, and of draws that each of them keeps."""

    n_chains: int
    n_warmup: int
    n_draws: int
    seed: int

    def stretches(self, *, tempered: bool) -> list[tuple[int, float]]:
        """Return numbers of steps with the inverse temperature β of each; the last are the draws (equation 53).

        A tempered chain cools down by equal factors, unless a short warm-up leaves no time for it.
        """
        number = int(_SHARE_OF_COOLING * self.n_warmup) // _STEPS_AT_A_TEMPERATURE if tempered else 0
        number = number if number >= _FEWEST_TEMPERATURES else 0
        cooling = [(_STEPS_AT_A_TEMPERATURE, _LEAST_BETA ** (1 - place / number)) for place in range(number)]
        return [*cooling, (self.n_warmup - number * _STEPS_AT_A_TEMPERATURE, 1.0), (self.n_draws, 1.0)]


class Target(eqx.Module):
    """The posterior to be drawn from, a function of the free vector of the parameters."""

    data: LikelihoodData
    fixed_leaves: tuple[Array, ...]
    structure: FreeStructure = eqx.field(static=True)
    priors: Priors = eqx.field(static=True)

    def parameters(self, vector: Float[Array, " free"]) -> ChainParameters:
        """Return the parameters that a free vector stands for."""
        return join(vector, self.fixed_leaves, self.structure)

    def places(self) -> ChainParameters:
        """Return where in the free vector each number stands that is an entry of it as it is, such as latents."""
        size = sum(math.prod(shape) for shape in self.structure.free_shapes)
        return jax.tree.map(lambda leaf: leaf.astype(int), self.parameters(jnp.arange(float(size))))


class Statistics(NamedTuple):
    """What the sampler says of each draw, in the order of the draws."""

    log_posterior: Annotated[Float[np.ndarray, " statistics"], ANY_VALUE]
    energy: Annotated[Float[np.ndarray, " statistics"], ANY_VALUE]
    n_leapfrogs: Int[np.ndarray, " statistics"]
    acceptance: Annotated[Float[np.ndarray, " statistics"], ANY_VALUE]
    diverging: Bool[np.ndarray, " statistics"]


class Chain(NamedTuple):
    """The draws of one chain, on the host, the step size that it settled on, and how long it took."""

    positions: Float[np.ndarray, "draws free"]
    statistics: Statistics
    step_size: float
    seconds: float


def log_posterior(target: Target, vector: Float[Array, " free"], beta: Scalar | float = 1.0) -> Scalar:
    """Return β log p(Y | H, η) + log p(H, η), up to a constant (equation 53); β of the posterior is one."""
    point = target.parameters(vector)
    return beta * log_likelihood(point, target.data) + log_prior(point, target.priors)


def _sampler(target: Target, n_warmup: int, beta: Scalar) -> tuple[Callable[..., Any], Callable[..., Any]]:
    from numpyro.infer.hmc import hmc  # takes a second to import, and only chains need it

    start, step = hmc(lambda vector: -log_posterior(target, vector, beta), algo="NUTS")  # which walks in valleys
    configured = partial(
        cast(Any, start),  # whose own signature leaves out that depths may be two
        num_warmup=n_warmup,
        target_accept_prob=_ACCEPTANCE,
        max_tree_depth=_DEEPEST_TREES,
        step_size=_FIRST_STEP_SIZE,
    )
    return configured, step


@compiled
def _start(target: Target, vector: Array, variances: Array, key: Array, n_warmup: int) -> Any:
    start, _ = _sampler(target, n_warmup, jnp.ones(()))
    return start(vector, inverse_mass_matrix=variances, rng_key=key)


@compiled
def _advance(target: Target, state: Any, n_steps: Array | np.ndarray, beta: Array, n_warmup: int) -> tuple[Any, Any]:
    # How many steps is a value, so that pieces of any length share one program; so is the temperature.
    start, step = _sampler(target, n_warmup, beta)
    start(state.z, rng_key=state.rng_key)  # tells the sampler how to adapt; its state is not used

    def walk(number: Array, carried: tuple[Any, Any]) -> tuple[Any, Any]:
        state, trace = carried
        state = _with_redrawn_latents(target, step(state), beta)
        return state, jax.tree.map(lambda kept, value: kept.at[number].set(value), trace, _seen(state))

    empty = jax.tree.map(lambda value: jnp.zeros((_LONGEST_PIECE, *value.shape), value.dtype), _seen(state))
    return jax.lax.fori_loop(0, n_steps, walk, (state, empty))


def _seen(state: Any) -> tuple[Array, Any]:
    # The position, and the statistics of a step in their order.
    return state.z, (-state.potential_energy, state.energy, state.num_steps, state.accept_prob, state.diverging)


def _moved(target: Target, state: Any, vector: Array, beta: Array) -> Any:
    energy, slope = jax.value_and_grad(lambda place: -log_posterior(target, place, beta))(vector)
    return state._replace(z=vector, potential_energy=energy, z_grad=slope)


_compiled_moved = compiled(_moved)


def _with_redrawn_latents(target: Target, state: Any, beta: Array) -> Any:
    # A condition between two places that explain it seldom crosses over by itself, and can be asked cheaply.
    point = target.parameters(state.z)
    n_conditions, n_latent = point.latents.shape
    if isinstance(target.data, SparseData) or n_latent == 0:
        return state
    key, next_key = jax.random.split(state.rng_key)
    conditions = (state.i * _REDRAWN_AT_ONCE + jnp.arange(min(_REDRAWN_AT_ONCE, n_conditions))) % n_conditions
    latents = redrawn_latents(point, target.data, conditions, key, beta)
    moved = _moved(target, state, state.z.at[target.places().latents].set(latents), beta)
    kept = jax.lax.cond(jnp.isfinite(moved.potential_energy), lambda: moved, lambda: state)
    return kept._replace(rng_key=next_key)


def _walked(
    target: Target, state: Any, settings: SamplerSettings, tempered: bool, report: Callable[[tuple[int, float]], None]
) -> Chain:
    # One chain from its first state to its end, or to where a report asks it to stop; the draws so far are kept.
    pieces = [jax.tree.map(lambda value: np.asarray(value)[None][:0], _seen(state))]
    n_steps, seconds, beta = 0, 0.0, 1.0
    stretches = settings.stretches(tempered=tempered)
    try:
        for number, (left, next_beta) in enumerate(stretches):
            while left > 0:
                began = time.perf_counter()
                power = jnp.asarray(next_beta)
                if next_beta != beta:
                    beta, state = next_beta, _compiled_moved(target, state, state.z, power)
                # As many steps as take about a second, at the pace so far.
                pace = n_steps / seconds if n_steps else _FIRST_PIECE
                n_next = min(max(int(pace * _PIECE_SECONDS), 1), _LONGEST_PIECE, left)
                moved = _advance(target, state, np.asarray(n_next), power, settings.n_warmup)
                state, trace = jax.block_until_ready(moved)
                n_steps, left = n_steps + n_next, left - n_next
                if number == len(stretches) - 1:
                    pieces.append(jax.tree.map(lambda values, size=n_next: np.asarray(values)[:size], trace))
                seconds += time.perf_counter() - began
                report((n_steps, -float(state.potential_energy)))
    except StopFit:
        pass
    positions, statistics = jax.tree.map(lambda *parts: np.concatenate(parts), *pieces)
    return Chain(positions, Statistics(*statistics), float(state.adapt_state.step_size), seconds)


def run_chains(
    target: Target,
    starts: Float[Array, "chains free"],
    variances: Float[Array, "chains free"],
    settings: SamplerSettings,
    report: Callable[[int, int, float], None],
    *,
    tempered: Collection[int] = (),
) -> tuple[dict[int, Chain], bool]:
    """Return the chains that began, by their numbers, and whether all were allowed to end.

    ``variances`` are guesses of the posterior variance of each coordinate. ``report`` is called after each piece with
    its chain, the steps of all chains so far and the log posterior; it may raise :class:`lvmogp.StopFit` to keep the
    draws so far. For the ``tempered`` chains most of the likelihood is taken away and given back in steps (equation
    53), so that they forget where they started.
    """
    keys = jax.random.split(jax.random.key(settings.seed), settings.n_chains)
    n_steps = Counter[int]()
    chains: dict[int, Chain] = {}

    def take_report(number: int, seen: tuple[int, float]) -> None:
        n_steps[number] = seen[0]
        report(number, n_steps.total(), seen[1])

    # A program of one chain on one thread, as many at once as there are cores.
    with threadpool_limits(limits=1):
        states = [_start(target, *own, settings.n_warmup) for own in zip(starts, variances, keys, strict=True)]
        # Compiled before threads ask for it at once.
        _advance(target, states[0], np.asarray(0), jnp.ones(()), settings.n_warmup)
        if tempered:
            _compiled_moved(target, states[0], states[0].z, jnp.ones(()))
        works = {
            number: partial(_walked, target, state, settings, number in tempered) for number, state in enumerate(states)
        }
        side_by_side(works, take_report, chains.__setitem__, threads=n_threads())
    return dict(sorted(chains.items())), n_steps.total() == settings.n_chains * (settings.n_warmup + settings.n_draws)
