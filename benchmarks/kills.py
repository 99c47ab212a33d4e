"""A fit by minibatches that is killed at random moments and resumed, against the same fit undisturbed.

    python benchmarks/kills.py --times 10

Each time the process gets SIGKILL at a moment drawn from the time that the undisturbed fit took, from its start on; then
the same command with --resume must end with the same model, bit for bit. Writes results/benchmarks/kills.json.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
from safetensors.numpy import load_file

RESULTS = Path(__file__).parents[1] / "results" / "benchmarks"
RUN = [sys.executable, "-c", "from lvmogp.cli import main; main()"]
SIZES = ["--inducing-inputs", "16", "--inducing-latents", "8", "--batch-size", "1024", "--max-iter", "3000"]


def write_data(path: Path) -> None:
    rng = np.random.default_rng(0)
    latents = rng.normal(size=(20, 2))
    inputs, conditions = rng.uniform(-1.5, 1.5, 10_000), rng.integers(0, 20, 10_000)
    curves = np.sin(2 * inputs + latents[conditions, 0]) + 0.5 * latents[conditions, 1]
    frame = pd.DataFrame({"x": inputs, "id": conditions, "y": curves + 0.1 * rng.normal(size=10_000)})
    frame.to_parquet(path, row_group_size=2_000)


def command(folder: Path, model: str, *options: str) -> list[str]:
    data = ["fit", str(folder / "data.parquet"), "--output", "y", "--condition", "id", "--quiet"]
    return [*RUN, *data, "--model", str(folder / model), "--inference", "stochastic", *SIZES, *options]


def killed(asked: list[str], seconds: float) -> bool:
    """Start a process and kill it after some seconds, unless it has ended before."""
    process = subprocess.Popen(asked)
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True
    return False


def same(found: Path, wanted: Path) -> bool:
    ours, theirs = load_file(found), load_file(wanted)
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def measured(times: int, seed: int) -> dict[str, int]:
    """How often the fit was killed, with checkpoints and without, and how often the model was the same."""
    rng = np.random.default_rng(seed)
    counts = {"killed": 0, "with checkpoints": 0, "same": 0}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder / "data.parquet")
        subprocess.run(command(folder, "whole.lvmogp"), check=True)  # fills the cache of compiled programs
        began = time.perf_counter()
        subprocess.run(command(folder, "whole.lvmogp"), check=True)
        whole = time.perf_counter() - began
        while counts["killed"] < times:
            kept, model = folder / f"kept-{counts['killed']}", f"killed-{counts['killed']}.lvmogp"
            options = ("--checkpoint", str(kept), "--checkpoint-seconds", "0")
            after = rng.uniform(0, whole)
            if not killed(command(folder, model, *options), after):
                (folder / model).unlink()  # it was quicker this time
                continue
            n_checkpoints = len(list(kept.glob("*.checkpoint")))
            subprocess.run(command(folder, model, *options, "--resume"), check=True)
            agrees = same(folder / model, folder / "whole.lvmogp")
            counts["killed"] += 1
            counts["with checkpoints"] += n_checkpoints > 0
            counts["same"] += agrees
            print(f"killed after {after:.1f} of {whole:.1f} s, {n_checkpoints} checkpoints: {agrees}", flush=True)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "kills.json")
    arguments = parser.parse_args()
    counts = measured(arguments.times, arguments.seed)
    line = {
        "what": f"kill −9 at a random moment, then --resume: the model of the undisturbed fit, bit for bit "
        f"({counts['with checkpoints']} of {counts['killed']} had written checkpoints)",
        "bar": f"{counts['killed']} of {counts['killed']}",
        "measured": counts["same"],
        "unit": f"of {counts['killed']}",
        "reached": counts["same"] == counts["killed"],
        "device": f"CPU, {platform.machine()}",
        "command": f"python benchmarks/kills.py --times {arguments.times} --seed {arguments.seed}",
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"records": [line]}, indent=2, ensure_ascii=False) + "\n")
    print(json.dumps(line, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
