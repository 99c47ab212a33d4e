"""Second, dumber ways to the same numbers: NumPy with loops, dense matrices and quadrature.

Everything is written as the paper writes it, un-whitened and with the Kronecker products formed; only the
jitter on the two gram matrices is the library's. Data come as one pair (inputs, outputs) for each condition.
"""

import dataclasses
import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from lvmogp.algebra.linalg import smallest_jitter
from lvmogp.kernels.covariances import RBF, Constant, Kernel, Linear, Matern52, Periodic, Product, Sum
from lvmogp.model.parameters import FullInducing, Parameters

JITTER = smallest_jitter(jnp.dtype("float64"))
NODES = 40

Observations = list[tuple[np.ndarray, np.ndarray]]


def kernel_values(kernel: Kernel, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """k(x, y) for arrays of points whose leading axes broadcast."""
    if isinstance(kernel, Sum):
        return sum(kernel_values(term, first, second) for term in kernel.terms)
    if isinstance(kernel, Product):
        return math.prod(kernel_values(term, first, second) for term in kernel.terms)
    if isinstance(kernel, Constant):
        return float(kernel.variance) * np.ones(np.broadcast_shapes(first.shape[:-1], second.shape[:-1]))
    columns = slice(None) if kernel.columns is None else list(kernel.columns)
    first, second, variance = first[..., columns], second[..., columns], np.asarray(kernel.variance)
    if isinstance(kernel, Linear):
        return np.sum(variance * first * second, axis=-1)
    if isinstance(kernel, Periodic):
        sines = np.sin(np.pi * (first - second) / np.asarray(kernel.period)) / np.asarray(kernel.lengthscale)
        return variance * np.exp(-2 * np.sum(sines**2, axis=-1))
    squared = np.sum(((first - second) / np.asarray(kernel.lengthscale)) ** 2, axis=-1)
    if isinstance(kernel, RBF):
        return variance * np.exp(-squared / 2)
    if isinstance(kernel, Matern52):
        distance = np.sqrt(5 * squared)
        return variance * (1 + distance + distance**2 / 3) * np.exp(-distance)
    raise NotImplementedError(type(kernel).__name__)


def covariance(kernel: Kernel, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Matrix of k(x_i, y_j)."""
    return kernel_values(kernel, first[:, None, :], second[None, :, :])


def jittered_gram(kernel: Kernel, points: np.ndarray) -> np.ndarray:
    """K_uu with the smallest jitter of the library."""
    gram = covariance(kernel, points, points)
    return gram + JITTER * np.mean(np.diag(gram)) * np.eye(len(points))


def hermite(n_nodes: int, n_dimensions: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Nodes of a standard normal distribution with their masses."""
    nodes, masses = np.polynomial.hermite_e.hermegauss(n_nodes)
    grid, weights = (np.meshgrid(*[axis] * n_dimensions) for axis in (nodes, masses / masses.sum()))
    return np.stack([axis.ravel() for axis in grid], axis=1), np.prod([axis.ravel() for axis in weights], axis=0)


def latent_expectations(parameters: Parameters, n_nodes: int = NODES) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ψ_d^H, Ψ_d^H and Φ_d^H by quadrature with ``n_nodes`` for each dimension, one condition after the other."""
    kernel, inducing = parameters.kernels.of_latents[0], np.asarray(parameters.inducing_latents)
    unit, weight = hermite(n_nodes, inducing.shape[1])
    psi0, psi1, psi2 = [], [], []
    for mean, variance in zip(np.asarray(parameters.latent_mean), np.asarray(parameters.latent_variance), strict=True):
        points = mean + np.sqrt(variance) * unit
        values = covariance(kernel, points, inducing)
        psi0.append(weight @ kernel_values(kernel, points, points))
        psi1.append(weight @ values)
        psi2.append((weight * values.T) @ values)
    return np.array(psi0), np.array(psi1), np.array(psi2)


def grams(parameters: Parameters) -> tuple[np.ndarray, np.ndarray]:
    """K_uu^X and K_uu^H."""
    input_gram = jittered_gram(parameters.kernels.of_inputs[0], np.asarray(parameters.inducing_inputs))
    return input_gram, jittered_gram(parameters.kernels.of_latents[0], np.asarray(parameters.inducing_latents))


def stacked(matrix: np.ndarray) -> np.ndarray:
    """vec(·): the columns under each other."""
    return matrix.flatten(order="F")


def unwhitened(parameters: Parameters) -> tuple[np.ndarray, np.ndarray]:
    """Mean vec M and covariance Σ^U of u = (L_H ⊗ L_X) v, with the Kronecker product formed."""
    input_gram, latent_gram = grams(parameters)
    unwhiten = np.kron(np.linalg.cholesky(latent_gram), np.linalg.cholesky(input_gram))
    inducing, is_full = parameters.inducing, isinstance(parameters.inducing, FullInducing)
    factor = unwhiten @ (inducing.factor if is_full else np.kron(inducing.latent_factor, inducing.input_factor))
    return unwhiten @ stacked(np.asarray(inducing.mean)), factor @ factor.T


def log_det(matrix: np.ndarray) -> float:
    """log|A|."""
    return np.linalg.slogdet(matrix)[1]


def gaussian_kl(mean: np.ndarray, variance: np.ndarray, prior: np.ndarray) -> float:
    """KL(N(m, S) ‖ N(0, K))."""
    inverse = np.linalg.inv(prior)
    return (log_det(prior) - log_det(variance) + mean @ inverse @ mean + np.trace(inverse @ variance) - len(mean)) / 2


def latent_kl(parameters: Parameters) -> float:
    """KL(q(H) ‖ p(H)), one condition after the other."""
    pairs = zip(np.asarray(parameters.latent_mean), np.asarray(parameters.latent_variance), strict=True)
    return sum(gaussian_kl(mean, np.diag(variance), np.eye(len(mean))) for mean, variance in pairs)


def missing_data_formulation(parameters: Parameters, observations: Observations, n_nodes: int = NODES) -> float:
    """The bound of the section on missing data: a sum over conditions, each with its own noise."""
    input_gram, latent_gram = grams(parameters)
    psi0, psi1, psi2 = latent_expectations(parameters, n_nodes)
    gram = np.kron(latent_gram, input_gram)
    inverse = np.linalg.inv(gram)
    mean, variance = unwhitened(parameters)
    second_moment = np.outer(mean, mean) + variance
    total = 0.0
    for d, (inputs, y) in enumerate(observations):
        noise = noise_of(parameters, d)
        input_cross = covariance(parameters.kernels.of_inputs[0], inputs, np.asarray(parameters.inducing_inputs))
        psi = psi0[d] * np.sum(kernel_values(parameters.kernels.of_inputs[0], inputs, inputs))
        big_psi = np.kron(psi1[d][None, :], input_cross)
        phi = np.kron(psi2[d], input_cross.T @ input_cross)
        total += (
            -len(y) / 2 * np.log(2 * np.pi * noise)
            - y @ y / (2 * noise)
            - np.trace(inverse @ phi @ inverse @ second_moment) / (2 * noise)
            + y @ big_psi @ inverse @ mean / noise
            - (psi - np.trace(inverse @ phi)) / (2 * noise)
        )
    return total - gaussian_kl(mean, variance, gram) - latent_kl(parameters)


def noise_of(parameters: Parameters, condition: int) -> float:
    """σ_d², shared or not."""
    noise = np.asarray(parameters.noise_variance)
    return noise[0] if len(noise) == 1 else noise[condition]


def dense_quadratic(parameters: Parameters, observations: Observations) -> tuple[float, np.ndarray, np.ndarray]:
    """Constant, b and G of ⟨log p(Y|F)⟩ = constant + bᵀv − ½ vᵀGv, one observation after the other."""
    input_factor, latent_factor = (np.linalg.cholesky(gram) for gram in grams(parameters))
    psi0, psi1, psi2 = latent_expectations(parameters)
    size = len(input_factor) * len(latent_factor)
    constant, linear, gram = 0.0, np.zeros(size), np.zeros((size, size))
    for d, (inputs, outputs) in enumerate(observations):
        noise = noise_of(parameters, d)
        mean = np.linalg.solve(latent_factor, psi1[d])  # V_H[:, d]
        second = np.linalg.solve(latent_factor, np.linalg.solve(latent_factor, psi2[d]).T)  # T_d
        for x, y in zip(inputs[:, None, :], outputs, strict=True):
            prior = psi0[d] * kernel_values(parameters.kernels.of_inputs[0], x, x)[0]
            column = covariance(parameters.kernels.of_inputs[0], np.asarray(parameters.inducing_inputs), x)[:, 0]
            v = np.linalg.solve(input_factor, column)
            constant -= (np.log(2 * np.pi * noise) + (y**2 + prior - np.trace(second) * (v @ v)) / noise) / 2
            linear += y * np.kron(mean, v) / noise
            gram += np.kron(second, np.outer(v, v)) / noise
    return constant, linear, gram


def dense_collapsed(parameters: Parameters, observations: Observations) -> float:
    """constant − ½ log|I + G| + ½ bᵀ(I + G)⁻¹b − KL(q(H) ‖ p(H))."""
    constant, linear, gram = dense_quadratic(parameters, observations)
    precision = np.eye(len(linear)) + gram
    explained = linear @ np.linalg.solve(precision, linear)
    return constant - log_det(precision) / 2 + explained / 2 - latent_kl(parameters)


def optimal_inducing(parameters: Parameters, observations: Observations) -> tuple[np.ndarray, np.ndarray]:
    """Mean (M_X × M_H) and covariance of the optimal q(v)."""
    _, linear, gram = dense_quadratic(parameters, observations)
    variance = np.linalg.inv(np.eye(len(linear)) + gram)
    shape = (len(parameters.inducing_inputs), len(parameters.inducing_latents))
    return (variance @ linear).reshape(shape, order="F"), variance


def with_optimal_inducing(parameters: Parameters, observations: Observations) -> Parameters:
    """Return the parameters with the optimal q(v)."""
    mean, variance = optimal_inducing(parameters, observations)
    inducing = FullInducing(jnp.asarray(mean), jnp.asarray(np.linalg.cholesky(variance)))
    return dataclasses.replace(parameters, inducing=inducing)


def log_normal(values: np.ndarray, variance: np.ndarray) -> float:
    """log N(y; 0, C)."""
    return -(len(values) * np.log(2 * np.pi) + log_det(variance) + values @ np.linalg.solve(variance, values)) / 2


def exact_log_likelihood(parameters: Parameters, observations: Observations, errors: np.ndarray | float = 0.0) -> float:
    """log N(y; 0, C + Σ) with C_ij = k_H(h_d(i), h_d(j)) k_X(x_i, x_j), H at the latent means and Σ with ``errors``."""
    inputs, outputs = (np.concatenate(parts) for parts in zip(*observations, strict=True))
    condition = np.repeat(np.arange(len(observations)), [len(y) for _, y in observations])
    latents = np.asarray(parameters.latent_mean)[condition]
    between = covariance(parameters.kernels.of_latents[0], latents, latents)
    signal = between * covariance(parameters.kernels.of_inputs[0], inputs, inputs)
    noise = np.array([noise_of(parameters, d) for d in condition])
    return log_normal(outputs, signal + np.diag(noise + errors))


# The process f itself, as a GP over rows (x, h) with full covariance matrices.


class Seen(NamedTuple):
    """A few observations of one condition in standardised units; ``errors`` are variances of the measurements."""

    inputs: np.ndarray
    values: np.ndarray
    errors: np.ndarray | float = 0.0


class Given(NamedTuple):
    """A curve at some inputs given observations: mean, covariance, and the gain W on the observations."""

    mean: np.ndarray
    covariance: np.ndarray
    gain: np.ndarray


class DenseProcess(NamedTuple):
    """What the data say enters through anchors, rows (x, h) themselves: mean K_fa w, covariance K_ff − K_fa C K_af."""

    input_kernel: Kernel
    latent_kernel: Kernel
    inputs: np.ndarray
    latents: np.ndarray
    weights: np.ndarray
    core: np.ndarray

    def prior(self, x: np.ndarray, h: np.ndarray, other_x: np.ndarray, other_h: np.ndarray) -> np.ndarray:
        return covariance(self.input_kernel, x, other_x) * covariance(self.latent_kernel, h, other_h)

    def mean(self, x: np.ndarray, h: np.ndarray) -> np.ndarray:
        return self.prior(x, h, self.inputs, self.latents) @ self.weights

    def explained(self, x: np.ndarray, h: np.ndarray, other_x: np.ndarray, other_h: np.ndarray) -> np.ndarray:
        to_anchors, from_anchors = (
            self.prior(*rows, self.inputs, self.latents) for rows in ((x, h), (other_x, other_h))
        )
        return to_anchors @ self.core @ from_anchors.T

    def covariance(self, x: np.ndarray, h: np.ndarray, other_x: np.ndarray, other_h: np.ndarray) -> np.ndarray:
        return self.prior(x, h, other_x, other_h) - self.explained(x, h, other_x, other_h)

    def variance(self, x: np.ndarray, h: np.ndarray) -> np.ndarray:
        to_anchors = self.prior(x, h, self.inputs, self.latents)
        own = kernel_values(self.input_kernel, x, x) * kernel_values(self.latent_kernel, h, h)
        return own - np.sum(to_anchors @ self.core * to_anchors, axis=1)

    def curve(self, x: np.ndarray, latent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance of one curve f(·, h)."""
        h = np.tile(latent, (len(x), 1))
        return self.mean(x, h), self.covariance(x, h, x, h)

    def given(self, x: np.ndarray, latent: np.ndarray, seen: Seen, noise: float) -> Given:
        """The curve f(·, h) conditioned on noisy observations of it, by the textbook formula."""
        n_seen = len(seen.values)
        mean, variance = self.curve(np.vstack([seen.inputs, x]), latent)
        within = variance[:n_seen, :n_seen] + np.diag(np.broadcast_to(noise + seen.errors, n_seen))
        gain = np.linalg.solve(within, variance[:n_seen, n_seen:]).T
        return Given(
            mean[n_seen:] + gain @ (seen.values - mean[:n_seen]),
            variance[n_seen:, n_seen:] - gain @ variance[:n_seen, n_seen:],
            gain,
        )

    def log_likelihood(self, latent: np.ndarray, seen: Seen, noise: float) -> float:
        """log p(y | h)."""
        mean, variance = self.curve(seen.inputs, latent)
        return log_normal(
            seen.values - mean, variance + np.diag(np.broadcast_to(noise + seen.errors, len(seen.values)))
        )


def process_of_fit(parameters: Parameters) -> DenseProcess:
    """p(f|u) with u ~ N(m, S) integrated out; anchors are all pairs of inducing points."""
    input_gram, latent_gram = grams(parameters)
    inverse = np.linalg.inv(np.kron(latent_gram, input_gram))
    mean, variance = unwhitened(parameters)
    inputs, latents = np.asarray(parameters.inducing_inputs), np.asarray(parameters.inducing_latents)
    return DenseProcess(
        parameters.kernels.of_inputs[0],
        parameters.kernels.of_latents[0],
        np.tile(inputs, (len(latents), 1)),
        np.repeat(latents, len(inputs), axis=0),
        inverse @ mean,
        inverse - inverse @ variance @ inverse,
    )


def process_of_data(
    input_kernel: Kernel, latent_kernel: Kernel, x: np.ndarray, h: np.ndarray, y: np.ndarray, noise: np.ndarray
) -> DenseProcess:
    """f given noisy observations at rows (x, h), which are the anchors."""
    prior = DenseProcess(input_kernel, latent_kernel, x, h, np.empty(0), np.empty(0)).prior(x, h, x, h)
    inverse = np.linalg.inv(prior + np.diag(noise))
    return DenseProcess(input_kernel, latent_kernel, x, h, inverse @ y, inverse)


def reference_prediction(
    parameters: Parameters, inputs: np.ndarray, n_nodes: int = NODES
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of f, inputs × conditions, under q(U) and q(h_d).

    The variance is ⟨f²⟩ − ⟨f⟩², so it holds the uncertainty of the latents; it holds no noise.
    """
    process = process_of_fit(parameters)
    unit, weight = hermite(n_nodes, parameters.latent_mean.shape[1])
    latents = np.asarray(parameters.latent_mean)[:, None] + np.sqrt(parameters.latent_variance)[:, None] * unit
    mean, variance = np.empty((2, len(inputs), len(latents)))
    for n, d in np.ndindex(mean.shape):
        rows = np.tile(inputs[n], (len(unit), 1)), latents[d]
        means = process.mean(*rows)
        mean[n, d] = weight @ means
        variance[n, d] = weight @ (process.variance(*rows) + means**2) - mean[n, d] ** 2
    return mean, variance
