"""Lower bounds on the log marginal likelihood, as named terms.

``collapsed`` takes the optimal q(v), ``explicit`` the one stored in the parameters; both take either form of
data. explicit ≤ collapsed ≤ log p(Y), with equality of the first two at the optimal q(v).
"""

import equinox as eqx
import jax.numpy as jnp

from lvmogp.algebra.gaussians import kl_kronecker_to_standard_normal
from lvmogp.algebra.linalg import vec
from lvmogp.model.expected_likelihood import quadratic
from lvmogp.model.layouts import Data
from lvmogp.model.parameters import KroneckerInducing, Parameters, log_lengthscales, log_pooled
from lvmogp.typing import Scalar

# Variance of the function, as a share of its prior variance, that a search takes for unexplained.
_UNEXPLAINED = 1e-6


class Bound(eqx.Module):
    """A bound split into how well the data are explained and what the explanation costs.

    ``fit`` is ⟨log p(Y|F)⟩ − KL(q(U) ‖ p(U)) and ``kl_latents`` KL(q(H) ‖ p(H)). ``signal`` is the prior variance of
    the function over that of the noise, summed over observations: what multiplies rounding errors of ``fit``.
    ``prior`` is the log density of what is known beforehand: of the conditions' noise and own variances among those of
    all (equation 62), and of lengthscales (equation 64).
    """

    fit: Scalar
    kl_latents: Scalar
    signal: Scalar
    prior: Scalar

    @property
    def total(self) -> Scalar:
        """The lower bound on log p(Y)."""
        return self.fit - self.kl_latents

    @property
    def penalised(self) -> Scalar:
        """The bound as if the function had a little variance that nothing explains, with the prior: to search by.

        Unexplained variance costs more than rounding errors can seem to gain, wherever they are large (equation 51).
        """
        return self.total + self.prior - _UNEXPLAINED * self.signal / 2


def collapsed(parameters: Parameters, data: Data) -> Bound:
    """Bound with the optimal q(v): constant − ½ log|I + G| + ½ bᵀ(I + G)⁻¹b (equation 10)."""
    expected = quadratic(parameters, data)
    log_det, explained = expected.evidence()
    fit = expected.constant.log_likelihood(explained) - log_det / 2
    prior = log_pooled(parameters, expected.information) + log_lengthscales(parameters)
    return Bound(fit, parameters.kl_latents, expected.constant.signal, prior)


def explicit(parameters: Parameters, data: Data) -> Bound:
    """Bound with the q(v) stored in the parameters: constant + bᵀm − ½⟨vᵀGv⟩ − KL (equations 11 and 12)."""
    inducing = parameters.inducing
    if inducing is None:
        raise TypeError("the explicit bound needs a q(v) in parameters.inducing; the collapsed bound needs none")
    expected, mean = quadratic(parameters, data), vec(inducing.mean)
    # ⟨vᵀGv⟩ = mᵀGm + tr(GΣ) and KL(q(v) ‖ N(0, I)) under q(v) = N(m, Σ)
    if isinstance(inducing, KroneckerInducing):
        divergence = kl_kronecker_to_standard_normal(inducing.mean, inducing.input_factor, inducing.latent_factor)
        second_moment = expected.kronecker_second_moment(inducing)
    else:  # Σ = 1 ⊗ LLᵀ is of Kronecker form too
        gram, factor = expected.dense_gram(), inducing.factor
        divergence = kl_kronecker_to_standard_normal(mean[:, None], factor, jnp.ones((1, 1), factor.dtype))
        second_moment = mean @ gram @ mean + jnp.sum((gram @ factor) * factor)
    explained = 2 * jnp.sum(expected.linear * inducing.mean) - second_moment
    fit = expected.constant.log_likelihood(explained) - divergence
    prior = log_pooled(parameters, expected.information) + log_lengthscales(parameters)
    return Bound(fit, parameters.kl_latents, expected.constant.signal, prior)


def collapsed_objective(parameters: Parameters, data: Data) -> Scalar:
    """The collapsed bound as one number to search by."""
    return collapsed(parameters, data).penalised


def explicit_objective(parameters: Parameters, data: Data) -> Scalar:
    """The explicit bound as one number to search by."""
    return explicit(parameters, data).penalised
