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
from lvmogp.model.parameters import FullInducing, KroneckerInducing, Parameters

JITTER = smallest_jitter(jnp.dtype("float64"))
NODES = 40

Observations = list[tuple[np.ndarray, np.ndarray]]


# Kernels on points, broadcast over leading axes.


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


# Expectations under q(h_d), by brute quadrature.


class LatentExpectations(NamedTuple):
    """ψ_d^H, Ψ_d^H and Φ_d^H of every condition."""

    psi0: np.ndarray
    psi1: np.ndarray
    psi2: np.ndarray


def latent_expectations(parameters: Parameters, n_nodes: int = NODES) -> LatentExpectations:
    """Gauss-Hermite quadrature with ``n_nodes`` for each latent dimension, one condition after the other."""
    kernel, inducing = parameters.latent_kernel, np.asarray(parameters.inducing_latents)
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    n_dimensions = inducing.shape[1]
    unit = np.stack([axis.ravel() for axis in np.meshgrid(*[nodes] * n_dimensions)], axis=1)
    weight = np.prod([axis.ravel() for axis in np.meshgrid(*[weights / weights.sum()] * n_dimensions)], axis=0)
    psi0, psi1, psi2 = [], [], []
    for mean, variance in zip(np.asarray(parameters.latent_mean), np.asarray(parameters.latent_variance), strict=True):
        points = mean + np.sqrt(variance) * unit
        values = covariance(kernel, points, inducing)
        psi0.append(weight @ kernel_values(kernel, points, points))
        psi1.append(weight @ values)
        psi2.append(np.einsum("k,km,kn->mn", weight, values, values))
    return LatentExpectations(np.array(psi0), np.array(psi1), np.array(psi2))


# q(u) from the whitened q(v).


class InducingGaussian(NamedTuple):
    """q(u) = N(vec M, Σ^U) without whitening."""

    mean: np.ndarray
    covariance: np.ndarray


def grams(parameters: Parameters) -> tuple[np.ndarray, np.ndarray]:
    """K_uu^X and K_uu^H."""
    input_gram = jittered_gram(parameters.input_kernel, np.asarray(parameters.inducing_inputs))
    latent_gram = jittered_gram(parameters.latent_kernel, np.asarray(parameters.inducing_latents))
    return input_gram, latent_gram


def stacked(matrix: np.ndarray) -> np.ndarray:
    """vec(·): the columns under each other."""
    return matrix.flatten(order="F")


def unwhitened(parameters: Parameters) -> InducingGaussian:
    """u = (L_H ⊗ L_X) v, with the Kronecker product formed."""
    input_gram, latent_gram = grams(parameters)
    unwhiten = np.kron(np.linalg.cholesky(latent_gram), np.linalg.cholesky(input_gram))
    inducing = parameters.inducing
    if isinstance(inducing, FullInducing):
        factor = np.asarray(inducing.factor)
    else:
        factor = np.kron(np.asarray(inducing.latent_factor), np.asarray(inducing.input_factor))
    factor = unwhiten @ factor
    return InducingGaussian(unwhiten @ stacked(np.asarray(inducing.mean)), factor @ factor.T)


def unwhitened_factors(parameters: Parameters) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """M, Σ^X and Σ^H of q(u) = N(vec M, Σ^H ⊗ Σ^X)."""
    inducing = parameters.inducing
    assert isinstance(inducing, KroneckerInducing)
    input_factor, latent_factor = (np.linalg.cholesky(gram) for gram in grams(parameters))
    mean = input_factor @ np.asarray(inducing.mean) @ latent_factor.T
    input_root = input_factor @ np.asarray(inducing.input_factor)
    latent_root = latent_factor @ np.asarray(inducing.latent_factor)
    return mean, input_root @ input_root.T, latent_root @ latent_root.T


# Divergences.


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


# The paper's bounds.


def first_formulation(parameters: Parameters, inputs: np.ndarray, outputs: np.ndarray, n_nodes: int = NODES) -> float:
    """Equations lower_bound and F_3: a grid with one noise variance."""
    (noise,) = np.asarray(parameters.noise_variance)
    n_inputs, n_conditions = outputs.shape
    inducing_inputs = np.asarray(parameters.inducing_inputs)
    input_gram, latent_gram = grams(parameters)
    expected = latent_expectations(parameters, n_nodes)
    input_cross = covariance(parameters.input_kernel, inputs, inducing_inputs)
    gram = np.kron(latent_gram, input_gram)
    psi = np.sum(expected.psi0) * np.sum(kernel_values(parameters.input_kernel, inputs, inputs))
    big_psi = np.kron(expected.psi1, input_cross)
    phi = np.kron(np.sum(expected.psi2, axis=0), input_cross.T @ input_cross)
    inverse = np.linalg.inv(gram)
    y, q = stacked(outputs), unwhitened(parameters)
    second_moment = np.outer(q.mean, q.mean) + q.covariance
    expected_log_likelihood = (
        -n_inputs * n_conditions / 2 * np.log(2 * np.pi * noise)
        - y @ y / (2 * noise)
        - np.trace(inverse @ phi @ inverse @ second_moment) / (2 * noise)
        + y @ big_psi @ inverse @ q.mean / noise
        - (psi - np.trace(inverse @ phi)) / (2 * noise)
    )
    return expected_log_likelihood - gaussian_kl(*q, gram) - latent_kl(parameters)


def missing_data_formulation(parameters: Parameters, observations: Observations, n_nodes: int = NODES) -> float:
    """The bound of the section on missing data: a sum over conditions, each with its own noise."""
    inducing_inputs = np.asarray(parameters.inducing_inputs)
    input_gram, latent_gram = grams(parameters)
    expected = latent_expectations(parameters, n_nodes)
    gram = np.kron(latent_gram, input_gram)
    inverse = np.linalg.inv(gram)
    q = unwhitened(parameters)
    second_moment = np.outer(q.mean, q.mean) + q.covariance
    total = 0.0
    for d, (inputs, y) in enumerate(observations):
        noise = noise_of(parameters, d)
        input_cross = covariance(parameters.input_kernel, inputs, inducing_inputs)
        psi = expected.psi0[d] * np.sum(kernel_values(parameters.input_kernel, inputs, inputs))
        big_psi = np.kron(expected.psi1[d][None, :], input_cross)
        phi = np.kron(expected.psi2[d], input_cross.T @ input_cross)
        total += (
            -len(y) / 2 * np.log(2 * np.pi * noise)
            - y @ y / (2 * noise)
            - np.trace(inverse @ phi @ inverse @ second_moment) / (2 * noise)
            + y @ big_psi @ inverse @ q.mean / noise
            - (psi - np.trace(inverse @ phi)) / (2 * noise)
        )
    return total - gaussian_kl(*q, gram) - latent_kl(parameters)


def efficient_formulation(parameters: Parameters, inputs: np.ndarray, outputs: np.ndarray) -> float:
    """The bound of "More Efficient Formulation" with its own KL: a grid, q(U) with covariance Σ^H ⊗ Σ^X."""
    (noise,) = np.asarray(parameters.noise_variance)
    n_inputs, n_conditions = outputs.shape
    expected = latent_expectations(parameters)
    psi_x = covariance(parameters.input_kernel, inputs, np.asarray(parameters.inducing_inputs))
    phi_x, phi_h = psi_x.T @ psi_x, np.sum(expected.psi2, axis=0)
    psi = np.sum(expected.psi0) * np.sum(kernel_values(parameters.input_kernel, inputs, inputs))
    inverse_x, inverse_h = (np.linalg.inv(gram) for gram in grams(parameters))
    mean, sigma_x, sigma_h = unwhitened_factors(parameters)
    y = stacked(outputs)
    expected_log_likelihood = (
        -n_inputs * n_conditions / 2 * np.log(2 * np.pi * noise)
        - y @ y / (2 * noise)
        - np.trace(mean.T @ inverse_x @ phi_x @ inverse_x @ mean @ inverse_h @ phi_h @ inverse_h) / (2 * noise)
        - np.trace(inverse_h @ phi_h @ inverse_h @ sigma_h)
        * np.trace(inverse_x @ phi_x @ inverse_x @ sigma_x)
        / (2 * noise)
        + y @ stacked(psi_x @ inverse_x @ mean @ inverse_h @ expected.psi1.T) / noise
        - psi / (2 * noise)
        + np.trace(inverse_h @ phi_h) * np.trace(inverse_x @ phi_x) / (2 * noise)
    )
    return expected_log_likelihood - _efficient_kl(parameters) - latent_kl(parameters)


def _efficient_kl(parameters: Parameters) -> float:
    gram_x, gram_h = grams(parameters)
    inverse_x, inverse_h = np.linalg.inv(gram_x), np.linalg.inv(gram_h)
    mean, sigma_x, sigma_h = unwhitened_factors(parameters)
    m_x, m_h = mean.shape
    return (
        m_x * (log_det(gram_h) - log_det(sigma_h))
        + m_h * (log_det(gram_x) - log_det(sigma_x))
        + np.trace(mean.T @ inverse_x @ mean @ inverse_h)
        + np.trace(inverse_h @ sigma_h) * np.trace(inverse_x @ sigma_x)
        - m_h * m_x
    ) / 2


def noise_of(parameters: Parameters, condition: int) -> float:
    """σ_d², shared or not."""
    noise = np.asarray(parameters.noise_variance)
    return noise[0] if len(noise) == 1 else noise[condition]


# The optimal q(v), densely.


class DenseQuadratic(NamedTuple):
    """⟨log p(Y|F)⟩ = constant + bᵀv − ½ vᵀGv."""

    constant: float
    linear: np.ndarray
    gram: np.ndarray


def dense_quadratic(parameters: Parameters, observations: Observations) -> DenseQuadratic:
    """One observation after the other, as vectors and matrices over all M_X · M_H inducing variables."""
    input_factor, latent_factor = (np.linalg.cholesky(gram) for gram in grams(parameters))
    expected = latent_expectations(parameters)
    size = len(input_factor) * len(latent_factor)
    constant, linear, gram = 0.0, np.zeros(size), np.zeros((size, size))
    for d, (inputs, outputs) in enumerate(observations):
        noise = noise_of(parameters, d)
        mean = np.linalg.solve(latent_factor, expected.psi1[d])  # V_H[:, d]
        second = np.linalg.solve(latent_factor, np.linalg.solve(latent_factor, expected.psi2[d]).T)  # T_d
        for x, y in zip(inputs[:, None, :], outputs, strict=True):
            prior = expected.psi0[d] * kernel_values(parameters.input_kernel, x, x)[0]
            column = covariance(parameters.input_kernel, np.asarray(parameters.inducing_inputs), x)[:, 0]
            v = np.linalg.solve(input_factor, column)
            constant -= (np.log(2 * np.pi * noise) + (y**2 + prior - np.trace(second) * (v @ v)) / noise) / 2
            linear += y * np.kron(mean, v) / noise
            gram += np.kron(second, np.outer(v, v)) / noise
    return DenseQuadratic(constant, linear, gram)


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


# The exact model at fixed latents.


def log_normal(values: np.ndarray, variance: np.ndarray) -> float:
    """log N(y; 0, C)."""
    return -(len(values) * np.log(2 * np.pi) + log_det(variance) + values @ np.linalg.solve(variance, values)) / 2


def exact_grid_log_likelihood(parameters: Parameters, inputs: np.ndarray, outputs: np.ndarray) -> float:
    """log N(vec Y; 0, K_H ⊗ K_X + Σ) with H at the latent means."""
    latents = np.asarray(parameters.latent_mean)
    latent_gram = covariance(parameters.latent_kernel, latents, latents)
    input_gram = covariance(parameters.input_kernel, inputs, inputs)
    noise = [noise_of(parameters, d) for d in range(len(latents))]
    variance = np.kron(latent_gram, input_gram) + np.kron(np.diag(noise), np.eye(len(inputs)))
    return log_normal(stacked(outputs), variance)


def exact_long_log_likelihood(parameters: Parameters, observations: Observations) -> float:
    """log N(y; 0, C + Σ) with C_ij = k_H(h_d(i), h_d(j)) k_X(x_i, x_j) and H at the latent means."""
    inputs = np.concatenate([inputs for inputs, _ in observations])
    outputs = np.concatenate([outputs for _, outputs in observations])
    condition = np.repeat(np.arange(len(observations)), [len(y) for _, y in observations])
    latents = np.asarray(parameters.latent_mean)[condition]
    signal = covariance(parameters.latent_kernel, latents, latents) * covariance(
        parameters.input_kernel, inputs, inputs
    )
    return log_normal(outputs, signal + np.diag([noise_of(parameters, d) for d in condition]))


# Predictions.


def reference_prediction(
    parameters: Parameters, inputs: np.ndarray, n_nodes: int = NODES
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of f, inputs × conditions, under q(U) and q(h_d).

    The variance is ⟨f²⟩ − ⟨f⟩², so it holds the uncertainty of the latents; it holds no noise.
    """
    expected = latent_expectations(parameters, n_nodes)
    input_gram, latent_gram = grams(parameters)
    inverse = np.linalg.inv(np.kron(latent_gram, input_gram))
    q = unwhitened(parameters)
    weights = inverse @ q.mean
    shape = (len(inputs), len(expected.psi0))
    mean, variance = np.empty(shape), np.empty(shape)
    for n, x in enumerate(inputs[:, None, :]):
        column = covariance(parameters.input_kernel, np.asarray(parameters.inducing_inputs), x)[:, 0]
        prior = kernel_values(parameters.input_kernel, x, x)[0]
        for d in range(shape[1]):
            phi = np.kron(expected.psi2[d], np.outer(column, column))
            mean[n, d] = np.kron(expected.psi1[d], column) @ weights
            conditional = expected.psi0[d] * prior - np.trace(inverse @ phi)
            uncertain_u = np.trace(inverse @ q.covariance @ inverse @ phi)
            second_moment = weights @ phi @ weights
            variance[n, d] = conditional + uncertain_u + second_moment - mean[n, d] ** 2
    return mean, variance


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
    q = unwhitened(parameters)
    inputs, latents = np.asarray(parameters.inducing_inputs), np.asarray(parameters.inducing_latents)
    return DenseProcess(
        parameters.input_kernel,
        parameters.latent_kernel,
        np.tile(inputs, (len(latents), 1)),
        np.repeat(latents, len(inputs), axis=0),
        inverse @ q.mean,
        inverse - inverse @ q.covariance @ inverse,
    )


def process_of_data(
    input_kernel: Kernel, latent_kernel: Kernel, x: np.ndarray, h: np.ndarray, y: np.ndarray, noise: np.ndarray
) -> DenseProcess:
    """f given noisy observations at rows (x, h), which are the anchors."""
    prior = DenseProcess(input_kernel, latent_kernel, x, h, np.empty(0), np.empty(0)).prior(x, h, x, h)
    inverse = np.linalg.inv(prior + np.diag(noise))
    return DenseProcess(input_kernel, latent_kernel, x, h, inverse @ y, inverse)


def with_optimal_inducing(parameters: Parameters, observations: Observations) -> Parameters:
    """The same parameters with the optimal q(v)."""
    mean, variance = optimal_inducing(parameters, observations)
    inducing = FullInducing(jnp.asarray(mean), jnp.asarray(np.linalg.cholesky(variance)))
    return dataclasses.replace(parameters, inducing=inducing)
