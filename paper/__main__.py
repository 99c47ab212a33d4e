"""``python -m paper``: run the paper's experiments, and show their tables."""

import argparse
import json
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from lvmogp.errors import LVMOGPError, LVMOGPWarning
from lvmogp.progress import job_progress
from paper.plan import experiments
from paper.runner import REPEATS, Reproduction, reproduce

_INTERRUPTED = 130  # as shells have it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; return the exit code."""
    asked = _parser().parse_args(arguments)
    kept = f"finished repeats are kept in {asked.out}, and the same command goes on from there"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", LVMOGPWarning)
        warnings.showwarning = lambda message, *_, **__: print(f"note: {message}", file=sys.stderr)
        try:
            found = [_run(name, asked) for name in (experiments() if asked.name == "all" else [asked.name])]
        except KeyboardInterrupt:
            print(f"error: interrupted; {kept}", file=sys.stderr)
            return _INTERRUPTED
        except Exception as error:
            if asked.debug:
                traceback.print_exc()
            known = isinstance(error, LVMOGPError)
            words = str(error) if known else f"{type(error).__name__}: {error}; {kept}; --debug shows where"
            print(f"error: {words}", file=sys.stderr)
            return 1
    if asked.json:
        documents = [{"experiment": one.name, "table": one.table, "files": list(map(str, one.files))} for one in found]
        print(json.dumps({"experiments": documents}, indent=2, ensure_ascii=False))
    return 0


def _run(name: str, asked: argparse.Namespace) -> Reproduction:
    with job_progress(name) as on_progress:
        found = reproduce(
            name,
            asked.out,
            repeats=asked.repeats,
            quick=asked.quick,
            methods=asked.method,
            n_jobs=asked.jobs,
            data_dir=asked.data_dir,
            with_figures=asked.figures,
            on_progress=on_progress,
        )
    if not asked.json:
        Console().print(Markdown(found.table))
        print(f"Files: {', '.join(map(str, found.files))}")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m paper",
        description="Run the paper's experiments with every baseline: tables with the paper's numbers beside ours, and "
        "its figures. Each finished repeat is kept in the folder, and a second run goes on from there.",
        epilog="Example: python -m paper servo --jobs 2 --data-dir data",
    )
    add = parser.add_argument
    add("name", help="braking, synthetic, synthetic-missing, servo, sensors, or all")
    add("--out", type=Path, default=Path("results"), help="folder for results, tables and figures [%(default)s]")
    add("--repeats", type=_count, help=f"repeats; {REPEATS} as in the paper")
    add("--quick", action="store_true", help="one repeat of the main methods with short fits, to see that all works")
    add("--method", action="append", help="only this method; may be given several times")
    add("--jobs", type=_count, default=1, help="repeats to run at the same time [%(default)s]")
    add(
        "--data-dir",
        type=Path,
        help="folder with servo.data and NEW-DATA-1.T15.txt; else $LVMOGP_DATA, else they are fetched",
    )
    add("--figures", action=argparse.BooleanOptionalAction, default=True, help="draw the figures")
    add("--json", action="store_true", help="print the result as JSON, for other programs")
    add("--debug", action="store_true", help="show the traceback of an error")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
