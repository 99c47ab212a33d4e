"""A newcomer's five commands, each a process of its own: seconds and peak memory.

    python benchmarks/command_line.py                              50 braking tests of ten tyres
    python benchmarks/command_line.py --rows 100000 --conditions 500

Nothing is cached at first; the commands run twice, so that the second round shows what the cache gives.
"""

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

EXAMPLE = Path(__file__).parent.parent / "docs" / "data"
NOISE = 0.1


def braking(folder: Path) -> list[str]:
    """The quickstart's files; returns the arguments of ``fit``."""
    for name in ("braking.csv", "speeds.csv", "new-tyre.csv"):
        shutil.copy(EXAMPLE / name, folder)
    (folder / "braking.csv").rename(folder / "data.csv")
    (folder / "speeds.csv").rename(folder / "ask.csv")
    (folder / "new-tyre.csv").rename(folder / "few.csv")
    return ["--output", "distance", "--condition", "tyre"]


def sites(folder: Path, n_rows: int, n_conditions: int) -> list[str]:
    """Two inputs, conditions that differ in two ways; asked for at every row again, and a new site of five rows."""
    rng = np.random.default_rng(0)
    latents = rng.standard_normal((n_conditions + 1, 2))
    site = np.append(np.arange(n_rows) % n_conditions, np.full(5, n_conditions))
    inputs = {"x": rng.uniform(0, 10, len(site)), "u": rng.uniform(-1, 1, len(site))}
    values = np.sin(inputs["x"] + latents[site, 0]) + latents[site, 1] * inputs["u"] * np.cos(inputs["x"] / 2)
    table = pd.DataFrame({"site": [f"site-{number}" for number in site], **inputs})
    table["y"] = values + NOISE * rng.standard_normal(len(site))
    table[:-5].sample(frac=1, random_state=1).to_csv(folder / "data.csv", index=False)
    table[:-5].drop(columns="y").to_csv(folder / "ask.csv", index=False)
    table[-5:].to_csv(folder / "few.csv", index=False)
    return ["--output", "y", "--condition", "site"]


def commands(fit_arguments: list[str], ask_arguments: list[str]) -> list[list[str]]:
    """The five commands."""
    return [
        ["fit", "data.csv", *fit_arguments, "--model", "m.lvmogp"],
        ["predict", "m.lvmogp", "ask.csv", *ask_arguments, "--output-file", "predicted.csv"],
        ["add-condition", "m.lvmogp", "few.csv"],
        ["conditions", "m.lvmogp"],
        ["report", "m.lvmogp", "-o", "page.html"],
    ]


def measured(command: list[str], folder: Path) -> tuple[float, float, float]:
    """Seconds on the clock, seconds of the processor and peak memory in MB of one command."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    began = time.perf_counter()
    process = subprocess.Popen(["lvmogp", *command], cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"lvmogp {' '.join(command)} failed")
    return time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, help="rows of simulated data; the quickstart's example unless given")
    parser.add_argument("--conditions", type=int, default=500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.rows is None:
            fit_arguments, ask_arguments, n_rounds = braking(folder), ["--condition", "tyre-A"], 2
        else:
            fit_arguments, ask_arguments, n_rounds = sites(folder, options.rows, options.conditions), [], 1
        for number in range(n_rounds):
            total = 0.0
            for command in commands(fit_arguments, ask_arguments):
                clock, processor, memory = measured(command, folder)
                total += clock
                words = f"{clock:6.1f} s, {processor:6.1f} s of the processor, {memory:6.0f} MB"
                print(f"round {number + 1}  {command[0]:14} {words}", flush=True)
            print(f"round {number + 1}  {'together':14} {total:6.1f} s", flush=True)


if __name__ == "__main__":
    main()
