"""Known features of conditions as coordinates beside the latents, and the tables in which users have them.

A number or a date is one coordinate, a category one for each of its levels, 1 where the condition has that level and 0
elsewhere. All are standardised by mean and standard deviation over the trained conditions; NaN means not known.
"""

import datetime
from collections.abc import Iterable, Mapping, Set
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd

from lvmogp.errors import DataError, warn
from lvmogp.ground.rules import ANY_VALUE, POSITIVE, Along
from lvmogp.tables.ids import Id, check_kinds, distinct_ids, listed, numbers_of, plain_id, read_ids
from lvmogp.tables.reading import as_pandas, check_column_names, days
from lvmogp.tables.scaling import LARGEST, positive_scale
from lvmogp.typing import Float, HostFloat

NUMBER, DATE, CATEGORY = "number", "date", "category"


class Feature(NamedTuple):
    """One feature: a number, a date, or a category with its levels."""

    name: str
    kind: str
    levels: tuple[Id, ...] = ()

    @property
    def coordinate_names(self) -> tuple[str, ...]:
        """Names of its coordinates."""
        return tuple(f"{self.name} = {level}" for level in self.levels) or (self.name,)

    def decoded(self, values: HostFloat) -> Any:
        """Return its coordinates as users know them: a number, a date, a level; ``None`` where missing."""
        if np.isnan(values).any():
            return None
        if self.kind == CATEGORY:
            return self.levels[int(np.argmax(values))]
        return float(values[0]) if self.kind == NUMBER else pd.to_datetime(values[0], unit="D")


class FeatureCoordinates(NamedTuple):
    """Standardised coordinates of the trained conditions, with their scale in the user's units and where to start.

    ``lengthscales`` are those at which a fit starts, ``values`` are NaN where a feature is missing.
    """

    values: HostFloat
    scale: HostFloat
    lengthscales: HostFloat


class ConditionFeatures(NamedTuple):
    """What is known of conditions: ``values`` has a row for each of ``ids`` and a column for each coordinate.

    The trained conditions come first; the rest of the table waits for conditions that may come later. Values are those
    of the user (dates as days since 1970), ``mean`` and ``scale`` standardise them.
    """

    features: tuple[Feature, ...]
    ids: Annotated[tuple[Id, ...], Along("described")]
    values: Annotated[Float[np.ndarray, "described Q_F"], ANY_VALUE]
    mean: Float[np.ndarray, " Q_F"]
    scale: Annotated[Float[np.ndarray, " Q_F"], POSITIVE]

    @property
    def n_coordinates(self) -> int:
        """Coordinates of a condition."""
        return self.values.shape[1]

    @property
    def coordinate_names(self) -> tuple[str, ...]:
        """Names of all coordinates."""
        return tuple(name for feature in self.features for name in feature.coordinate_names)

    @property
    def places(self) -> tuple[slice, ...]:
        """Where the coordinates of each feature are."""
        ends = np.cumsum([len(feature.coordinate_names) for feature in self.features]).tolist()
        return tuple(slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True))

    def standardised(self, values: HostFloat) -> HostFloat:
        """Return coordinates as the model sees them."""
        return (values - self.mean) / self.scale

    def row(self, name: Id) -> HostFloat | None:
        """Return the values of a condition, where the table has it."""
        return self.values[self.ids.index(name)] if name in self.ids else None

    def with_trained(self, rows: Mapping[Id, HostFloat | None]) -> "ConditionFeatures":
        """Return a table with these conditions as the trained ones; the units stay as they are."""
        nothing = np.full(self.n_coordinates, np.nan)
        others = {name: own for name, own in zip(self.ids, self.values, strict=True) if name not in rows}
        values = [nothing if own is None else own for own in (*rows.values(), *others.values())]
        return self._replace(ids=(*rows, *others), values=np.stack(values))

    def coordinates(self, n_conditions: int) -> FeatureCoordinates:
        """Return the coordinates of the first ``n_conditions``, which are the trained ones."""
        # Two levels of a category start one lengthscale apart, numbers a standard deviation; more of them farther.
        kinds = np.concatenate([[feature.kind] * len(feature.coordinate_names) for feature in self.features])
        apart = np.sqrt(len(self.features)) / np.where(kinds == CATEGORY, self.scale, 1.0)
        return FeatureCoordinates(self.standardised(self.values[:n_conditions]), self.scale, apart)

    def decoded(self, values: HostFloat) -> dict[str, list[Any]]:
        """Return rows of values as users know them, by the names of the features."""
        return {
            feature.name: [feature.decoded(own) for own in values[:, place]]
            for feature, place in zip(self.features, self.places, strict=True)
        }


def read_features(table: Any, ids: tuple[Id, ...], condition: str | None) -> ConditionFeatures:
    """Check a table of features against the conditions of the training.

    It may be a DataFrame with the ids as its index or in the column named ``condition``, a mapping from ids to rows, or
    an array with a row for each of ``ids`` in their order.
    """
    names, frame = _frame(table, condition, trained=ids)
    if frame.shape[1] == 0:
        raise DataError("condition_features has no columns beside the ids; leave it out, or give at least one feature")
    check_kinds([*ids, *names])
    places = numbers_of(ids, names)
    lacking = [ids[number] for number in np.flatnonzero(places < 0)]
    if lacking:
        raise DataError(
            f"condition_features has no row for {listed(lacking)}; every trained condition needs one (with NaN or "
            "None where a feature is not known), found by the index of the table or by its condition column"
        )
    order = [*places, *np.setdiff1d(np.arange(len(names)), places)]
    frame = frame.iloc[order].reset_index(drop=True)
    features = tuple(_feature(name, frame[name].iloc[: len(ids)]) for name in frame.columns)
    values = np.column_stack([_encoded(feature, frame[feature.name], strict=False) for feature in features])
    own = values[: len(ids)]
    scale = positive_scale(np.nanstd(own, axis=0), np.nanmax(np.abs(own), axis=0))
    found = ConditionFeatures(features, tuple(names[row] for row in order), values, np.nanmean(own, axis=0), scale)
    for feature, columns in zip(features, found.places, strict=True):
        if len(ids) > 1 and np.all(np.nanmax(own[:, columns], axis=0) == np.nanmin(own[:, columns], axis=0)):
            warn(
                f"the feature {feature.name!r} is the same for all trained conditions, so nothing can be learnt about "
                "it; leave it out, or add conditions in which it differs"
            )
    return found


def read_feature_row(known: ConditionFeatures, row: Any) -> HostFloat:
    """Read the features of one new condition: a mapping from names to values, or one value per feature."""
    row = as_pandas(row)
    if isinstance(row, pd.DataFrame):
        if len(row) != 1:
            raise DataError(f"the features of one condition are one row, got a table of {len(row)} rows")
        row = row.iloc[0]
    if isinstance(row, pd.Series):
        row = row.to_dict()
    return _encoded_table(known, _frame_of_rows([row], known))[0]


def read_later_features(known: ConditionFeatures, table: Any, condition: str | None) -> dict[Id, HostFloat]:
    """Read the features of conditions that were not part of the training, by id."""
    if not isinstance(as_pandas(table), pd.DataFrame | pd.Series | Mapping):
        raise DataError(
            "condition_features must say which condition each row belongs to: pass a DataFrame with the ids as its "
            f"index, or a dict from ids to rows, got {type(table).__name__}"
        )
    names, frame = _frame(table, condition, known=known)
    check_kinds([*known.ids, *names])
    return dict(zip(names, _encoded_table(known, frame), strict=True))


def _frame(
    table: Any, condition: str | None, *, trained: tuple[Id, ...] = (), known: ConditionFeatures | None = None
) -> tuple[list[Id], pd.DataFrame]:
    # The ids of a table in any form, and its features by their names as text.
    table = as_pandas(table)
    if isinstance(table, pd.Series):
        table = table.to_frame("feature" if table.name is None else table.name)
    if isinstance(table, pd.DataFrame):
        check_column_names(table, "condition_features")
        column = "condition" if condition is None else condition
        frame = table.set_index(column) if column in table.columns else table
        names = frame.index
    elif isinstance(table, Mapping):
        names, frame = table, _frame_of_rows(list(table.values()), known)
    elif isinstance(table, str | bytes | Set) or not isinstance(table, Iterable):
        raise DataError(
            "condition_features must be a DataFrame with the ids as its index, a dict from ids to rows, or an array "
            f"with a row for each condition, got {type(table).__name__}"
        )
    else:
        names, rows = trained, list(table)
        if len(rows) != len(names):
            raise DataError(
                f"condition_features has {len(rows)} rows for {len(names)} conditions; give one row a condition, in "
                "the order of conditions_ (sorted), or a DataFrame with the ids as its index"
            )
        frame = _frame_of_rows(rows, known)
    ids = read_ids(names)
    if len(set(ids)) < len(ids):
        repeated = next(name for name in ids if ids.count(name) > 1)
        raise DataError(f"condition_features has more than one row for condition {repeated!r}; keep one of them")
    return ids, frame.rename(columns=str).reset_index(drop=True)


def _frame_of_rows(rows: list[Any], known: ConditionFeatures | None) -> pd.DataFrame:
    # Rows without names have the features that are known, or as many as there are values.
    if all(isinstance(row, Mapping) for row in rows):
        return pd.DataFrame(rows, dtype=object).rename(columns=str)
    values = [list(row) if np.asarray(row, dtype=object).ndim else [row] for row in rows]
    sizes = set(map(len, values))
    if len(sizes) > 1:
        raise DataError("rows of condition_features have different lengths; each condition needs one value a feature")
    (size,) = sizes
    names = [f"feature {column + 1}" for column in range(size)]
    if known is not None:
        names = [feature.name for feature in known.features]
    if len(names) != size:
        raise DataError(f"a condition has the {len(names)} features {names}, got {size} values")
    return pd.DataFrame(values, columns=names, dtype=object)


def _feature(name: str, column: pd.Series) -> Feature:
    present = column.dropna()
    if len(present) == 0:
        raise DataError(f"the feature {name!r} is missing for all trained conditions; leave it out")
    kinds = {CATEGORY} if isinstance(column.dtype, pd.CategoricalDtype) else set(present.map(_kind))
    if len(kinds) > 1 or None in kinds:
        raise DataError(
            f"the feature {name!r} must hold numbers, dates, or categories (text, True and False) throughout, got "
            f"{', '.join(repr(value) for value in present.iloc[:3])}"
        )
    (kind,) = kinds
    return Feature(name, kind, distinct_ids(read_ids(present)) if kind == CATEGORY else ())


def _kind(value: Any) -> str | None:
    if isinstance(value, bool | np.bool_ | str):
        return CATEGORY
    if isinstance(value, int | float | np.integer | np.floating):
        return NUMBER
    return DATE if isinstance(value, datetime.date | np.datetime64) else None


def _encoded_table(known: ConditionFeatures, frame: pd.DataFrame) -> HostFloat:
    names = [feature.name for feature in known.features]
    unknown = [name for name in frame.columns if name not in names]
    if unknown:
        raise DataError(f"the model knows no feature {unknown[0]!r}; its features are {names}")
    frame = frame.reindex(columns=names)
    return np.column_stack([_encoded(feature, frame[feature.name], strict=True) for feature in known.features])


def _encoded(feature: Feature, column: pd.Series, *, strict: bool) -> HostFloat:
    # (n, coordinates of the feature), NaN where it is missing.
    if feature.kind == CATEGORY:
        return _encoded_levels(feature, column, strict=strict)
    values, missing = np.full(len(column), np.nan), column.isna().to_numpy()
    present = column[~missing].tolist()
    strange = [value for value in present if _kind(value) != feature.kind]
    if strange:
        raise DataError(f"the feature {feature.name!r} holds {feature.kind}s, got {strange[0]!r}")
    try:
        values[~missing] = days(pd.Series(present)) if feature.kind == DATE and present else present
    except OverflowError:  # a whole number beyond all floats
        values[~missing] = np.inf
    if np.any(np.abs(values) > LARGEST):
        raise DataError(
            f"the feature {feature.name!r} is infinite for a condition, or beyond {LARGEST:g}; pass None where it is "
            "not known, or change its unit"
        )
    return values[:, None]


def _encoded_levels(feature: Feature, column: pd.Series, *, strict: bool) -> HostFloat:
    # A level that no trained condition has is refused, or counts as missing. Levels are compared as text, since that is
    # what files hold.
    found = [None if gap else plain_id(value) for value, gap in zip(column, column.isna(), strict=True)]
    if all(isinstance(level, int) for level in feature.levels):
        # Of a column with gaps pandas makes floats, of which whole numbers must know nothing.
        found = [int(level) if isinstance(level, float) and level.is_integer() else level for level in found]
    found = [None if level is None else str(level) for level in found]
    number = {str(level): place for place, level in enumerate(feature.levels)}
    strange = next((level for level in found if level is not None and level not in number), None)
    if strange is not None and strict:
        raise DataError(
            f"no trained condition has the level {strange!r} of the feature {feature.name!r}; those known are "
            f"{list(feature.levels)}. Pass None where it is none of them"
        )
    if strange is not None:
        warn(
            f"no trained condition has the level {strange!r} of the feature {feature.name!r}, so nothing can be "
            "learnt about it; for conditions that have it, the feature counts as missing"
        )
    rows = np.vstack([np.eye(len(number)), np.full(len(number), np.nan)])  # the last stands for what is missing
    return rows[[len(number) if level is None else number.get(level, len(number)) for level in found]]
