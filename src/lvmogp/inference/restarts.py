"""From data and options to the best of several optimised starts, with an account of what happened."""

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from threadpoolctl import threadpool_limits

from lvmogp.algebra.linalg import jittered_factor
from lvmogp.errors import NumericalError
from lvmogp.ground.compiling import compiled
from lvmogp.ground.rules import NOT_KEPT, AnyFloat
from lvmogp.inference.optimise import Run, Status, maximise, n_threads, side_by_side
from lvmogp.inference.options import (
    Options,
    Settings,
    described_kernels,
    fit_settings,
    input_kernels,
    latent_dimensions,
    latent_kernels,
)
from lvmogp.inference.starts import (
    farthest,
    independent_start,
    recipe_names,
    representatives,
    start,
    with_explicit_inducing,
)
from lvmogp.kernels.covariances import Kernel, gram
from lvmogp.model.bounds import collapsed_objective, explicit_objective
from lvmogp.model.layouts import Data
from lvmogp.model.parameters import Parameters
from lvmogp.storage.checkpoints import Checkpoints
from lvmogp.tables.features import FeatureCoordinates
from lvmogp.typing import Array, Float, HostFloat, Scalar

# What stands for a recipe in the account of a fit by minibatches, and in the progress of Markov chains.
MINIBATCHES, SAMPLING = "minibatches", "nuts"
# Operations of one bound below which threads cost more than they give.
_LARGE = 2e8
# Operations of one bound from which starts gain by running side by side; below, Python has them wait for each other.
_SIDE_BY_SIDE = 2e5
# Jitter from which it is worth knowing of, relative to the variance.
_NOTABLE_JITTER = 1e-5
# Where so many starts end within so much of each other, as they do beside own curves, all do.
_AGREEING_STARTS, _SAME_OPTIMUM = 3, 0.1
# Other restarts are remembered if their bounds are at most so much lower.
_WORTH_KEEPING = 10.0
# What twice as many inducing inputs must gain, in all and for each observation, to be tried again.
_LEAST_GAIN_OF_GROWING, _LEAST_GAIN_OF_GROWING_PER_POINT = 1.0, 0.002
# What a bound must gain for another latent: one that is not used costs nothing.
_LEAST_GAIN_PER_LATENT = 1.0
# What a bound must gain by a latent kernel that is not linear: strong evidence by the scale of Kass and Raftery (1995).
_LEAST_GAIN_OF_A_LATENT_KERNEL = 3.0
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

    parameters: Annotated[Parameters, NOT_KEPT]
    bound: float
    status: Status
    restarts: tuple[Restart, ...]
    jitter_inputs: float
    jitter_latents: float
    seconds: float
    # Those of the other restarts, the better ones first, where something goes on from them.
    runners_up: Annotated[tuple[Parameters, ...], NOT_KEPT] = ()

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
    def best_restart(self) -> Restart:
        """The restart with the best bound."""
        return max(self.restarts, key=lambda restart: restart.bound)

    @property
    def history(self) -> tuple[float, ...]:
        """Bound after each iteration of the best restart."""
        return self.best_restart.history

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
    is over, where that can be told. Markov chains report the chain as ``restart``, the steps of all chains as
    ``iteration`` and the log posterior as ``bound``; their ``recipe`` is ``"nuts"``.
    """

    n_latent: int
    restart: int
    n_restarts: int
    recipe: str
    iteration: int
    bound: float
    share: float | None = None
    ended: frozenset[int] = frozenset()


# A start that was optimised to its end, as a checkpoint keeps it; where these are kept, if anywhere, and their series.
_Ended = tuple[Parameters, Restart]
_Keep = tuple[Checkpoints | None, str]


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

    Return the best outcome for each number of latents that was tried, of all kernels left open. Checkpoints begin with
    the label.
    """
    outcomes: list[Outcome] = []
    n_known = 0 if coordinates is None else coordinates.values.shape[1]
    for n_latent in latent_dimensions(options, data.n_conditions, n_known=n_known):
        candidates: list[Outcome] = []
        all_settings: list[Settings] = []
        for latent_kernel, input_kernel in _kernels_to_try(options, candidates):
            kernels = described_kernels(options, latent_kernel, input_kernel, input_scale)
            settings = fit_settings(options, data, inputs, n_latent=n_latent, n_known=n_known, kernels=kernels)
            if len(candidates) >= len(latent_kernels(options)):  # another smoothness does not change where to start
                settings = settings._replace(recipe=candidates[_place_of_best(options, candidates)].best_restart.recipe)
            keep = (checkpoints, f"{label}latents{n_latent}kernel{len(candidates)}")
            found = fit(data, inputs, input_scale, settings, on_progress, keep, coordinates=coordinates)
            candidates.append(found)
            all_settings.append(settings)
            if found.status is Status.INTERRUPTED:
                break
        best, first = _place_of_best(options, candidates), all_settings[0]
        ended = [candidates[best]]
        if candidates[-1].status is not Status.INTERRUPTED:
            # With few inducing inputs a latent kernel that is not the simplest may win, and lose with more: both grow.
            first_lost = _number_of_latent_kernel(candidates[: len(latent_kernels(options))]) > 0
            may_grow = first.n_inducing_inputs < first.most_inducing_inputs
            ended = [grown(ended[0], data, inputs, all_settings[best], on_progress)]
            if first_lost and may_grow and ended[0].status is not Status.INTERRUPTED:
                ended.insert(0, grown(candidates[0], data, inputs, first, on_progress))
        outcomes.append(ended[_number_of_latent_kernel(ended)])
        if Status.INTERRUPTED in (candidates[-1].status, ended[0].status):
            # Whichever is best, the search for it was cut short.
            return [outcome._replace(status=Status.INTERRUPTED) for outcome in outcomes]
        if chosen(outcomes) is not outcomes[-1]:
            break
    return outcomes


def _kernels_to_try(options: Options, candidates: Sequence[Outcome]) -> Iterator[tuple[Kernel, Kernel]]:
    # Every latent kernel with the first input kernel, then the one that earned its place with the others.
    (first, *others), kernels = input_kernels(options), latent_kernels(options)
    for latent_kernel in kernels:
        yield latent_kernel, first
    for input_kernel in others:
        yield kernels[_number_of_latent_kernel(candidates[: len(kernels)])], input_kernel


def _place_of_best(options: Options, candidates: Sequence[Outcome]) -> int:
    # What was tried with the first input kernel comes first.
    tried = min(len(latent_kernels(options)), len(candidates))
    first = _number_of_latent_kernel(candidates[:tried])
    return max([first, *range(tried, len(candidates))], key=lambda place: candidates[place].bound)


def _number_of_latent_kernel(candidates: Sequence[Outcome]) -> int:
    # The first is the simplest.
    best = int(np.argmax([found.bound for found in candidates]))
    return best if candidates[best].bound > candidates[0].bound + _LEAST_GAIN_OF_A_LATENT_KERNEL else 0


def chosen(outcomes: list[Outcome]) -> Outcome:
    """Return the last of outcomes with ever more latents that earned its place."""
    *earlier, last = outcomes
    return earlier[-1] if earlier and last.bound < earlier[-1].bound + _LEAST_GAIN_PER_LATENT else last


def fit(
    data: Data,
    inputs: HostFloat,
    input_scale: HostFloat,
    settings: Settings,
    on_progress: Report = None,
    keep: _Keep = (None, ""),
    *,
    coordinates: FeatureCoordinates | None = None,
) -> Outcome:
    """Optimise several starts that differ in kind and keep the one with the best bound.

    Data are in standardised units, ``inputs`` are theirs as rows, and ``input_scale`` is what the user's were divided
    by. ``on_progress`` is called after every iteration; it may raise :class:`lvmogp.StopFit` to end the fit with the
    best so far. Restarts that have ended are kept, and found again after an interruption.
    """
    began = time.perf_counter()
    with threadpool_limits(limits=1 if settings.operations(data) < _LARGE else None):
        independent, curves = independent_start(data, inputs, input_scale, settings)
        starts: dict[int, Parameters] = {}
        for number, name in enumerate(recipe_names(settings, data.n_conditions)):
            rng = np.random.default_rng([settings.seed, number])
            begin = start(name, independent, curves, settings, rng, coordinates)
            explicit = settings.inference != "collapsed"
            starts[number] = with_explicit_inducing(begin, data, settings.inference) if explicit else begin
        ended = _optimised(starts, data, settings, on_progress, keep)
    (parameters, best), *others = sorted(ended.values(), key=lambda each: -each[1].bound)
    if best.status is Status.NOT_FINITE:
        raise NumericalError(
            f"none of {len(ended)} starts gave a finite bound; look for outputs or inputs of extreme size, or try "
            'dtype="float64", another kernel or fewer inducing points'
        )
    restarts = tuple(restart for _, (_, restart) in sorted(ended.items()))
    interrupted = any(restart.status is Status.INTERRUPTED for restart in restarts)
    close = [each for each, restart in others if restart.bound > best.bound - _WORTH_KEEPING]
    return Outcome(
        dataclasses.replace(parameters, fixed=()),
        best.bound,
        Status.INTERRUPTED if interrupted else best.status,
        restarts,
        *map(float, jitters(parameters)),
        seconds=time.perf_counter() - began,
        runners_up=tuple(dataclasses.replace(each, fixed=()) for each in close),
    )


def _optimised(
    starts: dict[int, Parameters], data: Data, settings: Settings, on_progress: Report, keep: _Keep
) -> dict[int, _Ended]:
    # What became of each start. Bounds that run on one thread leave cores idle, on which other starts can run.
    (checkpoints, series), cost = keep, settings.operations(data)
    names = recipe_names(settings, data.n_conditions)
    found = {number: checkpoints and checkpoints.one_of(series, number, _Ended) for number in starts}
    ended = {number: each for number, each in found.items() if each is not None}
    iterations = Counter[int]()

    def take_report(number: int, bound: float) -> None:
        iterations[number] += 1
        where = (settings.n_latent, number + 1, len(starts), names[number], iterations[number])
        if on_progress is not None:
            on_progress(Progress(*where, bound, ended=frozenset(each + 1 for each in ended)))

    def take_run(number: int, run: Run) -> None:
        ended[number] = run.tree, Restart(names[number], *run[1:])
        if checkpoints is not None and run.status is not Status.INTERRUPTED:
            checkpoints.save(series, number, ended[number], _Ended, keep_all=True)

    maximised = _maximiser(data, settings)
    several = _SIDE_BY_SIDE <= cost < _LARGE and jax.default_backend() == "cpu"
    first = list(starts)[:_AGREEING_STARTS]
    for some in (first, list(starts)[len(first) :]):
        works = {number: partial(maximised, starts[number], data) for number in some if number not in ended}
        side_by_side(works, take_report, take_run, threads=n_threads() if several else 1)
        if _is_enough([ended[number][1] for number in first if number in ended], settings):
            break
    return ended


def _maximiser(data: Data, settings: Settings) -> Callable[..., Run]:
    return partial(
        maximise,
        collapsed_objective if settings.inference == "collapsed" else explicit_objective,
        max_iterations=settings.max_iterations,
        tolerance=settings.tolerance,
        one_thread=settings.operations(data) < _LARGE,
    )


def _is_enough(first: list[Restart], settings: Settings) -> bool:
    # Whether the first starts agree, or were told to stop. Those of the paper's model all run.
    if len(first) < _AGREEING_STARTS or any(each.status is Status.INTERRUPTED for each in first):
        return True
    return not settings.kernels.is_plain and bool(np.ptp([each.bound for each in first]) < _SAME_OPTIMUM)


def grown(outcome: Outcome, data: Data, inputs: HostFloat, settings: Settings, on_progress: Report = None) -> Outcome:
    """Go on from the best start with more inducing points while the bound gains by them: latents first, then inputs.

    There are twice as many each time, or all; the starts have as many as independent GPs gain by.
    """
    began = time.perf_counter()
    worth = max(_LEAST_GAIN_OF_GROWING, _LEAST_GAIN_OF_GROWING_PER_POINT * data.n_observations)
    place, first = max(enumerate(outcome.restarts), key=lambda numbered: numbered[1].bound)
    parameters, found, status = outcome.parameters, first, outcome.status

    def report(bound: float) -> None:
        if on_progress is not None:
            on_progress(Progress(settings.n_latent, 1, 1, words, len(found.history), bound))

    can_grow = settings.inference == "collapsed" and status in (Status.CONVERGED, Status.ITERATION_LIMIT)
    larger = [_more_latents, _more_inputs] if can_grow else []
    while larger:
        enlarged = larger[0](parameters, inputs, settings)
        if enlarged is None:
            del larger[0]
            continue
        begin, words = enlarged
        sizes = {"n_inducing_inputs": len(begin.inducing_inputs), "n_inducing_latents": len(begin.inducing_latents)}
        own = settings._replace(**sizes)
        with threadpool_limits(limits=1 if own.operations(data) < _LARGE else None):
            run = _maximiser(data, own)(begin, data, report)
        gain = run.bound - found.bound
        if gain > 0:
            parameters, history = run.tree, found.history + run.history
            evaluations, seconds = found.n_evaluations + run.n_evaluations, found.seconds + run.seconds
            found, status = Restart(found.recipe, run.bound, run.status, history, evaluations, seconds), run.status
        if run.status is Status.INTERRUPTED:
            status = run.status
            break
        if not gain >= worth:
            del larger[0]
    if found is first and status is outcome.status:
        return outcome
    on_inputs, on_latents = map(float, jitters(parameters))
    return outcome._replace(
        parameters=dataclasses.replace(parameters, fixed=()),
        bound=found.bound,
        status=status,
        restarts=(*outcome.restarts[:place], found, *outcome.restarts[place + 1 :]),
        jitter_inputs=on_inputs,
        jitter_latents=on_latents,
        seconds=outcome.seconds + time.perf_counter() - began,
    )


def _more_inputs(parameters: Parameters, inputs: HostFloat, settings: Settings) -> tuple[Parameters, str] | None:
    # Twice as many inducing inputs, spread anew, and what that is called; ``None`` where there are as many as may be.
    n_inducing = _doubled(len(parameters.inducing_inputs), settings.most_inducing_inputs)
    if n_inducing is None:
        return None
    points = jnp.asarray(representatives(inputs, n_inducing, settings.seed))
    return settings.with_inducing_inputs(parameters, points), f"{n_inducing} inducing inputs"


def _more_latents(parameters: Parameters, _: HostFloat, settings: Settings) -> tuple[Parameters, str] | None:
    # Inducing latents that are there, and latents far from them.
    points = np.asarray(parameters.inducing_latents)
    n_inducing = _doubled(len(points), settings.most_inducing_latents)
    if n_inducing is None:
        return None
    more = farthest(np.asarray(parameters.latents.mean), points, n_inducing - len(points))
    enlarged = dataclasses.replace(parameters, inducing_latents=jnp.asarray(np.concatenate([points, more])))
    return settings.with_inducing_inputs(enlarged, enlarged.inducing_inputs), f"{n_inducing} inducing latents"


def _doubled(number: int, most: int) -> int | None:
    # All the way where another doubling would not fit: two steps would cost more than one.
    if number >= most:
        return None
    return 2 * number if 4 * number <= most else most


@compiled
def jitters(parameters: Parameters) -> tuple[Scalar, Scalar]:
    """Return the jitter of the gram matrices of inducing inputs and of inducing latents."""
    return (
        _largest_jitter(parameters.kernels.of_inputs, parameters.inducing_inputs),
        _largest_jitter(parameters.kernels.of_latents, parameters.inducing_latents),
    )


def _largest_jitter(kernels: tuple[Kernel, ...], points: Float[Array, "m Q"]) -> Scalar:
    found = [jittered_factor(gram(kernel, points))[1] for kernel in kernels]
    return jnp.max(jnp.stack([jnp.zeros((), points.dtype), *found]))
