"""A fitted model as a model file, and back.

:class:`StoredModel` lists what is kept; all else follows from it and is made anew by the functions that made it at
first. Factors of gram matrices do not: a model in single precision has those of double precision, rounded.
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.__about__ import __version__
from lvmogp.conditions.condition import condition_of_gaussian, condition_of_particles
from lvmogp.conditions.infer import infer, summarised
from lvmogp.errors import LVMOGPError, ModelFileError, SettingError
from lvmogp.fitted.model import AddedCondition, FittedModel, fitted_model, known_of, observations_of
from lvmogp.ground.rules import LOG_WEIGHTS, NOT_NEGATIVE, POSITIVE
from lvmogp.inference.nuts.parameters import Priors
from lvmogp.kernels.covariances import Kernel, gram, leaves, plain_kernel
from lvmogp.kernels.psi_statistics import LatentGaussians
from lvmogp.model.posterior import DenseCovariance
from lvmogp.storage.codec import encode, planned
from lvmogp.storage.tensor_file import opened, write
from lvmogp.tables.ids import Id, plain_id
from lvmogp.typing import Array, Float

Setting = str | bool | int | float | Kernel | Priors | tuple[str | Kernel, ...] | Mapping[Id, str | None] | None


class StoredCondition(NamedTuple):
    """A condition that was added after the fit, with its weighted latents under each process that answers.

    Where ``variance`` is there, the one latent is the mean of q(h); coordinates that are known have no variance.
    """

    entry: AddedCondition
    latents: Float[Array, "processes P Q_H"]
    noise: Annotated[Float[Array, "processes P"], POSITIVE]
    own: Annotated[Float[Array, "processes P"], POSITIVE]
    log_weights: Annotated[Float[Array, "processes P"], LOG_WEIGHTS]
    variance: Annotated[Float[Array, "1 Q_H"], NOT_NEGATIVE] | None


class StoredModel(NamedTuple):
    """All that a model file holds."""

    lvmogp: str
    settings: Mapping[str, Setting]
    model: FittedModel
    added: Mapping[Id, StoredCondition]


def save_model(
    path: str | os.PathLike[str], model: FittedModel, settings: dict[str, Any], *, include_data: bool
) -> None:
    """Write a fitted model and the settings of its estimator."""
    if not include_data and (model.draws is not None or model.posterior.parameters.kernels.own is not None):
        raise SettingError(
            "a model with posterior draws, or with curves of conditions' own, predicts from its training data, so its "
            "file must hold them; leave include_data=True"
        )
    # q(v) is in the mean and the covariance.
    parameters = dataclasses.replace(model.posterior.parameters, inducing=None)
    fit = model.fit._replace(posterior=dataclasses.replace(model.posterior, parameters=parameters))
    stored = StoredModel(
        lvmogp=__version__,
        settings={name: _setting(value) for name, value in settings.items()},
        model=model._replace(fit=fit, schema=model.schema if include_data else model.schema.without_rows()),
        added={name: _stored_condition(entry) for name, entry in model.added.items()},
    )
    write(path, encode(stored, StoredModel))


def load_model(path: str | os.PathLike[str]) -> tuple[FittedModel, dict[str, Any]]:
    """Read a fitted model and the settings of its estimator."""
    with opened(path) as file:
        try:
            stored = planned(file.sizes, file.document, StoredModel)(file.tensors())
            _check(stored)
            schema, scaling, fit, chains, features = stored.model[:5]
            fit = fit._replace(outcome=fit.outcome._replace(parameters=fit.posterior.parameters, runners_up=()))
            model = fitted_model(schema, scaling, fit, chains=chains, condition_features=features)
            added = {name: _restored_condition(model, entry) for name, entry in stored.added.items()}
            return model._replace(added=added), {name: _described(value) for name, value in stored.settings.items()}
        except LVMOGPError as error:
            raise ModelFileError(f"{path} does not hold what a model file must hold: {error}") from error
        # Its digest is right, so this was made by another program, which may have put anything into it.
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise ModelFileError(f"{path} does not hold what a model file must hold: {error!r}") from error


def _described(value: Setting) -> Setting:
    # Kernels that users describe hold NumPy's arrays.
    if isinstance(value, tuple) and not isinstance(value, Priors):
        return tuple(jax.tree.map(np.asarray, each) if isinstance(each, Kernel) else each for each in value)
    return jax.tree.map(np.asarray, value) if isinstance(value, Kernel) else value


def encode_setting(value: Any) -> Any:
    """Return a setting of the estimator as plain values, for people and for telling fits apart."""
    value = _setting(value)
    if isinstance(value, Priors):
        return {name: list(pair) for name, pair in value._asdict().items()}
    if isinstance(value, tuple):
        return [encode_setting(each) for each in value]
    if isinstance(value, Mapping):
        return {str(key): each for key, each in cast(Mapping[Id, str | None], value).items()}
    return plain_kernel(value) if isinstance(value, Kernel) else value


def _setting(value: Any) -> Setting:
    # The state of a generator of random numbers is no setting; NumPy's numbers are Python's.
    if isinstance(value, np.random.RandomState | np.random.Generator):
        return None
    if isinstance(value, list | tuple) and not isinstance(value, Priors):
        return tuple(value)
    if isinstance(value, Mapping):
        return {plain_id(key): each for key, each in cast(Mapping[Any, str | None], value).items()}
    return value.item() if isinstance(value, np.generic) else value


def _stored_condition(entry: AddedCondition) -> StoredCondition:
    found = entry.condition
    if found.gaussian is None:
        return StoredCondition(entry, found.latents, found.noise, found.own, found.log_weights, None)
    mean, variance, noise, own = found.gaussian.mean, found.gaussian.variance, found.noise[:, :1], found.own[:, :1]
    return StoredCondition(entry, mean[None], noise, own, jnp.zeros_like(noise), variance)


def _restored_condition(model: FittedModel, stored: StoredCondition) -> AddedCondition:
    entry, ensemble, known = stored.entry, model.ensemble, known_of(model, stored.entry.features)
    seen = observations_of(model, entry.inputs, entry.outputs, entry.errors)
    if stored.variance is not None:
        gaussian = LatentGaussians(stored.latents[0], stored.variance, known.n_uncertain)
        found = condition_of_gaussian(ensemble, gaussian, stored.noise[0, 0], stored.own[0, 0])
    elif len(stored.noise) == ensemble.n_processes:
        found = condition_of_particles(ensemble, *stored[1:5], summarised(ensemble, seen))
    else:  # Particles belong to processes, and when the file was written other draws were chosen for answers.
        found = infer(ensemble, seen, known)
    return entry._replace(condition=found)


def _check(stored: StoredModel) -> None:
    # What the annotations of single fields cannot say.
    model, draws = stored.model, stored.model.draws
    parameters, covariance = model.posterior.parameters, model.posterior.covariance
    (n_inputs, n_columns), (n_inducing, n_coordinates) = (
        points.shape for points in (parameters.inducing_inputs, parameters.inducing_latents)
    )
    kernels = parameters.kernels
    n_latents = n_inducing * len(kernels.of_latents) + kernels.has_shared  # latent features of all terms
    n_conditions, n_latent = parameters.latent_mean.shape
    n_known = 0 if parameters.known is None else parameters.known.values.shape[1]
    n_own, n_noise = n_latent + n_known, len(parameters.noise_variance)
    names = () if model.condition_features is None else model.condition_features.coordinate_names
    reals = [leaf.dtype for leaf in jax.tree.leaves(model.posterior) if leaf.dtype.kind == "f"]
    faults = {
        "there are no conditions, inputs or inducing points": 0 in (n_inputs, n_columns, n_latents, n_conditions),
        "posterior.parameters.noise_variance fits neither one nor all conditions": n_noise not in (1, n_conditions),
        f"inducing latents have {n_coordinates} coordinates, conditions another number": n_coordinates != n_own,
        f"condition_features name {len(names)} coordinates of {n_known}": len(names) != n_known,
        "posterior.covariance is not of all inducing points": isinstance(covariance, DenseCovariance)
        and len(covariance.matrix) != n_inputs * n_latents,
        "posterior.mean is not of all inducing points": model.posterior.mean.shape != (n_inputs, n_latents),
        "posterior has factors of other kernels": len(model.posterior.input_factors) != len(kernels.of_inputs)
        or len(model.posterior.latent_factors) != len(kernels.of_latents),
        "terms are in another order": any(term.latent_kernel is None for term in kernels.terms[:-1]),
        "posterior mixes precisions": len(set(reals)) > 1,
        "added holds conditions of another kind of model": any(
            (each.variance is None) != (each.entry.method == "exact")
            or (each.variance is not None and (draws is not None or each.noise.size > 1))
            or (draws is None and len(each.noise) != 1)
            or each.noise.size == 0
            for each in stored.added.values()
        ),
        "scaling.log_columns have inputs that are not positive": any(
            np.any(inputs[:, list(model.scaling.log_columns)] <= 0)
            for inputs in (model.schema.inputs, *(each.entry.inputs for each in stored.added.values()))
        ),
        "a condition is both trained and added": not stored.added.keys().isdisjoint(model.ids),
    }
    for fault, is_there in faults.items():
        if is_there:
            raise ModelFileError(fault)
    for owner, leading in ((parameters, ()), (draws, () if draws is None else (draws.n_draws,))):
        for kernel in () if owner is None else owner.kernels.of_inputs:
            _check_kernel(kernel, n_columns, leading)
        for kernel in () if owner is None else owner.kernels.of_latents:
            _check_kernel(kernel, n_coordinates, leading)


def _check_kernel(kernel: Kernel, n_columns: int, leading: tuple[int, ...]) -> None:
    """Refuse a kernel that cannot be evaluated at points of so many columns; nothing is computed."""
    for leaf in leaves(kernel):
        columns = getattr(leaf, "columns", None)
        if columns is not None and not all(0 <= column < n_columns for column in columns):
            raise ModelFileError(f"a kernel looks at the columns {columns} of {n_columns}")
    function = jax.vmap(gram, in_axes=(0, None)) if leading else gram
    try:
        found = jax.eval_shape(function, kernel, jax.ShapeDtypeStruct((2, n_columns), float)).shape
    except (TypeError, ValueError) as error:
        raise ModelFileError(f"a kernel cannot be evaluated at points of {n_columns} columns: {error}") from error
    if found != (*leading, 2, 2):
        raise ModelFileError(f"a kernel stands for {found[:-2]} draws instead of {leading}")
