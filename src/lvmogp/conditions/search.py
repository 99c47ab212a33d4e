"""Weighted points of a distribution whose density is known up to a constant, all of them deterministic.

Newton steps from many starts give a mixture of local Gaussian approximations, from which quasi-random points are drawn
and weighted by the density itself (docs/mathematics.md, equation 20).
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jax.scipy.special import logsumexp, ndtri
from scipy.stats import qmc

from lvmogp.algebra.gaussians import log_density
from lvmogp.typing import Array, Float, HostFloat, Scalar

Target = Callable[[Array], Scalar]
# Nodes are kept this far from 0 and 1, where normal points would be infinite.
_EDGE = 1e-10


class Search(NamedTuple):
    """How thoroughly latents are looked for; the page of a model searches in the same way."""

    n_particles: int = 512
    n_scouts: int = 1024
    n_starts: int = 32
    n_starts_of_many_points: int = 12
    many_points: int = 8
    n_prior_starts: int = 64
    most_trained_starts: int = 128
    newton_steps: int = 20
    step_fractions: tuple[float, ...] = (1.0, 0.3, 0.1, 0.01)
    widening: float = 1.5
    prior_share: float = 0.1


@lru_cache(maxsize=32)
def unit_nodes(n_points: int, n_dimensions: int) -> HostFloat:
    """Return quasi-random points of the unit cube, the same in every call."""
    if n_dimensions == 0:
        return np.empty((n_points, 0))
    # Scrambled with a fixed seed: deterministic, and never exactly 0 or 1.
    nodes = qmc.Sobol(n_dimensions, scramble=True, rng=np.random.default_rng(0)).random(n_points)
    return np.clip(nodes, _EDGE, 1 - _EDGE)


def normal_nodes(n_points: int, n_dimensions: int) -> HostFloat:
    """Return quasi-random standard normal points, the same in every call."""
    return np.asarray(scipy.special.ndtri(unit_nodes(n_points, n_dimensions)))


def shifted(nodes: Float[Array, "*P cube"], shift: Float[Array, "*S cube"]) -> Float[Array, "*R cube"]:
    """Move points of the unit cube, those that leave it entering on the other side."""
    return jnp.clip((nodes + shift) % 1, _EDGE, 1 - _EDGE)


class _Mixture(NamedTuple):
    # A Gaussian mixture over θ; the last component is the prior.
    log_shares: Float[Array, " K"]
    means: Float[Array, "K T"]
    factors: Float[Array, "K T T"]

    def component_log_densities(self, thetas: Float[Array, "P T"]) -> Float[Array, "P K"]:
        """Return log N(θ; μ_k, Σ_k)."""
        return jax.vmap(
            lambda theta: jax.vmap(lambda mean, factor: log_density(theta - mean, factor))(self.means, self.factors)
        )(thetas)

    def draw(self, nodes: Float[Array, "P cube"]) -> Float[Array, "P T"]:
        """Push quasi-random points of the unit cube through the mixture; the first coordinate picks the component."""
        ends = jnp.cumsum(jnp.exp(self.log_shares))
        chosen = jnp.minimum(jnp.searchsorted(ends, nodes[:, 0]), len(ends) - 1)
        return self.means[chosen] + jnp.einsum("pij,pj->pi", self.factors[chosen], ndtri(nodes[:, 1:]))


def weighted_points(
    target: Target, starts: Float[Array, "K T"], nodes: Float[Array, "P0 cube"], search: Search
) -> tuple[Float[Array, "P T"], Float[Array, " P"]]:
    """Return points θ with log target(θ)/r(θ), r being a mixture of local Gaussians and the prior (equation 20).

    All nodes are for scouts, the first of them for the points.
    """
    proposal = _local_gaussians(target, starts, search)
    # One round of scouts tells which local Gaussians carry the mass (one step of expectation-maximisation).
    log_weights, responsibilities = _importance(target, proposal, proposal.draw(nodes))
    shares = jax.nn.softmax(log_weights) @ responsibilities
    shares = shares.at[-1].set(jnp.maximum(shares[-1], search.prior_share)) + 1e-4
    proposal = proposal._replace(log_shares=jnp.log(shares / jnp.sum(shares)))
    thetas = proposal.draw(nodes[: search.n_particles])
    return thetas, _importance(target, proposal, thetas)[0]


def chosen_starts(target: Target, starts: Float[Array, "S T"], n_wanted: int) -> Float[Array, "K T"]:
    """Choose the best of many starts for half of those wanted; the other half are spread over the rest."""
    order = jnp.argsort(-jax.vmap(target)(starts))
    n_best = min(n_wanted // 2, starts.shape[0])
    spread = np.linspace(n_best, starts.shape[0] - 1, n_wanted - n_best).astype(int)
    places = np.unique(np.minimum(np.r_[np.arange(n_best), spread], starts.shape[0] - 1))
    return starts[order[places]]


class _Peak(NamedTuple):
    # A point on its way up, its height, and eigenvalues with eigenvectors of the curvature there.
    theta: Float[Array, " T"]
    height: Scalar
    values: Float[Array, " T"]
    vectors: Float[Array, "T T"]


def _peak_near(target: Target, start: Float[Array, " T"], search: Search) -> _Peak:
    # Newton steps, each the best of several lengths. Derivatives appear once, for the sake of the time to compile.
    def gradient_twice(theta: Float[Array, " T"]) -> tuple[Array, Array]:
        gradient = jax.grad(target)(theta)
        return gradient, gradient

    def visit(number: Array, peak: _Peak) -> _Peak:
        hessian, gradient = jax.jacfwd(gradient_twice, has_aux=True)(peak.theta)
        values, vectors = jnp.linalg.eigh(-hessian)
        values = jnp.maximum(jnp.abs(values), 1.0)  # never wider than the prior
        step = vectors @ ((vectors.T @ gradient) / values)
        step = step / jnp.maximum(jnp.linalg.norm(step), 1.0)
        tries = jnp.stack([peak.theta, *(peak.theta + fraction * step for fraction in search.step_fractions)])
        heights = jax.vmap(target)(tries)
        best = jnp.argmax(jnp.where(jnp.isfinite(heights), heights, -jnp.inf))
        chosen = jnp.where(number < search.newton_steps, best, 0)  # the last visit only looks
        return _Peak(tries[chosen], heights[chosen], values, vectors)

    begin = _Peak(start, jnp.zeros((), start.dtype), jnp.zeros_like(start), jnp.zeros((len(start),) * 2, start.dtype))
    return jax.lax.fori_loop(0, search.newton_steps + 1, visit, begin)


def _local_gaussians(target: Target, starts: Float[Array, "K T"], search: Search) -> _Mixture:
    n_theta = starts.shape[1]
    means, heights, values, vectors = jax.vmap(lambda start: _peak_near(target, start, search))(starts)
    factors = vectors * jnp.sqrt(search.widening / values)[:, None, :]
    factors = jax.vmap(lambda factor: jnp.linalg.qr(factor.T)[1].T)(factors)  # lower triangular, same FFᵀ
    factors = factors * jnp.sign(jnp.diagonal(factors, axis1=1, axis2=2))[:, None, :]
    # Square-rooted evidence of each local Gaussian: peaks lead, but none takes all before it is scouted.
    evidences = heights - jnp.sum(jnp.log(values), axis=1) / 2
    # A start where the density cannot be evaluated stands for the prior, without a share.
    is_sound = jnp.isfinite(evidences) & jnp.all(jnp.isfinite(factors), axis=(1, 2))
    prior_mean, prior_factor = jnp.zeros((1, n_theta), means.dtype), jnp.eye(n_theta, dtype=means.dtype)[None]
    log_shares = jax.nn.log_softmax(jnp.where(is_sound, evidences, -jnp.inf) / 2)
    return _Mixture(
        jnp.append(log_shares + jnp.log(1 - search.prior_share), jnp.log(search.prior_share)),
        jnp.concatenate([jnp.where(is_sound[:, None], means, prior_mean), prior_mean]),
        jnp.concatenate([jnp.where(is_sound[:, None, None], factors, prior_factor), prior_factor]),
    )


def _importance(
    target: Target, proposal: _Mixture, thetas: Float[Array, "P T"]
) -> tuple[Float[Array, " P"], Float[Array, "P K"]]:
    # Log weights, and how much of each point belongs to each component of the proposal.
    joint = proposal.component_log_densities(thetas) + proposal.log_shares
    log_proposal = logsumexp(joint, axis=1)
    heights = jax.vmap(target)(thetas)
    log_weights = jnp.where(jnp.isfinite(heights), heights, -jnp.inf) - log_proposal
    return log_weights, jnp.exp(joint - log_proposal[:, None])
