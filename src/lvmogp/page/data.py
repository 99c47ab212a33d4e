"""What the page of a model computes with, as plain values and encoded arrays.

The page predicts by itself, exactly, so it gets the whole posterior: kernels and factors of the inducing points, the
mean of q(v) and I − S, the moments of the latents of each condition, what its observations say of its own curve, and
the tables by which the latents of a new condition are searched. Names are those of the JavaScript files beside
``page/template.html``.

Of a model with posterior draws the page shows the curves of the conditions as the draws have them at the inducing
inputs; what it computes at latents that people choose is the variational fit's.
"""

import base64
import re
from typing import Any

import jax.numpy as jnp
import numpy as np

from lvmogp.algebra.linalg import smallest_jitter
from lvmogp.conditions.condition import (
    MOST_PARTICLES,
    N_NODES,
    Condition,
    known_latents,
    mean_noise,
    standard_noise_nodes,
)
from lvmogp.conditions.curves import MOST_EXACT, PLACES, picked
from lvmogp.conditions.ensemble import Ensemble, ensemble_of_fit
from lvmogp.conditions.infer import SEARCH, starting_points
from lvmogp.conditions.joint import joint_covariance
from lvmogp.conditions.predictive import condition_curves
from lvmogp.conditions.search import normal_nodes, unit_nodes
from lvmogp.errors import SettingError
from lvmogp.fitted.model import FittedModel, all_latents, find_condition, noise_variances, trained_latents
from lvmogp.fitted.suggestions import N_OUTCOMES
from lvmogp.ground.compiling import compiled
from lvmogp.kernels.covariances import Constant, Kernel, diagonal, plain_kernel
from lvmogp.kernels.psi_statistics import of_all_conditions
from lvmogp.model.expected_likelihood import OwnCurves
from lvmogp.model.features import Basis, basis, latent_moments
from lvmogp.model.layouts import standardised
from lvmogp.model.posterior import KroneckerCovariance, Posterior
from lvmogp.tables.observations import Observations
from lvmogp.typing import HostFloat

Document = dict[str, Any]
_latent_moments = compiled(latent_moments)
# Beyond these the page would grow past some ten megabytes.
_MOST_DOUBLES, _MOST_MOMENTS, _MOST_SHOWN, _MOST_OF_OWN = 600_000, 300_000, 20_000, 2_000_000
_LEAST_SHOWN_PER_CONDITION = 20
# Directions in which a condition's own curve is hardly known, relative to the one that is known best.
_NEGLIGIBLE = 1e-11


def page_data(model: FittedModel) -> Document:
    """Return posterior, units, conditions and their observations; what is merely shown is not part of it."""
    posterior, scaling, n_coordinates = model.posterior, model.scaling, model.posterior.latent_basis.points.shape[1]
    # What the page computes with, also where the model itself answers from draws.
    fit = model.ensemble
    if fit.fit is None:
        fit = ensemble_of_fit(posterior, standardised(model.schema, scaling))
    return {
        "inputs": _input_ranges(model),
        "scaling": {
            "inputMean": scaling.input_mean.tolist(),
            "inputScale": scaling.input_scale.tolist(),
            "outputMean": scaling.output_mean,
            "outputScale": scaling.output_scale,
            "transform": scaling.transform_name,
        },
        "nLatent": n_coordinates,
        "inputBasis": _basis(posterior.input_basis),
        "latentBasis": _basis(posterior.latent_basis),
        "mean": encoded(posterior.mean),
        "covariance": _covariance(posterior),
        **_interpolation(model),
        "jitter": smallest_jitter(posterior.mean.dtype),
        "noise": {
            "atLatent": _geometric_mean(fit.noise),
            "ownAtLatent": _geometric_mean(fit.own),
            "shared": fit.noise_prior.shared,
            "priorMean": float(fit.noise_prior.mean[0]),
            "priorDeviation": float(fit.noise_prior.deviation[0]),
            "ownDeviation": None if fit.noise_prior.own_deviation is None else float(fit.noise_prior.own_deviation[0]),
        },
        "latentNodes": encoded(normal_nodes(N_NODES, n_coordinates)),
        "noiseNodes": encoded(standard_noise_nodes(n_coordinates)),
        "search": _search(fit, model.n_latent),
        "fromDraws": model.ensemble.fit is None,
        "outcomeNodes": encoded(np.column_stack([unit_nodes(N_OUTCOMES, 2)[:, 0], normal_nodes(N_OUTCOMES, 2)[:, 1]])),
        "conditions": _conditions(model),
    }


def encoded(array: Any, *, most_doubles: int | None = None) -> Document:
    """Return numbers in base64: as float64, or beyond ``most_doubles`` of them in 32-bit fixed point."""
    values = np.asarray(array, dtype="<f8")
    if most_doubles is None or values.size <= most_doubles:
        return {"type": "float64", "base64": base64.b64encode(values.tobytes()).decode("ascii")}
    step = (float(np.abs(values).max()) or 1.0) / (2**31 - 1)
    whole = np.rint(values / step).astype("<i4")
    return {"type": "fixed", "step": step, "base64": base64.b64encode(whole.tobytes()).decode("ascii")}


def _input_ranges(model: FittedModel) -> list[Document]:
    scaling, columns = model.scaling, model.schema.columns or [None] * model.schema.n_columns
    observed = scaling.restored_inputs(scaling.input_mean + np.array([[-2.0], [0.0], [2.0]]) * scaling.input_scale)
    if model.observations is not None:
        observed = model.observations.inputs
    low, middle, high = (statistic(observed, axis=0).tolist() for statistic in (np.min, np.median, np.max))
    return [
        {
            "low": low[q],
            "high": high[q],
            "middle": middle[q],
            "isDate": name in model.schema.date_columns,
            "isLog": q in scaling.log_columns,
        }
        for q, name in enumerate(columns)
    ]


def _geometric_mean(values: Any) -> float:
    return float(np.exp(np.mean(np.log(np.asarray(values, dtype=float)))))


def _basis(basis: Basis) -> Document:
    return {
        "kernels": [plain_kernel(kernel) for kernel in basis.kernels],
        "nPoints": basis.points.shape[0],
        "points": encoded(basis.points),
        "factors": encoded(basis.factors),
        "constant": basis.constant,
    }


def _covariance(posterior: Posterior) -> Document:
    covariance = posterior.covariance
    if isinstance(covariance, KroneckerCovariance) and posterior.parameters.kernels.is_plain:
        return {
            "kind": "kronecker",
            "inputBasis": encoded(covariance.input_basis),
            "latentBasis": encoded(covariance.latent_basis),
            "missing": encoded(1 - np.asarray(covariance.variances, dtype=float)),
        }
    # Fixed point loses 1e-10 of the prior variance.
    size, blocks = posterior.mean.size, np.asarray(covariance.blocks, dtype=float)
    matrix = np.eye(size) - blocks.transpose(0, 2, 1, 3).reshape(size, size)
    return {"kind": "dense", "missing": encoded(matrix[np.triu_indices(size)], most_doubles=_MOST_DOUBLES)}


def _interpolation(model: FittedModel) -> Document:
    # What draws know of curves between inducing inputs: nothing more than the prior says.
    if model.ensemble.fit is not None:
        return {"drawnScale": None, "drawnBasis": None}
    inducing, scales = _drawn_basis(model.posterior)
    plain = model.posterior.parameters.kernels.is_plain
    return {"drawnScale": scales.tolist(), "drawnBasis": None if plain else _basis(inducing)}


def _drawn_basis(posterior: Posterior) -> tuple[Basis, HostFloat]:
    """Return the basis of the kernel by which curves of draws are interpolated, with the scale of each input kernel.

    Each term has the prior variance of its latents' kernel at the centre. One kernel is left as it is, the scale being
    applied to what is found; several are summed up.
    """
    kernels, latents = posterior.parameters.kernels, posterior.latent_basis
    centre = jnp.zeros((1, latents.points.shape[1]))
    scales = [
        1.0 if each.latent_kernel is None else float(diagonal(each.latent_kernel, centre)[0]) for each in kernels.terms
    ]
    scales += [1.0] * (kernels.own is not None)
    if kernels.is_plain:
        return posterior.input_basis, np.array(scales)
    parts = [Constant(scale) * kernel for scale, kernel in zip(scales, kernels.of_inputs, strict=True)]
    total: Kernel = parts[0]
    for part in parts[1:]:
        total = total + part
    return basis((total,), posterior.input_basis.points), np.array(scales)


def _search(fit: Ensemble, n_latent: int) -> Document:
    # A condition that is typed into the page has no features yet.
    starts = np.asarray(starting_points(fit, known_latents(fit, n_latent), SEARCH)[0])
    n_theta = starts.shape[1]
    # The particles' nodes are the first of the scouts'.
    nodes = unit_nodes(SEARCH.n_scouts, 1 + n_theta)
    normal = normal_nodes(SEARCH.n_scouts, 1 + n_theta)
    return {
        "nTheta": n_theta,
        "starts": encoded(starts),
        "nodes": encoded(np.column_stack([nodes[:, :1], normal[:, 1:]])),
        "priorNodes": encoded(normal_nodes(MOST_PARTICLES, n_theta)),
        **{re.sub("_(.)", lambda found: found[1].upper(), name): value for name, value in SEARCH._asdict().items()},
        "paddedSizes": PLACES,
        "mostPoints": MOST_EXACT,
    }


def _conditions(model: FittedModel) -> list[Document]:
    latents, added = all_latents(model), [entry.condition for entry in model.added.values()]
    means, deviations = np.asarray(latents.mean).tolist(), np.sqrt(latents.variance).tolist()
    noises = [*noise_variances(model), *(mean_noise(model.ensemble, condition) for condition in added)]
    curves = _curves_of_draws(model) if model.ensemble.fit is None else _curves_of_fit(model, added)
    shown = _shown_data(model.observations, len(model.ids))
    shown += [_observations(entry.inputs, entry.outputs, len(entry.outputs)) for entry in model.added.values()]
    # Under draws, and by particles, it is uncertain in their way.
    uncertain = [*np.asarray(model.ensemble.noise_deviation[0], dtype=float).tolist(), *[0.0] * len(added)]
    columns = zip(model.all_ids, means, deviations, noises, uncertain, curves, shown, strict=True)
    return [
        {
            "name": str(name),
            "added": name in model.added,
            "latentMean": mean,
            "latentSd": deviation,
            "noise": float(noise),
            "noiseDeviation": deviation_of_noise,
            **curve,
            **data,
        }
        for name, mean, deviation, noise, deviation_of_noise, curve, data in columns
    ]


def _curves_of_fit(model: FittedModel, added: list[Condition]) -> list[Document]:
    # Gaussian latents by their moments, others by their particles.
    gaussians = [trained_latents(model.ensemble), *(each.gaussian for each in added if each.gaussian is not None)]
    n_gaussians, pairs = sum(len(each.mean) for each in gaussians), np.triu_indices(model.posterior.mean.shape[1])
    moments: list[Document | None] = [None] * n_gaussians  # the page then takes quasi-random points of the latents
    if len(model.all_ids) * len(pairs[0]) <= _MOST_MOMENTS:
        found = _latent_moments(model.posterior.latent_basis, of_all_conditions(gaussians))
        columns = map(np.asarray, (found.prior_variance, found.mean, found.second))
        moments = [
            {"priorVariance": prior.tolist(), "mean": encoded(mean), "second": encoded(second[pairs])}
            for prior, mean, second in zip(*columns, strict=True)
        ]
    described = ({"kind": "gaussian", "moments": each} for each in moments)
    assert model.ensemble.fit is not None
    own = model.ensemble.fit.own
    of_own: list[Document] = [{}] * len(model.ids) if own is None else [{"own": each} for each in _own_curves(own)]
    trained = [next(described) | each for each in of_own]
    return trained + [_particles(model, each) if each.gaussian is None else next(described) for each in added]


def _own_curves(own: OwnCurves) -> list[Document]:
    """Return what the data say of each condition's own curve, along as many directions as its observations tell of."""
    rotated, columns = [], (np.asarray(each, dtype=float) for each in (own.gain, own.offset, own.reduction))
    for gain, offset, reduction in zip(*columns, strict=True):
        directions, sizes, _ = np.linalg.svd(np.column_stack([gain, offset, reduction]), full_matrices=False)
        known = directions[:, sizes > _NEGLIGIBLE * sizes[0]].T if sizes[0] > 0 else directions[:, :0].T
        rotated.append((known, known @ gain, known @ offset, known @ reduction @ known.T))
    size = sum(part.size for parts in rotated for part in parts)
    if size > _MOST_OF_OWN:
        raise SettingError(
            f"a page of {len(rotated):,} conditions with curves of their own would hold {size:,} numbers about these, "
            f"and the most is {_MOST_OF_OWN:,}; fit with own_kernel=None, or with fewer n_inducing_inputs, for a page"
        )
    most = None if size <= _MOST_DOUBLES else 0
    names, scales = ("directions", "gain", "offset", "reduction"), np.asarray(own.scale, dtype=float)
    return [
        {"scale": float(scale)}
        | {name: encoded(part, most_doubles=most) for name, part in zip(names, parts, strict=True)}
        for scale, parts in zip(scales, rotated, strict=True)
    ]


def _curves_of_draws(model: FittedModel) -> list[Document]:
    """Return curves that are known at the inducing inputs, and between them as the fitted kernel interpolates.

    Mean aᵀw and variance ψ k_X(x, x) + aᵀGa with w = L⁻¹m and G = L⁻¹CL⁻ᵀ − ψI; ψ is the prior variance of the latents'
    kernel at its centre, which matters where no inducing input is near. Of several kernels the sum of all interpolates.
    """
    inputs, scales = _drawn_basis(model.posterior)
    points, factor = np.asarray(inputs.points, dtype=float), np.asarray(inputs.factors[0], dtype=float)
    prior_variance = float(scales[0]) if model.posterior.parameters.kernels.is_plain else 1.0
    described = []
    for name in model.all_ids:
        condition = find_condition(model, name, unseen="error")
        curves = condition_curves(model.ensemble, condition, points)
        covariance = joint_covariance(model.ensemble, [condition], [points])
        whitened = np.linalg.solve(factor, np.linalg.solve(factor, covariance).T)
        curve = {
            "weights": encoded(np.linalg.solve(factor, np.asarray(curves.weights @ curves.means[0])[: len(points)])),
            "spread": encoded(whitened - prior_variance * np.eye(len(factor))),
        }
        described.append({"kind": "drawn", "curve": curve})
    return described


def _particles(model: FittedModel, condition: Condition) -> Document:
    seen = condition.seen
    present = np.asarray(seen.present) > 0
    assert model.ensemble.processes is not None  # that of a fit is kept
    process = picked(model.ensemble.processes, 0)
    features = np.asarray(seen.features(process))
    covariance, kernels = model.posterior.covariance, model.posterior.parameters.kernels
    if isinstance(covariance, KroneckerCovariance) and kernels.is_plain:
        features = features @ np.asarray(covariance.input_basis).T  # as they are before they are turned
    return {
        "kind": "particles",
        "latents": encoded(condition.latents[0]),
        "noises": encoded(condition.noise[0]),
        **({} if kernels.own is None else {"owns": encoded(condition.own[0])}),
        "weights": encoded(condition.weights[0]),
        "evidence": {
            "points": encoded(np.asarray(seen.inputs)[present]),
            "features": encoded(features[present]),
            "gram": encoded(np.asarray(seen.gram_with(process, seen))[:, present][:, :, present]),
            "values": encoded(np.asarray(seen.values)[present]),
            "errors": encoded(np.asarray(seen.error_variances)[present]),
            "paddedSize": len(present),
            "compressed": seen.compressed is not None,
        },
    }


def _shown_data(observations: Observations | None, n_conditions: int) -> list[Document]:
    # Observations of each trained condition: all of them, or a random part where there are very many.
    if observations is None:
        return [_observations(np.empty((0, 1)), np.empty(0), 0)] * n_conditions
    most = max(_LEAST_SHOWN_PER_CONDITION, _MOST_SHOWN // n_conditions)
    rng = np.random.default_rng(0)
    ends = np.cumsum(np.bincount(observations.conditions, minlength=n_conditions))
    shown = []
    for rows in np.split(np.argsort(observations.conditions, kind="stable"), ends[:-1]):
        some = rows if len(rows) <= most else rng.choice(rows, most, replace=False)
        shown.append(_observations(observations.inputs[some], observations.outputs[some], len(rows)))
    return shown


def _observations(inputs: HostFloat, outputs: HostFloat, count: int) -> Document:
    return {"inputs": encoded(inputs), "outputs": encoded(outputs), "nObservations": count}
