"""What must hold of the answers to any data set, and an account of whether it did."""

import warnings
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from hostile_sets import HostileSet, Recipe, made
from small_models import grid_as_long

from lvmogp import LVMOGPRegressor
from lvmogp.conditions.closed_form import trained_grid_moments
from lvmogp.errors import LVMOGPError, LVMOGPWarning
from lvmogp.fitted.model import FittedModel, fitted_model
from lvmogp.ground.compiling import compiled
from lvmogp.ground.precision import in_precision
from lvmogp.kernels.covariances import diagonal
from lvmogp.kernels.psi_statistics import LatentGaussians
from lvmogp.model.layouts import Data, GridData, LongData, standardised
from lvmogp.model.parameters import Parameters, of_conditions
from lvmogp.model.posterior import curve_moments, grid_marginals, posterior
from lvmogp.tables.observations import Observations
from lvmogp.tables.scaling import differs_in_last_digits_only, scaling_of
from lvmogp.tables.transforms import Transform
from lvmogp.typing import Array, Float

# Standard deviations of the output by which answers that should be the same may differ: by rounding, after a fit (of at
# least 99 % of the data sets, since a fit may come to a fork), and in single precision.
ROUNDING, FITTED, SINGLE = 1e-6, 1e-2, 1e-2
ANEW = ", fitted anew"
_MOST_ASKED = 3
_posterior = compiled(posterior)


class Finding(NamedTuple):
    """Something that should not be."""

    rule: str
    text: str


class Account(NamedTuple):
    """What became of a data set: the refusal in words, if it was refused, and what was wrong with the answers.

    ``moved`` says by how many standard deviations of the output answers changed that should not have; whether that is
    too far after a fit is a matter of many data sets.
    """

    refusal: str | None
    findings: tuple[Finding, ...]
    moved: dict[str, float]


class Answer(NamedTuple):
    """Mean and standard deviations, of observations and of curves, at the same points for each condition in turn."""

    mean: np.ndarray
    deviation: np.ndarray
    curve_deviation: np.ndarray


def examined(recipe: Recipe, *, dtype: str = "float64", refits: bool = True) -> Account:
    """Fit the data set of a recipe and look at every answer."""
    hostile = made(recipe)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            account = _examined(hostile, recipe, dtype, refits=refits)
        except LVMOGPError as error:
            account = Account(f"{type(error).__name__}: {error}", (), {})
        except Exception as error:
            account = Account(None, (Finding("errors in words", f"{type(error).__name__}: {error}"),), {})
    foreign = {str(each.message) for each in caught if not issubclass(each.category, LVMOGPWarning)}
    found = [Finding("warnings in words", text) for text in sorted(foreign)]
    if recipe.ids in ("missing", "none") and account.refusal is None:
        found.append(Finding("missing ids are refused", "a missing id was taken for one"))
    return account._replace(findings=(*account.findings, *found))


def _examined(hostile: HostileSet, recipe: Recipe, dtype: str, *, refits: bool) -> Account:
    settings = hostile.settings | {"dtype": dtype}
    model = LVMOGPRegressor(**settings).fit(**hostile.data)
    rng = np.random.default_rng(recipe.seed)
    points, names = asked(model.model_)
    answer = answered(model, points, names)
    found = [*_of_course(model.outcome_.history), *_of_answer(answer), *_of_intervals(model, points, names)]
    moved = dict(_fixed_parameters(model.model_, points, rng))
    found += _of_more_data(model.model_, points, rng)
    if recipe.seed % 4 == 0:
        found += _of_new_condition(model, points)
    if dtype == "float32":
        moved |= _in_double_precision(hostile, model.model_, points)
    elif refits:
        moved |= _fitted_anew(model, settings, points, rng)
    # Digits that the data themselves lack cannot be asked of the answers.
    moved = {rule: distance / allowance(model.model_) for rule, distance in moved.items()}
    for rule, distance in moved.items():
        if not rule.endswith(ANEW) and not distance <= (ROUNDING if dtype == "float64" else SINGLE):
            found.append(Finding(rule, f"answers moved by {distance:.2g} standard deviations"))
    return Account(None, tuple(found), moved)


def allowance(trained: FittedModel) -> float:
    """How much more answers may move where values are much larger than their spread, so that digits are lost."""
    scaling, seen = trained.scaling, trained.observations
    inputs, output = np.abs(seen.inputs).max(axis=0) / scaling.input_scale, scaling.output_mean / scaling.output_scale
    return 1 + 100 * np.finfo(float).eps / ROUNDING * max(inputs.max(), abs(output))


# Answers


def asked(trained: FittedModel) -> tuple[np.ndarray, list[Any]]:
    """Inputs among the data, beside them, far and very far from them, and all conditions."""
    scaling = trained.scaling
    middle, step = scaling.input_mean, scaling.input_scale
    return np.stack(
        [trained.observations.inputs[0], middle, middle + 0.3 * step, middle - 4 * step, middle + 1e3 * step]
    ), list(trained.ids)


def answered(model: LVMOGPRegressor, points: np.ndarray, names: list[Any]) -> Answer:
    """Predictions of all conditions at all points."""
    ids = [name for name in names for _ in points]
    rows = np.tile(points, (len(names), 1))
    mean, deviation = model.predict(rows, ids, return_std=True)
    _, curve_deviation = model.predict(rows, ids, return_std=True, include_noise=False)
    return Answer(mean, deviation, curve_deviation)


def _of_course(history: tuple[float, ...]) -> list[Finding]:
    # The bound, from one iteration to the next.
    if np.all(np.isfinite(history)) and np.all(np.diff(history) >= 0):
        return []
    return [Finding("the bound is finite and never falls", f"{history}")]


def _of_answer(answer: Answer) -> list[Finding]:
    found = [
        Finding("answers are finite", f"{name} is not finite in {int(np.sum(~np.isfinite(values)))} places")
        for name, values in answer._asdict().items()
        if not np.all(np.isfinite(values))
    ]
    for name in ("deviation", "curve_deviation"):
        if not np.all(getattr(answer, name) > 0):
            found.append(Finding("variances are positive", f"{name} is {np.min(getattr(answer, name)):g} somewhere"))
    if np.any(answer.deviation < answer.curve_deviation):
        found.append(Finding("noise widens bands", "an observation is surer than its curve"))
    return found


def _of_intervals(model: LVMOGPRegressor, points: np.ndarray, names: list[Any]) -> list[Finding]:
    found = []
    for name in names[:_MOST_ASKED]:
        lower, upper = model.predict_interval(points, name)
        if not (np.all(np.isfinite([lower, upper])) and np.all(lower < upper)):
            found.append(Finding("intervals are ordered", f"from {lower} to {upper}"))
        middle = (lower + upper) / 2
        below = model.predictive_cdf(points, middle, name)
        density = model.log_predictive_density(points, middle, name)
        if not np.all((below > 0) & (below < 1)):
            found.append(Finding("probabilities lie between 0 and 1", f"{below}"))
        if not np.all(np.isfinite(density)):
            found.append(Finding("densities are finite", f"{density}"))
    return found


def _of_new_condition(model: LVMOGPRegressor, points: np.ndarray) -> list[Finding]:
    seen = model.model_.observations
    added = model.add_condition("one more", seen.inputs[:2], seen.outputs[:2])
    found = _of_answer(answered(added, points, ["one more", "never seen"]))
    added.remove_condition("one more")
    return found


# The same data, told in another way


class Telling(NamedTuple):
    """The same observations told in another way, and the maps of points and answers that go with it."""

    observations: Observations
    order: np.ndarray  # place of each condition of before
    input_map: tuple[float, float] = (1.0, 0.0)
    answer_map: tuple[float, float] = (1.0, 0.0)


def shuffled(seen: Observations, rng: np.random.Generator) -> Telling:
    """Rows in another order."""
    order = rng.permutation(len(seen.outputs))
    told = seen._replace(inputs=seen.inputs[order], outputs=seen.outputs[order], conditions=seen.conditions[order])
    return Telling(told, np.arange(len(seen.ids)))


def renamed(seen: Observations, rng: np.random.Generator) -> Telling:
    """Conditions with other names, which come in another order."""
    order = rng.permutation(len(seen.ids))
    return Telling(seen._replace(conditions=order[seen.conditions], ids=tuple(range(len(order)))), order)


def in_other_units(seen: Observations, *, transform: Transform | None, shifted: bool) -> Telling:
    """Inputs and outputs scaled by powers of two, which no digit is lost by, and shifted where digits allow it."""
    input_map, output_map = (2.0**-5, 2.0**-5 * _shift(seen.inputs) * shifted), (2.0**9, 0.0)
    if transform is None:
        output_map = (2.0**9, 2.0**9 * _shift(seen.outputs) * shifted)
    told = seen._replace(inputs=_mapped(seen.inputs, input_map), outputs=_mapped(seen.outputs, output_map))
    # A logarithm turns a factor into a shift, a root into its root.
    answer_map = {None: output_map, "log": (1.0, 9 * np.log(2.0)), "sqrt": (2.0**4.5, 0.0)}[
        transform and transform.name
    ]
    return Telling(told, np.arange(len(seen.ids)), input_map, answer_map)


def rounded(seen: Observations) -> Observations:
    """Observations of 26 binary digits, which can be shifted without losing any."""
    return seen._replace(inputs=_rounded(seen.inputs), outputs=_rounded(seen.outputs))


def _step(values: np.ndarray) -> float:
    return 2.0 ** (np.ceil(np.log2(max(np.abs(values).max(), 1e-300))) - 26)


def _rounded(values: np.ndarray) -> np.ndarray:
    return np.round(values / _step(values)) * _step(values)


def _shift(values: np.ndarray) -> float:
    return 2.0**27 * _step(values)


def _mapped(values: np.ndarray, by: tuple[float, float]) -> np.ndarray:
    return values * by[0] + by[1]


def _tellings(
    seen: Observations, rng: np.random.Generator, *, transform: Transform | None, shifted: bool
) -> dict[str, Telling]:
    found = {"order of rows": shuffled(seen, rng), "names": renamed(seen, rng)}
    # What does not vary has no scale, and is taken in the user's units.
    columns = np.column_stack([seen.inputs, seen.outputs if transform is None else transform.forward(seen.outputs)])
    if np.all(np.ptp(columns, axis=0) > 0) and not np.any(differs_in_last_digits_only(columns)):
        found["units"] = in_other_units(seen, transform=transform, shifted=shifted)
    return found


def _fixed_parameters(trained: FittedModel, points: np.ndarray, rng: np.random.Generator) -> dict[str, float]:
    # How far answers move when the same data are told in another way and the parameters stay as they are.
    seen = rounded(trained.observations)
    if not np.all(trained.scaling.takes(seen.outputs)):
        seen = trained.observations
    before = moments(rebuilt(trained, seen, trained.posterior.parameters), points)
    moved = {}
    for what, told in _tellings(seen, rng, transform=trained.scaling.transform, shifted=True).items():
        parameters = of_conditions(trained.posterior.parameters, np.argsort(told.order))
        after = moments(rebuilt(trained, told.observations, parameters), _mapped(points, told.input_map))
        scale = scaling_of(seen.inputs, seen.outputs, transform=trained.scaling.transform).output_scale
        moved[f"{what}, fixed parameters"] = _distance(before, _brought_back(after, told), scale)
    return moved


def _in_double_precision(hostile: HostileSet, trained: FittedModel, points: np.ndarray) -> dict[str, float]:
    # How far the answers of a model in single precision are from those of the same model in double precision.
    double = LVMOGPRegressor(**hostile.settings).fit(**hostile.data).model_
    return {
        "single precision": _distance(moments(trained, points), moments(double, points), trained.scaling.output_scale)
    }


def _fitted_anew(
    model: LVMOGPRegressor, settings: dict[str, Any], points: np.ndarray, rng: np.random.Generator
) -> dict[str, float]:
    # The same when everything is fitted anew.
    trained = model.model_
    seen = trained.observations
    before = moments(trained, points)
    moved = {}
    # Data as they are have all their digits, which a shift would cost.
    for what, told in _tellings(seen, rng, transform=trained.scaling.transform, shifted=False).items():
        ids = [told.observations.ids[number] for number in told.observations.conditions]
        again = LVMOGPRegressor(**(settings | {"condition": None}))
        again.fit(told.observations.inputs, told.observations.outputs, ids)
        after = moments(again.model_, _mapped(points, told.input_map))
        moved[what + ANEW] = _distance(before, _brought_back(after, told), trained.scaling.output_scale)
    return moved


def rebuilt(trained: FittedModel, seen: Observations, parameters: Parameters) -> FittedModel:
    """The model of these parameters and observations, without any fit."""
    scaling = scaling_of(seen.inputs, seen.outputs, transform=trained.scaling.transform)
    found = _posterior(in_precision(parameters, "float64"), standardised(seen, scaling))
    found = in_precision(found, trained.posterior.mean.dtype)
    schema, fit = trained.schema._replace(ids=seen.ids), trained.fit._replace(posterior=found)
    return fitted_model(schema, scaling, fit, observations=seen)


def moments(trained: FittedModel, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the modelled quantity, points × conditions, standardised units undone."""
    scaling = trained.scaling
    mean, variance = trained_grid_moments(trained.ensemble.fit, scaling.inputs(points), with_variance=True)
    total = variance + np.asarray(trained.posterior.parameters.noise_per_condition, dtype=float)
    return scaling.location(mean), np.sqrt(scaling.variance(total))


def _brought_back(found: tuple[np.ndarray, np.ndarray], told: Telling) -> tuple[np.ndarray, np.ndarray]:
    mean, deviation = (values[:, told.order] for values in found)
    factor, shift = told.answer_map
    return (mean - shift) / factor, deviation / factor


def _distance(before: tuple[np.ndarray, np.ndarray], after: tuple[np.ndarray, np.ndarray], scale: float) -> float:
    return max(float(np.max(np.abs(one - other))) / scale for one, other in zip(before, after, strict=True))


# More data


def _of_more_data(trained: FittedModel, points: np.ndarray, rng: np.random.Generator) -> list[Finding]:
    parameters = in_precision(trained.posterior.parameters, "float64")
    if parameters.inducing is not None:
        return []  # what is stored does not look at the data again
    data = as_long(standardised(trained.observations, trained.scaling))
    standard = jnp.asarray(trained.scaling.inputs(points))
    all_of_it, prior = spreads(parameters, data, standard)
    some_of_it, _ = spreads(parameters, part_of(data, rng), standard)
    widened = float(np.max((all_of_it - some_of_it) / prior))
    if widened > 1e-8:
        return [Finding("more data never widen a band", f"a variance grew by {widened:.2g} of the prior's")]
    return []


def as_long(data: Data) -> LongData:
    """Data in long form."""
    return grid_as_long(data) if isinstance(data, GridData) else data


def part_of(data: LongData, rng: np.random.Generator) -> LongData:
    """About half of the observations, in the same places, so that no new program is needed."""
    present = np.asarray(data.present) * (rng.random(data.present.shape) < 0.5)
    counts = np.bincount(np.asarray(data.block_condition), weights=present.sum(axis=1), minlength=data.n_conditions)
    return eqx.tree_at(
        lambda tree: (tree.present, tree.outputs, tree.counts),
        data,
        (jnp.asarray(present), data.outputs * present, jnp.asarray(counts)),
    )


@compiled
def spreads(
    parameters: Parameters, data: LongData, points: Float[Array, "n Q_X"]
) -> tuple[Float[Array, "n D"], Float[Array, "n D"]]:
    """Variances of curves at the means of the latents, and those of the prior."""
    model = posterior(parameters, data)
    latents = parameters.latents.mean
    shapes = curve_moments(model, LatentGaussians(latents, jnp.zeros_like(latents)))
    prior = diagonal(model.input_basis.kernel, points)[:, None] * shapes.prior_variance
    return grid_marginals(model.input_basis, shapes, points)[1], prior
