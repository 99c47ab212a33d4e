"""One exact Gaussian process for each condition, with hyperparameters shared by all or its own."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.algebra.constraints import positive
from lvmogp.algebra.evidence import dense_evidence
from lvmogp.algebra.gaussians import LOG_2PI
from lvmogp.algebra.linalg import whiten
from lvmogp.ground.compiling import compiled
from lvmogp.kernels.covariances import Kernel, cross, diagonal, gram
from lvmogp.typing import Array, Float, HostFloat, HostInt, Scalar
from paper.baselines.coregionalised import Marginals


class Apart(eqx.Module):
    """A kernel and one noise variance, or one per condition."""

    kernel: Kernel
    noise_variance: Float[Array, " S"] = positive()


class Stacked(eqx.Module):
    """The rows of each condition, padded to a common number; ``present`` is 0 where padded."""

    inputs: Float[Array, "D m Q_X"]
    outputs: Float[Array, "D m"]
    present: Float[Array, "D m"]

    def condition(self, number: int) -> "Stacked":
        """One condition alone."""
        return jax.tree.map(lambda values: values[number : number + 1], self)


def stacked(inputs: HostFloat, outputs: HostFloat, conditions: HostInt, n_conditions: int) -> Stacked:
    """Gather rows by condition."""
    size = max(int(np.bincount(conditions).max()), 1)
    values = np.zeros((n_conditions, size, inputs.shape[1])), np.zeros((n_conditions, size))
    present = np.zeros((n_conditions, size))
    for number in range(n_conditions):
        chosen = np.flatnonzero(conditions == number)
        values[0][number, : len(chosen)] = inputs[chosen]
        values[1][number, : len(chosen)] = outputs[chosen]
        present[number, : len(chosen)] = 1.0
    return Stacked(jnp.asarray(values[0]), jnp.asarray(values[1]), jnp.asarray(present))


def log_evidence(parameters: Apart, data: Stacked) -> Scalar:
    """Σ_d log N(y_d; 0, K_d + σ_d²I)."""
    noise = jnp.broadcast_to(parameters.noise_variance, data.outputs.shape[:1])

    def one_condition(inputs: Array, outputs: Array, present: Array, noise: Array) -> Scalar:
        # A padded row has no covariance and no output, and so adds nothing.
        scaled = gram(parameters.kernel, inputs) * present[:, None] * present / noise
        log_det, quadratic = dense_evidence(scaled, outputs / jnp.sqrt(noise))
        return -(jnp.sum(present) * (LOG_2PI + jnp.log(noise)) + log_det + quadratic) / 2

    return jnp.sum(jax.vmap(one_condition)(data.inputs, data.outputs, data.present, noise))


@compiled
def _predict_one(
    parameters: Apart, data: Stacked, inputs: Float[Array, "t Q_X"]
) -> tuple[Float[Array, " t"], Float[Array, " t"]]:
    # Moments of the only condition of ``data``.
    noise, present = parameters.noise_variance[0], data.present[0]
    covariance = gram(parameters.kernel, data.inputs[0]) * present[:, None] * present
    factor = jnp.linalg.cholesky(covariance + noise * jnp.eye(len(present)))
    projected = whiten(factor, cross(parameters.kernel, data.inputs[0], inputs) * present[:, None])
    prior = diagonal(parameters.kernel, inputs)
    mean = projected.T @ whiten(factor, data.outputs[0])
    return mean, jnp.maximum(prior - jnp.sum(projected**2, axis=0), 0.0)


def predict(parameters: list[Apart], data: Stacked, inputs: HostFloat, conditions: HostInt) -> Marginals:
    """Posterior moments of the function at rows; ``parameters`` are those of each condition."""
    mean, variance = np.empty(len(conditions)), np.empty(len(conditions))
    counts = np.bincount(conditions)
    for number in np.flatnonzero(counts).tolist():
        chosen = np.flatnonzero(conditions == number)
        padded = np.pad(inputs[chosen], ((0, counts.max() - len(chosen)), (0, 0)), mode="edge")
        moments = _predict_one(parameters[number], data.condition(number), jnp.asarray(padded))
        mean[chosen], variance[chosen] = (np.asarray(values)[: len(chosen)] for values in moments)
    return Marginals(mean, variance)
