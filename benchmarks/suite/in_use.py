"""A trained model in use: predictions a second, a new condition, and the command line from cold."""

import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.command_line import braking
from benchmarks.suite import problems
from benchmarks.suite.processes import OURS, answer_of, seconds_of
from benchmarks.suite.records import Bar, Found, record, timing

_INDUCING = (10, 30)
_TESTED = 200


def _settings(task: str, data: Path, *, n_repeats: int) -> dict[str, Any]:
    # A few iterations are enough: what a prediction costs does not depend on how good it is.
    estimator = {"n_inducing_inputs": _INDUCING[0], "n_inducing_latents": _INDUCING[1], "n_restarts": 1, "max_iter": 20}
    return {
        "task": task,
        "data": str(data),
        "estimator": estimator,
        "n_latent": 2,
        "n_inducing": list(_INDUCING),
        "n_repeats": n_repeats,
    }


def prediction(*, quick: bool) -> Found:
    """Mean and standard deviation of 200 inputs at all conditions."""
    records = []
    for n_conditions in (40,) if quick else (40, 500):
        settings = _settings("predict", problems.grid(50, n_conditions, 1), n_repeats=5 if quick else 30)
        ours, theirs = answer_of(OURS, settings), answer_of("gpy", settings)
        rates = [_TESTED * n_conditions / min(found["seconds"]) for found in (ours, theirs)]
        records.append(
            record(
                f"mean and standard deviation, {n_conditions} conditions",
                ours=rates[0],
                rival=rates[1],
                against=f"GPy {theirs['version']}",
                figures_in="rows/s",
                measured=rates[0] / rates[1],
            )
        )
    return Found(records)


def adding(*, quick: bool) -> Found:
    """A new condition from five points; no rival can."""
    records = []
    for n_conditions in (40,) if quick else (40, 500):
        data = problems.grid(50, n_conditions, 1)
        found = answer_of(OURS, _settings("add", data, n_repeats=4 if quick else 30))
        records.append(
            record(
                f"a condition from five points, {n_conditions} trained",
                ours=timing(found["seconds"]),
                first=found["first"],
                note="GPy has no way to add a condition",
            )
        )
    return Found(records)


def command_line(*, quick: bool) -> Found:
    """``lvmogp fit`` on 50 rows, each time a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arguments = braking(folder)
        program = Path(sys.executable).parent / "lvmogp"
        command = [str(program), "fit", "data.csv", *arguments, "--model", "m.lvmogp"]
        changes = {"XDG_CACHE_HOME": str(folder / "cache")}
        cold = seconds_of(command, folder, changes)
        seconds = [seconds_of(command, folder, changes) for _ in range(1 if quick else 5)]
    lines = [
        record("lvmogp fit, 50 rows: nothing compiled yet", ours=timing([cold])),
        record(
            "lvmogp fit, 50 rows: warm compilation cache",
            ours=timing(seconds),
            measured=sorted(seconds)[len(seconds) // 2],
            unit="s",
            bar=Bar(4, at_least=False),
        ),
    ]
    return Found(lines)
