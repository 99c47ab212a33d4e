"""The collapsed bound and predictions of a small RBF model in arithmetic of fifty digits."""

from typing import NamedTuple

import mpmath as mp
import numpy as np
from references import Observations

from lvmogp.kernels.covariances import RBF
from lvmogp.model.parameters import Parameters

DIGITS = 50
# Numbers of many digits stand in NumPy's arrays of objects.
_digits = np.frompyfunc(lambda value: mp.mpf(float(value)), 1, 1)
_exp, _log = (np.frompyfunc(function, 1, 1) for function in (mp.exp, mp.log))


class Exact(NamedTuple):
    """The bound, and mean and variance of f at some inputs, inputs × conditions."""

    bound: mp.mpf
    mean: np.ndarray
    variance: np.ndarray


def exact(
    parameters: Parameters, observations: Observations, points: np.ndarray, jitters: tuple[float, float]
) -> Exact:
    """Everything in fifty digits, from the same numbers, with the jitter that the library adds."""
    with mp.workdps(DIGITS):
        kernel, inducing = parameters.kernels.of_inputs[0], _digits(parameters.inducing_inputs)
        by_input = _whitener(kernel, inducing, jitters[0])
        firsts, seconds = _latent_features(parameters, jitters[1])
        prior = _digits(kernel.variance) * _digits(parameters.kernels.of_latents[0].variance)
        noises = _digits(np.broadcast_to(parameters.noise_variance, len(firsts)))

        # ⟨log p(Y|F)⟩ = constant + bᵀv − ½ vᵀGv, and with it q(v) = N((I + G)⁻¹b, (I + G)⁻¹)
        constant, linear, gram = mp.mpf(0), 0, 0
        for (x, y), first, second, noise in zip(observations, firsts, seconds, noises, strict=True):
            a, values = by_input @ _rbf(kernel, inducing, _digits(x)), _digits(y)
            left = values @ values + len(y) * prior - np.trace(second) * np.sum(a**2)
            constant -= (len(y) * mp.log(2 * mp.pi * noise) + left / noise) / 2
            linear += np.kron(first, a @ values) / noise
            gram += np.kron(second, a @ a.T) / noise
        root = _inverse_factor(np.eye(len(linear)) + gram)
        covariance = root.T @ root
        mean = covariance @ linear
        mu, s = _digits(parameters.latent_mean), _digits(parameters.latent_variance)
        divergence = np.sum(mu**2 + s - _log(s) - 1) / 2
        bound = constant + np.sum(_log(np.diag(root))) + linear @ mean / 2 - divergence

        # Mean (⟨c⟩ ⊗ a)ᵀm; variance ψk − tr(T) aᵀa + tr((T ⊗ aaᵀ)(mmᵀ + S)) − mean².
        second_moment = np.outer(mean, mean) + covariance
        means, variances = np.empty((2, len(points), len(firsts)), dtype=object)
        for n, a in enumerate((by_input @ _rbf(kernel, inducing, _digits(points))).T):
            for d, (first, second) in enumerate(zip(firsts, seconds, strict=True)):
                means[n, d] = np.kron(first, a) @ mean
                squares = np.sum(np.kron(second, np.outer(a, a)) * second_moment)
                variances[n, d] = prior - np.trace(second) * (a @ a) + squares - means[n, d] ** 2
        return Exact(bound, means, variances)


def _rbf(kernel: RBF, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    steps = (first[:, None] - second[None]) / _digits(kernel.lengthscale)
    return _digits(kernel.variance) * _exp(-np.sum(steps**2, axis=2) / 2)


def _inverse_factor(matrix: np.ndarray) -> np.ndarray:
    # L⁻¹ of A = LLᵀ
    return np.array(mp.inverse(mp.cholesky(mp.matrix(matrix.tolist()))).tolist(), dtype=object)


def _whitener(kernel: RBF, points: np.ndarray, jitter: float) -> np.ndarray:
    # L⁻¹ of K + ε·mean(diag K)·I
    return _inverse_factor(
        _rbf(kernel, points, points) + _digits(jitter) * _digits(kernel.variance) * np.eye(len(points))
    )


def _latent_features(parameters: Parameters, jitter: float) -> tuple[list[np.ndarray], list[np.ndarray]]:
    # For each condition ⟨c⟩ and T.
    kernel, z = parameters.kernels.of_latents[0], _digits(parameters.inducing_latents)
    whitener = _whitener(kernel, z, jitter)
    variance, scale = _digits(kernel.variance), _digits(kernel.lengthscale) ** 2
    apart, middle = z[:, None] - z[None], (z[:, None] + z[None]) / 2
    firsts, seconds = [], []
    for mu, s in zip(_digits(parameters.latent_mean), _digits(parameters.latent_variance), strict=True):
        # ψ₁ = σ² Π_q (1 + s_q/a_q)^−½ exp(−½ (μ_q − z_q)²/(a_q + s_q))
        psi1 = variance * _exp(-np.sum((mu - z) ** 2 / (scale + s), axis=1) / 2)
        firsts.append(whitener @ psi1 / mp.sqrt(np.prod(1 + s / scale)))
        # ψ₂ = σ⁴ Π_q (1 + 2s_q/a_q)^−½ exp(−(z − z')²/4a_q − (μ_q − z̄_q)²/(a_q + 2s_q))
        psi2 = variance**2 * _exp(-np.sum(apart**2 / (4 * scale) + (mu - middle) ** 2 / (scale + 2 * s), axis=2))
        seconds.append(whitener @ psi2 @ whitener.T / mp.sqrt(np.prod(1 + 2 * s / scale)))
    return firsts, seconds
