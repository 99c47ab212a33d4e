"""Simulated data sets whose truth is known."""

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


class SyntheticGrid(NamedTuple):
    """Draws from the model itself: noisy training outputs and noise-free test outputs on a grid."""

    train_inputs: HostFloat
    train_outputs: HostFloat
    test_inputs: HostFloat
    test_values: HostFloat


def synthetic_grid(seed: int) -> SyntheticGrid:
    """The paper's synthetic data without missing values: 50 + 50 inputs, 40 conditions, two latent dimensions.

    x ~ U[0, 1] with an RBF of lengthscale .1, h ~ U[0, 1]² with one of lengthscale .4, noise variance .3. The
    order of the draws is part of the definition.
    """
    rng = np.random.RandomState(seed)  # the published sets were drawn with the legacy generator
    inputs, latents = rng.rand(100, 1), rng.rand(40, 2)
    curves = rng.randn(100, 40)
    values = _factor(inputs, 0.1) @ curves @ _factor(latents, 0.4).T
    noisy = values[:50] + np.sqrt(0.3) * rng.randn(50, 40)
    return SyntheticGrid(inputs[:50], noisy, inputs[50:], values[50:])


def _factor(points: HostFloat, lengthscale: float) -> HostFloat:
    squared = np.sum((points[:, None] - points[None]) ** 2, axis=-1)
    return np.linalg.cholesky(np.exp(-squared / lengthscale**2 / 2) + 1e-8 * np.eye(len(points)))
