"""Measure: every question that has no results yet, then make the page.

    python -m benchmarks.suite                       all questions, about an hour
    python -m benchmarks.suite --only growth         one of them, anew
    python -m benchmarks.suite --only real --data FOLDER
    python -m benchmarks.suite --quick               does everything work? Results go to out/benchmarks/quick

On a machine with nothing else to do.
"""

import argparse
import json
import os
import time
import traceback
from pathlib import Path

from benchmarks.real.problems import FOLDER_VARIABLE
from benchmarks.rivals.environments import ROOT, python_of
from benchmarks.suite import page
from benchmarks.suite.figures import draw
from benchmarks.suite.machine import machine
from benchmarks.suite.questions import QUESTIONS

_QUICK = ROOT / "out" / "benchmarks" / "quick"


def measure(name: str, folder: Path, *, quick: bool) -> None:
    """Answer one question and write what was found, with the machine."""
    began = time.perf_counter()
    here = machine()
    records, traces = QUESTIONS[name].run(quick=quick)
    found = {
        "question": name,
        "command": f"python -m benchmarks.suite --only {name}" + (" --quick" if quick else ""),
        "machine": here,
        "seconds": round(time.perf_counter() - began, 1),
        "records": records,
        "traces": list(traces),
    }
    if traces:
        draw(traces, folder / f"{name}.png")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=list(QUESTIONS), action="append", help="measure this one even if it is known")
    parser.add_argument("--data", type=Path, help=f"folder of the real data [{FOLDER_VARIABLE}]")
    options = parser.parse_args()
    if options.data:
        os.environ[FOLDER_VARIABLE] = str(options.data)
    folder = _QUICK if options.quick else page.RESULTS
    for rival in ("gpy", "torch", "statsmodels"):
        python_of(rival)  # so that no measurement waits for an installation
    wanted = options.only or [name for name in QUESTIONS if options.quick or not (folder / f"{name}.json").exists()]
    failed = []
    for name in wanted:
        if missing := QUESTIONS[name].missing():
            print(f"{name} is skipped: {missing}", flush=True)
            continue
        began = time.perf_counter()
        print(f"{name} …", flush=True)
        try:
            measure(name, folder, quick=options.quick)
        except Exception:  # the other questions have their answers all the same
            traceback.print_exc()
            failed.append(name)
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
    if options.quick:
        page.build(folder, folder / "benchmarks.md")
    else:
        page.build()
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
