"""Very many rows: minibatches against GPyTorch's LMC-SVGP, and what they need of memory."""

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.suite import problems
from benchmarks.suite.processes import OURS, answer_of
from benchmarks.suite.records import Bar, Found, Record, not_available, record

_INDUCING = [50, 20]
_BATCH = 1024
_SECONDS = 90
# The number of latent functions is the rival's to choose, natural gradients are what its documentation recommends, and
# the covariance of a batch, which its own call computes, is not needed for the bound.
_LMC = (
    {"n_latents": 5, "natural": True, "rate": 0.01, "by_row": True},
    {"n_latents": 20, "natural": True, "rate": 0.01, "by_row": True},
    {"n_latents": 20, "natural": False, "rate": 0.05, "by_row": True},
    {"n_latents": 5, "natural": True, "rate": 0.01, "by_row": False},
)
_BUDGETS = (10, 20, 45, _SECONDS)


def _ours(data: Path, seconds: float) -> dict[str, Any]:
    # Each in a process that finds nothing compiled, so that runs of all lengths pay for compilation alike.
    settings = {"task": "minibatches", "data": str(data), "n_inducing": _INDUCING, "batch_size": _BATCH}
    with tempfile.TemporaryDirectory() as cache:
        return answer_of(OURS, {**settings, "seconds": seconds}, {"JAX_COMPILATION_CACHE_DIR": cache})


def minibatches(*, quick: bool) -> Found:
    """With n = 10⁶, D = 100: observations a second, and the test error after the same time."""
    seconds = 3 if quick else _SECONDS
    problem = f"{'20 000' if quick else '10⁶'} rows of 100 conditions"
    data = problems.many_rows(20_000 if quick else 1_000_000, 100)
    traces, rivals = [], []
    for setting in _LMC[:1] if quick else _LMC:
        asked = {"task": "minibatches", "data": str(data), "n_inducing": _INDUCING[0], "batch_size": _BATCH}
        found = answer_of("torch", {**asked, **setting, "seconds": seconds})
        name = _name(setting)
        traces.append({"problem": problem, "who": name, "points": found["trace"]})
        rivals.append((name, found))
    points = [_ours(data, budget) for budget in ((seconds,) if quick else _BUDGETS)]
    if "refused" in points[-1]:
        theirs = [_theirs_alone(problem, name, found) for name, found in rivals]
        return Found([not_available(f"{problem}, ours", points[-1]["refused"]), *theirs], tuple(traces))
    traces.append({"problem": problem, "who": "lvmogp", "points": [_point(found) for found in points]})
    lines = [line for name, found in rivals for line in _compared(problem, points[-1], name, found)]
    return Found(lines, tuple(traces))


def _name(setting: dict[str, Any]) -> str:
    optimiser = "NGD" if setting["natural"] else "Adam"
    return f"LMC-SVGP, {setting['n_latents']} latents, {optimiser}" + ("" if setting["by_row"] else ", its own call")


def _point(found: dict[str, Any]) -> dict[str, float]:
    return {"seconds": found["seconds"], "rmse": found["rmse"]}


def _theirs_alone(problem: str, name: str, found: dict[str, Any]) -> Record:
    return record(
        f"{problem}: observations a second",
        rival=found["observations_per_second"],
        against=name,
        figures_in="observations/s",
        rival_rmse=found["trace"][-1]["rmse"],
        threads=found["threads"],
    )


def _compared(problem: str, ours: dict[str, Any], name: str, found: dict[str, Any]) -> list[Record]:
    # From the first report on, which comes after compilation.
    (first, began), (last, ended) = ours["steps"][0], ours["steps"][-1]
    rate = _BATCH * (last - first) / (ended - began)
    their_error = found["trace"][-1]["rmse"]
    return [
        record(
            f"{problem}: observations a second",
            ours=rate,
            rival=found["observations_per_second"],
            against=name,
            figures_in="observations/s",
            measured=rate / found["observations_per_second"],
            bar=Bar(5),
            threads=found["threads"],
        ),
        record(
            f"{problem}: RMSE after the same time",
            ours=ours["rmse"],
            rival=their_error,
            against=name,
            figures_in="",
            measured=their_error / ours["rmse"],
            bar=Bar(1),
        ),
    ]


def memory_of_minibatches(*, quick: bool) -> list[Record]:
    """With n = 10⁶, D = 10³: what the process ever had above its imports and its data."""
    n, n_conditions = (20_000, 100) if quick else (1_000_000, 1_000)
    data = problems.many_rows(n, n_conditions)
    what = f"{n} rows of {n_conditions} conditions, (50/20), minibatches"
    found = _ours(data, 5 if quick else 60)
    if "refused" in found:
        return [not_available(what, found["refused"])]
    used = (found["fit_peak_mb"] - found["before_mb"]) / 1024
    return [
        record(
            what,
            ours=used,
            figures_in="GB",
            unit="GB",
            measured=used,
            bar=Bar(1.5, at_least=False),
            data_gb=n * 4 * 8 / 2**30,
            before_gb=found["before_mb"] / 1024,
        )
    ]
