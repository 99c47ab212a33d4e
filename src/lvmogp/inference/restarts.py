"""Fitting: from data and settings to the best of several optimised starts, with an account of what happened."""

import dataclasses
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol, cast, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from threadpoolctl import threadpool_limits

from lvmogp.algebra.linalg import jitter_needed
from lvmogp.errors import NumericalError
from lvmogp.ground.compiling import compiled
from lvmogp.ground.rules import AnyFloat
from lvmogp.inference.optimise import Run, Status, maximise
from lvmogp.inference.starts import Curves, independent_start, recipe_names, start
from lvmogp.inference.threads import n_threads, side_by_side
from lvmogp.kernels.covariances import Kernel, gram
from lvmogp.model.bounds import collapsed, explicit
from lvmogp.model.expected_likelihood import quadratic
from lvmogp.model.layouts import Data, GridData
from lvmogp.model.parameters import FullInducing, KroneckerInducing, Parameters
from lvmogp.model.posterior import optimal_inducing
from lvmogp.tables.features import Coordinates
from lvmogp.typing import Array, Float, HostFloat, Scalar

# What stands for a recipe in the account of a fit by minibatches.
MINIBATCHES = "minibatches"
# What stands for a recipe in the progress of Markov chains.
SAMPLING = "nuts"
# Operations of one bound below which threads cost more than they give.
_LARGE = 2e8
# Operations of one bound from which starts gain by running side by side, a quarter of the time on two cores; below,
# Python has them wait for each other.
_SIDE_BY_SIDE = 2e5
# Jitter from which it is worth knowing of, relative to the variance.
_NOTABLE_JITTER = 1e-5
# Other restarts are remembered if their bounds are at most so much lower.
_WORTH_KEEPING = 10.0


class Settings(NamedTuple):
    """What a fit needs to know beyond the data."""

    input_kernel: Kernel
    latent_kernel: Kernel
    n_latent: int
    n_inducing_inputs: int
    most_inducing_inputs: int
    n_inducing_latents: int
    noise_per_condition: bool
    inference: str
    n_restarts: int
    max_iterations: int
    seed: int
    tolerance: float = 0.02


class Restart(NamedTuple):
    """One optimised start."""

    recipe: str
    bound: AnyFloat
    status: Status
    history: tuple[AnyFloat, ...]
    n_evaluations: int
    seconds: float
    steps_per_entry: int = 1

    @property
    def n_iterations(self) -> int:
        """Iterations; of minibatches the history has one entry for many steps."""
        return len(self.history) * self.steps_per_entry


class Outcome(NamedTuple):
    """The best parameters found, and how they were found; ``bound`` is what the search went by (equation 51)."""

    parameters: Parameters
    bound: float
    status: Status
    restarts: tuple[Restart, ...]
    jitter_inputs: float
    jitter_latents: float
    seconds: float
    # Those of the other restarts, the better ones first, where something goes on from them.
    runners_up: tuple[Parameters, ...] = ()

    @property
    def converged(self) -> bool:
        """Whether the best restart converged, and all of them were allowed to end."""
        return self.status is Status.CONVERGED

    @property
    def notable_jitter(self) -> float | None:
        """The larger jitter, relative to the variance, if it is large enough to be worth knowing of."""
        largest = max(self.jitter_inputs, self.jitter_latents)
        return largest if largest > _NOTABLE_JITTER else None

    @property
    def history(self) -> tuple[float, ...]:
        """Bound after each iteration of the best restart."""
        return max(self.restarts, key=lambda restart: restart.bound).history

    @property
    def n_iterations(self) -> int:
        """Iterations of all restarts together."""
        return sum(restart.n_iterations for restart in self.restarts)

    @property
    def n_evaluations(self) -> int:
        """Evaluations of the bound in all restarts together."""
        return sum(restart.n_evaluations for restart in self.restarts)

    def __str__(self) -> str:
        """The account in one sentence."""
        return (
            f"bound {self.bound:.2f}, {self.status.value}; best of {len(self.restarts)} starts, "
            f"{self.n_iterations} iterations in {self.seconds:.1f} s"
            + ("" if self.notable_jitter is None else f", jitter {self.notable_jitter:.0e}")
        )


class Progress(NamedTuple):
    """What a fit reports while it runs.

    Starts may run side by side; ``ended`` are the numbers of those that have ended. ``share`` says how much of the fit
    is over, where that can be told.

    Markov chains report the chain as ``restart``, the steps of all chains as ``iteration`` and the log posterior as
    ``bound``; their ``recipe`` is ``"nuts"``.
    """

    n_latent: int
    restart: int
    n_restarts: int
    recipe: str
    iteration: int
    bound: float
    share: float | None = None
    ended: frozenset[int] = frozenset()


@runtime_checkable
class RestartKeeper(Protocol):
    """Keeps restarts that have ended, so that an interrupted fit need not repeat them."""

    def save(self, number: int, run: Run) -> None:
        """Keep a restart."""
        ...

    def load(self, number: int, like: Parameters) -> Run | None:
        """A restart kept earlier; ``like`` has its structure."""
        ...


def collapsed_objective(parameters: Parameters, data: Data) -> Scalar:
    """The collapsed bound as one number to search by."""
    return collapsed(parameters, data).steadied


def explicit_objective(parameters: Parameters, data: Data) -> Scalar:
    """The explicit bound as one number to search by."""
    return explicit(parameters, data).steadied


def operations(data: Data, settings: Settings) -> float:
    """Operations of one bound with its gradient, to the order of magnitude."""
    n_inputs, n_latents = settings.n_inducing_inputs, settings.n_inducing_latents
    conditions = data.n_conditions * n_latents**2
    if isinstance(data, GridData):
        n_rows = data.inputs.shape[0]
        return n_rows * n_inputs**2 + conditions + data.n_observations * n_inputs + n_inputs**3 + n_latents**3
    dense = 0.0 if settings.inference == "kronecker" else float(n_inputs * n_latents) ** 3
    return data.n_observations * n_inputs**2 + conditions * (n_latents + n_inputs**2) + dense


def fit(
    data: Data,
    inputs: HostFloat,
    input_scale: HostFloat,
    settings: Settings,
    on_progress: Callable[[Progress], None] | None = None,
    keeper: RestartKeeper | None = None,
    *,
    coordinates: Coordinates | None = None,
) -> Outcome:
    """Optimise several starts that differ in kind and keep the one with the best bound.

    Parameters
    ----------
    data
        Observations in standardised units.
    inputs
        The inputs of the data as rows, for placing inducing inputs.
    input_scale
        What the user's inputs were divided by.
    settings
        Sizes, kernels and the kind of inference.
    on_progress
        Called after every iteration; may raise :class:`lvmogp.StopFit` to end the fit with the best so far.
    keeper
        Keeps the restarts that have ended, and knows those that ended before this fit was interrupted.
    coordinates
        What is known of the conditions, if anything.
    """
    began = time.perf_counter()
    one_thread = operations(data, settings) < _LARGE
    with threadpool_limits(limits=1 if one_thread else None):
        independent = independent_start(
            settings.input_kernel,
            data,
            inputs,
            input_scale=input_scale,
            n_inducing=settings.n_inducing_inputs,
            most_inducing=settings.most_inducing_inputs,
            seed=settings.seed,
        )
        names = recipe_names(settings.n_restarts, n_latent=settings.n_latent)
        starts = [
            _start(recipe, independent, data, settings, np.random.default_rng([settings.seed, number]), coordinates)
            for number, recipe in enumerate(names)
        ]
        runs = _optimised(starts, data, settings, on_progress, keeper, one_thread=one_thread)
    best, *others = sorted(runs.values(), key=lambda run: -run.bound)
    if best.status is Status.NOT_FINITE:
        raise NumericalError(
            f"none of {len(runs)} starts gave a finite bound; look for outputs or inputs of extreme size, or try "
            'dtype="float64", another kernel or fewer inducing points'
        )
    restarts = tuple(
        Restart(names[number], run.bound, run.status, run.history, run.n_evaluations, run.seconds)
        for number, run in sorted(runs.items())
    )
    interrupted = any(run.status is Status.INTERRUPTED for run in runs.values())
    jitter_inputs, jitter_latents = jitters(best.tree)
    return Outcome(
        parameters=best.tree,
        bound=best.bound,
        status=Status.INTERRUPTED if interrupted else best.status,
        restarts=restarts,
        jitter_inputs=float(jitter_inputs),
        jitter_latents=float(jitter_latents),
        seconds=time.perf_counter() - began,
        runners_up=tuple(run.tree for run in others if run.bound > best.bound - _WORTH_KEEPING),
    )


def _start(
    recipe: str,
    independent: Curves,
    data: Data,
    settings: Settings,
    rng: np.random.Generator,
    coordinates: Coordinates | None,
) -> Parameters:
    parameters = start(
        recipe,
        independent,
        settings.latent_kernel,
        n_latent=settings.n_latent,
        n_inducing=settings.n_inducing_latents,
        noise_per_condition=settings.noise_per_condition,
        rng=rng,
        coordinates=coordinates,
    )
    if settings.inference == "collapsed":
        return parameters
    return with_explicit_inducing(parameters, data, settings.inference)


@compiled
def with_explicit_inducing(parameters: Parameters, data: Data, inference: str) -> Parameters:
    """The same parameters with a q(v) of their own: the optimal one, or the nearest of Kronecker form."""
    expected = quadratic(parameters, data)
    mean, covariance = optimal_inducing(expected)
    n_inputs, n_latents = mean.shape
    if inference == "full":
        matrix = cast(Array, jnp.linalg.inv(covariance.precision()))
        inducing = FullInducing(mean, _cholesky((matrix + matrix.T) / 2))
    else:
        # Average the diagonal blocks of S over latents, then what is left over inputs.
        over_latents = covariance.contract(jnp.eye(n_latents, dtype=mean.dtype)[None])[0] / n_latents
        projected = covariance.project(jnp.eye(n_inputs, dtype=mean.dtype))
        over_inputs = jnp.trace(projected, axis1=2, axis2=3) / jnp.trace(over_latents)
        inducing = KroneckerInducing(mean, _cholesky(over_latents), _cholesky(over_inputs))
    return dataclasses.replace(parameters, inducing=inducing)


def _cholesky(matrix: Float[Array, "m m"]) -> Float[Array, "m m"]:
    return cast(Array, jnp.linalg.cholesky(matrix))  # JAX's own types do not say what this is


def _optimised(
    starts: list[Parameters],
    data: Data,
    settings: Settings,
    on_progress: Callable[[Progress], None] | None,
    keeper: RestartKeeper | None,
    *,
    one_thread: bool,
) -> dict[int, Run]:
    # What became of each start. Bounds that run on one thread leave cores idle, on which other starts can run.
    kept = {} if keeper is None else {number: keeper.load(number, start) for number, start in enumerate(starts)}
    runs = {number: run for number, run in kept.items() if run is not None}
    pending = [number for number in range(len(starts)) if number not in runs]
    recipes = recipe_names(settings.n_restarts, n_latent=settings.n_latent)
    iterations = Counter[int]()

    def work(start: Parameters, report: Callable[[float], None]) -> Run:
        return _optimise(start, data, settings, report, one_thread=one_thread)

    def take_report(place: int, bound: float) -> None:
        number = pending[place]
        iterations[number] += 1
        ended = frozenset(each + 1 for each in runs)
        where = (settings.n_latent, number + 1, len(starts), recipes[number], iterations[number])
        if on_progress is not None:
            on_progress(Progress(*where, bound, ended=ended))

    def take_run(place: int, run: Run) -> None:
        runs[pending[place]] = run
        if keeper is not None and run.status is not Status.INTERRUPTED:
            keeper.save(pending[place], run)

    several = one_thread and operations(data, settings) >= _SIDE_BY_SIDE and jax.default_backend() == "cpu"
    side_by_side(
        [partial(work, starts[number]) for number in pending],
        None if on_progress is None else take_report,
        take_run,
        threads=n_threads() if several else 1,
    )
    return runs


def _optimise(
    parameters: Parameters,
    data: Data,
    settings: Settings,
    report: Callable[[float], None],
    *,
    one_thread: bool,
) -> Run:
    return maximise(
        collapsed_objective if settings.inference == "collapsed" else explicit_objective,
        parameters,
        data,
        max_iterations=settings.max_iterations,
        tolerance=settings.tolerance,
        one_thread=one_thread,
        on_iteration=report,
    )


@compiled
def jitters(parameters: Parameters) -> tuple[Scalar, Scalar]:
    """Jitter of the gram matrices of inducing inputs and of inducing latents."""
    return (
        jitter_needed(gram(parameters.input_kernel, parameters.inducing_inputs)),
        jitter_needed(gram(parameters.latent_kernel, parameters.inducing_latents)),
    )
