"""How conditions covary in models that know them by their ids only."""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp

from lvmogp.algebra.constraints import lower_triangular, positive
from lvmogp.typing import Array, Float, Int


class Relation(eqx.Module):
    """A covariance matrix B over the D conditions."""

    @abstractmethod
    def matrix(self) -> Float[Array, "D D"]:
        """B."""


class Together(Relation):
    """All conditions are the same: B = 11ᵀ."""

    n_conditions: int = eqx.field(static=True)

    def matrix(self) -> Float[Array, "D D"]:
        """B."""
        return jnp.ones((self.n_conditions, self.n_conditions))


class OneHot(Relation):
    """Ids as one-hot inputs of an RBF with a lengthscale for each level.

    ``levels`` numbers the levels of each factor of each condition, across factors; one factor whose levels are the
    conditions themselves is the plain one-hot code. Two conditions differ by one in the columns a and b of a factor
    where their levels a ≠ b, so

        B_dd' = Π over such factors of exp(−½ (1/ℓ_a² + 1/ℓ_b²)).
    """

    levels: Int[Array, "D factors"]
    lengthscale: Float[Array, " levels"] = positive()
    fixed: tuple[str, ...] = eqx.field(static=True, default=("levels",))

    def matrix(self) -> Float[Array, "D D"]:
        """B."""
        precision = 1 / self.lengthscale[self.levels] ** 2  # (D, factors)
        differ = self.levels[:, None] != self.levels[None]
        squared = jnp.sum(jnp.where(differ, precision[:, None] + precision[None], 0.0), axis=-1)
        return jnp.exp(-squared / 2)


class FullRank(Relation):
    """Any covariance: B = LLᵀ, the coregionalisation matrix of full rank."""

    factor: Float[Array, "D D"] = lower_triangular()

    def matrix(self) -> Float[Array, "D D"]:
        """B."""
        return self.factor @ self.factor.T


class LowRank(Relation):
    """A few common factors and something of one's own: B = WWᵀ + diag(κ)."""

    loadings: Float[Array, "D rank"]
    own: Float[Array, " D"] = positive()

    def matrix(self) -> Float[Array, "D D"]:
        """B."""
        return self.loadings @ self.loadings.T + jnp.diag(self.own)
