"""Test error against time, one picture a question."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt

from benchmarks.suite.records import Trace
from lvmogp.plots.style import outside_legend, own_axes, style, tidy


def draw(traces: Sequence[Trace], path: Path) -> None:
    """One line for each rival's fit, one mark for each of ours, which show their models at the end only."""
    ax = tidy(own_axes(None, width=7.2))
    for number, trace in enumerate(traces):
        look = style(number)
        line = "none" if trace["who"].startswith("lvmogp") else look.line
        seconds, errors = ([point[key] for point in trace["points"]] for key in ("seconds", "rmse"))
        ax.plot(seconds, errors, color=look.colour, marker=look.marker, markersize=4, ls=line, label=trace["who"])
    ax.set_xscale("log")
    ax.set_xlabel("seconds of the fit, compilation included")
    ax.set_ylabel("test RMSE")
    ax.set_title(traces[0]["problem"], fontsize="medium")
    outside_legend(ax)
    path.parent.mkdir(parents=True, exist_ok=True)
    ax.figure.savefig(path, dpi=150)
    plt.close("all")
