"""Known features of conditions as coordinates beside the latents.

A number or a date is one coordinate, a category one for each of its levels, 1 where the condition has that level and 0
elsewhere. All are standardised by mean and standard deviation over the trained conditions; NaN means not known.
"""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np

from lvmogp.ground.rules import ANY_VALUE, POSITIVE, Along
from lvmogp.tables.columns import dates_of
from lvmogp.tables.ids import Id
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
        return float(values[0]) if self.kind == NUMBER else dates_of(values)[0]


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
