"""How sampling went, as it stands in a model file."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lvmogp.inference.nuts.diagnostics import ChainDiagnostics, Convergence, SamplingDiagnostics, Statistics


def encode_account(account: SamplingDiagnostics) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A document and arrays; numbers that cannot be told, NaN, are written as null."""
    document = {
        "chains": [_without_nan(chain._asdict()) for chain in account.chains],
        "agreement": {name: _without_nan(found._asdict()) for name, found in account.agreement.items()},
        "remarks": list(account.remarks),
        "n_warmup": account.n_warmup,
        "completed": account.completed,
        "seconds": account.seconds,
    }
    return document, {name: np.asarray(values) for name, values in account.statistics._asdict().items()}


def decode_account(document: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> SamplingDiagnostics:
    """Inverse of :func:`encode_account`."""
    return SamplingDiagnostics(
        chains=tuple(ChainDiagnostics(**_with_nan(chain)) for chain in document["chains"]),
        agreement={name: Convergence(**_with_nan(found)) for name, found in document["agreement"].items()},
        remarks=tuple(document["remarks"]),
        statistics=Statistics(**arrays),
        n_warmup=document["n_warmup"],
        completed=document["completed"],
        seconds=document["seconds"],
    )


def _without_nan(numbers: dict[str, Any]) -> dict[str, Any]:
    return {name: value if np.isfinite(value) else None for name, value in numbers.items()}


def _with_nan(numbers: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.nan if value is None else value for name, value in numbers.items()}
