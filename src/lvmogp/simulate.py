"""Simulated braking distances, whose truth is known."""

from typing import NamedTuple

import numpy as np

from lvmogp.typing import HostFloat

GRAVITY = 9.81
SPEEDS = (3.0, 30.0)
FRICTIONS = (0.2, 1.0)
BRAKING_NOISE = 0.5


class Braking(NamedTuple):
    """Braking distances under several conditions of tyre and road, in long form."""

    speed: HostFloat
    distance: HostFloat
    condition: HostFloat
    friction: HostFloat


def braking_distance(speed: HostFloat, friction: HostFloat | float) -> HostFloat:
    """Distance in metres at which a car of this speed in m/s stands, v²/(2μg)."""
    return speed**2 / (2 * friction * GRAVITY)


def braking(rng: np.random.Generator, *, n_conditions: int = 10, n_experiments: int = 5) -> Braking:
    """The paper's toy problem: friction μ ~ U(.2, 1) for each condition, speed v ~ U(3, 30) m/s, noise of .5 m."""
    friction = rng.uniform(*FRICTIONS, n_conditions)
    condition = np.repeat(np.arange(n_conditions), n_experiments)
    speed = rng.uniform(*SPEEDS, len(condition))
    noise = BRAKING_NOISE * rng.standard_normal(len(condition))
    return Braking(speed, braking_distance(speed, friction[condition]) + noise, condition, friction)
