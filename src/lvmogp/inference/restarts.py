"""From data and options to the best of several optimised starts, with an account of what happened."""

import dataclasses
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from threadpoolctl import threadpool_limits

from lvmogp.algebra.linalg import jitter_needed
from lvmogp.errors import NumericalError
from lvmogp.ground.compiling import compiled
from lvmogp.ground.rules import AnyFloat
from lvmogp.inference.finished import FinishedRestarts
from lvmogp.inference.optimise import Run, Status, maximise
from lvmogp.inference.options import Options, Settings, fit_settings, latent_dimensions, latent_kernels
from lvmogp.inference.starts import independent_start, recipe_names, start
from lvmogp.inference.threads import n_threads, side_by_side
from lvmogp.kernels.covariances import gram
from lvmogp.model.bounds import collapsed_objective, explicit_objective
from lvmogp.model.expected_likelihood import quadratic
from lvmogp.model.layouts import Data
from lvmogp.model.parameters import FullInducing, KroneckerInducing, Parameters
from lvmogp.model.posterior import optimal_inducing
from lvmogp.storage.checkpoints import Checkpoints
from lvmogp.tables.features import FeatureCoordinates
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
# What a bound must gain for another latent: one that is not used costs nothing.
_LEAST_GAIN_PER_LATENT = 1.0
Report = Callable[["Progress"], None] | None


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


def search(
    options: Options,
    data: Data,
    inputs: HostFloat,
    input_scale: HostFloat,
    on_progress: Report = None,
    checkpoints: Checkpoints | None = None,
    *,
    coordinates: FeatureCoordinates | None = None,
    label: str = "",
) -> list[Outcome]:
    """Fit with ever more latents, where the options leave their number open, while the bound gains by them.

    Return the best outcome for each number of latents that was tried, of all latent kernels that the options leave
    open. The names of checkpoints begin with the label.
    """
    outcomes: list[Outcome] = []
    n_known = 0 if coordinates is None else coordinates.values.shape[1]
    for n_latent in latent_dimensions(options, data.n_conditions, n_known=n_known):
        candidates: list[Outcome] = []
        for number, kernel in enumerate(latent_kernels(options)):
            settings = fit_settings(options, data, inputs, n_latent=n_latent, n_known=n_known, latent_kernel=kernel)
            series = f"{label}latents{n_latent}kernel{number}"
            finished = None if checkpoints is None else FinishedRestarts(checkpoints, series)
            candidates.append(fit(data, inputs, input_scale, settings, on_progress, finished, coordinates=coordinates))
            if candidates[-1].status is Status.INTERRUPTED:
                # Whichever is best, the search for it was cut short.
                tried = [*outcomes, max(candidates, key=_bound)]
                return [outcome._replace(status=Status.INTERRUPTED) for outcome in tried]
        outcomes.append(max(candidates, key=_bound))
        if len(outcomes) > 1 and outcomes[-1].bound < outcomes[-2].bound + _LEAST_GAIN_PER_LATENT:
            break
    return outcomes


def chosen(outcomes: list[Outcome]) -> Outcome:
    """Return the last of outcomes with ever more latents that earned its place."""
    kept = outcomes[0]
    for candidate in outcomes[1:]:
        if candidate.bound >= kept.bound + _LEAST_GAIN_PER_LATENT:
            kept = candidate
    return kept


def _bound(outcome: Outcome) -> float:
    return outcome.bound


def fit(
    data: Data,
    inputs: HostFloat,
    input_scale: HostFloat,
    settings: Settings,
    on_progress: Report = None,
    finished: FinishedRestarts | None = None,
    *,
    coordinates: FeatureCoordinates | None = None,
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
    finished
        Keeps the restarts that have ended, and knows those that ended before this fit was interrupted.
    coordinates
        What is known of the conditions, if anything.
    """
    began = time.perf_counter()
    one_thread = settings.operations(data) < _LARGE
    names = recipe_names(settings.n_restarts, n_latent=settings.n_latent)
    with threadpool_limits(limits=1 if one_thread else None):
        starts = _starts(names, data, inputs, input_scale, settings, coordinates)
        runs = _optimised(starts, names, data, settings, on_progress, finished, one_thread=one_thread)
    best, *others = sorted(runs.values(), key=lambda run: -run.bound)
    if best.status is Status.NOT_FINITE:
        raise NumericalError(
            f"none of {len(runs)} starts gave a finite bound; look for outputs or inputs of extreme size, or try "
            'dtype="float64", another kernel or fewer inducing points'
        )
    interrupted = any(run.status is Status.INTERRUPTED for run in runs.values())
    jitter_inputs, jitter_latents = jitters(best.tree)
    return Outcome(
        parameters=best.tree,
        bound=best.bound,
        status=Status.INTERRUPTED if interrupted else best.status,
        restarts=tuple(Restart(names[number], *run[1:]) for number, run in sorted(runs.items())),
        jitter_inputs=float(jitter_inputs),
        jitter_latents=float(jitter_latents),
        seconds=time.perf_counter() - began,
        runners_up=tuple(run.tree for run in others if run.bound > best.bound - _WORTH_KEEPING),
    )


def _starts(
    recipes: list[str],
    data: Data,
    inputs: HostFloat,
    input_scale: HostFloat,
    settings: Settings,
    coordinates: FeatureCoordinates | None,
) -> list[Parameters]:
    independent = independent_start(
        settings.input_kernel,
        data,
        inputs,
        input_scale=input_scale,
        n_inducing=settings.n_inducing_inputs,
        most_inducing=settings.most_inducing_inputs,
        seed=settings.seed,
    )
    starts = [
        start(
            recipe,
            independent,
            settings.latent_kernel,
            n_latent=settings.n_latent,
            n_inducing=settings.n_inducing_latents,
            noise_per_condition=settings.noise_per_condition,
            rng=np.random.default_rng([settings.seed, number]),
            coordinates=coordinates,
        )
        for number, recipe in enumerate(recipes)
    ]
    if settings.inference == "collapsed":
        return starts
    return [with_explicit_inducing(each, data, settings.inference) for each in starts]


@compiled
def with_explicit_inducing(parameters: Parameters, data: Data, inference: str) -> Parameters:
    """Give parameters a q(v) of their own: the optimal one, or the nearest of Kronecker form."""
    expected = quadratic(parameters, data)
    mean, covariance = optimal_inducing(expected)
    n_latents = mean.shape[1]
    if inference == "full":
        matrix = cast(Array, jnp.linalg.inv(covariance.precision()))
        inducing = FullInducing(mean, _cholesky((matrix + matrix.T) / 2))
    else:
        # Average the diagonal blocks of S over latents, then what is left over inputs.
        over_latents = covariance.contract(jnp.eye(n_latents, dtype=mean.dtype)[None])[0] / n_latents
        over_inputs = covariance.block_traces() / jnp.trace(over_latents)
        inducing = KroneckerInducing(mean, _cholesky(over_latents), _cholesky(over_inputs))
    return dataclasses.replace(parameters, inducing=inducing)


def _cholesky(matrix: Float[Array, "m m"]) -> Float[Array, "m m"]:
    return cast(Array, jnp.linalg.cholesky(matrix))  # JAX's own types do not say what this is


def _optimised(
    starts: list[Parameters],
    recipes: list[str],
    data: Data,
    settings: Settings,
    on_progress: Report,
    finished: FinishedRestarts | None,
    *,
    one_thread: bool,
) -> dict[int, Run]:
    # What became of each start. Bounds that run on one thread leave cores idle, on which other starts can run.
    kept = {} if finished is None else {number: finished.load(number, start) for number, start in enumerate(starts)}
    runs = {number: run for number, run in kept.items() if run is not None}
    pending = [number for number in range(len(starts)) if number not in runs]
    iterations = Counter[int]()

    def take_report(place: int, bound: float) -> None:
        number = pending[place]
        iterations[number] += 1
        ended = frozenset(each + 1 for each in runs)
        where = (settings.n_latent, number + 1, len(starts), recipes[number], iterations[number])
        if on_progress is not None:
            on_progress(Progress(*where, bound, ended=ended))

    def take_run(place: int, run: Run) -> None:
        runs[pending[place]] = run
        if finished is not None and run.status is not Status.INTERRUPTED:
            finished.save(pending[place], run)

    maximised = partial(
        maximise,
        collapsed_objective if settings.inference == "collapsed" else explicit_objective,
        max_iterations=settings.max_iterations,
        tolerance=settings.tolerance,
        one_thread=one_thread,
    )
    several = one_thread and settings.operations(data) >= _SIDE_BY_SIDE and jax.default_backend() == "cpu"
    works = [partial(maximised, starts[number], data) for number in pending]
    side_by_side(works, take_report, take_run, threads=n_threads() if several else 1)
    return runs


@compiled
def jitters(parameters: Parameters) -> tuple[Scalar, Scalar]:
    """Jitter of the gram matrices of inducing inputs and of inducing latents."""
    return (
        jitter_needed(gram(parameters.input_kernel, parameters.inducing_inputs)),
        jitter_needed(gram(parameters.latent_kernel, parameters.inducing_latents)),
    )
