"""The commands that show: what a model file holds, its page, and the braking example."""

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape

from lvmogp.cli.model_rows import check_target
from lvmogp.cli.screen import Screen, counted
from lvmogp.estimator import LVMOGPRegressor
from lvmogp.fitted.model_file import encode_setting
from lvmogp.insight.summary import input_names

_SHOWN_SPEEDS = (5, 10, 15, 20, 25, 30)


def show(screen: Screen, path: Path) -> None:
    """Tell what a model file holds: what was learnt from, how it went, and what the fit was made with."""
    model = LVMOGPRegressor.load(path)
    trained, outcome, origin = model.model_, model.outcome_, model.origin_
    settings = {name: encode_setting(value) for name, value in model.get_params(deep=False).items()}
    defaults = LVMOGPRegressor().get_params(deep=False)
    n_points = None if trained.observations is None else len(trained.observations.outputs)
    learnt_from = counted(len(trained.ids), "condition")
    if n_points is not None:
        learnt_from = f"{counted(n_points, 'point')} of {learnt_from}"
    chosen = ", ".join(f"{name}={value!r}" for name, value in settings.items() if value != defaults[name])
    facts = {
        "learnt from": learnt_from + (f"; {len(trained.added)} added later" if trained.added else ""),
        "inputs": escape(", ".join(input_names(model))),
        "output": escape(str(trained.schema.output_name or "not named")),
        "bound": f"{outcome.bound:.1f}  [dim]{outcome.status.value}[/]",
        "settings": escape(chosen or "as they come"),
    }
    if origin is None:
        facts["made with"] = "not known: the file was written before this was kept"
    else:
        versions = ", ".join(f"{name} {version}" for name, version in origin.versions.items())
        facts |= {"seed": str(origin.seed), "made with": f"{versions}  [dim]{escape(origin.machine)}[/]"}
    screen.say_facts(facts)
    screen.document(
        {
            "model": str(path),
            "n_conditions": len(trained.ids),
            "n_added": len(trained.added),
            "n_observations": n_points,
            "inputs": input_names(model),
            "output": trained.schema.output_name,
            "bound": outcome.bound,
            "status": outcome.status.value,
            "settings": settings,
            "origin": None if origin is None else origin._asdict(),
        }
    )


def report(screen: Screen, path: Path, out: Path | None) -> None:
    """Write the page to explore a model with."""
    from lvmogp.page.report import write_report

    target = path.with_suffix(".html") if out is None else out
    check_target(target, path)
    write_report(LVMOGPRegressor.load(path), target)
    screen.say_written("Page", target)
    screen.document({"page": str(target), "notes": screen.notes})


def demo(screen: Screen, out: Path, *, seed: int) -> None:
    """Run the braking example and show what it found."""
    from lvmogp.demo import NEW, run
    from lvmogp.simulate import SPEEDS

    with Console(stderr=True).status("Simulating 50 braking experiments and fitting the joint model …"):
        found = run(out, seed=seed)
    speeds = np.linspace(*SPEEDS, len(found.truth))
    names = ("truth", "predicted", "lower", "upper", "together")
    rows: list[dict[str, Any]] = []
    for speed in _SHOWN_SPEEDS:
        place = int(np.argmin(np.abs(speeds - speed)))
        rows.append({"speed": speeds[place], **{name: getattr(found, name)[place] for name in names}})
    screen.say(f"10 tyres, 5 experiments each. {str(found.model.outcome_).capitalize()}.")
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
        f"Error over all speeds for '{NEW}': {found.error:.2f} m, against {found.error_together:.2f} m for one curve "
        f"through all data.\nThe latent explains {100 * found.r_squared:.1f} % of the variance of 1/friction, "
        "which the model never saw."
    )
    figures = [str(path) for path in found.files]
    screen.say(f"Figures: {', '.join(figures)}")
    screen.document(
        {
            "predictions": rows,
            "error": found.error,
            "error_together": found.error_together,
            "r_squared": found.r_squared,
            "figures": figures,
        }
    )
