"""What must hold of the answers to any data set, and an account of whether it did."""

import warnings
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from hostile_sets import Recipe, made
from papers_model import PapersModel
from small_models import grid_as_long

from lvmogp import LVMOGPRegressor
from lvmogp.conditions.closed_form import trained_grid_moments
from lvmogp.errors import LVMOGPError, LVMOGPWarning
from lvmogp.fitted.model import FittedModel, fitted_model
from lvmogp.ground.compiling import compiled
from lvmogp.ground.precision import in_precision
from lvmogp.kernels.covariances import diagonal
from lvmogp.kernels.psi_statistics import LatentGaussians
from lvmogp.model.layouts import GridData, LongData, standardised
from lvmogp.model.parameters import Parameters, of_conditions
from lvmogp.model.posterior import curve_moments, grid_marginals, posterior
from lvmogp.tables.observations import Observations
from lvmogp.tables.scaling import differs_in_last_digits_only, scaling_of
from lvmogp.typing import Array

# Standard deviations of the output by which answers that should be the same may differ: by rounding, after a fit (of at
# least 99 % of the data sets, since a fit may come to a fork), and in single precision.
ROUNDING, FITTED, SINGLE = 1e-6, 1e-2, 1e-2
ANEW = ", fitted anew"
_MOST_ASKED = 3
_posterior = compiled(posterior)


class Account(NamedTuple):
    """What became of a data set: the refusal in words, if it was refused, and the rules that its answers broke.

    ``moved`` says by how many standard deviations of the output answers changed that should not have; whether that is
    too far after a fit is a matter of many data sets.
    """

    refusal: str | None
    findings: list[str]
    moved: dict[str, float]


def examined(recipe: Recipe, *, dtype: str = "float64", refits: bool = True) -> Account:
    """Fit the data set of a recipe and look at every answer."""
    account = Account(None, [], {})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            account = _examined(recipe, dtype, refits=refits)
        except LVMOGPError as error:
            account = Account(f"{type(error).__name__}: {error}", [], {})
        except Exception as error:
            account.findings.append(f"errors in words: {type(error).__name__}: {error}")
    foreign = {str(each.message) for each in caught if not issubclass(each.category, LVMOGPWarning)}
    account.findings.extend(f"warnings in words: {text}" for text in sorted(foreign))
    if recipe.ids in ("missing", "none") and account.refusal is None:
        account.findings.append("missing ids are refused")
    return account


def _examined(recipe: Recipe, dtype: str, *, refits: bool) -> Account:
    data, settings = made(recipe)
    model = PapersModel(**settings, dtype=dtype).fit(**data)
    rng = np.random.default_rng(recipe.seed)
    trained, history = model.model_, model.outcome_.history
    # Inputs among the data, beside them, far and very far from them.
    middle, step = trained.scaling.input_mean, trained.scaling.input_scale
    beside = [middle + far * step for far in (0, 0.3, -4, 1e3)]
    points, names = np.stack([trained.observations.inputs[0], *beside]), list(trained.ids)
    rules = _of_answers(model, points, names, intervals=True)
    rules["the bound is finite and never falls"] = np.isfinite(history).all() and (np.diff(history) >= 0).all()
    moved = _fixed_parameters(trained, points, rng)
    rules["more data never widen a band"] = _widened_by_more_data(trained, points, rng) < 1e-8
    if recipe.seed % 4 == 0:
        seen = trained.observations
        model.add_condition("one more", seen.inputs[:2], seen.outputs[:2])
        of_new = _of_answers(model, points, ["one more", "never seen"], intervals=False)
        rules |= {rule: rules[rule] and kept for rule, kept in of_new.items()}
        model.remove_condition("one more")
    if dtype == "float32":
        double = PapersModel(**settings).fit(**data).model_
        moved["single precision"] = _moved(trained, double, points)
    elif refits:
        moved |= _fitted_anew(model, points, rng)
    # Digits that the data themselves lack cannot be asked of the answers.
    moved = {rule: distance / allowance(trained) for rule, distance in moved.items()}
    limit = ROUNDING if dtype == "float64" else SINGLE
    rules |= {rule: distance <= limit for rule, distance in moved.items() if not rule.endswith(ANEW)}
    return Account(None, [rule for rule, kept in rules.items() if not kept], moved)


def allowance(trained: FittedModel) -> float:
    """How much more answers may move where values are much larger than their spread, so that digits are lost."""
    scaling, seen = trained.scaling, trained.observations
    inputs, output = np.abs(seen.inputs).max(axis=0) / scaling.input_scale, scaling.output_mean / scaling.output_scale
    return 1 + 100 * np.finfo(float).eps / ROUNDING * max(inputs.max(), abs(output))


def _of_answers(model: LVMOGPRegressor, points: np.ndarray, names: list[Any], *, intervals: bool) -> dict[str, bool]:
    x, ids = np.tile(points, (len(names), 1)), [name for name in names for _ in points]
    mean, deviation = model.predict(x, ids, return_std=True)
    _, of_curve = model.predict(x, ids, return_std=True, include_noise=False)
    found = {
        "answers are finite": np.isfinite([mean, deviation, of_curve]).all(),
        "variances are positive": np.min([deviation, of_curve]) > 0,
        "noise widens bands": (deviation >= of_curve).all(),
    }
    if intervals:
        x, ids = x[: _MOST_ASKED * len(points)], ids[: _MOST_ASKED * len(points)]
        lower, upper = model.predict_interval(x, ids)
        middle = (lower + upper) / 2
        below, density = model.predictive_cdf(x, middle, ids), model.log_predictive_density(x, middle, ids)
        found |= {
            "intervals are ordered": np.isfinite([lower, upper]).all() and (lower < upper).all(),
            "probabilities lie between 0 and 1": ((below > 0) & (below < 1)).all(),
            "densities are finite": np.isfinite(density).all(),
        }
    return found


class Telling(NamedTuple):
    """The same observations told in another way, and the maps of points and answers that go with it."""

    observations: Observations
    order: np.ndarray  # place of each condition of before
    input_map: tuple[float, float] = (1.0, 0.0)
    answer_map: tuple[float, float] = (1.0, 0.0)


def _tellings(seen: Observations, rng: np.random.Generator, transform: Any, *, shifted: bool) -> dict[str, Telling]:
    rows, names, same = rng.permutation(len(seen.outputs)), rng.permutation(len(seen.ids)), np.arange(len(seen.ids))
    shuffled = {name: getattr(seen, name)[rows] for name in ("inputs", "outputs", "conditions")}
    found = {
        "order of rows": Telling(seen._replace(**shuffled), same),
        "names": Telling(seen._replace(conditions=names[seen.conditions], ids=tuple(range(len(names)))), names),
    }
    # What does not vary has no scale, and is taken in the user's units.
    columns = np.column_stack([seen.inputs, seen.outputs if transform is None else transform.forward(seen.outputs)])
    if np.all(np.ptp(columns, axis=0) > 0) and not np.any(differs_in_last_digits_only(columns)):
        # Powers of two, by which no digit is lost, and shifts where digits allow it.
        input_map, output_map = (2.0**-5, 2.0**-5 * _shift(seen.inputs) * shifted), (2.0**9, 0.0)
        if transform is None:
            output_map = (2.0**9, 2.0**9 * _shift(seen.outputs) * shifted)
        told = seen._replace(inputs=_mapped(seen.inputs, input_map), outputs=_mapped(seen.outputs, output_map))
        # A logarithm turns a factor into a shift, a root into its root.
        answer_maps = {None: output_map, "log": (1.0, 9 * np.log(2.0)), "sqrt": (2.0**4.5, 0.0)}
        found["units"] = Telling(told, same, input_map, answer_maps[transform and transform.name])
    return found


def _shift(values: np.ndarray) -> float:
    return 2.0 ** (np.ceil(np.log2(max(np.abs(values).max(), 1e-300))) + 1)


def _rounded(values: np.ndarray) -> np.ndarray:
    # To 26 binary digits, which can be shifted without losing any.
    step = _shift(values) * 2.0**-27
    return np.round(values / step) * step


def _mapped(values: np.ndarray, by: tuple[float, float]) -> np.ndarray:
    return values * by[0] + by[1]


def _fixed_parameters(trained: FittedModel, points: np.ndarray, rng: np.random.Generator) -> dict[str, float]:
    # How far answers move when the same data are told in another way and the parameters stay as they are.
    given, transform = trained.observations, trained.scaling.transform
    seen = given._replace(inputs=_rounded(given.inputs), outputs=_rounded(given.outputs))
    if not np.all(trained.scaling.takes(seen.outputs)):
        seen = given
    parameters, moved = trained.posterior.parameters, {}
    before = rebuilt(trained, seen, parameters)
    for what, told in _tellings(seen, rng, transform, shifted=True).items():
        after = rebuilt(trained, told.observations, of_conditions(parameters, np.argsort(told.order)))
        moved[f"{what}, fixed parameters"] = _moved(before, after, points, told)
    return moved


def _fitted_anew(model: LVMOGPRegressor, points: np.ndarray, rng: np.random.Generator) -> dict[str, float]:
    # How far they move when everything is fitted anew; a shift would cost the data some of their digits.
    trained, moved = model.model_, {}
    for what, told in _tellings(trained.observations, rng, trained.scaling.transform, shifted=False).items():
        seen = told.observations
        again = PapersModel(**(model.get_params(deep=False) | {"condition": None}))
        again.fit(seen.inputs, seen.outputs, [seen.ids[number] for number in seen.conditions])
        moved[what + ANEW] = _moved(trained, again.model_, points, told)
    return moved


def rebuilt(trained: FittedModel, seen: Observations, parameters: Parameters) -> FittedModel:
    """The model of these parameters and observations, without any fit."""
    scaling = scaling_of(seen.inputs, seen.outputs, transform=trained.scaling.transform)
    found = _posterior(in_precision(parameters, "float64"), standardised(seen, scaling))
    found = in_precision(found, trained.posterior.mean.dtype)
    return fitted_model(seen, scaling, trained.fit._replace(posterior=found))


def moments(trained: FittedModel, points: np.ndarray) -> np.ndarray:
    """Mean and standard deviation of the modelled quantity, 2 × points × conditions, standardised units undone."""
    scaling = trained.scaling
    mean, variance = trained_grid_moments(trained.ensemble.fit, scaling.inputs(points), with_variance=True)
    total = variance + np.asarray(trained.posterior.parameters.noise_per_condition, dtype=float)
    return np.stack([scaling.location(mean), np.sqrt(scaling.variance(total))])


def _moved(before: FittedModel, after: FittedModel, points: np.ndarray, told: Telling | None = None) -> float:
    # The most that moments differ, in standard deviations of the output, in the units and the order of before.
    told = told or Telling(before.observations, np.arange(len(before.ids)))
    found = moments(after, _mapped(points, told.input_map))[:, :, told.order]
    factor, shift = told.answer_map
    found = (found - np.reshape([shift, 0.0], (2, 1, 1))) / factor
    return float(np.max(np.abs(found - moments(before, points)))) / before.scaling.output_scale


def _widened_by_more_data(trained: FittedModel, points: np.ndarray, rng: np.random.Generator) -> float:
    # The most that a variance grows from about half of the observations to all of them, as a share of the prior's.
    parameters = in_precision(trained.posterior.parameters, "float64")
    if parameters.inducing is not None:
        return 0.0  # what is stored does not look at the data again
    data = standardised(trained.observations, trained.scaling)
    data = grid_as_long(data) if isinstance(data, GridData) else data
    # In the same places, so that no new program is needed.
    present = np.asarray(data.present) * (rng.random(data.present.shape) < 0.5)
    counts = np.bincount(np.asarray(data.block_condition), weights=present.sum(axis=1), minlength=data.n_conditions)
    changes = (jnp.asarray(present), data.outputs * present, jnp.asarray(counts))
    half = eqx.tree_at(lambda tree: (tree.present, tree.outputs, tree.counts), data, changes)
    standard = jnp.asarray(trained.scaling.inputs(points))
    (of_all, prior), (of_half, _) = spreads(parameters, data, standard), spreads(parameters, half, standard)
    return float(np.max((of_all - of_half) / prior))


@compiled
def spreads(parameters: Parameters, data: LongData, points: Array) -> tuple[Array, Array]:
    """Variances of curves at the means of the latents, points × conditions, and those of the prior."""
    model = posterior(parameters, data)
    latents = parameters.latents.mean
    shapes = curve_moments(model, LatentGaussians(latents, jnp.zeros_like(latents)))
    prior = diagonal(model.input_basis.kernels[0], points)[:, None] * shapes.prior_variance[:, 0]
    return grid_marginals(model.input_basis, shapes, points)[1], prior
