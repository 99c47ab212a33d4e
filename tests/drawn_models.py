"""Small models with posterior draws made by hand, and the same answers by dense matrices and loops over draws."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from references import covariance, kernel_values
from small_models import build, rbf

from lvmogp import LVMOGPRegressor
from lvmogp.fitted.model import FittedModel, trained_model, with_draws
from lvmogp.inference.optimise import Status
from lvmogp.inference.restarts import Outcome, Restart
from lvmogp.kernels.covariances import Kernel
from lvmogp.model.draws import Draws, NoiseSpread
from lvmogp.model.layouts import standardised
from lvmogp.model.parameters import Parameters
from lvmogp.tables.observations import Observations
from lvmogp.tables.scaling import scaling_of
from lvmogp.tables.transforms import TRANSFORMS

N_DRAWS = 6


def made_draws(model: FittedModel, *, seed: int = 3, n_draws: int = N_DRAWS) -> Draws:
    """The variational fit, disturbed: other hyperparameters, turned and moved latents, unequal weights."""
    rng = np.random.default_rng(seed)
    parameters = model.posterior.parameters

    def around(leaf: jax.Array) -> jax.Array:
        return jnp.asarray(np.asarray(leaf) * np.exp(0.2 * rng.standard_normal((n_draws, *leaf.shape))))

    mean = np.asarray(parameters.latent_mean)
    turns = np.linalg.qr(rng.standard_normal((n_draws, mean.shape[1], mean.shape[1])))[0]
    turns[::2, :, 0] *= -1  # some turn, some mirror
    latents = (mean + 0.15 * rng.standard_normal((n_draws, *mean.shape))) @ turns
    log_weight, own_noise = 0.5 * rng.standard_normal(n_draws), parameters.noise_variance.shape[0] > 1
    return Draws(
        input_kernel=jax.tree.map(around, parameters.input_kernel),
        latent_kernel=jax.tree.map(around, parameters.latent_kernel),
        latents=jnp.asarray(latents),
        noise_variance=around(parameters.noise_variance),
        chain=jnp.asarray(np.arange(n_draws) % 2),
        log_weight=jnp.asarray(log_weight - np.log(np.sum(np.exp(log_weight)))),
        noise_spread=NoiseSpread(*jnp.asarray(rng.uniform(0.3, 0.6, (2, n_draws)))) if own_noise else None,
    )


def curve(x: np.ndarray, slope: np.ndarray) -> np.ndarray:
    return np.sin(3 * x + slope) * (1 + slope / 3)


@functools.cache
def fitted(
    form: str, *, noise: str = "shared", n_latent: int = 1, transform: str | None = None, error: float | None = None
) -> LVMOGPRegressor:
    """A model as a fit would leave it, of a complete grid ("grid") or of uneven conditions ("long"), with draws.

    ``error`` is a known standard deviation of all measurements.
    """
    rng = np.random.default_rng(7)
    slopes = np.linspace(-1, 1, 5)
    counts = [7] * 5 if form == "grid" else [3, 7, 2, 6, 4]
    conditions = np.repeat(np.arange(5), counts)
    inputs = np.tile(rng.uniform(0, 2, 7), 5) if form == "grid" else rng.uniform(0, 2, len(conditions))
    outputs = curve(inputs, slopes[conditions]) + 0.1 * rng.standard_normal(len(inputs))
    observations = Observations(
        inputs[:, None],
        outputs if transform is None else TRANSFORMS[transform].backward(1.3 + outputs),
        conditions,
        tuple("abcde"),
        None,
        form == "grid",
        errors=None if error is None else np.full(len(outputs), error),
    )
    scaling = scaling_of(observations.inputs, observations.outputs, transform=TRANSFORMS[transform])
    latents = np.column_stack([1.3 * slopes, 0.7 * rng.standard_normal(5)])[:, :n_latent]
    parameters = Parameters(
        input_kernel=rbf([0.6], 1.1),
        latent_kernel=rbf([1.4, 2.0][:n_latent], 0.9),
        inducing_inputs=jnp.asarray([[-1.4], [-0.5], [0.5], [1.4]]),
        inducing_latents=jnp.asarray(latents[::2]),
        latent_mean=jnp.asarray(latents),
        latent_variance=jnp.full(latents.shape, 0.05),
        noise_variance=jnp.asarray([0.03] if noise == "shared" else [0.01, 0.02, 0.05, 0.03, 0.02]),
    )
    restart = Restart("by hand", -12.5, Status.CONVERGED, (-13.0, -12.5), 2, 1.0)
    outcome = Outcome(parameters, -12.5, Status.CONVERGED, (restart,), 1e-7, 1e-7, 1.0)
    model = build(parameters, standardised(observations, scaling))
    trained = trained_model(model, outcome, ids=observations.ids, scaling=scaling, observations=observations)
    estimator = LVMOGPRegressor(n_latent, noise=noise, output_transform=transform)
    estimator.model_ = with_draws(trained, made_draws(trained))
    estimator.n_features_in_ = 1
    return estimator


def forgetting(model: LVMOGPRegressor) -> LVMOGPRegressor:
    """A copy of the estimator, to which conditions can be added."""
    copied = LVMOGPRegressor(**model.get_params(deep=False))
    copied.model_ = model.model_
    copied.n_features_in_ = model.n_features_in_
    return copied


class Gaussian(NamedTuple):
    """Mean and covariance of f at some rows."""

    mean: np.ndarray
    covariance: np.ndarray


class DenseDraw:
    """One draw as a GP over pairs (x, h), conditioned on all observations through their full covariance matrix."""

    def __init__(self, model: FittedModel, number: int):
        draws, observations = model.draws, model.observations
        kernels = (draws.input_kernel, draws.latent_kernel)
        self.input_kernel, self.latent_kernel = (
            jax.tree.map(lambda leaf: np.asarray(leaf)[number], kernel) for kernel in kernels
        )
        self.latents = np.asarray(draws.latents)[number]
        self.noise = np.broadcast_to(np.asarray(draws.noise_variance)[number], len(self.latents))
        self.noise_spread = (
            None
            if draws.noise_spread is None
            else (
                float(draws.noise_spread.median[number]),
                float(draws.noise_spread.deviation[number]),
            )
        )
        self.weight = float(np.exp(draws.log_weight[number]))
        self.inputs = model.scaling.inputs(observations.inputs)
        self.conditions = observations.conditions
        self.outputs = model.scaling.outputs(observations.outputs)
        own, variances = self.latents[self.conditions], self.noise[self.conditions]
        if observations.errors is not None:
            variances = variances + (observations.errors / model.scaling.output_scale) ** 2
        self.inverse = np.linalg.inv(self.prior(self.inputs, own, self.inputs, own) + np.diag(variances))

    def prior(self, x: np.ndarray, h: np.ndarray, other_x: np.ndarray, other_h: np.ndarray) -> np.ndarray:
        return covariance(self.input_kernel, x, other_x) * covariance(self.latent_kernel, h, other_h)

    def at(self, x: np.ndarray, h: np.ndarray) -> Gaussian:
        """F at rows (x, h)."""
        to_data = self.prior(x, h, self.inputs, self.latents[self.conditions])
        return Gaussian(
            to_data @ self.inverse @ self.outputs, self.prior(x, h, x, h) - to_data @ self.inverse @ to_data.T
        )

    def given(self, x: np.ndarray, h: np.ndarray, x_few: np.ndarray, y_few: np.ndarray, noise: float) -> Gaussian:
        """F at rows of one latent after a few observations of it."""
        n_few = len(x_few)
        everything = self.at(np.vstack([x_few, x]), np.tile(h, (n_few + len(x), 1)))
        within = everything.covariance[:n_few, :n_few] + noise * np.eye(n_few)
        gain = np.linalg.solve(within, everything.covariance[:n_few, n_few:]).T
        return Gaussian(
            everything.mean[n_few:] + gain @ (y_few - everything.mean[:n_few]),
            everything.covariance[n_few:, n_few:] - gain @ everything.covariance[:n_few, n_few:],
        )

    def log_likelihood(self, h: np.ndarray, x_few: np.ndarray, y_few: np.ndarray, noise: float) -> float:
        """Log p(y | h, draw)."""
        found = self.at(x_few, np.tile(h, (len(x_few), 1)))
        matrix = found.covariance + noise * np.eye(len(x_few))
        residual = y_few - found.mean
        return float(-residual @ np.linalg.solve(matrix, residual) / 2 - np.linalg.slogdet(2 * np.pi * matrix)[1] / 2)


def dense_draws(model: LVMOGPRegressor) -> list[DenseDraw]:
    return [DenseDraw(model.model_, number) for number in range(model.model_.draws.n_draws)]


class Mixed(NamedTuple):
    """A mixture in standardised units: weights, means and variances of its components, a row a component."""

    weights: np.ndarray
    means: np.ndarray
    variances: np.ndarray

    @property
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        mean = self.weights @ self.means
        return mean, self.weights @ (self.variances + self.means**2) - mean**2


def mixed(model: LVMOGPRegressor, X: np.ndarray, numbers: np.ndarray, *, include_noise: bool) -> Mixed:
    """Predictive mixture at rows of trained conditions, a loop over draws."""
    x = model.model_.scaling.inputs(X)
    draws = dense_draws(model)
    found = [draw.at(x, draw.latents[numbers]) for draw in draws]
    noise = np.stack([draw.noise[numbers] for draw in draws]) * include_noise
    weights = np.asarray([draw.weight for draw in draws])
    return Mixed(
        weights, np.stack([item.mean for item in found]), np.stack([np.diag(item.covariance) for item in found]) + noise
    )


def correlation(kernel: Kernel, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    own, other = (np.sqrt(kernel_values(kernel, points, points)) for points in (first, second))
    return covariance(kernel, first, second) / np.outer(own, other)
