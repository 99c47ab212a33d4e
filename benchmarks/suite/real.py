"""Real grouped data, beside the rivals, in one line for each kind of task; ``benchmarks.real`` measures."""

import os
from pathlib import Path

import joblib
import numpy as np

from benchmarks.real import page
from benchmarks.real.problems import FOLDER_VARIABLE, OURS
from benchmarks.real.runner import N_SPLITS, run
from benchmarks.rivals.environments import ROOT
from benchmarks.suite.records import Found, record

_QUICK_FILE, _QUICK_TASKS = ROOT / "out" / "benchmarks" / "quick" / "real.jsonl", ("Orange, new from 3",)


def real(*, quick: bool) -> Found:
    """Measure what is not on file yet, make the page, and say how our errors compare with the best rival's."""
    folder, out = Path(os.environ[FOLDER_VARIABLE]), _QUICK_FILE if quick else page.RESULTS
    run(
        folder,
        out,
        some_tasks=_QUICK_TASKS if quick else None,
        n_splits=1 if quick else N_SPLITS,
        n_jobs=joblib.cpu_count(),
    )
    if not quick:
        page.build()
    records = []
    for kind, sets in page.by_kind(page.read([out])).items():
        ours = [methods[OURS].beside_rival for methods in sets.values() if OURS in methods]
        if ours:
            ratio = float(np.exp(page.geometric_mean(ours).value))
            words = {"against": "the best rival of each set", "note": f"geometric mean over {len(ours)} sets"}
            records.append(record(f"RMSE, {page.title(kind).lower()}", measured=ratio, **words))
    return Found(records)


def no_folder() -> str:
    """Say what is missing; nothing if the data are there."""
    there = FOLDER_VARIABLE in os.environ
    return "" if there else f"name the folder of the real data with --data or {FOLDER_VARIABLE}"
