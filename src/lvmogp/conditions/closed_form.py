"""Answers in closed form, for conditions whose latents are Gaussian under the one process of a variational fit.

Errors of predictions for different conditions covary through k_H and through the inducing variables
(docs/mathematics.md, equations 24 and 25).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve

from lvmogp.conditions.condition import Condition
from lvmogp.conditions.curves import ParticleCurves, covariance_with_seen, picked
from lvmogp.conditions.ensemble import ClosedForm, Ensemble
from lvmogp.conditions.few_observations import FewObservations
from lvmogp.ground.compiling import compiled
from lvmogp.ground.padding import block_layout, repeated, stacked_rows, with_last_repeated
from lvmogp.kernels.covariances import cross, gram
from lvmogp.kernels.psi_statistics import LatentGaussians, expected_cross, psi1
from lvmogp.model.expected_likelihood import Basis
from lvmogp.model.posterior import CurveMoments, Posterior, curve_moments, grid_marginals, grid_means, marginals
from lvmogp.model.process import Process, WhitenedFeatures
from lvmogp.typing import Array, Float, HostFloat, HostInt, Scalar

_POINTS_AT_ONCE = 4_096
_CONDITIONS_AT_ONCE = 1_024


_curve_moments, _grid_means, _grid_marginals = compiled(curve_moments), compiled(grid_means), compiled(grid_marginals)
_marginals = compiled(marginals)


def _curves_of(fit: ClosedForm, numbers: HostInt) -> tuple[CurveMoments, HostInt]:
    # Moments that hold the trained conditions of these numbers, and the place of each number among them.
    if fit.curves is not None:
        return fit.curves, numbers
    distinct, places = np.unique(numbers, return_inverse=True)
    latents = jax.tree.map(lambda leaf: leaf[repeated(distinct)], fit.posterior.parameters.latents)
    return _curve_moments(fit.posterior, latents), places.reshape(-1)


def _at_once(fit: ClosedForm) -> int:
    return _CONDITIONS_AT_ONCE if fit.curves is None else len(fit.curves.weights)


def row_moments(
    model: Posterior, curves: CurveMoments, inputs: HostFloat, numbers: HostInt
) -> tuple[HostFloat, HostFloat]:
    """Return mean and variance of f at rows of conditions, ``numbers`` being their places among the curves."""
    layout = block_layout(numbers, len(curves.weights))
    blocks = jnp.asarray(inputs[layout.row], model.mean.dtype)
    parts = _marginals(model.input_basis, curves, blocks, jnp.asarray(layout.block_condition))
    present = layout.present > 0
    rows, ordered = layout.row[present], np.empty((2, len(inputs)))
    for whole, part in zip(ordered, parts, strict=True):
        whole[rows] = np.asarray(part)[present]
    return ordered[0], ordered[1]


def trained_row_moments(fit: ClosedForm, inputs: HostFloat, numbers: HostInt) -> tuple[HostFloat, HostFloat]:
    """Return mean and variance of f at rows of trained conditions, some conditions at a time where they are many."""
    if fit.curves is not None:
        return row_moments(fit.posterior, fit.curves, inputs, numbers)
    order = np.argsort(numbers, kind="stable")
    group = np.cumsum(np.r_[False, np.diff(numbers[order]) > 0]) // _CONDITIONS_AT_ONCE
    found = np.empty((2, len(inputs)))
    for rows in np.split(order, np.flatnonzero(np.diff(group)) + 1):
        curves, places = _curves_of(fit, numbers[rows])
        found[:, rows] = row_moments(fit.posterior, curves, inputs[rows], places)
    return found[0], found[1]


def trained_grid_moments(
    fit: ClosedForm, inputs: HostFloat, *, with_variance: bool
) -> tuple[HostFloat, HostFloat | None]:
    """Return the mean of f, and its variance on request, of all trained conditions at all inputs: (n, D)."""
    model = fit.posterior
    n_conditions = len(model.parameters.latent_mean)
    found = np.empty((1 + with_variance, len(inputs), n_conditions))
    for first in range(0, n_conditions, _at_once(fit)):
        numbers = np.arange(first, min(first + _at_once(fit), n_conditions))
        curves, places = _curves_of(fit, numbers)
        for start in range(0, len(inputs), _POINTS_AT_ONCE):
            rows = slice(start, min(start + _POINTS_AT_ONCE, len(inputs)))
            points = jnp.asarray(with_last_repeated(inputs[rows]), model.mean.dtype)
            if with_variance:
                parts = _grid_marginals(model.input_basis, curves, points)
            else:
                parts = (_grid_means(model.input_basis, curves, points),)
            for whole, part in zip(found, parts, strict=True):
                whole[rows, numbers[0] : numbers[-1] + 1] = np.asarray(part)[: rows.stop - start, places]
    return found[0], found[1] if with_variance else None


def gaussian_row_moments(fit: ClosedForm, latents: LatentGaussians, inputs: HostFloat) -> tuple[HostFloat, HostFloat]:
    """Return mean and variance of f at rows of one condition whose latents are Gaussian."""
    curves = _curve_moments(fit.posterior, latents)
    return row_moments(fit.posterior, curves, inputs, np.zeros(len(inputs), int))


def gaussian_slopes(fit: ClosedForm, latents: LatentGaussians, inputs: HostFloat) -> tuple[HostFloat, HostFloat]:
    """Return derivatives of mean and variance of f in each input column, for a condition whose latents are Gaussian."""
    curves = _curve_moments(fit.posterior, latents)
    points = jnp.asarray(with_last_repeated(inputs), fit.posterior.mean.dtype)
    by_mean, by_variance = _slopes(fit.posterior.input_basis, curves, points)
    return np.asarray(by_mean)[: len(inputs)], np.asarray(by_variance)[: len(inputs)]


@compiled
def _slopes(
    input_basis: Basis, curves: CurveMoments, points: Float[Array, "n Q_X"]
) -> tuple[Float[Array, "n Q_X"], Float[Array, "n Q_X"]]:
    def at(point: Float[Array, " Q_X"]) -> tuple[Scalar, Scalar]:
        mean, variance = marginals(input_basis, curves, point[None, None], jnp.zeros(1, int))
        return mean[0, 0], variance[0, 0]

    return jax.vmap(jax.jacfwd(at))(points)


class ErrorFunctional(eqx.Module):
    """Errors of the predictions at the rows of one condition, averaged over its latents.

    ``features`` is ⟨(a − AᵀW) cᵀ⟩, ``gain`` the W of each particle; ``latents`` are particles with weights or one
    Gaussian, which has no observations of its own.
    """

    points: Float[Array, "n Q_X"]
    covariance: Float[Array, "n n"]
    features: Float[Array, "n R C"]
    weights: Float[Array, " P"]
    latents: LatentGaussians
    gain: Float[Array, "P n m"] | None
    seen: FewObservations | None


@compiled
def _gaussian_functional(
    model: Posterior, process: Process, latents: LatentGaussians, points: Float[Array, "n Q_X"]
) -> ErrorFunctional:
    """Return the errors at rows of a condition whose latents are Gaussian."""
    curve = curve_moments(model, latents)
    features = model.input_basis.features(points)
    covariance = curve.prior_variance[0] * gram(model.input_basis.kernel, points)
    assert isinstance(process.latents, WhitenedFeatures)  # as in every process of a fit
    mean_features = process.latents.expected(latents)[0].astype(features.dtype)
    return ErrorFunctional(
        points=points,
        covariance=covariance + features @ curve.spread[0] @ features.T,
        features=process.inputs(points)[:, :, None] * mean_features,
        weights=jnp.ones(1, features.dtype),
        latents=latents,
        gain=None,
        seen=None,
    )


@compiled
def _particle_functional(
    process: Process,
    prepared: ParticleCurves,
    latents: Float[Array, "P Q_H"],
    weights: Float[Array, " P"],
    seen: FewObservations,
    points: Float[Array, "n Q_X"],
) -> ErrorFunctional:
    """Return the errors at rows of a condition of particles: within it, the covariance of their mixture."""
    features, one = process.inputs(points), jnp.ones(1, points.dtype)
    prior = gram(process.inputs.kernel, points)

    def one_particle(curve: ParticleCurves) -> tuple[Array, Array, Array]:
        to_seen = covariance_with_seen(process, curve, seen, points, features)
        gain = cho_solve((curve.factor, True), to_seen.T).T  # W = κ(x, X)(κ(X, X) + σ²I)⁻¹
        own = curve.scale * prior - curve.explained.covariance(features, one, features, one) - gain @ to_seen.T
        return curve.explained.mean(features, one) + to_seen @ curve.solution, own, gain

    means, own, gain = jax.lax.map(one_particle, prepared, batch_size=32)
    deviations = means - weights @ means
    reduced = features - gain @ seen.features(process)  # rows a − AᵀW of each particle
    return ErrorFunctional(
        points=points,
        covariance=jnp.einsum("p,pnm->nm", weights, own) + (deviations.T * weights) @ deviations,
        features=jnp.einsum("p,pnx,ph->nxh", weights, reduced, process.latents(latents)),
        weights=weights,
        latents=LatentGaussians(latents, jnp.zeros_like(latents), n_uncertain=0),
        gain=gain,
        seen=seen,
    )


@compiled
def _cross_covariance(process: Process, first: ErrorFunctional, second: ErrorFunctional) -> Float[Array, "n m"]:
    """Return the covariance of the errors of two conditions, whose latents are independent (equation 25)."""
    shared = _expected_kernel(process, first, second) * first.weights[:, None] * second.weights
    kernel = process.inputs.kernel
    through_kernel = jnp.sum(shared) * cross(kernel, first.points, second.points)
    if first.gain is not None and first.seen is not None:
        gain = jnp.einsum("p,pnm->nm", jnp.sum(shared, axis=1), first.gain)
        through_kernel -= gain @ first.seen.cross_gram(process, second.points, process.inputs(second.points)).T
    if second.gain is not None and second.seen is not None:
        gain = jnp.einsum("p,pnm->nm", jnp.sum(shared, axis=0), second.gain)
        through_kernel -= second.seen.cross_gram(process, first.points, process.inputs(first.points)) @ gain.T
    if first.gain is not None and second.gain is not None and first.seen is not None and second.seen is not None:
        between = first.seen.gram_with(process, second.seen)
        weighted = jnp.einsum("pq,pnm->qnm", shared, first.gain)
        through_kernel += jnp.einsum("qnm,mk,qjk->nj", weighted, between, second.gain)
    return through_kernel - process.explained.bilinear(first.features, second.features)


def _expected_kernel(process: Process, first: ErrorFunctional, second: ErrorFunctional) -> Float[Array, "P R"]:
    # ⟨k_H(h, h')⟩ between particles, Gaussians, or one of each.
    kernel = process.latents.kernel
    if first.gain is None and second.gain is None:
        return expected_cross(kernel, first.latents, second.latents)
    if first.gain is None:
        return psi1(kernel, second.latents.mean, first.latents)
    if second.gain is None:
        return psi1(kernel, first.latents.mean, second.latents).T
    return cross(kernel, first.latents.mean, second.latents.mean)


def joint_covariance(
    ensemble: Ensemble, fit: ClosedForm, conditions: list[Condition], rows: list[HostFloat]
) -> list[list[HostFloat]]:
    """Return the covariance of f between the rows of each pair of conditions, in standardised units, as blocks."""
    assert ensemble.processes is not None  # that of a fit is kept
    process, model = picked(ensemble.processes, 0), fit.posterior
    functionals: list[ErrorFunctional] = []
    for condition, points in zip(conditions, stacked_rows(rows), strict=True):
        padded = jnp.asarray(points, ensemble.dtype)
        if condition.gaussian is not None:
            functionals.append(_gaussian_functional(model, process, condition.gaussian, padded))
        else:
            assert condition.prepared is not None  # of every condition under one process
            particles = (condition.latents[0], jnp.exp(condition.log_weights[0]))
            functionals.append(_particle_functional(process, condition.prepared, *particles, condition.seen, padded))
    blocks: list[list[HostFloat]] = [[np.empty(0)] * len(rows) for _ in rows]
    for i, first in enumerate(functionals):
        blocks[i][i] = np.asarray(first.covariance)[: len(rows[i]), : len(rows[i])]
        for j in range(i):
            block = np.asarray(_cross_covariance(process, first, functionals[j]))[: len(rows[i]), : len(rows[j])]
            blocks[i][j], blocks[j][i] = block, block.T
    return blocks
