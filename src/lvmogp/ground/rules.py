"""What containers say of the values of their fields, beside types and shapes, so that files can be checked.

A field says it in its annotation, ``Annotated[Float[Array, " D"], POSITIVE]``, or in its metadata under ``RULE``.
Without a word, numbers must be finite.
"""

from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np

RULE = "rule"
# How far many weights in single precision can be from adding up to one.
_ROUNDING = 1e-3


class Rule(NamedTuple):
    """A demand on numbers; ``fault`` says what those are that do not meet it."""

    fault: str
    is_met: Callable[[np.ndarray], bool]


class Below(NamedTuple):
    """Say that whole numbers count from zero and stay below the length of an axis."""

    axis: str


class Along(NamedTuple):
    """Say that a tuple has one entry for each place along an axis, or that a whole number is its length."""

    axis: str


# In the annotation of a field that files do not hold, since it follows from others.
NOT_KEPT = "not kept"
FINITE = Rule("NaN or infinite values", lambda values: bool(np.isfinite(values).all()))
POSITIVE = Rule("values that are not positive", lambda values: bool(((values > 0) & (values < np.inf)).all()))
NOT_NEGATIVE = Rule("negative values", lambda values: bool(((values >= 0) & (values < np.inf)).all()))
# A weight of zero has the logarithm −∞; a NaN makes the sum one.
LOG_WEIGHTS = Rule(
    "numbers that are no logarithms of weights that add up to one",
    lambda values: bool((values <= _ROUNDING).all() and abs(np.sum(np.exp(values, dtype=float)) - 1) <= _ROUNDING),
)
# NaN where something is missing or cannot be told, infinite where it failed.
ANY_VALUE = Rule("", lambda _: True)
AnyFloat = Annotated[float, ANY_VALUE]
