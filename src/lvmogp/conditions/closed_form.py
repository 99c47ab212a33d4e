"""Answers in closed form under the one process of a variational fit.

Moments of conditions whose latents are Gaussian; joint covariances of all conditions, errors of predictions covarying
through k_H and through the inducing variables (docs/mathematics.md, equations 24 and 25).
"""

from collections.abc import Iterator, Sequence
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve

from lvmogp.conditions.condition import Condition, all_particles
from lvmogp.conditions.curves import (
    FewObservations,
    ParticleCurves,
    Particles,
    at_points,
    covariance_with_seen,
    picked,
    with_slopes,
)
from lvmogp.conditions.ensemble import ClosedForm, Ensemble
from lvmogp.conditions.parts import of_part
from lvmogp.ground.compiling import compiled
from lvmogp.ground.padding import block_layout, repeated, with_last_repeated
from lvmogp.kernels.covariances import gram
from lvmogp.kernels.psi_statistics import LatentGaussians, expected_cross, of_all_conditions
from lvmogp.model.expected_likelihood import OwnCurves
from lvmogp.model.posterior import CurveMoments, Posterior, curve_moments, grid_marginals, grid_means, marginals
from lvmogp.model.process import Process, explained_of_sums
from lvmogp.typing import Array, Float, HostFloat, HostInt

_POINTS_AT_ONCE = 4_096
_CONDITIONS_AT_ONCE = 1_024


_curve_moments, _grid_means, _grid_marginals = compiled(curve_moments), compiled(grid_means), compiled(grid_marginals)
_marginals = compiled(marginals)


def _in_groups(fit: ClosedForm, numbers: HostInt) -> Iterator[tuple[HostInt | slice, CurveMoments, HostInt]]:
    # Rows of some trained conditions, their moments, and the place of each row's condition among these: of all
    # conditions where their moments are kept, of some at a time where they are too many.
    if fit.curves is not None:
        yield slice(None), fit.curves, numbers
        return
    distinct, places = np.unique(numbers, return_inverse=True)
    group = places // _CONDITIONS_AT_ONCE
    for number in range(-(-len(distinct) // _CONDITIONS_AT_ONCE)):
        rows, start = np.flatnonzero(group == number), number * _CONDITIONS_AT_ONCE
        some = repeated(distinct[start : start + _CONDITIONS_AT_ONCE])
        given = jax.tree.map(lambda leaf, some=some: leaf[some], (fit.posterior.parameters.latents, fit.own))
        yield rows, _curve_moments(fit.posterior, *given), places[rows] - start


def _row_moments(model: Posterior, curves: CurveMoments, inputs: HostFloat, numbers: HostInt) -> HostFloat:
    # ``numbers`` are the places of the rows' conditions among the curves.
    layout = block_layout(numbers, len(curves.weights))
    blocks = jnp.asarray(inputs[layout.row], model.mean.dtype)
    parts = _marginals(model.input_basis, curves, blocks, jnp.asarray(layout.block_condition))
    present = layout.present > 0
    rows, ordered = layout.row[present], np.empty((2, len(inputs)))
    for whole, part in zip(ordered, parts, strict=True):
        whole[rows] = np.asarray(part)[present]
    return ordered


def trained_row_moments(
    fit: ClosedForm, inputs: HostFloat, numbers: HostInt, part: HostFloat | None = None
) -> HostFloat:
    """Return mean and variance of f at rows of trained conditions, (2, n); or of a part of f, given its kernels."""
    found = np.empty((2, len(inputs)))
    for rows, curves, places in _in_groups(fit, numbers):
        chosen = curves if part is None else of_part(curves, part)
        found[:, rows] = _row_moments(fit.posterior, chosen, inputs[rows], places)
    return found


def trained_grid_moments(fit: ClosedForm, inputs: HostFloat, *, with_variance: bool) -> HostFloat:
    """Return mean and variance of f of all trained conditions at all inputs, (2, n, D); 0 if not asked for."""
    model = fit.posterior
    n_conditions = len(model.parameters.latent_mean)
    found = np.zeros((2, len(inputs), n_conditions))
    for columns, curves, places in _in_groups(fit, np.arange(n_conditions)):
        for start in range(0, len(inputs), _POINTS_AT_ONCE):
            rows = slice(start, min(start + _POINTS_AT_ONCE, len(inputs)))
            points = jnp.asarray(with_last_repeated(inputs[rows]), model.mean.dtype)
            given = (model.input_basis, curves, points)
            parts = _grid_marginals(*given) if with_variance else (_grid_means(*given),)
            for whole, part in zip(found, parts, strict=False):
                whole[rows, columns] = np.asarray(part)[: rows.stop - start, places]
    return found


def gaussian_row_moments(fit: ClosedForm, latents: LatentGaussians, inputs: HostFloat) -> HostFloat:
    """Return mean and variance of f at rows of one added condition whose latents are Gaussian, (2, n)."""
    curves = _curve_moments(fit.posterior, latents)
    return _row_moments(fit.posterior, curves, inputs, np.zeros(len(inputs), int))


def gaussian_slopes(fit: ClosedForm, condition: Condition, inputs: HostFloat) -> HostFloat:
    """Return derivatives of both in each input column, (2, n, Q_X), for a condition whose latents are Gaussian."""
    points, number = jnp.asarray(with_last_repeated(inputs), fit.posterior.mean.dtype), int(condition.number)
    own = None if number < 0 else jax.tree.map(lambda leaf: leaf[number][None], fit.own)
    assert condition.gaussian is not None
    return np.asarray(_slopes(fit.posterior, condition.gaussian, own, points))[:, : len(inputs)]


@compiled
def _slopes(
    model: Posterior, latents: LatentGaussians, own: OwnCurves | None, points: Float[Array, "n Q_X"]
) -> Float[Array, "2 n Q_X"]:
    curves, first = curve_moments(model, latents, own), jnp.zeros(1, int)
    found = with_slopes(lambda at: marginals(model.input_basis, curves, at[None], first), points, slopes=True)
    return jnp.stack([leaf[1:, 0].T for leaf in found])


# Joint covariances


class Errors(eqx.Module):
    """Errors of the predictions of the paper's model at the rows of conditions, each averaged over its own latents.

    ``latents`` are weighted particles or one Gaussian, ``gain`` is the J of each, and ``features`` is ⟨(a − AᵀJᵀ) cᵀ⟩.
    """

    points: Float[Array, "*C n Q_X"]
    covariance: Float[Array, "*C n n"]
    features: Float[Array, "*C n R M_H"]
    weights: Float[Array, "*C P"]
    latents: LatentGaussians
    gain: Float[Array, "*C P n m"]
    seen: FewObservations


@compiled
def _errors_of_gaussians(
    model: Posterior, processes: Process, latents: LatentGaussians, seen: FewObservations, rows: Float[Array, "C n Q_X"]
) -> Errors:
    """Return the errors at rows of conditions whose latents are Gaussian; they have no observations of their own."""
    process = picked(processes, 0)
    curves, expected = curve_moments(model, latents), process.latents.expected(latents)  # ⟨c⟩
    features, prior = (
        jax.vmap(model.input_basis.features)(rows),
        jax.vmap(partial(gram, process.inputs.kernels[0]))(rows),
    )
    shape = (len(rows), 1, rows.shape[1], len(seen.values))
    return Errors(
        points=rows,
        covariance=curves.prior_variance[:, :, None] * prior + features @ curves.spread @ features.mT,
        features=jax.vmap(process.inputs)(rows)[..., None] * expected[:, None, None, :].astype(features.dtype),
        weights=jnp.ones(shape[:2], features.dtype),
        latents=jax.tree.map(lambda leaf: leaf[:, None], latents),
        gain=jnp.zeros(shape, features.dtype),
        seen=jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(rows), *leaf.shape)), seen),
    )


@compiled
def _errors_of_particles(particles: Particles, points: Float[Array, "n Q_X"]) -> Errors:
    """Return the errors at rows of one condition of particles: within it, the covariance of their mixture."""
    process, seen, latents = picked(particles.processes, 0), particles.seen, particles.latents
    weights = jnp.exp(particles.log_weights)
    features, prior = process.inputs(points), gram(process.inputs.kernels[0], points)

    def one_particle(curve: ParticleCurves) -> tuple[Array, Array, Array]:
        to_seen = covariance_with_seen(process, curve, seen, points)
        gain = cho_solve((curve.factor, True), to_seen.T).T  # J = κ(x, X)(κ(X, X) + σ²I)⁻¹
        own = curve.scale * prior - curve.explained.covariance(features, features) - gain @ to_seen.T
        return curve.explained.mean(features) + to_seen @ curve.solution, own, gain

    means, own, gain = jax.lax.map(one_particle, particles.prepared, batch_size=32)
    deviations = means - weights @ means
    reduced = features - gain @ seen.features(process)  # rows a − AᵀJᵀ of each particle
    found = Errors(
        points=points,
        covariance=jnp.einsum("p,pnm->nm", weights, own) + (deviations.T * weights) @ deviations,
        features=jnp.einsum("p,pnx,ph->nxh", weights, reduced, process.latents(latents)),
        weights=weights,
        latents=LatentGaussians(latents, jnp.zeros_like(latents), n_uncertain=0),
        gain=gain,
        seen=seen,
    )
    return jax.tree.map(lambda leaf: leaf[None], found)


@compiled
def _covariance_between(processes: Process, first: Errors, second: Errors) -> Float[Array, "C n D k"]:
    """Return the covariance of the errors of two conditions whose latents are independent, all pairs (equation 25)."""
    process = picked(processes, 0)

    def of_pair(one: Errors, other: Errors) -> Float[Array, "n k"]:
        # w_p w_q ⟨k_H(h_p, h_q)⟩, and Σ_q and Σ_p of it with the gains
        shared = expected_cross(process.latents.kernels[0], one.latents, other.latents)
        shared = shared * one.weights[:, None] * other.weights
        left = jnp.einsum("pq,pnm->nm", shared, one.gain)
        right = jnp.einsum("pq,qnm->nm", shared, other.gain)
        both = jnp.einsum("pq,pnm->qnm", shared, one.gain)
        rows, other_rows = at_points(one.points), at_points(other.points)
        through_kernel = (
            jnp.sum(shared) * rows.gram_with(process, other_rows)[0]
            - left @ one.seen.gram_with(process, other_rows)[0]
            - rows.gram_with(process, other.seen)[0] @ right.T
            + jnp.einsum("qnm,mk,qjk->nj", both, one.seen.gram_with(process, other.seen)[0], other.gain)
        )
        return through_kernel - explained_of_sums(process, one.features, other.features)

    return jax.vmap(jax.vmap(of_pair, in_axes=(None, 0), out_axes=1), in_axes=(0, None))(first, second)


def covariance_of_errors(
    ensemble: Ensemble, model: Posterior, conditions: Sequence[Condition], rows: Float[Array, "C n Q_X"]
) -> HostFloat:
    """Return the covariance of f between the rows of all conditions, those of padded rows among them."""
    # Conditions whose latents are Gaussian are one group, each of the others is one of its own.
    assert ensemble.processes is not None  # that of a fit is kept
    gaussians = [place for place, condition in enumerate(conditions) if condition.gaussian is not None]
    groups: list[tuple[HostInt, Errors]] = []
    if gaussians:
        latents = of_all_conditions([each.gaussian for each in conditions if each.gaussian is not None])
        padded = repeated(np.arange(len(gaussians)))
        latents = jax.tree.map(lambda leaf: leaf[padded], latents)
        given = (latents, conditions[gaussians[0]].seen, rows[np.asarray(gaussians)[padded]])
        groups.append((np.asarray(gaussians), _errors_of_gaussians(model, ensemble.processes, *given)))
    for place, condition in enumerate(conditions):
        if condition.gaussian is None:
            errors = _errors_of_particles(all_particles(ensemble, condition), rows[place])
            groups.append((np.array([place]), errors))
    (n_conditions, n_rows, _), every = rows.shape, np.arange(rows.shape[1])
    joint = np.empty((n_conditions, n_rows, n_conditions, n_rows))
    for number, (first, own) in enumerate(groups):
        for second, other in groups[: number + (len(first) > 1)]:
            found = np.asarray(_covariance_between(ensemble.processes, own, other))[: len(first), :, : len(second)]
            joint[np.ix_(first, every, second, every)] = found
            joint[np.ix_(second, every, first, every)] = found.transpose(2, 3, 0, 1)
        joint[first, :, first] = np.asarray(own.covariance)[: len(first)]
    joint = joint.reshape(n_conditions * n_rows, n_conditions * n_rows)
    return (joint + joint.T) / 2  # rounding leaves it unsymmetric
