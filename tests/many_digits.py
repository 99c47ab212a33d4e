"""The collapsed bound and its predictions in arithmetic of fifty digits, written densely, for RBF kernels."""

from typing import NamedTuple

import mpmath as mp
import numpy as np
from references import Observations

from lvmogp.model.parameters import Parameters

DIGITS = 50


class Exact(NamedTuple):
    """The bound, and mean and variance of f at some inputs, inputs × conditions."""

    bound: mp.mpf
    mean: np.ndarray
    variance: np.ndarray


class _Model(NamedTuple):
    # Factors of the two gram matrices, and for each condition ψ, ⟨c⟩ and T.
    input_whitener: mp.matrix
    prior: list[mp.mpf]
    firsts: list[mp.matrix]
    seconds: list[mp.matrix]


def exact(
    parameters: Parameters, observations: Observations, points: np.ndarray, jitters: tuple[float, float]
) -> Exact:
    """Everything in fifty digits, from the same numbers, with the jitter that the library adds."""
    with mp.workdps(DIGITS):
        model = _whitened(parameters, jitters)
        constant, linear, gram = _quadratic(parameters, observations, model)
        size = len(linear)
        factor = mp.cholesky(mp.eye(size) + gram)
        log_det = 2 * sum(mp.log(factor[i, i]) for i in range(size))
        whitener = _triangular_inverse(factor)
        covariance = whitener.T * whitener
        mean = covariance * linear
        explained = (linear.T * mean)[0]
        bound = constant - log_det / 2 + explained / 2 - _latent_divergence(parameters)
        return Exact(bound, *_predicted(parameters, model, mean, covariance, points))


def _number(value: float) -> mp.mpf:
    return mp.mpf(float(value))


def _rbf(kernel, first, second) -> mp.mpf:
    variance, lengthscales = _number(kernel.variance), np.asarray(kernel.lengthscale)
    terms = (
        ((_number(a) - _number(b)) / _number(length)) ** 2
        for a, b, length in zip(first, second, lengthscales, strict=True)
    )
    return variance * mp.exp(-sum(terms) / 2)


def _whitener(kernel, points: np.ndarray, jitter: float) -> mp.matrix:
    # L⁻¹ of K + ε·mean(diag K)·I
    size = len(points)
    gram = mp.matrix(size, size)
    for i in range(size):
        for j in range(size):
            gram[i, j] = _rbf(kernel, points[i], points[j])
    added = _number(jitter) * sum(gram[i, i] for i in range(size)) / size
    return _triangular_inverse(mp.cholesky(gram + added * mp.eye(size)))


def _triangular_inverse(lower: mp.matrix) -> mp.matrix:
    size = lower.rows
    inverse = mp.matrix(size, size)
    for column in range(size):
        inverse[column, column] = 1 / lower[column, column]
        for row in range(column + 1, size):
            total = sum(lower[row, k] * inverse[k, column] for k in range(column, row))
            inverse[row, column] = -total / lower[row, row]
    return inverse


def _whitened(parameters: Parameters, jitters: tuple[float, float]) -> _Model:
    kernel, inducing = parameters.latent_kernel, np.asarray(parameters.inducing_latents)
    by_latent = _whitener(kernel, inducing, jitters[1])
    variance = _number(kernel.variance)
    scales = [_number(length) ** 2 for length in np.asarray(kernel.lengthscale)]
    firsts, seconds = [], []
    pairs = zip(np.asarray(parameters.latent_mean), np.asarray(parameters.latent_variance), strict=True)
    for centre, spread in pairs:
        mean, own = [_number(value) for value in centre], [_number(value) for value in spread]
        firsts.append(by_latent * _psi1(variance, scales, inducing, mean, own))
        seconds.append(by_latent * _psi2(variance, scales, inducing, mean, own) * by_latent.T)
    by_input = _whitener(parameters.input_kernel, np.asarray(parameters.inducing_inputs), jitters[0])
    return _Model(by_input, [variance] * len(firsts), firsts, seconds)


def _psi1(variance, scales, inducing, mean, spread) -> mp.matrix:
    # σ² Π_q (1 + s_q/a_q)^−½ exp(−½ (μ_q − z_q)²/(a_q + s_q))
    found = mp.matrix(len(inducing), 1)
    for m, point in enumerate(inducing):
        value = variance
        for a, z, mu, s in zip(scales, point, mean, spread, strict=True):
            value *= mp.exp(-((mu - _number(z)) ** 2) / (a + s) / 2) / mp.sqrt(1 + s / a)
        found[m] = value
    return found


def _psi2(variance, scales, inducing, mean, spread) -> mp.matrix:
    # σ⁴ Π_q (1 + 2s_q/a_q)^−½ exp(−(z − z')²/4a_q − (μ_q − z̄_q)²/(a_q + 2s_q))
    found = mp.matrix(len(inducing), len(inducing))
    for m, first in enumerate(inducing):
        for n, second in enumerate(inducing):
            value = variance**2
            for a, z, other, mu, s in zip(scales, first, second, mean, spread, strict=True):
                apart, middle = _number(z) - _number(other), (_number(z) + _number(other)) / 2
                exponent = -(apart**2) / (4 * a) - (mu - middle) ** 2 / (a + 2 * s)
                value *= mp.exp(exponent) / mp.sqrt(1 + 2 * s / a)
            found[m, n] = value
    return found


def _features(parameters: Parameters, model: _Model, point: np.ndarray) -> mp.matrix:
    inducing = np.asarray(parameters.inducing_inputs)
    return model.input_whitener * mp.matrix([_rbf(parameters.input_kernel, z, point) for z in inducing])


def _noise(parameters: Parameters, condition: int) -> mp.mpf:
    noise = np.asarray(parameters.noise_variance)
    return _number(noise[0] if len(noise) == 1 else noise[condition])


def _kron(left: mp.matrix, right: mp.matrix) -> mp.matrix:
    found = mp.matrix(left.rows * right.rows, left.cols * right.cols)
    for i in range(left.rows):
        for j in range(left.cols):
            for k in range(right.rows):
                for n in range(right.cols):
                    found[i * right.rows + k, j * right.cols + n] = left[i, j] * right[k, n]
    return found


def _trace(matrix: mp.matrix) -> mp.mpf:
    return sum(matrix[i, i] for i in range(matrix.rows))


def _quadratic(
    parameters: Parameters, observations: Observations, model: _Model
) -> tuple[mp.mpf, mp.matrix, mp.matrix]:
    m_x, m_h = model.input_whitener.rows, model.firsts[0].rows
    constant, linear, gram = mp.mpf(0), mp.matrix(m_x * m_h, 1), mp.matrix(m_x * m_h, m_x * m_h)
    for d, (inputs, outputs) in enumerate(observations):
        noise = _noise(parameters, d)
        projection, own_gram = mp.matrix(m_x, 1), mp.matrix(m_x, m_x)
        for x, y in zip(inputs, outputs, strict=True):
            v, value = _features(parameters, model, x), _number(y)
            own_gram += v * v.T
            projection += value * v
            prior = model.prior[d] * _rbf(parameters.input_kernel, x, x)
            constant -= (mp.log(2 * mp.pi * noise) + (value**2 + prior) / noise) / 2
        constant += _trace(model.seconds[d]) * _trace(own_gram) / noise / 2
        linear += _kron(model.firsts[d], projection) / noise
        gram += _kron(model.seconds[d], own_gram) / noise
    return constant, linear, gram


def _latent_divergence(parameters: Parameters) -> mp.mpf:
    # ½ Σ (μ² + s − log s − 1)
    pairs = zip(np.ravel(parameters.latent_mean), np.ravel(parameters.latent_variance), strict=True)
    return sum(_number(m) ** 2 + _number(s) - mp.log(_number(s)) - 1 for m, s in pairs) / 2


def _predicted(
    parameters: Parameters, model: _Model, mean: mp.matrix, covariance: mp.matrix, points: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    # Mean (⟨c⟩ ⊗ a)ᵀm; variance ψk − tr(T) aᵀa + tr((T ⊗ aaᵀ)(mmᵀ + S)) − mean².
    means = np.empty((len(points), len(model.firsts)), dtype=object)
    variances = np.empty_like(means)
    for n, point in enumerate(points):
        a = _features(parameters, model, point)
        prior = _rbf(parameters.input_kernel, point, point)
        for d, (first, second) in enumerate(zip(model.firsts, model.seconds, strict=True)):
            means[n, d] = (_kron(first, a).T * mean)[0]
            weight = _kron(second, a * a.T)
            squares = (mean.T * weight * mean)[0] + _inner(weight, covariance)
            variances[n, d] = model.prior[d] * prior - _trace(second) * (a.T * a)[0] + squares - means[n, d] ** 2
    return means, variances


def _inner(left: mp.matrix, right: mp.matrix) -> mp.mpf:
    return sum(left[i, j] * right[i, j] for i in range(left.rows) for j in range(left.cols))
