"""Lines through the inputs of a model: which input runs, where the others are held, what was observed there."""

# Matplotlib's own types leave keyword arguments open.
# pyright: reportUnknownMemberType=false

from collections.abc import Mapping
from typing import Any

import matplotlib.dates as mdates
import numpy as np
from matplotlib.axis import Axis

from lvmogp.errors import DataError, SettingError
from lvmogp.estimator import LVMOGPRegressor
from lvmogp.insight.relevance import input_names
from lvmogp.tables.ids import Id
from lvmogp.typing import HostFloat

N_POINTS = 200
_NEAR = 0.1  # in standard deviations of an input: observations this close to a slice belong to it


def output_name(model: LVMOGPRegressor) -> str:
    """Return the name of the output, where known."""
    return model.model_.schema.output_name or "output"


def column_of(model: LVMOGPRegressor, which: str | int | None, *, default: int = 0) -> int:
    """Return the place of an input that is given by name, or by number from 0."""
    names = input_names(model)
    if which is None:
        return default
    if isinstance(which, str) and which in names:
        return names.index(which)
    if isinstance(which, (int, np.integer)) and 0 <= which < len(names):
        return int(which)
    raise SettingError(
        f"there is no input {which!r}; give one of the names {list(names)} or a number from 0 to {len(names) - 1}"
    )


def held_values(model: LVMOGPRegressor, at: Mapping[Any, Any] | None) -> HostFloat:
    """Return one value of each input: the given one, else the median of the training data (or their mean)."""
    fitted = model.model_
    known = fitted.observations
    values = np.array(fitted.scaling.input_mean if known is None else np.median(known.inputs, axis=0), dtype=float)
    for which, value in (at or {}).items():
        number = _as_numbers(value)
        if number.size != 1 or not np.isfinite(number).all():
            raise SettingError(f"input {which!r} must be held at one finite value, got {value!r}")
        values[column_of(model, which)] = number.reshape(())
    return values


def _as_numbers(values: Any) -> HostFloat:
    # Values of an input as the model sees them: dates become days since 1970.
    try:
        array = np.asarray(values)
        if array.dtype.kind in "OM":
            since = array.astype("datetime64[us]") - np.datetime64(0, "D")
            return np.asarray(since / np.timedelta64(1, "D"))
        return array.astype(float)
    except (TypeError, ValueError):
        raise DataError(f"values of an input must be numbers or dates, got {values!r:.60}") from None


def span(model: LVMOGPRegressor, column: int, n_points: int = N_POINTS) -> HostFloat:
    """Return points across the range of an input, from the training data or from their mean and scale."""
    fitted = model.model_
    if fitted.observations is not None:
        values = fitted.observations.inputs[:, column]
        return np.linspace(float(values.min()), float(values.max()), n_points)
    mean, scale = float(fitted.scaling.input_mean[column]), float(fitted.scaling.input_scale[column])
    return np.linspace(mean - 2 * scale, mean + 2 * scale, n_points)


def default_grid(model: LVMOGPRegressor) -> HostFloat:
    """Return points across the range of the first input."""
    return span(model, 0)


def line(held: HostFloat, column: int, grid: HostFloat) -> HostFloat:
    """Return inputs along a line: one of them runs over the grid, the others are held."""
    inputs = np.tile(held, (len(grid), 1))
    inputs[:, column] = grid
    return inputs


def running_values(model: LVMOGPRegressor, column: int, inputs: Any) -> HostFloat:
    """Return the values an input runs over: those given, or its whole range."""
    if inputs is None:
        return span(model, column)
    grid = _as_numbers(inputs).reshape(-1)
    if len(grid) == 0 or not np.isfinite(grid).all():
        raise DataError("inputs must hold at least one value of the input that runs, all of them finite")
    return grid


def observed(model: LVMOGPRegressor, condition: Id) -> tuple[HostFloat, HostFloat]:
    """Return inputs and outputs of a condition that the model holds, in the user's units."""
    trained = model.model_
    if condition in trained.added:
        entry = trained.added[condition]
        return entry.inputs, entry.outputs
    if trained.observations is None or condition not in trained.ids:
        return np.empty((0, trained.schema.n_columns)), np.empty(0)
    chosen = trained.observations.conditions == trained.ids.index(condition)
    return trained.observations.inputs[chosen], trained.observations.outputs[chosen]


def on_slice(model: LVMOGPRegressor, inputs: HostFloat, held: HostFloat, running: tuple[int, ...]) -> HostFloat:
    """Return whether each observation lies where the inputs that do not run are held, to a tenth of their spread."""
    distance = np.abs(inputs - held) / model.model_.scaling.input_scale
    distance[:, running] = 0.0
    return np.all(distance <= _NEAR, axis=1)


def held_in_words(model: LVMOGPRegressor, held: HostFloat, running: tuple[int, ...]) -> str:
    """Return where the inputs that do not run are held, as in "vgain = 2"; empty where all run."""
    names = input_names(model)
    return ", ".join(
        f"{name} = {_shown(model, name, float(held[place]))}"
        for place, name in enumerate(names)
        if place not in running
    )


def _shown(model: LVMOGPRegressor, name: str, value: float) -> str:
    if name not in model.model_.schema.date_columns:
        return f"{value:.4g}"
    return str((np.datetime64(0, "s") + np.timedelta64(round(value * 86_400), "s")).astype(object))


def label_input(model: LVMOGPRegressor, axis: Axis, column: int) -> None:
    """Name an axis after its input; dates are written as dates."""
    name = input_names(model)[column]
    axis.set_label_text(name)
    if name in model.model_.schema.date_columns:
        locator = mdates.AutoDateLocator()  # whose days count from 1970 as ours do
        axis.set_major_locator(locator)
        axis.set_major_formatter(mdates.ConciseDateFormatter(locator))
