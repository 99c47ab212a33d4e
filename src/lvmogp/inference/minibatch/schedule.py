"""The step schedule of stochastic inference: when to take smaller steps, when to average, when to stop.

Estimates of the bound are noisy. They are gathered in windows of steps, and a stage ends once the trend over the last
windows cannot be told from noise, or gains too little. The last stage averages what it goes through.
"""

import math
from typing import NamedTuple

import numpy as np

from lvmogp.ground.rules import AnyFloat

STEPS_PER_WINDOW = 50
# Windows over which a trend is looked for: at least as many as a pass through the data has, within these limits.
_FEWEST_WINDOWS, _MOST_WINDOWS = 10, 40
# A slope of fewer standard errors cannot be told from noise.
_SIGNIFICANT = 2.0
# Steps are halved where the bound is not finite, at most to a sixty-fourth.
_SHRINK_AFTER_FAILURE, _MOST_FAILURES = 0.5, 6


class Stage(NamedTuple):
    """Step sizes of the hyperparameters, the latents and q(v)."""

    hyperparameters: float
    latents: float
    natural: float


STAGES = (Stage(0.03, 0.02, 0.05), Stage(0.01, 0.01, 0.02), Stage(0.002, 0.005, 0.01))


class Window(NamedTuple):
    """Mean of the estimates of the bound in a window of steps, with its standard error."""

    mean: AnyFloat
    error: AnyFloat


class Schedule(NamedTuple):
    """Where a run stands: its stage, the windows of that stage, and how often it had to step back."""

    stage: int = 0
    windows: tuple[Window, ...] = ()
    n_failures: int = 0
    n_windows: int = _FEWEST_WINDOWS

    @property
    def averages(self) -> bool:
        """Whether this is the stage that is averaged."""
        return self.stage == len(STAGES) - 1

    @property
    def ended(self) -> bool:
        """Whether all stages are over."""
        return self.stage == len(STAGES)

    @property
    def hopeless(self) -> bool:
        """Whether smaller steps have not helped."""
        return self.n_failures > _MOST_FAILURES

    @property
    def share(self) -> float:
        """About how much of the run is over; nobody knows how long a stage will take."""
        of_stage = min(len(self.windows) / (2 * self.n_windows), 0.95)
        return min((self.stage + of_stage) / len(STAGES), 1.0)

    @property
    def steps(self) -> Stage:
        """Step sizes now."""
        shrink = _SHRINK_AFTER_FAILURE**self.n_failures
        return Stage(*(shrink * size for size in STAGES[self.stage]))


def begin_schedule(n_observations: int, batch_size: int) -> Schedule:
    """The schedule of a run; the more observations, the slower and the surer a trend must be."""
    in_a_pass = round(n_observations / batch_size / STEPS_PER_WINDOW)
    return Schedule(n_windows=min(max(in_a_pass, _FEWEST_WINDOWS), _MOST_WINDOWS))


def window(estimates: np.ndarray) -> Window:
    """Mean and standard error of the estimates in a window."""
    return Window(float(np.mean(estimates)), float(np.std(estimates, ddof=1) / math.sqrt(len(estimates))))


def after(schedule: Schedule, latest: Window, least_gain: float) -> Schedule:
    """The schedule after another window; ``least_gain`` is what the windows looked at must gain together."""
    if not math.isfinite(latest.mean):
        return schedule._replace(n_failures=schedule.n_failures + 1)
    windows = (*schedule.windows, latest)
    latest_windows = windows[-schedule.n_windows :]
    if len(windows) < schedule.n_windows or not (schedule.averages or _settled(latest_windows, least_gain)):
        return schedule._replace(windows=windows)
    return schedule._replace(stage=schedule.stage + 1, windows=())


def _settled(windows: tuple[Window, ...], least_gain: float) -> bool:
    # The slope of a straight line through the means, Σ w_j m_j, has the standard error √Σ w_j² e_j².
    place = np.arange(len(windows)) - (len(windows) - 1) / 2
    slope_weights = place / np.sum(place**2)
    slope = slope_weights @ [each.mean for each in windows]
    error = math.sqrt(np.sum(slope_weights**2 * np.square([each.error for each in windows])))
    return bool(slope < _SIGNIFICANT * error or slope * len(windows) < least_gain)
