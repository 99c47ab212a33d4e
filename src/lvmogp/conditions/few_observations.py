"""The observations that are a condition's own, prepared for all the latents that are tried for it."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.algebra.linalg import factor_beside_errors
from lvmogp.ground.compiling import compiled
from lvmogp.ground.padding import rounded_up, with_zeros
from lvmogp.kernels.covariances import cross, diagonal, gram
from lvmogp.model.process import Process
from lvmogp.typing import Array, Bool, Float, HostFloat, Scalar

# More observations than these are compressed where one process serves all latents.
MOST_EXACT = 32
# Numbers of places up to that.
PLACES = (4, 8, 16, 32)


class Compressed(eqx.Module):
    """Features of the pseudo-observations that stand for many observations.

    With A = QR, y enters through Qᵀy at features R, which is exact for the part of the curve that the features can
    express. ``excess_count``, ``excess_squares`` and ``residual`` complete the likelihood as in a sparse GP's bound.
    ``is_used`` is false for a condition whose observations stand for themselves beside others that are compressed.
    """

    features: Float[Array, "*C m R"]
    excess_count: Float[Array, "*C"]
    excess_squares: Float[Array, "*C"]
    residual: Float[Array, "*C"]
    is_used: Bool[Array, "*C"]


class FewObservations(eqx.Module):
    """Observations of one condition in standardised units, in m places; ``present`` is 0 where nothing was observed.

    Those of several conditions are stacked along leading axes. ``error_variances`` of the measurements add to their
    noise.
    """

    inputs: Float[Array, "*C m Q_X"]
    values: Float[Array, "*C m"]
    present: Float[Array, "*C m"]
    error_variances: Float[Array, "*C m"]
    compressed: Compressed | None = None

    @property
    def n_present(self) -> int:
        """Return the number of observations, or of pseudo-observations that stand for them."""
        return int(np.sum(np.asarray(self.present)))

    def noise(self, of_condition: Scalar) -> Float[Array, " m"]:
        """Return σ² + s² of each observation; an empty place is an observation of nothing with unit noise."""
        return jnp.where(self.present > 0, of_condition + self.error_variances, 1.0)

    def factor(self, covariance: Float[Array, "m m"], of_condition: Scalar) -> Float[Array, "m m"]:
        """Return the lower factor of the covariance of the observations, given that of the curve."""
        own = jnp.where(self.present > 0, of_condition, 1.0)
        return factor_beside_errors(covariance + jnp.diag(own), self.error_variances)

    def features(self, process: Process) -> Float[Array, "m R"]:
        """Return the features of the observed inputs, zero in empty places."""
        plain = process.inputs(self.inputs) * self.present[:, None]
        return plain if self.compressed is None else jnp.where(self.compressed.is_used, self.compressed.features, plain)

    def gram(self, process: Process) -> Float[Array, "m m"]:
        """Return the prior covariances k_X between the observed inputs, zero in empty places."""
        plain = gram(process.inputs.kernel, self.inputs) * self.present[:, None] * self.present
        if self.compressed is None:
            return plain
        through = self.compressed.features @ self.compressed.features.T
        return jnp.where(self.compressed.is_used, through, plain)

    def gram_with(self, process: Process, other: "FewObservations") -> Float[Array, "m k"]:
        """Return the prior covariances k_X between two sets of observed inputs, zero in empty places."""
        plain = cross(process.inputs.kernel, self.inputs, other.inputs) * self.present[:, None] * other.present
        summaries = [each.compressed.is_used for each in (self, other) if each.compressed is not None]
        if not summaries:
            return plain
        through = self.features(process) @ other.features(process).T
        return jnp.where(jnp.any(jnp.stack(summaries)), through, plain)


def at_points(points: Float[Array, "n Q_X"]) -> FewObservations:
    """Return points as if something had been observed there, for covariances with them."""
    nothing = jnp.zeros(len(points), points.dtype)
    return FewObservations(points, nothing, nothing + 1, nothing)


def few_observations(
    inputs: HostFloat, values: HostFloat, error_variances: HostFloat | None = None, dtype: str = "float64"
) -> FewObservations:
    """Put observations in one of few numbers of places, so that similar calls share one compiled program."""
    n_places = next((size for size in PLACES if size >= len(values)), rounded_up(len(values)))
    errors = np.zeros(len(values)) if error_variances is None else error_variances

    def placed(rows: HostFloat) -> Array:
        return jnp.asarray(with_zeros(rows, n_places), dtype)

    return FewObservations(placed(inputs), placed(values), placed(np.ones(len(values))), placed(errors))


def no_observations(n_columns: int, dtype: str = "float64") -> FewObservations:
    """Return the observations of a condition that has none of its own."""
    return few_observations(np.empty((0, n_columns)), np.empty(0), dtype=dtype)


def compressed(process: Process, seen: FewObservations, typical_noise: float) -> FewObservations:
    """Return pseudo-observations that stand for many observations, of which the process serves all latents.

    Divided by √(1 + s²/σ²) all observations have the noise σ² again: that of the model where noise is shared, and a
    typical one where it is not.
    """
    weights = jnp.where(seen.present > 0, 1 / jnp.sqrt(1 + seen.error_variances / typical_noise), 0.0)
    return _compressed(process, seen.inputs, seen.values, weights)


@compiled
def _compressed(
    process: Process, inputs: Float[Array, "n Q_X"], values: Float[Array, " n"], weights: Float[Array, " n"]
) -> FewObservations:
    features = process.inputs(inputs) * weights[:, None]
    values = values * weights
    rotation, triangular = jnp.linalg.qr(features)  # A = QR: y enters through Qᵀy and what is left of ‖y‖²
    rotated = rotation.T @ values
    size = rotated.shape[0]
    n_observed = jnp.sum(weights > 0).astype(values.dtype)
    return FewObservations(
        inputs=jnp.zeros((size, inputs.shape[1]), values.dtype),
        values=rotated,
        present=jnp.ones(size, values.dtype),
        error_variances=jnp.zeros(size, values.dtype),
        compressed=Compressed(
            features=triangular,
            excess_count=n_observed - size,
            excess_squares=values @ values - rotated @ rotated,
            residual=diagonal(process.inputs.kernel, inputs) @ weights**2 - jnp.sum(features**2),  # tr(K − AAᵀ)
            is_used=jnp.asarray(True),
        ),
    )


def stacked(seen: list[FewObservations]) -> FewObservations | None:
    """Stack the observations of several conditions, in as many places as the most of them need; ``None`` of none."""
    if not any(each.n_present for each in seen):
        return None
    size = max(each.values.shape[0] for each in seen)
    widths = [each.compressed.features.shape[1] for each in seen if each.compressed is not None]
    if widths:
        seen = [each if each.compressed is not None else _standing_for_themselves(each, widths[0]) for each in seen]

    def longer(each: FewObservations) -> FewObservations:
        more = size - each.values.shape[0]

        def padded(leaf: Array) -> Array:
            return jnp.pad(leaf, ((0, more), *[(0, 0)] * (leaf.ndim - 1)))

        summary = each.compressed
        return FewObservations(
            padded(each.inputs),
            padded(each.values),
            padded(each.present),
            padded(each.error_variances),
            None if summary is None else dataclasses.replace(summary, features=padded(summary.features)),
        )

    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *[longer(each) for each in seen])


def _standing_for_themselves(seen: FewObservations, n_features: int) -> FewObservations:
    zero = jnp.zeros((), seen.values.dtype)
    features = jnp.zeros((seen.values.shape[0], n_features), seen.values.dtype)
    unused = Compressed(features, zero, zero, zero, jnp.asarray(False))
    return FewObservations(seen.inputs, seen.values, seen.present, seen.error_variances, unused)
