"""Observations of a condition, prepared once for all the latents that are tried for it."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from lvmogp.algebra.linalg import factor_beside_errors
from lvmogp.ground.compiling import compiled
from lvmogp.kernels.covariances import cross, diagonal, gram
from lvmogp.model.inducing_features import Basis
from lvmogp.model.posterior import Posterior
from lvmogp.typing import Array, Bool, Float, HostFloat, Scalar

MOST_EXACT_POINTS = 32
PADDED_SIZES = (4, 8, 16, 32)


class Evidence(eqx.Module):
    """Observations of one condition as features, their prior covariance and their values.

    Up to 32 points are used as they are, padded to a common size (``present`` is 0 where padded) so that
    similar calls share one compiled program. More points are compressed to M_X pseudo-points by A = QR, which
    is exact for the part of the curve that the inducing inputs can express; ``excess_count``,
    ``excess_squares`` and ``residual`` complete the likelihood as in the sparse GP's bound. ``errors`` are known
    variances of the measurements.
    """

    inputs: Float[Array, "m Q_X"]
    features: Float[Array, "m M_X"]
    gram: Float[Array, "m m"]
    values: Float[Array, " m"]
    present: Float[Array, " m"]
    errors: Float[Array, " m"]
    excess_count: Scalar
    excess_squares: Scalar
    residual: Scalar
    compressed: Bool[Array, ""]

    def noise_variances(self, noise: Scalar) -> Float[Array, " m"]:
        """σ² + s² of each observation; a padded place is an observation of nothing with unit noise: a constant."""
        return jnp.where(self.present > 0, noise + self.errors, 1.0)

    def factor(self, covariance: Float[Array, "m m"], noise: Scalar) -> Float[Array, "m m"]:
        """Lower factor of the covariance of the observations, given that of the curve."""
        own = jnp.where(self.present > 0, noise, 1.0)
        return factor_beside_errors(covariance + jnp.diag(own), self.errors)

    def cross_gram(self, input_basis: Basis, points: Float[Array, "n Q_X"]) -> Float[Array, "n m"]:
        """Prior covariances k_X between points and the observations."""
        through_inducing = input_basis.features(points) @ self.features.T
        exact = cross(input_basis.kernel, points, self.inputs) * self.present
        return jnp.where(self.compressed, through_inducing, exact)

    def gram_with(self, input_basis: Basis, other: "Evidence") -> Float[Array, "m k"]:
        """Prior covariances k_X between the observations of two conditions."""
        through_inducing = self.features @ other.features.T
        exact = cross(input_basis.kernel, self.inputs, other.inputs) * self.present[:, None] * other.present
        return jnp.where(self.compressed | other.compressed, through_inducing, exact)

    def padded(self, size: int) -> "Evidence":
        """The same evidence in ``size`` places."""
        more = size - self.values.shape[0]
        return Evidence(
            inputs=jnp.pad(self.inputs, ((0, more), (0, 0))),
            features=jnp.pad(self.features, ((0, more), (0, 0))),
            gram=jnp.pad(self.gram, ((0, more), (0, more))),
            values=jnp.pad(self.values, (0, more)),
            present=jnp.pad(self.present, (0, more)),
            errors=jnp.pad(self.errors, (0, more)),
            excess_count=self.excess_count,
            excess_squares=self.excess_squares,
            residual=self.residual,
            compressed=self.compressed,
        )


def evidence(
    model: Posterior, inputs: HostFloat, values: HostFloat, error_variances: HostFloat | None = None
) -> Evidence:
    """Observations in standardised units, prepared once for all particles, with known variances of the measurements."""
    dtype = model.mean.dtype
    n_points = len(values)
    errors = np.zeros(n_points) if error_variances is None else error_variances
    if n_points > MOST_EXACT_POINTS:
        # Divided by √(1 + s²/σ²) all observations have the noise σ² again, that of the model where noise is shared and
        # a typical one where it is not.
        typical = np.exp(np.mean(np.log(model.parameters.host_noise)))
        weights = jnp.asarray(1 / np.sqrt(1 + errors / typical), dtype)
        return _compressed(model.input_basis, jnp.asarray(inputs, dtype), jnp.asarray(values, dtype), weights)
    size = next(size for size in PADDED_SIZES if size >= n_points)
    padding = size - n_points
    present = jnp.asarray(np.r_[np.ones(n_points), np.zeros(padding)], dtype)
    padded = jnp.asarray(np.pad(inputs, ((0, padding), (0, 0))), dtype)
    padded_values, padded_errors = (jnp.asarray(np.pad(row, (0, padding)), dtype) for row in (values, errors))
    return _exact(model.input_basis, padded, padded_values, padded_errors, present)


@compiled
def _exact(
    input_basis: Basis,
    inputs: Float[Array, "m Q_X"],
    values: Float[Array, " m"],
    errors: Float[Array, " m"],
    present: Float[Array, " m"],
) -> Evidence:
    zero = jnp.zeros((), values.dtype)
    return Evidence(
        inputs=inputs,
        features=input_basis.features(inputs) * present[:, None],
        gram=gram(input_basis.kernel, inputs) * present[:, None] * present,
        values=values,
        present=present,
        errors=errors,
        excess_count=zero,
        excess_squares=zero,
        residual=zero,
        compressed=jnp.asarray(False),
    )


@compiled
def _compressed(
    input_basis: Basis, inputs: Float[Array, "n Q_X"], values: Float[Array, " n"], weights: Float[Array, " n"]
) -> Evidence:
    features = input_basis.features(inputs) * weights[:, None]
    values = values * weights
    rotation, triangular = jnp.linalg.qr(features)  # A = QR: y enters through Qᵀy and what is left of ‖y‖²
    rotated = rotation.T @ values
    residual = diagonal(input_basis.kernel, inputs) @ weights**2 - jnp.sum(features**2)  # tr(K − AAᵀ)
    size = rotated.shape[0]
    return Evidence(
        inputs=jnp.zeros((size, inputs.shape[1]), values.dtype),
        features=triangular,
        gram=triangular @ triangular.T,
        values=rotated,
        present=jnp.ones(size, values.dtype),
        errors=jnp.zeros(size, values.dtype),
        excess_count=jnp.asarray(values.shape[0] - size, values.dtype),
        excess_squares=values @ values - rotated @ rotated,
        residual=residual,
        compressed=jnp.asarray(True),
    )
