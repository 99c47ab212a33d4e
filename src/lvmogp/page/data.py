"""What the page of a model computes with, as plain values and encoded arrays.

The page predicts by itself, exactly, so it gets the whole posterior: kernels and factors of the inducing points, the
mean of q(v) and I − S, the moments of the latents of each condition, and the tables by which the latents of a new
condition are searched. Names are those of the JavaScript files beside ``page/template.html``.

Of a model with posterior draws the page shows the curves of the conditions as the draws have them at the inducing
inputs; what it computes at latents that people choose is the variational fit's.
"""

import base64
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.algebra.linalg import smallest_jitter, symmetric_pairs
from lvmogp.conditions.condition import MOST_PARTICLES, N_NODES, Condition, known_latents, latent_gaussian, mean_noise
from lvmogp.conditions.curves import picked
from lvmogp.conditions.ensemble import Ensemble, ensemble_of_fit
from lvmogp.conditions.few_observations import MOST_EXACT, PLACES
from lvmogp.conditions.infer import SEARCH, starting_points
from lvmogp.conditions.joint import joint_covariance
from lvmogp.conditions.predictive import condition_curves
from lvmogp.conditions.search import normal_nodes, unit_nodes
from lvmogp.fitted.model import FittedModel, all_latents, find_condition
from lvmogp.fitted.suggestions import N_OUTCOMES
from lvmogp.ground.compiling import compiled
from lvmogp.kernels.covariances import diagonal, plain_kernel
from lvmogp.kernels.psi_statistics import LatentGaussians
from lvmogp.model.expected_likelihood import Basis, latent_moments
from lvmogp.model.posterior import DenseCovariance, KroneckerCovariance, Posterior
from lvmogp.tables.observations import Observations
from lvmogp.typing import HostFloat

Document = dict[str, Any]
_latent_moments = compiled(latent_moments)
# Beyond these the page would grow past some ten megabytes.
_MOST_DOUBLES = 600_000
_MOST_MOMENTS = 300_000
_MOST_SHOWN = 20_000
_LEAST_SHOWN_PER_CONDITION = 20


def page_data(model: FittedModel) -> Document:
    """Posterior, units, conditions and their observations; what is merely shown is not part of it."""
    posterior, scaling = model.posterior, model.scaling
    fit = _fit(model)
    noise = fit.noise_prior
    return {
        "inputs": _input_ranges(model),
        "scaling": {
            "inputMean": scaling.input_mean.tolist(),
            "inputScale": scaling.input_scale.tolist(),
            "outputMean": scaling.output_mean,
            "outputScale": scaling.output_scale,
            "transform": scaling.transform_name,
        },
        "nLatent": posterior.latent_basis.points.shape[1],
        "inputBasis": _basis(posterior.input_basis),
        "latentBasis": _basis(posterior.latent_basis),
        "mean": encoded(posterior.mean),
        "covariance": _covariance(posterior),
        "jitter": smallest_jitter(posterior.mean.dtype),
        "noise": {
            "atLatent": float(np.exp(np.mean(np.log(np.asarray(posterior.parameters.noise_variance, dtype=float))))),
            "shared": noise.shared,
            "priorMean": float(noise.mean[0]),
            "priorDeviation": float(noise.deviation[0]),
        },
        "latentNodes": encoded(normal_nodes(N_NODES, posterior.latent_basis.points.shape[1])),
        "search": _search(fit, model.n_latent),
        "fromDraws": model.ensemble.fit is None,
        "outcomeNodes": encoded(np.column_stack([unit_nodes(N_OUTCOMES, 2)[:, 0], normal_nodes(N_OUTCOMES, 2)[:, 1]])),
        "conditions": _conditions(model),
    }


def _fit(model: FittedModel) -> Ensemble:
    # What the page computes with, also where the model itself answers from draws.
    return ensemble_of_fit(model.posterior) if model.ensemble.fit is None else model.ensemble


def encoded(array: Any, *, most_doubles: int | None = None) -> Document:
    """Numbers in base64: as float64, or beyond ``most_doubles`` of them in 32-bit fixed point."""
    values = np.asarray(array, dtype="<f8")
    if most_doubles is None or values.size <= most_doubles:
        return {"type": "float64", "base64": base64.b64encode(values.tobytes()).decode("ascii")}
    step = float(np.abs(values).max()) / (2**31 - 1)
    whole = np.rint(values / step).astype("<i4")
    return {"type": "fixed", "step": step, "base64": base64.b64encode(whole.tobytes()).decode("ascii")}


def _input_ranges(model: FittedModel) -> list[Document]:
    mean, scale = model.scaling.input_mean, model.scaling.input_scale
    low, middle, high = mean - 2 * scale, mean, mean + 2 * scale
    if model.observations is not None:
        observed = model.observations.inputs
        low, middle, high = observed.min(axis=0), np.median(observed, axis=0), observed.max(axis=0)
    return [
        {
            "low": float(low[column]),
            "high": float(high[column]),
            "middle": float(middle[column]),
            "isDate": model.schema.columns is not None and model.schema.columns[column] in model.schema.date_columns,
        }
        for column in range(model.schema.n_columns)
    ]


def _basis(basis: Basis) -> Document:
    return {
        "kernel": plain_kernel(basis.kernel),
        "nPoints": basis.points.shape[0],
        "points": encoded(basis.points),
        "factor": encoded(basis.factor),
    }


def _covariance(posterior: Posterior) -> Document:
    covariance = posterior.covariance
    if isinstance(covariance, DenseCovariance):
        # Fixed point loses 1e-10 of the prior variance.
        matrix = np.eye(posterior.mean.size) - np.asarray(covariance.matrix, dtype=float)
        upper = matrix[symmetric_pairs(len(matrix))]
        return {"kind": "dense", "missing": encoded(upper, most_doubles=_MOST_DOUBLES)}
    if isinstance(covariance, KroneckerCovariance):
        return {
            "kind": "kronecker",
            "inputBasis": encoded(covariance.input_basis),
            "latentBasis": encoded(covariance.latent_basis),
            "missing": encoded(1 - np.asarray(covariance.variances, dtype=float)),
        }
    raise TypeError(f"the page knows no covariance of the kind {type(covariance).__name__}")


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
        "nParticles": SEARCH.n_particles,
        "nScouts": SEARCH.n_scouts,
        "nStarts": SEARCH.n_starts,
        "nStartsOfManyPoints": SEARCH.n_starts_of_many_points,
        "manyPoints": SEARCH.many_points,
        "newtonSteps": SEARCH.newton_steps,
        "stepFractions": SEARCH.step_fractions,
        "widening": SEARCH.widening,
        "priorShare": SEARCH.prior_share,
        "paddedSizes": PLACES,
        "mostPoints": MOST_EXACT,
    }


def _conditions(model: FittedModel) -> list[Document]:
    described = _from_draws(model) if model.ensemble.fit is None else _from_fit(model)
    shown = _shown_data(model.observations, len(model.ids))
    shown += [_observations(entry.inputs, entry.outputs, len(entry.outputs)) for entry in model.added.values()]
    return [
        {"name": str(name), "added": name in model.added, **own, **data}
        for name, own, data in zip(model.all_ids, described, shown, strict=True)
    ]


def _from_fit(model: FittedModel) -> list[Document]:
    posterior, parameters = model.posterior, model.posterior.parameters
    pairs = posterior.mean.shape[1] * (posterior.mean.shape[1] + 1) // 2
    with_moments = len(model.all_ids) * pairs <= _MOST_MOMENTS
    trained = _gaussians(posterior, parameters.latents, parameters.host_noise, with_moments=with_moments)
    added = [entry.condition for entry in model.added.values()]
    return trained + [_added(model, condition, with_moments=with_moments) for condition in added]


def _gaussians(
    posterior: Posterior, latents: LatentGaussians, noise: HostFloat, *, with_moments: bool
) -> list[Document]:
    """Conditions whose latents are Gaussian; without moments, the page uses quasi-random points of their latents."""
    described: list[Document] = [
        {
            "kind": "gaussian",
            "latentMean": mean.tolist(),
            "latentSd": np.sqrt(variance).tolist(),
            "noise": float(own_noise),
            "moments": None,
        }
        for mean, variance, own_noise in zip(np.asarray(latents.mean), np.asarray(latents.variance), noise, strict=True)
    ]
    if not with_moments:
        return described
    moments = jax.tree.map(np.asarray, _latent_moments(posterior.latent_basis, latents))
    rows, columns = symmetric_pairs(posterior.mean.shape[1])
    for number, condition in enumerate(described):
        condition["moments"] = {
            "priorVariance": float(moments.prior_variance[number]),
            "mean": encoded(moments.mean[number]),
            "second": encoded(moments.second[number, rows, columns]),
        }
    return described


def _added(model: FittedModel, condition: Condition, *, with_moments: bool) -> Document:
    if condition.gaussian is None:
        return _particles(model, condition)
    noise = np.asarray([mean_noise(model.ensemble, condition)])
    return _gaussians(model.posterior, condition.gaussian, noise, with_moments=with_moments)[0]


def _from_draws(model: FittedModel) -> list[Document]:
    points = np.asarray(model.posterior.input_basis.points, dtype=float)
    latents = all_latents(model)
    means, deviations = np.asarray(latents.mean), np.sqrt(np.asarray(latents.variance))
    described = []
    for name, mean, deviation in zip(model.all_ids, means, deviations, strict=True):
        condition = find_condition(model, name, unseen="error")
        curves = condition_curves(model.ensemble, condition, points)
        ((covariance,),) = joint_covariance(model.ensemble, [condition], [points])
        described.append(
            _projected(model.posterior, curves.weights @ np.asarray(curves.means[0]), covariance)
            | {
                "latentMean": mean.tolist(),
                "latentSd": deviation.tolist(),
                "noise": mean_noise(model.ensemble, condition),
            }
        )
    return described


def _projected(posterior: Posterior, mean: HostFloat, covariance: HostFloat) -> Document:
    """A curve that is known at the inducing inputs, and between them as the fitted kernel interpolates.

    Mean aᵀw and variance ψ k_X(x, x) + aᵀGa with w = L⁻¹m and G = L⁻¹CL⁻ᵀ − ψI; ψ is the prior variance of the latents'
    kernel at its centre, which matters where no inducing input is near.
    """
    factor = np.asarray(posterior.input_basis.factor, dtype=float)
    kernel, n_latent = posterior.latent_basis.kernel, posterior.latent_basis.points.shape[1]
    prior_variance = float(diagonal(kernel, jnp.zeros((1, n_latent)))[0])
    whitened = np.linalg.solve(factor, np.linalg.solve(factor, covariance).T)
    spread = whitened - prior_variance * np.eye(len(factor))
    return {
        "kind": "drawn",
        "curve": {
            "priorVariance": prior_variance,
            "weights": encoded(np.linalg.solve(factor, mean)),
            "spread": encoded(spread),
        },
    }


def _particles(model: FittedModel, condition: Condition) -> Document:
    seen, latents = condition.seen, latent_gaussian(model.ensemble, condition)
    present = np.asarray(seen.present) > 0
    assert model.ensemble.processes is not None  # that of a fit is kept
    process = picked(model.ensemble.processes, 0)
    features = np.asarray(seen.features(process))
    covariance = model.posterior.covariance
    if isinstance(covariance, KroneckerCovariance):
        features = features @ np.asarray(covariance.input_basis).T  # as they are before they are turned
    return {
        "kind": "particles",
        "latentMean": np.asarray(latents.mean[0], dtype=float).tolist(),
        "latentSd": np.sqrt(np.asarray(latents.variance[0], dtype=float)).tolist(),
        "noise": mean_noise(model.ensemble, condition),
        "latents": encoded(condition.latents[0]),
        "noises": encoded(condition.noise[0]),
        "weights": encoded(condition.weights[0]),
        "evidence": {
            "points": encoded(np.asarray(seen.inputs)[present]),
            "features": encoded(features[present]),
            "gram": encoded(np.asarray(seen.gram(process))[np.ix_(present, present)]),
            "values": encoded(np.asarray(seen.values)[present]),
            "errors": encoded(np.asarray(seen.error_variances)[present]),
            "paddedSize": len(present),
            "compressed": seen.compressed is not None,
        },
    }


def _shown_data(observations: Observations | None, n_conditions: int) -> list[Document]:
    """Observations of each trained condition: all of them, or a random part where there are very many."""
    if observations is None:
        return [_observations(np.empty((0, 1)), np.empty(0), 0)] * n_conditions
    most = max(_LEAST_SHOWN_PER_CONDITION, _MOST_SHOWN // n_conditions)
    rng = np.random.default_rng(0)
    counts = np.bincount(observations.conditions, minlength=n_conditions)
    by_condition = np.split(np.argsort(observations.conditions, kind="stable"), np.cumsum(counts)[:-1])
    chosen = [rows if len(rows) <= most else rng.choice(rows, most, replace=False) for rows in by_condition]
    return [
        _observations(observations.inputs[rows], observations.outputs[rows], int(count))
        for rows, count in zip(chosen, counts, strict=True)
    ]


def _observations(inputs: HostFloat, outputs: HostFloat, count: int) -> Document:
    return {"inputs": encoded(inputs), "outputs": encoded(outputs), "nObservations": count}
