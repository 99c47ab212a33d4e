"""Exact Gaussian processes with covariance k_X(x, x') B_dd', dense on any rows and Kronecker on grids."""

from abc import abstractmethod
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.algebra.constraints import LOWER_TRIANGULAR, positive
from lvmogp.algebra.evidence import dense_evidence, kronecker_evidence, kronecker_shrinkage
from lvmogp.algebra.gaussians import LOG_2PI
from lvmogp.algebra.linalg import whiten
from lvmogp.ground.compiling import compiled
from lvmogp.ground.padding import in_blocks
from lvmogp.kernels.covariances import Kernel, cross, diagonal, gram
from lvmogp.model.layouts import GridData
from lvmogp.typing import Array, Float, HostFloat, HostInt, Int, Scalar

_ROWS_AT_ONCE = 1024


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

    factor: Float[Array, "D D"] = eqx.field(metadata=LOWER_TRIANGULAR)

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


class Coregionalised(eqx.Module):
    """A kernel over inputs, a relation between conditions, and one noise variance or one per condition."""

    kernel: Kernel
    relation: Relation
    noise_variance: Float[Array, " S"] = positive()


class Observed(eqx.Module):
    """Rows in standardised units."""

    inputs: Float[Array, "n Q_X"]
    outputs: Float[Array, " n"]
    conditions: Int[Array, " n"]


class Marginals(NamedTuple):
    """Mean and variance of the function at rows."""

    mean: HostFloat
    variance: HostFloat


def noise_of(noise_variance: Float[Array, " S"], conditions: Int[Array, " n"]) -> Float[Array, " n"]:
    """Noise variance of each row."""
    return noise_variance[conditions if len(noise_variance) > 1 else jnp.zeros_like(conditions)]


def log_evidence(parameters: Coregionalised, data: Observed) -> Scalar:
    """Log N(y; 0, K + Σ) = −½ [n log 2π + log|Σ| + log|I + G| + bᵀ(I + G)⁻¹b], G = Σ^−½KΣ^−½, b = Σ^−½y."""
    roots = jnp.sqrt(noise_of(parameters.noise_variance, data.conditions))
    log_det, quadratic = dense_evidence(_scaled_gram(parameters, data, roots), data.outputs / roots)
    return -(len(roots) * LOG_2PI + 2 * jnp.sum(jnp.log(roots)) + log_det + quadratic) / 2


def _scaled_gram(parameters: Coregionalised, data: Observed, roots: Float[Array, " n"]) -> Float[Array, "n n"]:
    between = parameters.relation.matrix()[data.conditions][:, data.conditions]
    return gram(parameters.kernel, data.inputs) * between / (roots[:, None] * roots)


def predict(parameters: Coregionalised, data: Observed, inputs: HostFloat, conditions: HostInt) -> Marginals:
    """Posterior moments of the function at rows of any conditions."""
    n_rows = len(conditions)
    blocks = jnp.asarray(in_blocks(inputs, _ROWS_AT_ONCE)), jnp.asarray(in_blocks(conditions, _ROWS_AT_ONCE))
    mean, variance = _predict_blocks(parameters, data, blocks)
    return Marginals(np.ravel(mean)[:n_rows], np.ravel(variance)[:n_rows])


@compiled
def _predict_blocks(
    parameters: Coregionalised, data: Observed, blocks: tuple[Float[Array, "B b Q_X"], Int[Array, "B b"]]
) -> tuple[Float[Array, "B b"], Float[Array, "B b"]]:
    roots = jnp.sqrt(noise_of(parameters.noise_variance, data.conditions))
    identity = jnp.eye(len(roots), dtype=roots.dtype)
    factor = jnp.linalg.cholesky(_scaled_gram(parameters, data, roots) + identity)
    whitened = whiten(factor, data.outputs / roots)
    relation = parameters.relation.matrix()

    def one_block(block: tuple[Array, Array]) -> tuple[Array, Array]:
        inputs, conditions = block
        covariance = cross(parameters.kernel, data.inputs, inputs) * relation[data.conditions][:, conditions]
        projected = whiten(factor, covariance / roots[:, None])  # L⁻¹Σ^−½k
        prior = diagonal(parameters.kernel, inputs) * jnp.diagonal(relation)[conditions]
        return projected.T @ whitened, jnp.maximum(prior - jnp.sum(projected**2, axis=0), 0.0)

    return jax.lax.map(one_block, blocks)


def grid_log_evidence(parameters: Coregionalised, data: GridData) -> Scalar:
    """Log evidence of a grid with one noise for all, by two small eigendecompositions (Stegle et al. 2011)."""
    noise = parameters.noise_variance[0]
    scaled = data.outputs / jnp.sqrt(noise)
    log_det, quadratic = kronecker_evidence(
        gram(parameters.kernel, data.inputs), parameters.relation.matrix() / noise, scaled
    )
    return -(data.outputs.size * (LOG_2PI + jnp.log(noise)) + log_det + quadratic) / 2


@compiled
def grid_predict(
    parameters: Coregionalised, data: GridData, inputs: Float[Array, "T Q_X"]
) -> tuple[Float[Array, "T D"], Float[Array, "T D"]]:
    """Posterior moments of the function at new inputs under every condition of a grid."""
    noise, relation = parameters.noise_variance[0], parameters.relation.matrix()
    input_values, input_basis = jnp.linalg.eigh(gram(parameters.kernel, data.inputs))
    condition_values, condition_basis = jnp.linalg.eigh(relation)
    shrinkage = kronecker_shrinkage(input_values, condition_values / noise) / noise  # 1/(λ_i λ_j + σ²)
    from_inputs = cross(parameters.kernel, inputs, data.inputs) @ input_basis
    from_conditions = relation @ condition_basis
    rotated = input_basis.T @ data.outputs @ condition_basis
    mean = from_inputs @ (rotated * shrinkage) @ from_conditions.T
    explained = from_inputs**2 @ shrinkage @ (from_conditions**2).T
    prior = diagonal(parameters.kernel, inputs)[:, None] * jnp.diagonal(relation)
    return mean, jnp.maximum(prior - explained, 0.0)
