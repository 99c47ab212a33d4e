"""Known features of conditions as coordinates beside the latents.

A number or a date is one coordinate, a category one for each of its levels, 1 where the condition has that level and 0
elsewhere. All are standardised by mean and standard deviation over the trained conditions; NaN means not known.
"""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd

from lvmogp.ground.rules import ANY_VALUE, POSITIVE, Along
from lvmogp.tables.ids import Id
from lvmogp.typing import Float, HostFloat

NUMBER, DATE, CATEGORY = "number", "date", "category"
_FIRST_DAY = pd.Timestamp(0)


class Feature(NamedTuple):
    """One feature: a number, a date, or a category with its levels."""

    name: str
    kind: str
    levels: tuple[Id, ...] = ()

    @property
    def coordinate_names(self) -> tuple[str, ...]:
        """Names of its coordinates."""
        return tuple(f"{self.name} = {level}" for level in self.levels) or (self.name,)


class Coordinates(NamedTuple):
    """Standardised coordinates of the trained conditions, with their scale in the user's units and where to start.

    ``lengthscales`` are those at which a fit starts, ``values`` are NaN where a feature is missing.
    """

    values: HostFloat
    scale: HostFloat
    lengthscales: HostFloat


class Descriptions(NamedTuple):
    """What is known of conditions: ``values`` has a row for each of ``ids`` and a column for each coordinate.

    The trained conditions come first; the rest of the table waits for conditions that may come later. Values are those
    of the user (dates as days since 1970), ``mean`` and ``scale`` standardise them.
    """

    features: tuple[Feature, ...]
    ids: Annotated[tuple[Id, ...], Along("described")]
    values: Annotated[Float[np.ndarray, "described F"], ANY_VALUE]
    mean: Float[np.ndarray, " F"]
    scale: Annotated[Float[np.ndarray, " F"], POSITIVE]

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
        """Coordinates as the model sees them."""
        return (values - self.mean) / self.scale

    def row(self, name: Id) -> HostFloat | None:
        """The values of a condition, where the table has it."""
        return self.values[self.ids.index(name)] if name in self.ids else None

    def with_trained(self, rows: Mapping[Id, HostFloat | None]) -> "Descriptions":
        """The same table with these conditions as the trained ones; the units stay as they are."""
        nothing = np.full(self.n_coordinates, np.nan)
        others = {name: own for name, own in zip(self.ids, self.values, strict=True) if name not in rows}
        values = [nothing if own is None else own for own in (*rows.values(), *others.values())]
        return self._replace(ids=(*rows, *others), values=np.stack(values))

    def coordinates(self, n_conditions: int) -> Coordinates:
        """Coordinates of the first ``n_conditions``, which are the trained ones."""
        # Two levels of a category start one lengthscale apart, numbers a standard deviation; more of them farther.
        kinds = np.concatenate([[feature.kind] * len(feature.coordinate_names) for feature in self.features])
        apart = np.sqrt(len(self.features)) / np.where(kinds == CATEGORY, self.scale, 1.0)
        return Coordinates(self.standardised(self.values[:n_conditions]), self.scale, apart)


def feature_table(known: Descriptions, values: HostFloat) -> dict[str, list[Any]]:
    """Values as users know them: numbers, dates, levels; ``None`` where missing."""
    return {
        feature.name: [_decoded(feature, own) for own in values[:, place]]
        for feature, place in zip(known.features, known.places, strict=True)
    }


def _decoded(feature: Feature, values: HostFloat) -> Any:
    if np.isnan(values).any():
        return None
    if feature.kind == CATEGORY:
        return feature.levels[int(np.argmax(values))]
    return float(values[0]) if feature.kind == NUMBER else _FIRST_DAY + pd.Timedelta(days=float(values[0]))
