"""Stub."""

from typing import Any

import numpy as np

from lvmogp.inference.nuts.priors import Priors
from lvmogp.storage.tensor_file import encode_kernel

_PRIORS = "priors"


def save_model(*a, **k):
    raise NotImplementedError


def load_model(*a, **k):
    raise NotImplementedError


def encode_setting(value: Any) -> Any:
    """A setting of the estimator as JSON."""
    if isinstance(value, str | bool | int | float | None):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.random.RandomState | np.random.Generator):
        return None
    if isinstance(value, Priors):
        return {_PRIORS: {name: list(pair) for name, pair in value._asdict().items()}}
    return encode_kernel(value)
