"""The example and the paper's experiments, shown on a terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.markdown import Markdown

from lvmogp.cli.printing import Screen
from lvmogp.demo import NEW, DemoResult, run
from lvmogp.progress import job_progress
from lvmogp.simulate import SPEEDS
from paper.plan import experiments
from paper.reproduce import reproduce as run_experiment

_SHOWN_SPEEDS = (5, 10, 15, 20, 25, 30)


class ReproduceRequest(NamedTuple):
    """Which experiments to run and how; ``settings`` are those of an experiment."""

    name: str
    out: Path
    settings: dict[str, Any]


def demo(screen: Screen, out: Path, *, seed: int) -> None:
    """Run the braking example and show what it found."""
    with Console(stderr=True).status("Simulating 50 braking experiments and fitting the joint model …"):
        result = run(out, seed=seed)
    rows = _predictions(result)
    screen.say(f"10 tyres, 5 experiments each. {str(result.model.outcome_).capitalize()}.")
    screen.say("A new tyre from one observation: braking distance (m)\n")
    screen.show(
        [
            [
                f"{row['speed']:.0f}",
                f"{row['truth']:.1f}",
                f"{row['predicted']:.1f}",
                f"{row['lower']:.1f} to {row['upper']:.1f}",
                f"{row['together']:.1f}",
            ]
            for row in rows
        ],
        ["speed (m/s)", "truth", "predicted", "95 % interval", "ignoring the tyre"],
    )
    screen.say(
        f"Error over all speeds for '{NEW}': {result.error:.2f} m, against {result.error_together:.2f} m for one curve "
        f"through all data.\nThe latent explains {100 * result.r_squared:.1f} % of the variance of 1/friction, "
        "which the model never saw."
    )
    screen.say(f"Figures: {_listed(result.files)}")
    screen.document(
        {
            "predictions": rows,
            "error": result.error,
            "error_together": result.error_together,
            "r_squared": result.r_squared,
            "figures": [str(path) for path in result.files],
        }
    )


def _predictions(result: DemoResult) -> list[dict[str, float]]:
    speeds = np.linspace(*SPEEDS, len(result.truth))
    columns = {"speed": speeds, **{name: getattr(result, name) for name in ("truth", "predicted", "lower", "upper")}}
    columns["together"] = result.together
    places = [int(np.argmin(np.abs(speeds - speed))) for speed in _SHOWN_SPEEDS]
    return [{name: float(values[place]) for name, values in columns.items()} for place in places]


def reproduce(screen: Screen, request: ReproduceRequest) -> None:
    """Run experiments of the paper and show their tables."""
    screen.after_failure = f"finished repeats are kept in {request.out}, and the same command goes on from there"
    documents = []
    for one in list(experiments()) if request.name == "all" else [request.name]:
        with job_progress(one) as on_progress:
            found = run_experiment(one, request.out, on_progress=on_progress, **request.settings)
        if screen.for_people:
            Console().print(Markdown(found.table))
        screen.say(f"Files: {_listed(found.files)}")
        documents.append({"experiment": one, "table": found.table, "files": [str(path) for path in found.files]})
    screen.document({"experiments": documents})


def _listed(files: Sequence[Path]) -> str:
    return ", ".join(str(path) for path in files)
