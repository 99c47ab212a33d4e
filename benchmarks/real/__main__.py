"""Measure every method on tasks from real data, and go on from what is on disk.

    LVMOGP_REAL_DATA=FOLDER python -m benchmarks.real --jobs 2
    python -m benchmarks.real --data FOLDER --task "Orange, new from 3" --method "GPs alone" --out out/a.jsonl
    python -m benchmarks.real --again lvmogp
    python -m benchmarks.real --ours "lvmogp, three latents" '{"n_latent": 3}' --out out/settings.jsonl
    python -m benchmarks.real --gather out/a.jsonl --splits 0

The mixed model and BoTorch get environments of their own at first use; the other rivals need nothing that the library
does not need. Each line of the file is one split of one task by one method; ``python -m benchmarks.real.page`` makes
the page of the documentation from it.
"""

import argparse
import json
import os
from pathlib import Path

from benchmarks.real.methods import RIVALS, SETTINGS
from benchmarks.real.page import RESULTS
from benchmarks.real.problems import FOLDER_VARIABLE, OURS, tasks
from benchmarks.real.runner import N_SPLITS, lines_of, rewrite, run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [*SETTINGS, *RIVALS]
    parser.add_argument("--data", type=Path, default=os.environ.get(FOLDER_VARIABLE), help="folder of the data sets")
    parser.add_argument("--task", action="append", help="some tasks [all]")
    parser.add_argument("--method", action="append", choices=known, help=f"some methods [{OURS} and all rivals]")
    parser.add_argument("--ours", action="append", nargs=2, metavar=("NAME", "JSON"), help="ours with other settings")
    parser.add_argument("--again", action="append", default=[], metavar="METHOD", help="measure this method anew")
    parser.add_argument("--gather", action="append", type=Path, default=[], metavar="FILE", help="take in another run")
    parser.add_argument("--splits", type=int, default=N_SPLITS)
    parser.add_argument("--jobs", type=int, default=1, help="processes, each on one thread")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.data is None:
        parser.error(f"name the folder of the real data with --data or {FOLDER_VARIABLE}")
    given.data = Path(given.data)
    unknown = set(given.task or []) - set(tasks(given.data))
    if unknown:
        parser.error(f"there is no task {', '.join(unknown)}; tasks are {', '.join(tasks(given.data))}")
    others = {name: json.loads(settings) for name, settings in given.ours or []}
    if not all(name.startswith(OURS) for name in others):
        parser.error(f"names of ours begin with {OURS}, so that tables know them from rivals")
    unset = set(given.again) - {*known, *others}
    if unset:
        parser.error(f"say with --ours which settings {', '.join(unset)} has")
    forgotten = [
        line
        for line in lines_of([given.out])
        if line["method"] in given.again and line["task"] in (given.task or [line["task"]])
    ]
    if forgotten or given.gather:
        kept = [line for line in lines_of([given.out, *given.gather]) if line not in forgotten]
        rewrite(given.out, kept)
    named = {name: SETTINGS.get(name, {}) for name in [*(given.method or []), *given.again]} | others
    run(given.data, given.out, some_tasks=given.task, methods=named, n_splits=given.splits, n_jobs=given.jobs)


if __name__ == "__main__":
    main()
