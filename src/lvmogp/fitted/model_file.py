"""A fitted model as a model file, and back."""

import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.__about__ import __version__
from lvmogp.conditions.drawn_condition import DrawnCondition, drawn_condition, infer_under_draws
from lvmogp.conditions.drawn_model import DrawnModel
from lvmogp.conditions.new_condition import ConditionPosterior, condition_on
from lvmogp.conditions.predictions import Condition
from lvmogp.conditions.variational_condition import GaussianCondition
from lvmogp.errors import LVMOGPError, ModelFileError, SettingError
from lvmogp.fitted.file_checks import check_content, check_kernel
from lvmogp.fitted.model import AddedCondition, TrainedModel, evidence_of, few_of, kept_curves, known_of, with_draws
from lvmogp.fitted.origin import Origin
from lvmogp.fitted.sampling_account import decode_account, encode_account
from lvmogp.ground.compiling import compiled
from lvmogp.inference.nuts.priors import Priors
from lvmogp.inference.optimise import Status
from lvmogp.inference.restarts import Outcome, Restart
from lvmogp.kernels.psi_statistics import LatentGaussians
from lvmogp.model.draws import Draws, NoiseSpread
from lvmogp.model.inducing_features import basis, latent_moments
from lvmogp.model.parameters import KnownCoordinates, Parameters
from lvmogp.model.posterior import (
    Covariance,
    DenseCovariance,
    KroneckerCovariance,
    Posterior,
    curves,
)
from lvmogp.storage.tensor_file import ModelFile, decode_id, decode_kernel, encode_id, encode_kernel, read, write
from lvmogp.tables.features import ConditionFeatures, Feature
from lvmogp.tables.ids import Id
from lvmogp.tables.observations import Observations
from lvmogp.tables.scaling import Scaling
from lvmogp.tables.transforms import TRANSFORMS, Transform

_basis = compiled(basis)
_PARAMETER_ARRAYS = (
    "inducing_inputs",
    "inducing_latents",
    "latent_mean",
    "latent_variance",
    "noise_variance",
)
_PRIORS = "priors"
_DRAWS_ARRAYS = ("latents", "noise_variance", "chain", "log_weight")
_SPREAD_ARRAYS = ("median", "deviation")
_DRAWS_KERNELS = ("input_kernel", "latent_kernel")
_PARTICLE_ARRAYS = ("latents", "noise", "log_weights")
_KNOWN_ARRAYS = ("values", "missing_condition", "missing_coordinate", "missing_mean", "missing_variance")
_COVARIANCES: dict[str, type[Covariance]] = {"kronecker": KroneckerCovariance, "dense": DenseCovariance}


def save_model(
    path: str | os.PathLike[str], model: TrainedModel, settings: dict[str, Any], *, include_data: bool
) -> None:
    """Write a fitted model and the settings of its estimator."""
    if model.draws is not None and not include_data:
        raise SettingError(
            "a model with posterior draws predicts from its training data, so its file must hold them; leave "
            "include_data=True"
        )
    tensors = _posterior_tensors(model.posterior)
    document: dict[str, Any] = {
        "lvmogp": __version__,
        "settings": {name: encode_setting(value) for name, value in settings.items()},
        "ids": [encode_id(name) for name in model.ids],
        "columns": model.columns,
        "date_columns": model.date_columns,
        "output_name": model.output_name,
        "input_kernel": encode_kernel(model.posterior.parameters.input_kernel),
        "latent_kernel": encode_kernel(model.posterior.parameters.latent_kernel),
        "covariance": _covariance_kind(model.posterior.covariance),
        "output_mean": model.scaling.output_mean.hex(),
        "output_scale": model.scaling.output_scale.hex(),
        "output_transform": model.scaling.transform_name,
        "outcome": _encode_outcome(model.outcome),
        "added": [],
        "is_grid": model.is_grid,
        "bounds_by_n_latent": list(model.bounds_by_n_latent.items()),
        "bounds_by_transform": list(model.bounds_by_transform.items()),
    }
    tensors |= {
        "scaling.input_mean": model.scaling.input_mean,
        "scaling.input_scale": model.scaling.input_scale,
    }
    if model.draws is not None and model.drawn is not None:
        tensors |= _draws_tensors(model.draws)
        tensors["draws.answering"] = np.asarray(model.drawn.places)
    if model.sampling is not None:
        document["sampling"], statistics = encode_account(model.sampling)
        tensors |= {f"sampling.{name}": values for name, values in statistics.items()}
    if model.origin is not None:
        document["origin"] = {**model.origin._asdict(), "versions": dict(model.origin.versions)}
    if model.descriptions is not None:
        document["features"] = _encode_features(model.descriptions)
        tensors |= {f"features.{name}": getattr(model.descriptions, name) for name in ("values", "mean", "scale")}
    for number, restart in enumerate(model.outcome.restarts):
        tensors[f"history.{number}"] = np.asarray(restart.history, dtype=float)
    if include_data and model.observations is not None:
        tensors |= _data_tensors(model.observations)
    for number, (name, entry) in enumerate(model.added.items()):
        document["added"].append({"id": encode_id(name), "method": entry.method})
        tensors |= {f"added.{number}.{key}": value for key, value in _added_tensors(entry).items()}
    write(path, ModelFile(tensors, document))


def load_model(path: str | os.PathLike[str]) -> tuple[TrainedModel, dict[str, Any]]:
    """Read a fitted model and the settings of its estimator."""
    content = read(path)
    try:
        check_content(content)
        return _decode(content)
    except LVMOGPError as error:
        raise ModelFileError(f"{path} does not hold what a model file must hold: {error}") from error
    # Its digest is right, so this was made by another program, which may have put anything into it.
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ModelFileError(f"{path} does not hold what a model file must hold: {error!r}") from error


def _posterior_tensors(model: Posterior) -> dict[str, np.ndarray]:
    arrays = {f"parameters.{name}": getattr(model.parameters, name) for name in _PARAMETER_ARRAYS}
    if model.parameters.known is not None:
        arrays |= {f"known.{name}": getattr(model.parameters.known, name) for name in _KNOWN_ARRAYS}
    arrays["posterior.mean"] = model.mean
    covariance = model.covariance
    if isinstance(covariance, KroneckerCovariance):
        arrays["covariance.input_basis"] = covariance.input_basis
        arrays["covariance.latent_basis"] = covariance.latent_basis
        arrays["covariance.variances"] = covariance.variances
    elif isinstance(covariance, DenseCovariance):
        arrays["covariance.matrix"] = covariance.matrix
    return {name: np.asarray(value) for name, value in arrays.items()}


def _data_tensors(observations: Observations) -> dict[str, np.ndarray]:
    tensors = {f"data.{name}": getattr(observations, name) for name in ("inputs", "outputs", "conditions")}
    return tensors if observations.errors is None else tensors | {"data.errors": observations.errors}


def _draws_tensors(draws: Draws) -> dict[str, np.ndarray]:
    arrays: dict[str, Any] = {f"draws.{name}": getattr(draws, name) for name in _DRAWS_ARRAYS}
    if draws.noise_spread is not None:
        arrays |= {f"draws.noise_spread.{name}": getattr(draws.noise_spread, name) for name in _SPREAD_ARRAYS}
    for name in _DRAWS_KERNELS:
        arrays |= {f"draws.{name}.{place}": leaf for place, leaf in enumerate(jax.tree.leaves(getattr(draws, name)))}
    return {name: np.asarray(value) for name, value in arrays.items()}


def _decode_draws(tensors: dict[str, np.ndarray], parameters: Parameters) -> Draws | None:
    if "draws.latents" not in tensors:
        return None
    arrays: dict[str, Any] = {name: jnp.asarray(tensors[f"draws.{name}"]) for name in _DRAWS_ARRAYS}
    for name in _DRAWS_KERNELS:
        # Kernels of draws are that of the fit, with other numbers in it.
        leaves, structure = jax.tree.flatten(getattr(parameters, name))
        stacked = [jnp.asarray(tensors[f"draws.{name}.{place}"]) for place in range(len(leaves))]
        arrays[name] = jax.tree.unflatten(structure, stacked)
    if "draws.noise_spread.median" in tensors:
        spread = {name: jnp.asarray(tensors[f"draws.noise_spread.{name}"]) for name in _SPREAD_ARRAYS}
        arrays["noise_spread"] = NoiseSpread(**spread)
    return Draws(**arrays)


def _covariance_kind(covariance: Covariance) -> str:
    return next(name for name, kind in _COVARIANCES.items() if isinstance(covariance, kind))


def _added_tensors(entry: AddedCondition) -> dict[str, np.ndarray]:
    tensors = {"inputs": entry.inputs, "outputs": entry.outputs}
    optional = {"features": entry.features, "errors": entry.errors}
    tensors |= {name: value for name, value in optional.items() if value is not None}
    found = entry.posterior
    if isinstance(found, ConditionPosterior | DrawnCondition):
        arrays = {name: getattr(found, name) for name in _PARTICLE_ARRAYS}
    else:
        arrays = {"mean": found.latents.mean, "variance": found.latents.variance, "noise": found.noise}
    return tensors | {name: np.asarray(value) for name, value in arrays.items()}


def encode_setting(value: Any) -> Any:
    """A setting of the estimator as JSON."""
    if isinstance(value, str | bool | int | float | None):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.random.RandomState | np.random.Generator):
        return None
    if isinstance(value, Priors):
        return {_PRIORS: {name: list(pair) for name, pair in value._asdict().items()}}
    return encode_kernel(value)


def _decode_setting(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if _PRIORS in value:
        return Priors(**{name: tuple(pair) for name, pair in value[_PRIORS].items()})
    return decode_kernel(value)


def _encode_features(descriptions: ConditionFeatures) -> dict[str, Any]:
    return {
        "ids": [encode_id(name) for name in descriptions.ids],
        "columns": [
            {"name": each.name, "kind": each.kind, "levels": [encode_id(level) for level in each.levels]}
            for each in descriptions.features
        ],
    }


def _decode_features(content: ModelFile) -> ConditionFeatures | None:
    stored = content.document.get("features")  # files of models without features have none
    if stored is None:
        return None
    features = (
        Feature(each["name"], each["kind"], tuple(decode_id(level) for level in each["levels"]))
        for each in stored["columns"]
    )
    ids = tuple(decode_id(name) for name in stored["ids"])
    return ConditionFeatures(
        tuple(features), ids, *(content.tensors[f"features.{name}"] for name in ("values", "mean", "scale"))
    )


def _encode_outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "bound": outcome.bound,
        "status": outcome.status.name,
        "jitter_inputs": outcome.jitter_inputs,
        "jitter_latents": outcome.jitter_latents,
        "seconds": outcome.seconds,
        "restarts": [
            {
                "recipe": restart.recipe,
                "bound": restart.bound if np.isfinite(restart.bound) else None,
                "status": restart.status.name,
                "n_evaluations": restart.n_evaluations,
                "seconds": restart.seconds,
                "steps_per_entry": restart.steps_per_entry,
            }
            for restart in outcome.restarts
        ],
    }


def _decode(content: ModelFile) -> tuple[TrainedModel, dict[str, Any]]:
    tensors, document = content
    posterior = _decode_posterior(content)
    ids = tuple(decode_id(name) for name in document["ids"])
    columns = None if document["columns"] is None else tuple(document["columns"])
    date_columns = tuple(document.get("date_columns", ()))  # files written before there were dates have none
    output_name = document.get("output_name")
    scaling = _decode_scaling(content)
    model = TrainedModel(
        ids=ids,
        columns=columns,
        n_columns=len(scaling.input_mean),
        is_grid=document["is_grid"],
        scaling=scaling,
        posterior=posterior,
        curves=kept_curves(posterior),
        outcome=_decode_outcome(content, posterior.parameters),
        observations=None,
        added={},
        bounds_by_n_latent={int(n_latent): bound for n_latent, bound in document.get("bounds_by_n_latent", [])},
        bounds_by_transform=dict(document.get("bounds_by_transform", [])),
        date_columns=date_columns,
        output_name=output_name,
        descriptions=_decode_features(content),
        origin=_decode_origin(document.get("origin")),
    )
    model = model._replace(observations=_decode_observations(tensors, model))
    if "sampling" in document:
        model = model._replace(sampling=decode_account(document["sampling"], _group(tensors, "sampling.")))
    draws = _decode_draws(tensors, posterior.parameters)
    if draws is not None:
        model = with_draws(model, draws)
    settings = {name: _decode_setting(value) for name, value in document["settings"].items()}
    return model._replace(added=_decode_added(content, model)), settings


def _decode_scaling(content: ModelFile) -> Scaling:
    tensors, document = content
    return Scaling(
        tensors["scaling.input_mean"],
        tensors["scaling.input_scale"],
        float.fromhex(document["output_mean"]),
        float.fromhex(document["output_scale"]),
        _decode_transform(document),
    )


def _decode_transform(document: dict[str, Any]) -> Transform | None:
    # Files written when the logarithm was the only one say whether it was taken.
    name = document["output_transform"] if "output_transform" in document else "log" if document["log_output"] else None
    return TRANSFORMS[name]


def _decode_observations(tensors: dict[str, np.ndarray], model: TrainedModel) -> Observations | None:
    if "data.inputs" not in tensors:
        return None
    return Observations(
        inputs=tensors["data.inputs"],
        outputs=tensors["data.outputs"],
        conditions=tensors["data.conditions"],
        ids=model.ids,
        columns=model.columns,
        is_grid=model.is_grid,
        date_columns=model.date_columns,
        output_name=model.output_name,
        errors=tensors.get("data.errors"),
    )


def _decode_added(content: ModelFile, model: TrainedModel) -> dict[Id, AddedCondition]:
    tensors, document = content
    added = {}
    for number, entry in enumerate(document["added"]):
        arrays = _group(tensors, f"added.{number}.")
        if model.drawn is None:
            found = _decode_condition(model, arrays, entry["method"])
        else:
            found = _decode_drawn_condition(model, model.drawn, arrays, tensors.get("draws.answering"))
        added[decode_id(entry["id"])] = AddedCondition(
            arrays["inputs"], arrays["outputs"], entry["method"], found, arrays.get("features"), arrays.get("errors")
        )
    return added


def _decode_origin(stored: dict[str, Any] | None) -> Origin | None:
    # Files written before origins were kept have none.
    return None if stored is None else Origin(stored["seed"], stored["versions"], stored["machine"])


def _group(tensors: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    # Those whose names begin like this, by the rest of their names.
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _decode_posterior(content: ModelFile) -> Posterior:
    tensors, document = content
    dtype = tensors["posterior.mean"].dtype
    input_kernel, latent_kernel = (
        jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), decode_kernel(document[name]))
        for name in ("input_kernel", "latent_kernel")
    )
    check_kernel(input_kernel, tensors["parameters.inducing_inputs"].shape[1])
    check_kernel(latent_kernel, tensors["parameters.inducing_latents"].shape[1])
    arrays: dict[str, Any] = {name: jnp.asarray(tensors[f"parameters.{name}"]) for name in _PARAMETER_ARRAYS}
    if "known.values" in tensors:
        arrays["known"] = KnownCoordinates(*(jnp.asarray(tensors[f"known.{name}"]) for name in _KNOWN_ARRAYS))
    parameters = Parameters(input_kernel=input_kernel, latent_kernel=latent_kernel, **arrays)
    mean = jnp.asarray(tensors["posterior.mean"])
    if document["covariance"] == "kronecker":
        names = ("input_basis", "latent_basis", "variances")
        covariance = KroneckerCovariance(*(jnp.asarray(tensors[f"covariance.{name}"]) for name in names))
    else:
        covariance = DenseCovariance(jnp.asarray(tensors["covariance.matrix"]), mean.shape[0])
    return Posterior(
        parameters=parameters,
        input_basis=_basis(input_kernel, parameters.inducing_inputs),
        latent_basis=_basis(latent_kernel, parameters.inducing_latents),
        mean=mean,
        covariance=covariance,
    )


def _decode_condition(model: TrainedModel, arrays: dict[str, np.ndarray], method: str) -> Condition:
    posterior = model.posterior
    if method == "gaussian":
        known = known_of(model, arrays.get("features"))
        latents = LatentGaussians(jnp.asarray(arrays["mean"]), jnp.asarray(arrays["variance"]), known.n_uncertain)
        found = curves(posterior, latent_moments(posterior.latent_basis, latents))
        return GaussianCondition(latents, jnp.asarray(arrays["noise"]).reshape(()), found)  # once of shape (1,)
    seen = evidence_of(model, arrays["inputs"], arrays["outputs"], arrays.get("errors"))
    return condition_on(posterior, seen, *(jnp.asarray(arrays[name]) for name in _PARTICLE_ARRAYS))


def _decode_drawn_condition(
    model: TrainedModel, drawn: DrawnModel, arrays: dict[str, np.ndarray], answering: np.ndarray | None
) -> DrawnCondition:
    seen = few_of(model, arrays["inputs"], arrays["outputs"], arrays.get("errors"))
    if answering is None:  # files that do not say it are right only if all of their draws answered
        answering = np.arange(len(arrays["latents"]))
    # Particles belong to draws. When the file was written others may have been chosen for answers.
    if not np.array_equal(answering, drawn.places):
        return infer_under_draws(drawn, seen, known_of(model, arrays.get("features")))
    latents, noise, log_weights = (jnp.asarray(arrays[name]) for name in _PARTICLE_ARRAYS)
    return drawn_condition(drawn, latents, noise, log_weights, seen)


def _decode_outcome(content: ModelFile, parameters: Parameters) -> Outcome:
    stored = content.document["outcome"]
    restarts = tuple(
        Restart(
            recipe=restart["recipe"],
            bound=-np.inf if restart["bound"] is None else restart["bound"],
            status=Status[restart["status"]],
            history=tuple(content.tensors[f"history.{number}"].tolist()),
            n_evaluations=restart["n_evaluations"],
            seconds=restart["seconds"],
            steps_per_entry=restart.get("steps_per_entry", 1),
        )
        for number, restart in enumerate(stored["restarts"])
    )
    return Outcome(
        parameters=parameters,
        bound=stored["bound"],
        status=Status[stored["status"]],
        restarts=restarts,
        jitter_inputs=stored["jitter_inputs"],
        jitter_latents=stored["jitter_latents"],
        seconds=stored["seconds"],
    )
