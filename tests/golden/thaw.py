"""Fitted estimators from plain arrays, without fitting and without sampling.

This is the one file here that knows how a fitted model is kept inside of the library.
"""

import dataclasses
import json
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np

import lvmogp
import lvmogp.model.layouts
from lvmogp import LVMOGPRegressor
from lvmogp.fitted.model import Chains, Fit, fitted_model
from lvmogp.ground.compiling import compiled
from lvmogp.ground.precision import in_double_precision
from lvmogp.inference.nuts.diagnostics import SamplingDiagnostics, Statistics
from lvmogp.inference.optimise import Status
from lvmogp.inference.restarts import Outcome, Restart
from lvmogp.kernels.covariances import Kernel, Product, Sum
from lvmogp.model.draws import Draws, NoiseSpread
from lvmogp.model.features import basis
from lvmogp.model.layouts import SparseData
from lvmogp.model.parameters import KnownCoordinates, Parameters, plain_kernels
from lvmogp.model.posterior import DenseCovariance, KroneckerCovariance, Posterior
from lvmogp.tables.features import ConditionFeatures, Feature
from lvmogp.tables.observations import Observations
from lvmogp.tables.scaling import TRANSFORMS, Scaling

Arrays = Mapping[str, np.ndarray]
_basis = compiled(basis)
PARAMETERS = ("inducing_inputs", "inducing_latents", "latent_mean", "latent_variance", "noise_variance")
DRAWS = ("latents", "noise_variance", "chain", "log_weight")
COMPOSITES = {"Sum": Sum, "Product": Product}


@in_double_precision
def thawed(arrays: Arrays) -> LVMOGPRegressor:
    """The estimator that the arrays were taken from."""
    document = json.loads(str(arrays["document"]))
    observations, posterior = _observations(document, arrays), _posterior(document, arrays)
    n_columns = observations.inputs.shape[1]
    with sparse_from_the_first() if document.get("sparse") else nullcontext():
        model = fitted_model(
            observations,
            _scaling(document, arrays),
            Fit(posterior, _outcome(posterior.parameters), {}, {}, {}),
            chains=_chains(document, arrays) if "draws.latents" in arrays else None,
            condition_features=_descriptions(document, arrays),
        )
    if document.get("sparse"):
        data = model.ensemble.source.data
        assert isinstance(data, SparseData)
        np.testing.assert_array_equal(data.inducing_conditions, arrays["draws.inducing_conditions"])
    estimator = LVMOGPRegressor(**document["settings"])
    estimator.model_ = model
    estimator.n_features_in_ = n_columns
    if observations.columns is not None:
        estimator.feature_names_in_ = np.asarray(observations.columns, dtype=object)
    return estimator


def _module(kind: type, prefix: str, arrays: Arrays) -> Any:
    names = {field.name: f"{prefix}.{field.name}" for field in dataclasses.fields(kind)}
    return kind(**{name: jnp.asarray(arrays[place]) for name, place in names.items() if place in arrays})


def _observations(document: dict[str, Any], arrays: Arrays) -> Observations:
    columns = document["columns"]
    return Observations(
        inputs=arrays["data.inputs"],
        outputs=arrays["data.outputs"],
        conditions=arrays["data.conditions"],
        ids=tuple(document["ids"]),
        columns=None if columns is None else tuple(columns),
        is_grid=document["is_grid"],
        output_name=document["output_name"],
        errors=arrays.get("data.errors"),
    )


def _scaling(document: dict[str, Any], arrays: Arrays) -> Scaling:
    return Scaling(
        arrays["scaling.input_mean"],
        arrays["scaling.input_scale"],
        float(arrays["scaling.output_mean"]),
        float(arrays["scaling.output_scale"]),
        TRANSFORMS[document["transform"]],
    )


def _kernel(specification: dict[str, Any], arrays: Arrays, prefix: str = "") -> Kernel:
    # Under draws the same kernel has other numbers, a row of them a draw, under names that begin otherwise.
    kind = specification["kind"]
    if kind in COMPOSITES:
        return COMPOSITES[kind](tuple(_kernel(term, arrays, prefix) for term in specification["terms"]))
    numbers = {name: jnp.asarray(arrays[prefix + place]) for name, place in specification["arrays"].items()}
    return getattr(lvmogp, kind)(**numbers, **specification["plain"])


def _posterior(document: dict[str, Any], arrays: Arrays) -> Posterior:
    parameters = Parameters(
        plain_kernels(_kernel(document["input_kernel"], arrays), _kernel(document["latent_kernel"], arrays)),
        known=_module(KnownCoordinates, "known", arrays) if "known.values" in arrays else None,
        **{name: jnp.asarray(arrays[f"parameters.{name}"]) for name in PARAMETERS},
    )
    mean = jnp.asarray(arrays["inducing.mean"])
    if document["covariance"] == "kronecker":
        covariance = _module(KroneckerCovariance, "inducing", arrays)
    else:
        covariance = DenseCovariance(jnp.asarray(arrays["inducing.covariance"]), mean.shape[0])
    (term,) = parameters.kernels.terms
    return Posterior(
        parameters=parameters,
        input_factors=_factor(term.input_kernel, parameters.inducing_inputs, arrays.get("input_basis.factor")),
        latent_factors=_factor(term.latent_kernel, parameters.inducing_latents, arrays.get("latent_basis.factor")),
        mean=mean,
        covariance=covariance,
    )


def _factor(kernel: Kernel, points: jax.Array, factor: np.ndarray | None) -> jax.Array:
    # A fit in single precision rounds factors that it has computed in double precision; those are kept.
    return _basis((kernel,), points).factors if factor is None else jnp.asarray(factor)[None]


def _outcome(parameters: Parameters) -> Outcome:
    # How a fit went is no part of what is compared.
    restart = Restart("frozen", 0.0, Status.CONVERGED, (0.0,), 1, 0.0)
    return Outcome(parameters, 0.0, Status.CONVERGED, (restart,), 0.0, 0.0, 0.0)


def _descriptions(document: dict[str, Any], arrays: Arrays) -> ConditionFeatures | None:
    stored = document["features"]
    if stored is None:
        return None
    features = tuple(Feature(each["name"], each["kind"], tuple(each["levels"])) for each in stored["columns"])
    values, mean, scale = (arrays[f"features.{name}"] for name in ("values", "mean", "scale"))
    return ConditionFeatures(features, tuple(stored["ids"]), values, mean, scale)


def _chains(document: dict[str, Any], arrays: Arrays) -> Chains:
    has_spread = "draws.noise_spread.median" in arrays
    draws = Draws(
        kernels=plain_kernels(
            _kernel(document["input_kernel"], arrays, "draws."), _kernel(document["latent_kernel"], arrays, "draws.")
        ),
        noise_spread=_module(NoiseSpread, "draws.noise_spread", arrays) if has_spread else None,
        **{name: jnp.asarray(arrays[f"draws.{name}"]) for name in DRAWS},
    )
    # How sampling went is no part of what is compared.
    statistics = Statistics(*(np.empty(0) for _ in Statistics._fields))
    return Chains(draws, SamplingDiagnostics((), {}, (), statistics, 0, True, 0.0))


def sparse_from_the_first() -> Any:
    """A context in which draws of few observations answer through inducing points, as they do for many."""
    return patch.multiple(lvmogp.model.layouts, _MOST_ON_A_SIDE=0, _MOST_SCATTERED=0)
