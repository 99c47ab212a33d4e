"""The machine on which something was measured, in words and in what it can do."""

import importlib.metadata
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

_PACKAGES = ("lvmogp", "jax", "jaxlib", "numpy", "scipy")
_MATRIX = 1500
_COPIED = 20_000_000
_TRIALS = 3


def machine() -> dict[str, Any]:
    """Processor, memory, system and versions, with the rates that floors are reckoned with."""
    return {
        "processor": _field("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()}, Python {platform.python_version()}",
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "date": time.strftime("%Y-%m-%d"),
        "gflops_one_thread": round(_multiplications() / 1e9, 1),
        "gb_per_second": round(_bandwidth() / 1e9, 1),
        "load_before": round(os.getloadavg()[0], 2),
    }


def _field(path: str, name: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _multiplications() -> float:
    # Operations a second of a large matrix product in double precision, on one thread.
    matrix = np.random.default_rng(0).standard_normal((_MATRIX, _MATRIX))
    with threadpool_limits(1):
        return 2 * _MATRIX**3 / _least(lambda: matrix @ matrix)


def _bandwidth() -> float:
    # Bytes a second read and written by a copy too large for the caches.
    source = np.ones(_COPIED)
    target = np.empty_like(source)
    return 2 * source.nbytes / _least(lambda: np.copyto(target, source))


def _least(function: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(_TRIALS):
        began = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
