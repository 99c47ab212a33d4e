"""What known features of conditions are worth.

    python -m benchmarks.condition_features braking      tyres never driven, described by a reading of their friction
    python -m benchmarks.condition_features servo        motor and screw as features, against the one-hot GP
    python -m benchmarks.condition_features page         no measurements: the table of docs/condition-features.md

Braking: ten tyres with five runs each, as in the paper; twenty new tyres without any run are predicted from a reading
of their friction that is wrong by 10 %, and without. Distances go with the inverse of the friction, so the inverse is
the better description where latents are to explain the error of the reading; those who do not know take the logarithm
of what varies by factors; the reading itself is measured too. Servo: the paper's 20 random splits and 20 more, with the
separate GP on one-hot columns for motor and screw on the same splits: on the 20 alone the difference is as large as its
standard error. Prints one line a repeat with the time left, then the summary; writes results/features/*.json after each
repeat, and the table at the end.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import norm

from benchmarks.pages import write_part
from lvmogp import PAPERS_MODEL, LVMOGPRegressor
from lvmogp.metrics import rmse, share_in_central_intervals
from lvmogp.simulate import FRICTIONS, SPEEDS, braking, braking_distance
from paper.methods import Family, one_hot_factors
from paper.plan import Entry
from paper.problems import servo

ROOT = Path(__file__).parent.parent
FOLDER, PAGE = ROOT / "results" / "features", ROOT / "docs" / "condition-features.md"
BEGIN, END = "<!-- made by benchmarks/condition_features.py, do not edit -->", "<!-- end of what it made -->"
READING_ERROR = 0.1
N_NEW = 20
Row = dict[str, float]


def braking_repeat(seed: int) -> Row:
    """Errors of the zero-shot predictions of new tyres, with and without a reading of their friction."""
    rng = np.random.default_rng(seed)
    data = braking(rng)

    def readings(friction: np.ndarray) -> np.ndarray:
        return friction * (1 + READING_ERROR * rng.standard_normal(len(friction)))

    reading = readings(data.friction)
    friction = rng.uniform(*FRICTIONS, N_NEW)
    speeds, names = np.linspace(*SPEEDS, 20), np.arange(N_NEW) + 100
    inputs, rows = np.tile(speeds, N_NEW)[:, None], np.repeat(names, len(speeds))
    truth = np.concatenate([braking_distance(speeds, mu) for mu in friction])
    new_reading = readings(friction)
    found: Row = {"seed": seed}
    for name, known, new in (
        ("without", None, None),
        ("with", 1 / reading, 1 / new_reading),
        ("with logarithm", np.log(reading), np.log(new_reading)),
        ("with friction itself", reading, new_reading),
    ):
        features = None if known is None else known[:, None]
        own = None if new is None else dict(zip(names.tolist(), new.tolist(), strict=True))
        model = LVMOGPRegressor(**PAPERS_MODEL, n_latent=1, unseen="prior")
        model.fit(data.speed[:, None], data.distance, data.condition, condition_features=features)
        mean = model.predict(inputs, rows, condition_features=own)
        lower, upper = model.predict_interval(inputs, rows, condition_features=own, include_noise=False)
        found[f"rmse {name}"] = rmse(mean, truth)
        found[f"coverage {name}"] = float(np.mean((lower <= truth) & (truth <= upper)))
    return found | {"ratio": found["rmse with"] / found["rmse without"]}


def servo_repeat(seed: int) -> Row:
    """Errors on held-out rise times: features, with hyperparameters fitted and drawn, and the one-hot GP."""
    problem = servo(seed, ROOT / "tests" / "data")
    factors = pd.DataFrame(problem.factors, columns=["motor", "screw"]).astype("category")
    train, test = problem.train, problem.test
    found: Row = {"seed": seed}

    def note(name: str, mean: np.ndarray, below: np.ndarray, log_density: np.ndarray, began: float) -> None:
        found[f"rmse {name}"] = rmse(mean, test.outputs)
        found[f"coverage {name}"] = share_in_central_intervals(below, [0.95])[0]
        found[f"log density {name}"] = float(np.mean(log_density))
        found[f"seconds {name}"] = round(time.perf_counter() - began, 1)

    began = time.perf_counter()
    one_hot = Entry(one_hot_factors, Family()).fit(problem, quick=False)
    normal = norm(*one_hot.predict(test.inputs, test.conditions))
    note("one-hot GP", normal.mean(), normal.cdf(test.outputs), normal.logpdf(test.outputs), began)
    for name, inference in (("features", "auto"), ("features, draws", "nuts")):
        began = time.perf_counter()
        model = LVMOGPRegressor(**PAPERS_MODEL, n_latent=0, n_inducing_latents=25, unseen="prior", inference=inference)
        model.fit(train.inputs, train.outputs, train.conditions, condition_features=factors)
        asked = (test.inputs, test.outputs, test.conditions)
        mean = model.predict(test.inputs, test.conditions)
        note(name, mean, model.predictive_cdf(*asked), model.log_predictive_density(*asked), began)
    return found


REPEATS: dict[str, tuple[Callable[[int], Row], int]] = {"braking": (braking_repeat, 10), "servo": (servo_repeat, 40)}
OF_THE_PAPER = 20  # splits of Servo


BRAKING_WORDS = {
    "without": "nothing known of a new tyre",
    "with": "the inverse of a reading of its friction",
    "with logarithm": "the logarithm of the reading",
    "with friction itself": "the reading itself",
}
SERVO_WORDS = {
    "one-hot GP": "GP on one-hot columns, hyperparameters fitted",
    "features": "features, hyperparameters fitted",
    "features, draws": 'features, hyperparameters drawn (`inference="nuts"`)',
}


def table(stored: dict[str, list[Row]]) -> str:
    """Means over repeats; of each way also how it differs from the first on the same repeats."""
    lines = []
    for words, rows, title in (
        (BRAKING_WORDS, stored["braking"], "New tyres without a run, readings wrong by 10 %"),
        (SERVO_WORDS, stored["servo"][:OF_THE_PAPER], "Servo, motor and screw as features, the paper's 20 splits"),
        (SERVO_WORDS, stored["servo"], f"Servo, these and others, {len(stored['servo'])} splits"),
    ):
        frame = pd.DataFrame(rows)
        first = next(iter(words))
        has_densities = f"log density {first}" in frame
        lines += [
            f"| {title} | RMSE | of the first | difference ± its standard error | ahead in | 95 % intervals cover |"
            + " log density |" * has_densities,
            "| --- " * (6 + has_densities) + "|",
        ]
        for name, told in words.items():
            errors, base = frame[f"rmse {name}"], frame[f"rmse {first}"]
            compared = " |  | "
            if name != first:
                apart = errors - base
                ahead = f"{int((apart < 0).sum())} of {len(rows)}"
                compared = f"{errors.mean() / base.mean():.2f} | {apart.mean():.3f} ± {apart.sem():.3f} | {ahead}"
            line = f"| {told} | {errors.mean():.3f} | {compared} | {frame[f'coverage {name}'].mean():.3f} |"
            lines.append(line + (f" {frame[f'log density {name}'].mean():.2f} |" if has_densities else ""))
        lines.append("")
    return "\n".join(
        [*lines, "`python -m benchmarks.condition_features braking`, and `servo`; means over all repeats."]
    )


def write_page() -> None:
    stored = {name: json.loads((FOLDER / f"{name}.json").read_text())["repeats"] for name in REPEATS}
    write_part(PAGE, BEGIN, END, table(stored))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=[*REPEATS, "page"])
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    if options.which == "page":
        write_page()
        return
    run, usual = REPEATS[options.which]
    n_repeats, rows, began = options.repeats or usual, [], time.perf_counter()
    options.out.mkdir(parents=True, exist_ok=True)
    for seed in range(n_repeats):
        rows.append(run(seed))
        left = (time.perf_counter() - began) / len(rows) * (n_repeats - len(rows))
        print("  ".join(f"{name} {value:.4g}" for name, value in rows[-1].items()), f"  {left:.0f} s left", flush=True)
        content = {"cores": os.cpu_count(), "repeats": rows}
        (options.out / f"{options.which}.json").write_text(json.dumps(content, indent=1) + "\n")
    frame = pd.DataFrame(rows).drop(columns="seed")
    print(pd.DataFrame({"mean": frame.mean(), "sd": frame.std()}).to_string(float_format="%.4g"))
    if options.out == FOLDER and options.repeats is None:
        write_page()


if __name__ == "__main__":
    main()
