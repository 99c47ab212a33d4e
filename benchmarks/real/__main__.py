"""Measure every method on tasks from real data, and go on from what is on disk.

    LVMOGP_REAL_DATA=FOLDER python -m benchmarks.real --splits 20 --jobs 2
    python -m benchmarks.real --data FOLDER --task "Orange, new from 3" --method "GPs alone" --splits 3

The mixed model needs ``pip install statsmodels``; BoTorch gets an environment of its own at first use. Each line of the
file is one split of one task by one method: errors, log density, coverage and width of 95 % intervals.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import joblib
import numpy as np

from benchmarks.real.methods import METHODS, can_take
from benchmarks.real.problems import FOLDER_VARIABLE, tasks
from lvmogp.ground.precision import double_precision

_OUT = Path("out") / "real.jsonl"


def measured(folder: Path, task: str, method: str, split: int) -> dict[str, Any] | None:
    """Return how well a method predicts the test rows of one split; ``None`` where it cannot be asked."""
    given = tasks(folder)[task](split)
    if not can_take(method, given):
        return None
    began = time.perf_counter()
    with double_precision():
        found = METHODS[method](given)
    outputs = given.test.outputs
    return {
        "task": task,
        "method": method,
        "split": split,
        "n_test": len(outputs),
        "squared_error": float(np.sum((found.mean - outputs) ** 2)),
        "log_density": float(np.mean(found.log_density)),
        "coverage": float(np.mean((found.lower <= outputs) & (outputs <= found.upper))),
        "width": float(np.mean(found.upper - found.lower)),
        "seconds": round(time.perf_counter() - began, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get(FOLDER_VARIABLE), help="folder of the data sets")
    parser.add_argument("--task", action="append", help="some tasks [all]")
    parser.add_argument("--method", action="append", choices=list(METHODS), help="some methods [all]")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=_OUT)
    given = parser.parse_args()
    if given.data is None:
        parser.error(f"name the folder of the real data with --data or {FOLDER_VARIABLE}")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    lines = given.out.read_text().splitlines() if given.out.exists() else []
    known = {(each["task"], each["method"], each["split"]) for each in map(json.loads, lines)}
    names = given.task or list(tasks(given.data))
    every = [
        (task, method, split) for split in range(given.splits) for task in names for method in given.method or METHODS
    ]
    work = (joblib.delayed(measured)(given.data, *each) for each in every if each not in known)
    with given.out.open("a") as out:
        for found in joblib.Parallel(n_jobs=given.jobs, return_as="generator_unordered")(work):
            if found is not None:
                print(json.dumps(found), file=out, flush=True)
                print(f"{found['task']}, {found['method']}, split {found['split']}: {found['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
