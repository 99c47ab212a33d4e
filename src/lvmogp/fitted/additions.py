"""Conditions that users add to a fitted model, from their observations as given."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from lvmogp.errors import DataError, SettingError
from lvmogp.fitted.model import METHODS, FittedModel, features_of, with_condition
from lvmogp.fitted.queries import Rows, asked_id, asked_inputs
from lvmogp.tables.ids import Id
from lvmogp.tables.reading import read_errors, read_outputs
from lvmogp.typing import HostFloat


class NewCondition(NamedTuple):
    """A condition to be added, as given but for its features."""

    name: Id
    X: Any
    y: Any
    features: HostFloat | None
    y_std: Any


def new_conditions(
    model: FittedModel, rows: Rows, y: Any, y_std: Any, features: dict[Id, HostFloat]
) -> list[NewCondition]:
    """The conditions of data in long form, with the features of all or of none."""
    names = rows.ids.rows()
    lacking = [name for name in names if features and name not in features and features_of(model, name) is None]
    if lacking:
        raise DataError(
            f"the features that were given have no row for condition {lacking[0]!r}; add one, with NaN or None where a "
            "feature is not known"
        )
    outputs = read_outputs(y, len(rows.ids))
    if outputs.ndim != 1:
        raise DataError("add_conditions takes long form: y must have one dimension")
    errors = read_errors(y_std, outputs)
    return [
        NewCondition(name, rows.inputs[own], outputs[own], features.get(name), None if errors is None else errors[own])
        for name, own in names.items()
    ]


def with_new_conditions(model: FittedModel, entries: Iterable[NewCondition], method: str) -> FittedModel:
    """The model with all of them added."""
    if method not in METHODS:
        raise SettingError(f"method must be one of {list(METHODS)}, got {method!r}")
    for entry in entries:
        model = _with_new_condition(model, entry, method)
    return model


def _with_new_condition(model: FittedModel, entry: NewCondition, method: str) -> FittedModel:
    name, X, y, features, y_std = entry
    plain_name = asked_id(name)
    inputs = asked_inputs(model, _at_least_no_rows(X, model.schema.n_columns)).values
    outputs = read_outputs(y, len(inputs)).reshape(-1)
    if len(outputs) != len(inputs):
        raise DataError(f"condition {name!r} needs one output for each of its {len(inputs)} rows, got {len(outputs)}")
    known = np.isfinite(outputs)
    errors = read_errors(y_std, outputs)
    transform = model.scaling.transform
    if transform is not None and not np.all(transform.takes(outputs[known])):
        raise DataError(
            f"condition {name!r} has outputs that are {transform.fault}; "
            f'output_transform="{transform.name}" needs {transform.demand}'
        )
    return with_condition(
        model,
        plain_name,
        inputs[known],
        outputs[known],
        method=method,
        features=features,
        errors=None if errors is None else errors[known],
    )


def _at_least_no_rows(X: Any, n_columns: int) -> Any:
    # An empty list has no columns to check.
    return np.empty((0, n_columns)) if np.size(X) == 0 else X
