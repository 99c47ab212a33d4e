"""Compare all cases of the sweep with fifty digits and write down the errors: ``make test-numerics``."""

import argparse
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["JAX_ENABLE_X64"] = "1"

import numpy as np
from trust_page import ROOT, write_pages

import lvmogp

sys.path.insert(0, str(Path(__file__).parent / "model"))
from test_numerics import SWEEP, Errors, errors_of

_DTYPES = ("float64", "float32")


def compared(number: int) -> tuple[int, dict[str, Errors]]:
    """Errors of one case in both precisions."""
    return number, {dtype: errors_of(SWEEP[number], dtype) for dtype in _DTYPES}


def summary(errors: dict[int, dict[str, Errors]]) -> list[dict[str, Any]]:
    """Typical and largest error of each quantity by noise variance, with the case that has the largest."""
    found = []
    for dtype, name in [(dtype, name) for dtype in _DTYPES for name in Errors._fields]:
        if (dtype, name) == ("float32", "bound"):
            continue  # bounds are computed in double precision whatever the model is stored in
        for noise in sorted({case.noise for case in SWEEP}):
            values = {
                number: getattr(each[dtype], name) for number, each in errors.items() if SWEEP[number].noise == noise
            }
            worst = max(values, key=values.__getitem__)
            row = {"dtype": dtype, "quantity": name, "noise": noise, "typical": float(np.median(list(values.values())))}
            found.append(row | {"largest": values[worst], "at": SWEEP[worst]._asdict()})
    return found


def main() -> None:
    """Run, show progress, write the account and the table of the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=Path("results/numerics.json"))
    arguments = parser.parse_args()
    began, errors = time.time(), {}
    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(compared, number) for number in range(len(SWEEP))]):
            number, found = done.result()
            errors[number] = found
            seconds = time.time() - began
            left = seconds / len(errors) * (len(SWEEP) - len(errors))
            print(f"\r{len(errors)}/{len(SWEEP)}, {left / 60:.0f} min left   ", end="", file=sys.stderr, flush=True)
    account = {"lvmogp": lvmogp.__version__, "cases": len(errors), "errors": summary(errors)}
    arguments.out.write_text(json.dumps(account, indent=1) + "\n")
    if arguments.out.resolve() == (ROOT / "results" / "numerics.json"):
        write_pages()


if __name__ == "__main__":
    main()
