"""The parts of a condition's curve in the user's units, and how much of the variance each has."""

import jax.numpy as jnp
import numpy as np
import pandas as pd

from lvmogp.conditions.closed_form import trained_row_moments
from lvmogp.conditions.condition import Condition, particles_in_chunks
from lvmogp.conditions.ensemble import Ensemble
from lvmogp.conditions.parts import DrawnSquares, Rows, drawn_squares, part_moments, parts_in
from lvmogp.fitted.model import FittedModel, ensemble_given, find_condition
from lvmogp.fitted.queries import Query
from lvmogp.ground.padding import with_last_repeated
from lvmogp.model.layouts import standardised
from lvmogp.typing import HostFloat, HostInt

# Rows at which the variance of all parts is looked at, and posterior draws that say how much it is.
_MOST_ROWS, _MOST_DRAWS = 8_192, 128


def part_table(model: FittedModel, rows: Query) -> pd.DataFrame:
    """Return mean and standard deviation of each part of the curves at rows, one part after the other.

    The mean of the outputs belongs to the shared curve, without one to what latents tell, so that parts add up.
    """
    scaling, points = model.scaling, model.scaling.inputs(rows.inputs)
    ids = pd.Series([rows.ids.distinct[number] for number in rows.ids.numbers], dtype=object)
    tables: list[pd.DataFrame] = []
    for part, chosen in parts_in(model.posterior.parameters.kernels).items():
        mean, variance = _moments(model, rows, points, chosen)
        mean = scaling.location(mean) if not tables else mean * scaling.output_scale
        found = {"row": np.arange(len(ids)) % max(len(rows.points), 1), "condition": ids, "part": part}
        tables.append(pd.DataFrame({**found, "mean": mean, "sd": np.sqrt(scaling.variance(variance))}))
    return pd.concat(tables, ignore_index=True)


def _moments(model: FittedModel, rows: Query, points: HostFloat, chosen: HostFloat) -> HostFloat:
    found, fit, numbers = np.empty((2, len(points))), model.ensemble.fit, rows.ids.numbers_in(model.ids)
    known = np.flatnonzero(numbers >= 0) if fit is not None else np.empty(0, int)
    if fit is not None and len(known):
        found[:, known] = trained_row_moments(fit, points[known], numbers[known], chosen)
    for name, places in rows.ids.rows().items():
        if fit is None or name not in model.ids:
            condition = find_condition(model, name, unseen=rows.unseen)
            found[:, places] = _particle_moments(model.ensemble, condition, points[places], chosen)
    return found


def _particle_moments(ensemble: Ensemble, condition: Condition, points: HostFloat, chosen: HostFloat) -> HostFloat:
    padded, kernels = (jnp.asarray(each, ensemble.dtype) for each in (with_last_repeated(points), chosen))
    parts = [
        (np.exp(np.asarray(some.log_weights, dtype=float)), *part_moments(some, padded, kernels))
        for some in particles_in_chunks(ensemble, condition)
    ]
    weights, means, variances = (np.concatenate(each) for each in zip(*parts, strict=True))
    means, variances = means[:, : len(points)], variances[:, : len(points)]
    mean = weights @ means
    return np.stack([mean, weights @ (variances + (means - mean) ** 2)])


def variances_of_parts(model: FittedModel) -> DrawnSquares:
    """Draw the mean squares of all parts and of the noise at the observations of each trained condition."""
    ensemble, parameters = model.ensemble, model.posterior.parameters
    if ensemble.n_processes > _MOST_DRAWS and model.observations is not None:
        ensemble = ensemble_given(model, standardised(model.observations, model.scaling), most_draws=_MOST_DRAWS)
    if model.observations is None:  # inducing inputs with each of the conditions
        points, n_conditions = np.asarray(parameters.inducing_inputs, dtype=float), len(model.ids)
        inputs, numbers = np.tile(points, (n_conditions, 1)), np.repeat(np.arange(n_conditions), len(points))
    else:
        inputs, numbers = model.scaling.inputs(model.observations.inputs), model.observations.conditions
    chosen, counts = _some_of_each(numbers)
    rows = Rows(
        jnp.asarray(inputs[chosen], ensemble.dtype), jnp.asarray(numbers[chosen]), jnp.asarray(counts, ensemble.dtype)
    )
    return drawn_squares(ensemble, parameters.kernels, rows)


def _some_of_each(numbers: HostInt) -> tuple[HostInt, HostFloat]:
    # Rows evenly spaced among those of each condition, and how many each stands for.
    order = np.argsort(numbers, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)
    most = max(_MOST_ROWS // len(groups), 1)
    taken = [
        group if len(group) <= most else group[np.linspace(0, len(group) - 1, most).astype(int)] for group in groups
    ]
    counts = [np.full(len(some), len(group) / len(some)) for some, group in zip(taken, groups, strict=True)]
    return np.concatenate(taken), np.concatenate(counts)
