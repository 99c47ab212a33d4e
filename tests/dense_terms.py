"""The model of several terms, a shared curve and own curves the dumb way: feature vectors, loops over conditions.

As in ``references``, only the jitter on the gram matrices of inducing points is the library's.
"""

from typing import NamedTuple

import numpy as np
import references
from references import covariance, hermite, jittered_gram, log_det

from lvmogp.model.parameters import Kernels, Parameters


def prior(kernels: Kernels, x: np.ndarray, h: np.ndarray, other_x: np.ndarray, other_h: np.ndarray) -> np.ndarray:
    """Σ_t k_H^t k_X^t between rows (x, h), without own curves."""
    total = np.zeros((len(x), len(other_x)))
    for term in kernels.terms:
        of_latents = 1.0 if term.latent_kernel is None else covariance(term.latent_kernel, h, other_h)
        total += of_latents * covariance(term.input_kernel, x, other_x)
    return total


def own_prior(kernels: Kernels, x: np.ndarray, other_x: np.ndarray) -> np.ndarray:
    """k_o, zero where there are no own curves."""
    return np.zeros((len(x), len(other_x))) if kernels.own is None else covariance(kernels.own, x, other_x)


class Rows(NamedTuple):
    """Rows (x, h) of one condition: its number, negative if never trained, and ρ²."""

    x: np.ndarray
    h: np.ndarray
    number: int
    scale: float


def rows(x: np.ndarray, latent: np.ndarray, number: int, scale: float) -> Rows:
    return Rows(x, np.tile(latent, (len(x), 1)), number, float(scale))


class Dense(NamedTuple):
    """q(v) = N(mean, variance) over the weights of all features, with the data that own curves follow from."""

    parameters: Parameters
    observations: references.Observations
    mean: np.ndarray
    variance: np.ndarray

    def errors(self, own: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Means, rows e with f + g = e v + …, and what own curves add to the covariance within the condition.

        W = ρ² q_o(x, X_d) R_d⁻¹ is the gain of the own curve on the observations of a trained condition.
        """
        kernels, features = self.parameters.kernels, features_of(self.parameters, own.x, own.h)
        within = own.scale * own_prior(kernels, own.x, own.x)
        if own.number < 0 or kernels.own is None:
            return features @ self.mean, features, within
        x, y = self.observations[own.number]
        at_x, at_data = (own_features_of(self.parameters, points) for points in (own.x, x))
        to_data = own.scale * at_x @ at_data.T
        noise = references.noise_of(self.parameters, own.number) * np.eye(len(y))
        gain = np.linalg.solve(own.scale * at_data @ at_data.T + noise, to_data.T).T
        reduced = features - gain @ features_of(self.parameters, x, np.tile(own.h[0], (len(x), 1)))
        return reduced @ self.mean + gain @ y, reduced, within - gain @ to_data.T

    def joint(self, conditions: list[Rows]) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance at the rows of conditions whose latents are given."""
        parts = [self.errors(each) for each in conditions]
        blocks = [[self._block(i, j, conditions, parts) for j in range(len(parts))] for i in range(len(parts))]
        return np.concatenate([part[0] for part in parts]), np.block(blocks)

    def _block(self, i: int, j: int, conditions: list[Rows], parts: list) -> np.ndarray:
        one, other, parameters = conditions[i], conditions[j], self.parameters
        plain = [features_of(parameters, each.x, each.h) for each in (one, other)]
        left = prior(parameters.kernels, one.x, one.h, other.x, other.h) - plain[0] @ plain[1].T
        same = one.number == other.number
        return left + parts[i][1] @ self.variance @ parts[j][1].T + same * self._within(one, other)

    def _within(self, one: Rows, other: Rows) -> np.ndarray:
        # Rows of the same condition may come in two parts.
        together = one._replace(x=np.vstack([one.x, other.x]), h=np.vstack([one.h, other.h]))
        return self.errors(together)[2][: len(one.x), len(one.x) :]


def features_of(parameters: Parameters, x: np.ndarray, h: np.ndarray) -> np.ndarray:
    """Rows [c_t(h) ⊗ a_t(x)]_t."""
    inputs, latents = np.asarray(parameters.inducing_inputs), np.asarray(parameters.inducing_latents)
    found = []
    for term in parameters.kernels.terms:
        a = whitened(term.input_kernel, inputs, x)
        c = np.ones((len(x), 1)) if term.latent_kernel is None else whitened(term.latent_kernel, latents, h)
        found.append(np.stack([np.kron(each, other) for each, other in zip(c, a, strict=True)]))
    return np.hstack(found)


def own_features_of(parameters: Parameters, x: np.ndarray) -> np.ndarray:
    inputs = np.asarray(parameters.inducing_inputs)
    return np.zeros((len(x), 1)) if parameters.kernels.own is None else whitened(parameters.kernels.own, inputs, x)


def whitened(kernel, inducing: np.ndarray, points: np.ndarray) -> np.ndarray:
    return np.linalg.solve(np.linalg.cholesky(jittered_gram(kernel, inducing)), covariance(kernel, inducing, points)).T


def latent_nodes(parameters: Parameters, condition: int, n_nodes: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Points of q(h_d) with their masses; one where it is known."""
    both = parameters.latents
    mean, variance = np.asarray(both.mean)[condition], np.asarray(both.variance)[condition]
    if not np.any(variance):
        return mean[None], np.ones(1)
    nodes, masses = hermite(n_nodes, len(mean))
    return mean + np.sqrt(variance) * nodes, masses


def quadratic(
    parameters: Parameters, observations: references.Observations, n_nodes: int = 40, errors: list | None = None
) -> tuple[float, np.ndarray, np.ndarray]:
    """Constant, b and G of the expected log-likelihood, by quadrature over q(h_d), one condition after the other.

    ``errors`` are known variances of the measurements of each condition.
    """
    kernels, constant, linear, gram = parameters.kernels, 0.0, 0.0, 0.0
    for d, (x, y) in enumerate(observations):
        noise = references.noise_of(parameters, d) + (np.zeros(len(y)) if errors is None else errors[d])
        own, scale = own_features_of(parameters, x), float(parameters.own_per_condition[d])
        covariance_of_noise = scale * own @ own.T + np.diag(noise)
        precision = np.linalg.inv(covariance_of_noise)
        left = scale * np.diag(own_prior(kernels, x, x) - own @ own.T)
        for latent, mass in zip(*latent_nodes(parameters, d, n_nodes), strict=True):
            h = np.tile(latent, (len(x), 1))
            features = features_of(parameters, x, h)
            linear += mass * features.T @ precision @ y
            gram += mass * features.T @ precision @ features
            left = left + mass * (np.diag(prior(kernels, x, h, x, h)) - np.sum(features**2, axis=1))
        constant -= (log_det(2 * np.pi * covariance_of_noise) + y @ precision @ y + np.sum(left / noise)) / 2
    return constant, linear, gram


def optimal(parameters: Parameters, observations: references.Observations, n_nodes: int = 40) -> Dense:
    """The optimal q(v)."""
    _, linear, gram = quadratic(parameters, observations, n_nodes)
    variance = np.linalg.inv(np.eye(len(linear)) + gram)
    return Dense(parameters, observations, variance @ linear, variance)


def exact(
    kernels: Kernels, latents: np.ndarray, own: np.ndarray, noise: np.ndarray, observations: references.Observations
) -> "Exact":
    """The GP over all observations, nothing approximated."""
    data = [rows(x, latents[d], d, own[d]) for d, (x, _) in enumerate(observations)]
    noises = np.concatenate([np.full(len(y), noise[d]) for d, (_, y) in enumerate(observations)])
    y = np.concatenate([y for _, y in observations])
    return Exact(kernels, data, y, covariance_of_rows(kernels, data, data) + np.diag(noises))


class Exact(NamedTuple):
    """A dense GP: observed rows of all conditions, their values and covariance."""

    kernels: Kernels
    data: list[Rows]
    y: np.ndarray
    total: np.ndarray

    @property
    def log_likelihood(self) -> float:
        return references.log_normal(self.y, self.total)

    def joint(self, conditions: list[Rows]) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance at the rows of conditions by the textbook formula."""
        to_data = covariance_of_rows(self.kernels, conditions, self.data)
        gain = np.linalg.solve(self.total, to_data.T).T
        return gain @ self.y, covariance_of_rows(self.kernels, conditions, conditions) - gain @ to_data.T


def covariance_of_rows(kernels: Kernels, first: list[Rows], second: list[Rows]) -> np.ndarray:
    def between(one: Rows, other: Rows) -> np.ndarray:
        own = (one.number == other.number) * one.scale * own_prior(kernels, one.x, other.x)
        return prior(kernels, one.x, one.h, other.x, other.h) + own

    return np.block([[between(one, other) for other in second] for one in first])


def given_seen(
    process: Dense | Exact, conditions: list[Rows], seen: Rows, y: np.ndarray, noise: float
) -> tuple[np.ndarray, np.ndarray]:
    """The same once ``seen`` of the last condition is observed, which the others do not learn from (equation 24)."""
    mean, among = process.joint([*conditions, seen])
    n_rows, last = len(mean) - len(y), len(conditions[-1].x)
    within = among[n_rows:, n_rows:] + noise * np.eye(len(y))
    gain = np.zeros((n_rows, len(y)))
    gain[-last:] = np.linalg.solve(within, among[n_rows:, n_rows - last : n_rows]).T
    errors = np.hstack([np.eye(n_rows), -gain])
    return mean[:n_rows] + gain @ (y - mean[n_rows:]), errors @ among @ errors.T + noise * gain @ gain.T


def mixture_moments(weights: np.ndarray, parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of a mixture of Gaussians."""
    mean = sum(weight * part[0] for weight, part in zip(weights, parts, strict=True))
    second = sum(weight * (part[1] + np.outer(part[0], part[0])) for weight, part in zip(weights, parts, strict=True))
    return mean, second - np.outer(mean, mean)
