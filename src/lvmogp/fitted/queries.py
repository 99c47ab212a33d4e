"""What users ask a fitted model about: inputs and the condition of each row, features, latents."""

import numbers
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lvmogp.errors import DataError, NumericalError, SettingError
from lvmogp.fitted.model import FittedModel, with_condition
from lvmogp.tables.columns import as_pandas
from lvmogp.tables.feature_tables import read_later, read_row
from lvmogp.tables.features import Descriptions
from lvmogp.tables.ids import Id, RowIds, is_single_id, row_conditions
from lvmogp.tables.reading import Inputs, in_columns_of, read_errors, read_inputs, read_outputs
from lvmogp.typing import HostFloat


class Rows(NamedTuple):
    """Points and the condition of each row; for all conditions of a grid, a row for each condition and point."""

    points: HostFloat
    ids: RowIds
    n_columns: int | None

    @property
    def inputs(self) -> HostFloat:
        """The point of each row."""
        return self.points if self.n_columns is None else np.tile(self.points, (self.n_columns, 1))

    def as_columns(self, values: HostFloat) -> HostFloat:
        """Values of rows that are repeated once a condition as (points, conditions), whatever axes follow."""
        if self.n_columns is None:
            return values
        return np.moveaxis(values.reshape(self.n_columns, -1, *values.shape[1:]), 0, 1)

    def measurements(self, y: Any, y_std: Any) -> tuple[HostFloat, HostFloat]:
        """Outputs as users give them and their own errors, none unless they are given, in the order of the rows."""
        n_rows = len(self.ids)
        outputs = read_outputs(y, n_rows // (self.n_columns or 1))
        if outputs.size != n_rows:
            raise DataError(f"y must hold one output for each of {n_rows} predictions, got {outputs.size}")
        errors = read_errors(in_columns_of(y, y_std), outputs)
        errors = np.zeros_like(outputs) if errors is None else errors
        return outputs.T.reshape(-1), errors.T.reshape(-1)


def asked_rows(model: FittedModel, X: Any, conditions: Any, condition: str | None) -> Rows:
    """The rows asked about; ``condition`` names the column of a table that holds the condition of each."""
    if conditions is not None:
        column = None if condition is None or not _has_column(X, condition) else condition
        inputs = asked_inputs(model, X, condition=column)
        return Rows(inputs.values, row_conditions(conditions, len(inputs.values)), None)
    inputs = asked_inputs(model, X, condition=condition)
    n_rows = len(inputs.values)
    if inputs.row_ids is not None:
        return Rows(inputs.values, inputs.row_ids, None)
    if len(model.ids) == 1:
        return Rows(inputs.values, RowIds(model.ids, np.zeros(n_rows, dtype=int)), None)
    if not model.schema.is_grid:
        raise DataError(
            "predict needs to know the condition of each row: pass conditions=, one id for all rows or one a row"
        )
    n_columns = len(model.ids)
    return Rows(inputs.values, RowIds(model.ids, np.repeat(np.arange(n_columns), n_rows)), n_columns)


def _has_column(X: Any, name: str) -> bool:
    table = as_pandas(X)
    return isinstance(table, pd.DataFrame) and name in table.columns


def asked_inputs(model: FittedModel, X: Any, *, condition: str | None = None) -> Inputs:
    """Inputs with the columns of those that the model was trained on."""
    return read_inputs(
        X,
        condition=condition,
        columns=model.schema.columns,
        n_columns=model.schema.n_columns,
        trained_dates=model.schema.date_columns,
    )


def asked_id(name: Any) -> Id:
    """The id of one condition."""
    (plain,) = row_conditions(name if is_single_id(name) else [name], 1).distinct
    return plain


def known_features(model: FittedModel) -> Descriptions:
    """The features of a model of conditions with features; of another, an error."""
    if model.descriptions is None:
        raise DataError(
            "the model was fitted without features of conditions; leave them out, or fit with condition_features="
        )
    return model.descriptions


def asked_features(model: FittedModel, row: Any) -> HostFloat | None:
    """The values of one condition's features, if they are given."""
    return None if row is None else read_row(known_features(model), row)


def features_by_id(model: FittedModel, table: Any, condition: str | None) -> dict[Id, HostFloat]:
    """The values of features of each condition of a table, if there is one."""
    return {} if table is None else read_later(known_features(model), table, condition)


def with_described(model: FittedModel, asked: Sequence[Id], features: dict[Id, HostFloat]) -> FittedModel:
    """The model with the new ones among the conditions asked about that are described."""
    for name, values in features.items():
        if name in asked and name not in model.all_ids:
            nothing = np.empty((0, model.schema.n_columns))
            model = with_condition(model, name, nothing, np.empty(0), method="exact", features=values)
    return model


def asked_latents(model: FittedModel, H: Any, features: Any, *, n_rows: int) -> HostFloat:
    """Latents once or for each row, followed by the coordinates of the features at which a prediction is asked for."""
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
    known = _imagined(model, features)
    return np.hstack([latents, np.broadcast_to(known, (len(latents), len(known)))])


def _imagined(model: FittedModel, features: Any) -> HostFloat:
    if model.descriptions is None and features is None:
        return np.empty(0)
    known, values = known_features(model), asked_features(model, features)
    if values is None or np.isnan(values).any():
        names = [feature.name for feature in known.features]
        raise DataError(f"predictions at given latents need all features of the condition as well: {names}")
    return known.standardised(values)


def central_levels(level: Any) -> tuple[float, float]:
    """Probabilities below the two ends of the central interval of a level."""
    if not isinstance(level, numbers.Real) or not 0 < float(level) < 1:
        raise SettingError(f"level must lie between 0 and 1, got {level!r}")
    return (1 - float(level)) / 2, (1 + float(level)) / 2


def checked_numbers(what: str, values: HostFloat) -> HostFloat:
    """Answers, once they are known to be numbers: what cannot be computed is an error in words, not a NaN."""
    if not np.all(np.isfinite(values)):
        raise NumericalError(
            f"the {what} is too large to be computed for {int(np.sum(~np.isfinite(values)))} of {values.size} values; "
            'are inputs extremely far from the data? Where output_transform="log" has a mean or standard deviation '
            "beyond all numbers, predict_interval still answers"
        )
    return values
