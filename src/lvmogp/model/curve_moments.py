"""Moments of the curves of conditions whose latents are Gaussian under a variational fit.

For any distribution over the latents of a condition, the curve f(·, h) has mean aᵀw and covariance
ψ k_X(x, x') + aᵀGa', with a = L_X⁻¹k_u(x) and (docs/mathematics.md, equations 15 to 17)

- w = M⟨c⟩,
- G = M(T − ⟨c⟩⟨c⟩ᵀ)Mᵀ + Σ_jk T_jk S_jk − tr(T) I.

The first term of G carries the uncertainty of the latents, the second that of the inducing variables, whose covariance
S has the M_X × M_X blocks S_jk.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.ground.precision import in_precision
from lvmogp.kernels.covariances import diagonal
from lvmogp.kernels.psi_statistics import LatentGaussians
from lvmogp.model.inducing_features import Basis, latent_moments
from lvmogp.model.posterior import Posterior
from lvmogp.typing import Array, Float, Int

_BLOCKS_AT_ONCE = 32
# Pairs of features of some inputs: a megabyte of them in double precision.
_PAIRS_AT_ONCE = 2**17


def positive_part(variance: Float[Array, "*S"], prior: Float[Array, "*S"]) -> Float[Array, "*S"]:
    """Keep variances above the rounding error of the prior variance they are differences from."""
    return jnp.maximum(variance, 10 * jnp.finfo(variance.dtype).eps * prior)


class CurveMoments(eqx.Module):
    """First two moments of the curves of D conditions: w, G and ψ of each."""

    weights: Float[Array, "D M_X"]
    spread: Float[Array, "D M_X M_X"]
    prior_variance: Float[Array, " D"]


def curve_moments(model: Posterior, latents: LatentGaussians) -> CurveMoments:
    """Return the moments of the curves of conditions whose latents are Gaussian."""
    moments = latent_moments(model.latent_basis, latents)
    weights = moments.mean @ model.mean.T  # w_d = M⟨c_d⟩
    latent_spread = moments.second - moments.mean[:, :, None] * moments.mean[:, None, :]
    identity = jnp.eye(model.mean.shape[0], dtype=model.mean.dtype)
    spread = (
        jnp.einsum("xh,dhk,yk->dxy", model.mean, latent_spread, model.mean)
        + model.covariance.contract(moments.second)
        - jnp.trace(moments.second, axis1=1, axis2=2)[:, None, None] * identity
    )
    return in_precision(CurveMoments(weights, spread, moments.prior_variance), model.mean.dtype)


def marginals(
    input_basis: Basis, curves: CurveMoments, inputs: Float[Array, "B b Q_X"], block_condition: Int[Array, " B"]
) -> tuple[Float[Array, "B b"], Float[Array, "B b"]]:
    """Return mean and variance of f at blocks of inputs, each block belonging to one condition."""

    def one_block(block: tuple[Array, Array]) -> tuple[Array, Array]:
        points, condition = block
        features = input_basis.features(points)
        mean = features @ curves.weights[condition]
        prior = curves.prior_variance[condition] * diagonal(input_basis.kernel, points)
        variance = prior + jnp.sum((features @ curves.spread[condition]) * features, axis=1)
        return mean, positive_part(variance, prior)

    return jax.lax.map(one_block, (inputs, block_condition), batch_size=_BLOCKS_AT_ONCE)


def grid_means(input_basis: Basis, curves: CurveMoments, inputs: Float[Array, "n Q_X"]) -> Float[Array, "n D"]:
    """Return the mean of f of all conditions at all inputs."""
    return input_basis.features(inputs) @ curves.weights.T


def grid_marginals(
    input_basis: Basis, curves: CurveMoments, inputs: Float[Array, "n Q_X"]
) -> tuple[Float[Array, "n D"], Float[Array, "n D"]]:
    """Return mean and variance of f of all conditions at all inputs, whose features serve all conditions.

    aᵀGa = Σ_{x≤y} (2 − δ_xy) G_xy a_x a_y: one product of all G with the pairs of features, for some inputs at a time.
    """
    n_points, n_inducing = inputs.shape[0], input_basis.points.shape[0]
    first, second = np.triu_indices(n_inducing)
    folded = curves.spread[:, first, second] * np.where(first == second, 1.0, 2.0).astype(inputs.dtype)
    features = input_basis.features(inputs)
    at_once = min(_PAIRS_AT_ONCE // len(first) + 1, n_points)
    n_slices = -(-n_points // at_once)
    sliced = jnp.pad(features, ((0, n_slices * at_once - n_points), (0, 0))).reshape(n_slices, at_once, n_inducing)

    def spread_at(some: Float[Array, "s M_X"]) -> Float[Array, "D s"]:
        return folded @ (some.T[first] * some.T[second])

    spread = jnp.swapaxes(jax.lax.map(spread_at, sliced), 1, 2).reshape(n_slices * at_once, -1)[:n_points]
    prior = diagonal(input_basis.kernel, inputs)[:, None] * curves.prior_variance
    return features @ curves.weights.T, positive_part(prior + spread, prior)
