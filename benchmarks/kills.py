"""A fit by minibatches that is killed at random moments and resumed, against the same fit undisturbed.

    python benchmarks/kills.py --times 10

Each time the process gets SIGKILL some time after a step that is drawn at random, whatever it is doing then; the same
command with --resume must end with the same model, bit for bit. A checkpoint is written after every window of steps.
Writes results/benchmarks/kills.json.
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
RUN = [sys.executable, "-m", "lvmogp"]
MOST_STEPS = 1500
SIZES = ["--inducing-inputs", "8", "--inducing-latents", "6", "--batch-size", "256", "--max-iter", str(MOST_STEPS)]


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


def killed(folder: Path, name: str, step: int, seconds: float) -> Path:
    """A fit killed some seconds after the checkpoint of a step; the folder of its checkpoints."""
    kept = folder / f"kept-{name}"
    process = subprocess.Popen(command(folder, f"{name}.lvmogp", *keeping(kept)))
    while newest(kept) < step and process.poll() is None:
        time.sleep(0.001)
    time.sleep(seconds)
    process.kill()
    process.wait()
    return kept


def keeping(kept: Path) -> tuple[str, ...]:
    return ("--checkpoint", str(kept), "--checkpoint-seconds", "0")


def newest(kept: Path) -> int:
    """Steps up to the newest checkpoint."""
    names = [path.stem.removeprefix("steps-") for path in kept.glob("steps-*.checkpoint")]
    return max(map(int, names), default=0)


def same(found: Path, wanted: Path) -> bool:
    ours, theirs = load_file(found), load_file(wanted)
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def measured(times: int, seed: int) -> list[tuple[int, bool]]:
    """The steps at which each of the killed fits was taken up, and whether the model was the same."""
    rng = np.random.default_rng(seed)
    found: list[tuple[int, bool]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder / "data.parquet")
        subprocess.run(command(folder, "whole.lvmogp"), check=True)
        while len(found) < times:
            kept = killed(folder, f"killed-{len(found)}", int(rng.integers(0, MOST_STEPS)), rng.uniform(0, 0.1))
            if (folder / f"killed-{len(found)}.lvmogp").exists():
                continue  # it had ended
            step = newest(kept)
            model = f"killed-{len(found)}.lvmogp"
            subprocess.run(command(folder, model, *keeping(kept), "--resume"), check=True)
            found.append((step, same(folder / model, folder / "whole.lvmogp")))
            print(f"killed after {step} steps or more: {'the same' if found[-1][1] else 'another'} model", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "kills.json")
    arguments = parser.parse_args()
    found = measured(arguments.times, arguments.seed)
    n_same = sum(agrees for _, agrees in found)
    steps = ", ".join(str(step) for step, _ in found)
    line = {
        "what": "kill −9 at a random moment, then --resume: the model of the undisturbed fit, bit for bit "
        f"(taken up at steps {steps})",
        "bar": f"{len(found)} of {len(found)}",
        "measured": n_same,
        "unit": f"of {len(found)}",
        "reached": n_same == len(found),
        "device": f"CPU, {platform.machine()}",
        "command": f"python benchmarks/kills.py --times {arguments.times} --seed {arguments.seed}",
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"records": [line]}, indent=2, ensure_ascii=False) + "\n")
    print(json.dumps(line, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
