"""A condition as weighted particles, given each of which its curve is Gaussian.

This is all that needs to be known of a condition for choosing its measurements, whatever made the particles.
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.algebra.linalg import whiten
from lvmogp.conditions.drawn_condition import MOST_MEMBERS, DrawnCondition, members_of
from lvmogp.conditions.drawn_curves import Few, Members, member_covariances, member_curves
from lvmogp.conditions.drawn_model import DrawnModel, conditionals_with, most_at_once
from lvmogp.conditions.new_condition import ConditionPosterior, block_components
from lvmogp.kernels.covariances import cross
from lvmogp.model.inducing_features import Basis
from lvmogp.model.posterior import Curves
from lvmogp.model.process import Conditional
from lvmogp.typing import Array, Float


class ParticleCurves(eqx.Module):
    """Weighted latents with noise, and the Gaussian curve of each in standardised units."""

    @property
    @abstractmethod
    def log_weights(self) -> Float[Array, " P"]:
        """Normalised log weights of the particles."""

    @property
    @abstractmethod
    def latents(self) -> Float[Array, "P L"]:
        """Latents of the particles, without the coordinates of features."""

    @property
    @abstractmethod
    def noise(self) -> Float[Array, " P"]:
        """Noise variance of an observation under each particle."""

    @abstractmethod
    def moments(self, points: Float[Array, "n Q_X"]) -> tuple[Float[Array, "P n"], Float[Array, "P n"]]:
        """Mean and variance of f at each point under each particle."""

    @abstractmethod
    def covariance(self, first: Float[Array, "n Q_X"], second: Float[Array, "m Q_X"]) -> Float[Array, "P n m"]:
        """Covariance of f between two sets of points under each particle."""


class ConditionCurves(ParticleCurves):
    """Particles of a trained model with one q(v), each conditioned on the observations of the condition.

    Of their coordinates the first ``n_latent`` are latents; those of features follow.
    """

    input_basis: Basis
    condition: ConditionPosterior
    n_latent: int = eqx.field(static=True)

    @property
    def log_weights(self) -> Float[Array, " P"]:
        """Normalised log weights of the particles."""
        return self.condition.log_weights

    @property
    def latents(self) -> Float[Array, "P L"]:
        """Latents of the particles, without the coordinates of features."""
        return self.condition.latents[:, : self.n_latent]

    @property
    def noise(self) -> Float[Array, " P"]:
        """Noise variance of an observation under each particle."""
        return self.condition.noise

    def moments(self, points: Float[Array, "n Q_X"]) -> tuple[Float[Array, "P n"], Float[Array, "P n"]]:
        """Mean and variance of equation 22."""
        means, variances = block_components(self.input_basis, self.condition, points[None])
        return means[0], variances[0]

    def covariance(self, first: Float[Array, "n Q_X"], second: Float[Array, "m Q_X"]) -> Float[Array, "P n m"]:
        """κ_h(x, x') − κ_h(x, X)(κ_h(X, X) + σ²I)⁻¹κ_h(X, x') of equation 22."""
        basis, seen = self.input_basis, self.condition.evidence
        left, right = basis.features(first), basis.features(second)
        prior = cross(basis.kernel, first, second)
        left_to_seen, right_to_seen = seen.cross_gram(basis, first), seen.cross_gram(basis, second)

        def one_particle(shape: Curves, factor: Array) -> Array:
            left_spread, right_spread = left @ shape.spread, right @ shape.spread
            explained_left = shape.prior_variance * left_to_seen + left_spread @ seen.features.T
            explained_right = shape.prior_variance * right_to_seen + right_spread @ seen.features.T
            own = shape.prior_variance * prior + left_spread @ right.T
            return own - whiten(factor, explained_left.T).T @ whiten(factor, explained_right.T)

        return jax.vmap(one_particle)(self.condition.curves, self.condition.factor)


class DrawnCurves(ParticleCurves):
    """Particles of a model with posterior draws, each conditioned on the observations of the condition.

    ``aligned`` are their latents as they compare between draws.
    """

    conditionals: Conditional
    members: Members
    seen: Few
    weights: Float[Array, " P"]
    aligned: Float[Array, "P L"]

    @property
    def log_weights(self) -> Float[Array, " P"]:
        """Normalised log weights of the particles."""
        return jnp.log(self.weights)

    @property
    def latents(self) -> Float[Array, "P L"]:
        """Latents of the particles, without the coordinates of features."""
        return self.aligned

    @property
    def noise(self) -> Float[Array, " P"]:
        """Noise variance of an observation under each particle."""
        return self.members.noise

    def moments(self, points: Float[Array, "n Q_X"]) -> tuple[Float[Array, "P n"], Float[Array, "P n"]]:
        """Mean and variance of equation 39."""
        found = member_curves(self.conditionals, self.members, self.seen, points)
        return found.means, found.variances

    def covariance(self, first: Float[Array, "n Q_X"], second: Float[Array, "m Q_X"]) -> Float[Array, "P n m"]:
        """Covariance of equation 39."""
        return member_covariances(self.conditionals, self.members, self.seen, first, second)


def curves_under_draws(model: DrawnModel, condition: DrawnCondition, *, n_latent: int) -> DrawnCurves:
    """Particles that stand for all of a condition: as many as there would be room for if each had a draw of its own.

    Of their coordinates the first ``n_latent`` are latents; those of features follow.
    """
    members, weights = members_of(condition, min(MOST_MEMBERS, most_at_once(model)))
    aligned = jnp.einsum("pq,pqr->pr", members.latents, model.rotations[members.draw])[:, :n_latent]
    conditionals, places = conditionals_with(model, np.asarray(members.draw))
    placed = Members(jnp.asarray(places), members.latents, members.noise)
    return DrawnCurves(conditionals, placed, condition.seen, jnp.asarray(weights), aligned)
