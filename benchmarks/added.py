"""A condition added with 50 points to a fitted model, against the same condition in the training: every repeat.

    python benchmarks/added.py                     the library's own defaults
    python benchmarks/added.py --inducing 10 30    the paper's sizes

Prints one line a repeat and the summary, and with --json FILE writes all of it.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from lvmogp import PAPERS_MODEL, LVMOGPRegressor
from lvmogp.metrics import rmse
from paper.synthetic import synthetic_grid


def added(seed: int, settings: dict[str, int]) -> dict[str, float]:
    """Test errors of one condition of a synthetic data set, a different one in each set."""
    data = synthetic_grid(seed)
    held = seed % data.train_outputs.shape[1]
    others = [number for number in range(data.train_outputs.shape[1]) if number != held]
    trained = LVMOGPRegressor(**PAPERS_MODEL, **settings).fit(data.train_inputs, data.train_outputs)
    later = LVMOGPRegressor(**PAPERS_MODEL, **settings).fit(
        data.train_inputs, data.train_outputs[:, others], conditions=others
    )
    later.add_condition(held, data.train_inputs, data.train_outputs[:, held])
    truth = data.test_values[:, held]
    from_start = rmse(trained.predict(data.test_inputs, held), truth)
    from_later = rmse(later.predict(data.test_inputs, held), truth)
    return {"seed": seed, "rmse": from_later, "rmse_trained": from_start, "ratio": from_later / from_start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--inducing", type=int, nargs=2, metavar=("INPUTS", "LATENTS"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sizes = dict(zip(("n_inducing_inputs", "n_inducing_latents"), options.inducing or (), strict=False))
    rows = []
    for seed in range(options.repeats):
        rows.append(added(seed, sizes))
        print("  ".join(f"{name} {value:.4g}" for name, value in rows[-1].items()), flush=True)
    ratios = [row["ratio"] for row in rows]
    print(f"ratio: {np.mean(ratios):.4g} ± {np.std(ratios):.2g} ({min(ratios):.4g} to {max(ratios):.4g})")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
