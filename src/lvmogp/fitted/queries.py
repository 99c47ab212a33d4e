"""What users ask a fitted model about and add to it, checked at the door; and what it knows of its conditions."""

import numbers
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lvmogp.errors import DataError, NumericalError, SettingError
from lvmogp.fitted.model import FittedModel, features_of, with_condition
from lvmogp.tables.features import ConditionFeatures, read_feature_row, read_later_features
from lvmogp.tables.ids import Id, RowIds, check_kinds, is_single_id, row_conditions
from lvmogp.tables.observations import Observations
from lvmogp.tables.reading import Inputs, as_pandas, read_errors, read_inputs, read_outputs
from lvmogp.tables.scaling import check_positive
from lvmogp.typing import HostFloat, HostInt


class Query(NamedTuple):
    """Points and the condition of each row; for all conditions of a grid, a row for each condition and point.

    ``unseen`` says what to do with a condition never seen: ``"error"``, or ``"prior"``.
    """

    points: HostFloat
    ids: RowIds
    unseen: str
    n_columns: int | None = None

    @property
    def inputs(self) -> HostFloat:
        """The point of each row."""
        return self.points if self.n_columns is None else np.tile(self.points, (self.n_columns, 1))

    def some(self, rows: HostInt) -> "Query":
        """Return some of the rows."""
        return Query(self.inputs[rows], RowIds(self.ids.distinct, self.ids.numbers[rows]), self.unseen)

    def as_columns(self, values: HostFloat) -> HostFloat:
        """Return values of rows that are repeated for each condition as (points, conditions), whatever axes follow."""
        if self.n_columns is None:
            return values
        return np.moveaxis(values.reshape(self.n_columns, -1, *values.shape[1:]), 0, 1)

    def measurements(self, y: Any, y_std: Any) -> tuple[HostFloat, HostFloat]:
        """Read outputs and their own errors, none unless they are given, in the order of the rows."""
        n_rows = len(self.ids)
        outputs = read_outputs(y, n_rows // (self.n_columns or 1))
        if outputs.size != n_rows:
            raise DataError(f"y must hold one output for each of {n_rows} predictions, got {outputs.size}")
        errors = read_errors(y_std, outputs, y)
        errors = np.zeros_like(outputs) if errors is None else errors
        return outputs.T.reshape(-1), errors.T.reshape(-1)


def asked_rows(model: FittedModel, X: Any, conditions: Any, condition: str | None, *, unseen: str = "error") -> Query:
    """Read the rows asked about; ``condition`` names the column of a table that holds the condition of each."""
    table = as_pandas(X)
    has_column = isinstance(table, pd.DataFrame) and condition in table.columns
    inputs = asked_inputs(model, table, condition=condition if conditions is None or has_column else None)
    n_rows, n_columns = len(inputs.values), None
    if conditions is not None:
        ids = row_conditions(conditions, n_rows)
    elif inputs.row_ids is not None:
        ids = inputs.row_ids
    elif len(model.ids) > 1 and not model.schema.is_grid:
        raise DataError(
            "predict needs to know the condition of each row: pass conditions=, one id for all rows or one per row"
        )
    else:
        n_columns = len(model.ids) if len(model.ids) > 1 else None
        ids = RowIds(model.ids, np.repeat(np.arange(len(model.ids)), n_rows))
    check_kinds([*model.all_ids, *ids.distinct])
    return Query(inputs.values, ids, unseen, n_columns)


def asked_inputs(model: FittedModel, X: Any, *, condition: str | None = None) -> Inputs:
    """Read inputs with the columns of those that the model was trained on."""
    inputs = read_inputs(X, condition=condition, schema=model.schema)
    check_positive(inputs.values, model.scaling.log_columns, model.schema.column_keys)
    return inputs


def asked_id(model: FittedModel, name: Any) -> Id:
    """Read the id of one condition, which must be one that can be told from those of the model."""
    (plain,) = row_conditions(name if is_single_id(name) else [name], 1).distinct
    check_kinds([*model.all_ids, plain])
    return plain


def known_features(model: FittedModel) -> ConditionFeatures:
    """Return the features of a model of conditions with features; refuse another."""
    if model.condition_features is None:
        raise DataError(
            "the model was fitted without features of conditions; leave them out, or fit with condition_features="
        )
    return model.condition_features


def asked_features(model: FittedModel, row: Any) -> HostFloat | None:
    """Read the values of one condition's features, if they are given."""
    return None if row is None else read_feature_row(known_features(model), row)


def features_by_id(model: FittedModel, table: Any, condition: str | None) -> dict[Id, HostFloat]:
    """Read the values of features of each condition of a table, if there is one."""
    return {} if table is None else read_later_features(known_features(model), table, condition)


def with_described(model: FittedModel, asked: Sequence[Id], features: dict[Id, HostFloat]) -> FittedModel:
    """Return the model with the new ones among the conditions asked about that are described."""
    for name, values in features.items():
        if name in asked and name not in model.all_ids:
            model = with_condition(model, name, model.schema.without_rows(), features=values, method="exact")
    return model


def asked_latents(model: FittedModel, H: Any, features: Any, *, n_rows: int) -> HostFloat:
    """Read latents, once or for each row, followed by the coordinates of the features to predict at."""
    n_latent = model.n_latent
    try:
        latents = np.atleast_2d(np.asarray(H, dtype=float))
    except (TypeError, ValueError):
        raise DataError(f"H must hold numbers, {n_latent} latent coordinates a row, got {H!r:.60}") from None
    if latents.ndim != 2 or latents.shape[1] != n_latent or len(latents) not in (1, n_rows):
        raise DataError(
            f"H must hold {n_latent} latent coordinates, once or for each of the {n_rows} rows, got shape {np.shape(H)}"
        )
    if not np.all(np.isfinite(latents)):
        raise DataError("H holds NaN or infinite values; latents must be finite")
    if model.condition_features is None and features is None:
        return latents
    known, values = known_features(model), asked_features(model, features)
    if values is None or np.isnan(values).any():
        names = [feature.name for feature in known.features]
        raise DataError(f"predictions at given latents need all features of the condition as well: {names}")
    return np.hstack([latents, np.broadcast_to(known.standardised(values), (len(latents), len(values)))])


def central_levels(level: Any) -> tuple[float, float]:
    """Return the probabilities below the two ends of the central interval of a level."""
    if not isinstance(level, numbers.Real) or not 0 < float(level) < 1:
        raise SettingError(f"level must lie between 0 and 1, got {level!r}")
    return (1 - float(level)) / 2, (1 + float(level)) / 2


def checked_numbers(what: str, values: HostFloat) -> HostFloat:
    """Return answers that are numbers: what cannot be computed is an error in words, not a NaN."""
    if not np.all(np.isfinite(values)):
        raise NumericalError(
            f"the {what} is too large to be computed for {int(np.sum(~np.isfinite(values)))} of {values.size} values; "
            'are inputs extremely far from the data? Where output_transform="log" has a mean or standard deviation '
            "beyond all numbers, predict_interval still answers"
        )
    return values


# Conditions that are added


def with_observations(
    model: FittedModel, name: Any, X: Any, y: Any, y_std: Any, *, features: HostFloat | None, method: str
) -> FittedModel:
    """Return the model with a condition of these observations."""
    name = asked_id(model, name)
    given = np.empty((0, model.schema.n_columns)) if np.size(X) == 0 else X  # an empty list has no columns
    inputs = asked_inputs(model, given).values
    outputs = read_outputs(y, len(inputs)).reshape(-1)
    if len(outputs) != len(inputs):
        raise DataError(f"condition {name!r} needs one output for each of its {len(inputs)} rows, got {len(outputs)}")
    seen = Observations(inputs, outputs, np.zeros(len(outputs), dtype=int), errors=read_errors(y_std, outputs))
    return with_condition(model, name, seen, features=features, method=method)


def with_long_form(
    model: FittedModel, rows: Query, y: Any, y_std: Any, *, features: dict[Id, HostFloat], method: str
) -> FittedModel:
    """Return the model with all conditions of data in long form, with the features of all or of none."""
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
    seen = Observations(rows.inputs, outputs, rows.ids.numbers, errors=read_errors(y_std, outputs))
    for name, own in names.items():
        model = with_condition(model, name, seen.some(own), features=features.get(name), method=method)
    return model
