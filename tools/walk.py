"""Print the way that a ``fit`` and a ``predict`` take through the modules: ``python tools/walk.py``.

A small model is fitted and asked under a profiler that sees every call. The walk of a fit ends at the bound, where JAX
first traces it; that of a prediction at the deepest call that computes moments. Left out are frames of other packages
and of ``lvmogp.ground``, whose functions wrap others, and calls of ``lvmogp.algebra`` and ``lvmogp.kernels``, in which
every formula ends.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from lvmogp import LVMOGPRegressor
from lvmogp.simulate import braking

BOUND = ("lvmogp.model.bounds", "collapsed")
# Where moments are computed, rather than questions read.
FLOORS_OF_MOMENTS = ("lvmogp.model.", "lvmogp.conditions.")
LEFT_OUT = ("lvmogp.ground.", "lvmogp.algebra.", "lvmogp.kernels.")


class Step(NamedTuple):
    """A function that is being called."""

    module: str
    function: str


Walk = tuple[Step, ...]


def main() -> None:
    """Fit, predict, and print both walks."""
    data = braking(np.random.default_rng(1))
    inputs, conditions = data.speed[:, None], [f"tyre {number}" for number in data.condition]
    model = LVMOGPRegressor(n_latent=1)
    with watched(lambda step: step == BOUND, only_first=True) as walks:
        model.fit(inputs, data.distance, conditions=conditions)
    print("Left out: other packages, lvmogp.ground, lvmogp.algebra and lvmogp.kernels.")
    show("fit, down to the bound", walks[0])
    with watched(lambda step: step.module.startswith(FLOORS_OF_MOMENTS)) as walks:
        model.predict(inputs[:4], conditions[:4], return_std=True)
    show("predict, down to the deepest call that computes moments", max(walks, key=len))


@contextmanager
def watched(wanted: Callable[[Step], bool], *, only_first: bool = False) -> Iterator[list[Walk]]:
    """Collect the walks that lead to calls of wanted functions."""
    walks: list[Walk] = []
    starts: dict[threading.Thread, Walk] = {}  # the walk of the thread that started each thread

    def on_call(frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        if frame.f_code is threading.Thread.start.__code__:
            starts[frame.f_locals["self"]] = walk_to(frame, starts)
        elif (step := step_of(frame)) is not None and wanted(step):
            walks.append(walk_to(frame, starts))
            if only_first:
                sys.setprofile(None)  # what follows need not be slow

    threading.setprofile(on_call)
    sys.setprofile(on_call)
    try:
        yield walks
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def walk_to(frame: FrameType | None, starts: dict[threading.Thread, Walk]) -> Walk:
    """The functions on the way to a call, the outermost first, through the thread that started this one."""
    steps: list[Step] = []
    while frame is not None:
        step = step_of(frame)
        if step is not None:
            steps.append(step)
        frame = frame.f_back
    return (*starts.get(threading.current_thread(), ()), *reversed(steps))


def step_of(frame: FrameType) -> Step | None:
    """The function of a frame, if it is one of ours that is not left out."""
    module = frame.f_globals.get("__name__", "")
    if not module.startswith("lvmogp.") or module.startswith(LEFT_OUT):
        return None
    return Step(module, frame.f_code.co_qualname.replace(".<locals>", ""))


def show(title: str, walk: Walk) -> None:
    """Print a walk, one line for each stay in a module."""
    stays = [
        (module, [step.function for step in steps]) for module, steps in groupby(walk, key=lambda step: step.module)
    ]
    print(f"\n{title}: {len(stays) - 1} crossings between modules, {len(walk)} functions")
    for module, functions in stays:
        print(f"  {module}: {' → '.join(functions)}")


if __name__ == "__main__":
    main()
