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
from lvmogp.conditions.few_observations import FewObservations, at_points
from lvmogp.ground.compiling import compiled
from lvmogp.ground.padding import block_layout, repeated, stacked_rows, with_last_repeated
from lvmogp.kernels.covariances import gram
from lvmogp.kernels.psi_statistics import LatentGaussians, expected_cross, of_all_conditions
from lvmogp.model.expected_likelihood import Basis
from lvmogp.model.posterior import CurveMoments, Posterior, curve_moments, grid_marginals, grid_means, marginals
from lvmogp.model.process import Process, explained_of_sums
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


def trained_grid_moments(fit: ClosedForm, inputs: HostFloat, *, with_variance: bool) -> tuple[HostFloat, HostFloat]:
    """Return mean and variance of f of all trained conditions at all inputs, (n, D); variances not asked for are 0."""
    model = fit.posterior
    n_conditions = len(model.parameters.latent_mean)
    found = np.zeros((2, len(inputs), n_conditions))
    at_once = _CONDITIONS_AT_ONCE if fit.curves is None else n_conditions
    for first in range(0, n_conditions, at_once):
        numbers = np.arange(first, min(first + at_once, n_conditions))
        curves, places = _curves_of(fit, numbers)
        for start in range(0, len(inputs), _POINTS_AT_ONCE):
            rows = slice(start, min(start + _POINTS_AT_ONCE, len(inputs)))
            points = jnp.asarray(with_last_repeated(inputs[rows]), model.mean.dtype)
            given = (model.input_basis, curves, points)
            parts = _grid_marginals(*given) if with_variance else (_grid_means(*given),)
            for whole, part in zip(found, parts, strict=False):
                whole[rows, numbers[0] : numbers[-1] + 1] = np.asarray(part)[: rows.stop - start, places]
    return found[0], found[1]


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

    ``latents`` are weighted particles or one Gaussian, ``gain`` is the W of each, and ``features`` is ⟨(a − AᵀW) cᵀ⟩.
    """

    points: Float[Array, "n Q_X"]
    covariance: Float[Array, "n n"]
    features: Float[Array, "n R C"]
    weights: Float[Array, " P"]
    latents: LatentGaussians
    gain: Float[Array, "P n m"]
    seen: FewObservations


@compiled
def _gaussian_functionals(
    model: Posterior, processes: Process, latents: LatentGaussians, seen: FewObservations, rows: Float[Array, "C n Q_X"]
) -> ErrorFunctional:
    """Return the errors at rows of conditions whose latents are Gaussian; they have no observations of their own."""
    process = picked(processes, 0)
    curves, mean_features = curve_moments(model, latents), process.latents.expected(latents)

    def one_condition(
        curve: CurveMoments, mean_feature: Float[Array, " H"], own: LatentGaussians, points: Float[Array, "n Q_X"]
    ) -> ErrorFunctional:
        features = model.input_basis.features(points)
        covariance = curve.prior_variance * gram(model.input_basis.kernel, points)
        return ErrorFunctional(
            points=points,
            covariance=covariance + features @ curve.spread @ features.T,
            features=process.inputs(points)[:, :, None] * mean_feature.astype(features.dtype),
            weights=jnp.ones(1, features.dtype),
            latents=jax.tree.map(lambda leaf: leaf[None], own),
            gain=jnp.zeros((1, len(points), len(seen.values)), features.dtype),
            seen=seen,
        )

    return jax.vmap(one_condition)(curves, mean_features, latents, rows)


@compiled
def _gaussian_covariance(processes: Process, all_of: ErrorFunctional) -> Float[Array, "C n C n"]:
    """Return the covariance of the errors at the rows of all conditions whose latents are Gaussian (equation 25)."""
    process, (n_conditions, n_rows, _) = picked(processes, 0), all_of.points.shape
    points, features, latents = jax.tree.map(
        lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (all_of.points, all_of.features, all_of.latents)
    )
    shared = expected_cross(process.latents.kernel, latents, latents)[:, None, :, None]  # ⟨k_H(h, h')⟩
    shape, places = (n_conditions, n_rows, n_conditions, n_rows), jnp.arange(n_conditions)
    found = shared * gram(process.inputs.kernel, points).reshape(shape)
    found = found - explained_of_sums(process, features, features).reshape(shape)
    found = (found + found.transpose(2, 3, 0, 1)) / 2  # rounding would leave it unsymmetric
    return found.at[places, :, places].set(all_of.covariance)


@compiled
def _particle_functional(
    processes: Process,
    prepared: ParticleCurves,
    latents: Float[Array, "P Q_H"],
    log_weights: Float[Array, " P"],
    seen: FewObservations,
    points: Float[Array, "n Q_X"],
) -> ErrorFunctional:
    """Return the errors at rows of a condition of particles: within it, the covariance of their mixture."""
    process, weights, one = picked(processes, 0), jnp.exp(log_weights), jnp.ones(1, points.dtype)
    features, prior = process.inputs(points), gram(process.inputs.kernel, points)

    def one_particle(curve: ParticleCurves) -> tuple[Array, Array, Array]:
        to_seen = covariance_with_seen(process, curve, seen, points)
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
def _cross_covariance(processes: Process, first: ErrorFunctional, second: ErrorFunctional) -> Float[Array, "n m"]:
    """Return the covariance of the errors of two conditions, whose latents are independent (equation 25)."""
    process = picked(processes, 0)
    # w_p w_q ⟨k_H(h_p, h_q)⟩, and Σ_q and Σ_p of it with the gains
    shared = expected_cross(process.latents.kernel, first.latents, second.latents)
    shared = shared * first.weights[:, None] * second.weights
    left = jnp.einsum("pq,pnm->nm", shared, first.gain)
    right = jnp.einsum("pq,qnm->nm", shared, second.gain)
    both = jnp.einsum("pq,pnm->qnm", shared, first.gain)
    rows, other_rows = at_points(first.points), at_points(second.points)
    through_kernel = (
        jnp.sum(shared) * rows.gram_with(process, other_rows)
        - left @ first.seen.gram_with(process, other_rows)
        - rows.gram_with(process, second.seen) @ right.T
        + jnp.einsum("qnm,mk,qjk->nj", both, first.seen.gram_with(process, second.seen), second.gain)
    )
    return through_kernel - explained_of_sums(process, first.features, second.features)


def joint_covariance(
    ensemble: Ensemble, fit: ClosedForm, conditions: list[Condition], rows: list[HostFloat]
) -> list[list[HostFloat]]:
    """Return the covariance of f between the rows of each pair of conditions, in standardised units, as blocks."""
    processes, points = ensemble.processes, jnp.asarray(stacked_rows(rows), ensemble.dtype)
    assert processes is not None  # that of a fit is kept
    blocks: list[list[HostFloat]] = [[np.empty(0)] * len(rows) for _ in rows]
    gaussians = [place for place, condition in enumerate(conditions) if condition.gaussian is not None]
    functionals: dict[int, ErrorFunctional] = {}
    if gaussians:
        chosen = repeated(np.asarray(gaussians))
        latents = of_all_conditions([each.gaussian for each in conditions if each.gaussian is not None])
        latents = jax.tree.map(lambda leaf: leaf[repeated(np.arange(len(gaussians)))], latents)
        all_of = _gaussian_functionals(fit.posterior, processes, latents, conditions[gaussians[0]].seen, points[chosen])
        joint = np.asarray(_gaussian_covariance(processes, all_of))
        for number, place in enumerate(gaussians):
            for other_number, other in enumerate(gaussians):
                blocks[place][other] = joint[number, : len(rows[place]), other_number, : len(rows[other])]
            if len(gaussians) < len(conditions):
                functionals[place] = jax.tree.map(lambda leaf, number=number: leaf[number], all_of)
    for place, condition in enumerate(conditions):
        if condition.gaussian is None:
            assert condition.prepared is not None  # of every condition under one process
            particles = (condition.prepared, condition.latents[0], condition.log_weights[0], condition.seen)
            own = functionals[place] = _particle_functional(processes, *particles, points[place])
            blocks[place][place] = np.asarray(own.covariance)[: len(rows[place]), : len(rows[place])]
            for other in [each for each in functionals if each != place]:
                block = np.asarray(_cross_covariance(processes, own, functionals[other]))
                blocks[place][other] = block[: len(rows[place]), : len(rows[other])]
                blocks[other][place] = blocks[place][other].T
    return blocks
