"""A fitted model as a model file, and back.

:class:`StoredModel` lists what is kept; all else follows from it and is made anew by the functions that made it at
first. Factors of gram matrices do not: a model in single precision has those of double precision, rounded.
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, cast

import jax
import numpy as np

from lvmogp.__about__ import __version__
from lvmogp.conditions.drawn_condition import DrawnCondition, drawn_condition, infer_under_draws
from lvmogp.conditions.new_condition import condition_on
from lvmogp.conditions.predictions import Condition
from lvmogp.conditions.variational_condition import GaussianCondition
from lvmogp.errors import LVMOGPError, ModelFileError, SettingError
from lvmogp.fitted.model import AddedCondition, TrainedModel, evidence_of, few_of, kept_curves, known_of, with_draws
from lvmogp.fitted.origin import Origin
from lvmogp.ground.rules import ANY_VALUE, LOG_WEIGHTS, NOT_NEGATIVE, POSITIVE, Along, Below
from lvmogp.inference.nuts.diagnostics import Account
from lvmogp.inference.nuts.priors import Priors
from lvmogp.inference.optimise import Status
from lvmogp.inference.restarts import Outcome, Restart
from lvmogp.kernels.covariances import Kernel, gram, leaves, plain_kernel
from lvmogp.kernels.psi_statistics import LatentGaussians
from lvmogp.model.draws import Draws
from lvmogp.model.inducing_features import Basis, latent_moments
from lvmogp.model.parameters import Parameters
from lvmogp.model.posterior import DenseCovariance, KroneckerCovariance, Posterior, curves
from lvmogp.storage.codec import encode, planned
from lvmogp.storage.tensor_file import opened, write
from lvmogp.tables.features import Descriptions
from lvmogp.tables.ids import Id
from lvmogp.tables.reading import Observations
from lvmogp.tables.scaling import Scaling
from lvmogp.typing import Array, Float, Int, Scalar

# Fields that a fitted model and its file have under one name.
_KEPT_AS_THEY_ARE = (
    "ids",
    "columns",
    "date_columns",
    "output_name",
    "is_grid",
    "scaling",
    "bounds_by_n_latent",
    "bounds_by_transform",
    "descriptions",
    "draws",
    "sampling",
    "origin",
)
Setting = str | bool | int | float | Kernel | Priors | None


class StoredPosterior(NamedTuple):
    """Parameters, the factors of their gram matrices, and q(v)."""

    parameters: Parameters
    input_factor: Float[Array, "M_X M_X"]
    latent_factor: Float[Array, "M_H M_H"]
    mean: Float[Array, "M_X M_H"]
    covariance: KroneckerCovariance | DenseCovariance


class StoredFit(NamedTuple):
    """How the fit went, without the parameters that it found."""

    bound: float
    status: Status
    restarts: tuple[Restart, ...]
    jitter_inputs: float
    jitter_latents: float
    seconds: float


class StoredData(NamedTuple):
    """The training data, in the user's units."""

    inputs: Float[np.ndarray, "n Q_X"]
    outputs: Float[np.ndarray, " n"]
    conditions: Annotated[Int[np.ndarray, " n"], Below("D")]
    errors: Annotated[Float[np.ndarray, " n"], NOT_NEGATIVE] | None


class StoredParticles(NamedTuple):
    """Weighted latents of an added condition; under posterior draws there are some for each that answers."""

    latents: Float[Array, "*draws P Q_H"]
    noise: Annotated[Float[Array, "*draws P"], POSITIVE]
    log_weights: Annotated[Float[Array, "*draws P"], LOG_WEIGHTS]


class StoredGaussian(NamedTuple):
    """q(h) of an added condition; coordinates that are known have no variance."""

    mean: Float[Array, "1 Q_H"]
    variance: Annotated[Float[Array, "1 Q_H"], NOT_NEGATIVE]
    noise: Annotated[Scalar, POSITIVE]


class StoredCondition(NamedTuple):
    """A condition that was added after the fit: its observations in the user's units, and its latents."""

    inputs: Float[np.ndarray, "m Q_X"]
    outputs: Float[np.ndarray, " m"]
    errors: Annotated[Float[np.ndarray, " m"], NOT_NEGATIVE] | None
    features: Annotated[Float[np.ndarray, " F"], ANY_VALUE] | None
    method: Literal["exact", "gaussian"]
    posterior: StoredParticles | StoredGaussian


class StoredModel(NamedTuple):
    """All that a model file holds. ``answering`` are the places of the draws that answer."""

    lvmogp: str
    settings: Mapping[str, Setting]
    ids: Annotated[tuple[Id, ...], Along("D")]
    columns: Annotated[tuple[str, ...], Along("Q_X")] | None
    date_columns: tuple[str, ...]
    output_name: str | None
    is_grid: bool
    scaling: Scaling
    posterior: StoredPosterior
    fit: StoredFit
    bounds_by_n_latent: Mapping[int, float]
    bounds_by_transform: Mapping[str | None, float]
    data: StoredData | None
    descriptions: Descriptions | None
    draws: Draws | None
    answering: Annotated[Int[np.ndarray, "*draws"], Below("S")] | None
    sampling: Account | None
    added: Mapping[Id, StoredCondition]
    origin: Origin | None


def save_model(
    path: str | os.PathLike[str], model: TrainedModel, settings: dict[str, Any], *, include_data: bool
) -> None:
    """Write a fitted model and the settings of its estimator."""
    if model.draws is not None and not include_data:
        raise SettingError(
            "a model with posterior draws predicts from its training data, so its file must hold them; leave "
            "include_data=True"
        )
    write(path, encode(_stored(model, settings, include_data=include_data), StoredModel))


def load_model(path: str | os.PathLike[str]) -> tuple[TrainedModel, dict[str, Any]]:
    """Read a fitted model and the settings of its estimator."""
    with opened(path) as file:
        try:
            stored = planned(file.sizes, file.document, StoredModel)(file.tensors())
            return _restored(stored), {name: _as_given(value) for name, value in stored.settings.items()}
        except LVMOGPError as error:
            raise ModelFileError(f"{path} does not hold what a model file must hold: {error}") from error
        # Its digest is right, so this was made by another program, which may have put anything into it.
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise ModelFileError(f"{path} does not hold what a model file must hold: {error!r}") from error


def encode_setting(value: Any) -> Any:
    """Return a setting of the estimator as plain values, for people and for telling fits apart."""
    value = _setting(value)
    if isinstance(value, Priors):
        return {name: list(pair) for name, pair in value._asdict().items()}
    return plain_kernel(value) if isinstance(value, Kernel) else value


def _setting(value: Any) -> Setting:
    # The state of a generator of random numbers is no setting; NumPy's numbers are Python's.
    if isinstance(value, np.random.RandomState | np.random.Generator):
        return None
    return value.item() if isinstance(value, np.generic) else value


def _as_given(setting: Setting) -> Setting:
    # Kernels that users describe hold NumPy's arrays.
    return jax.tree.map(np.asarray, setting) if isinstance(setting, Kernel) else setting


# Writing


def _stored(model: TrainedModel, settings: dict[str, Any], *, include_data: bool) -> StoredModel:
    posterior, outcome, observed = model.posterior, model.outcome, model.observations
    return StoredModel(
        lvmogp=__version__,
        settings={name: _setting(value) for name, value in settings.items()},
        posterior=StoredPosterior(
            dataclasses.replace(posterior.parameters, inducing=None),  # q(v) is in the mean and the covariance
            posterior.input_basis.factor,
            posterior.latent_basis.factor,
            posterior.mean,
            cast(KroneckerCovariance | DenseCovariance, posterior.covariance),
        ),
        fit=StoredFit(**{name: getattr(outcome, name) for name in StoredFit._fields}),
        data=StoredData(observed.inputs, observed.outputs, observed.conditions, observed.errors)
        if include_data and observed is not None
        else None,
        answering=None if model.drawn is None else np.asarray(model.drawn.places),
        added={name: _stored_condition(entry) for name, entry in model.added.items()},
        **{name: getattr(model, name) for name in _KEPT_AS_THEY_ARE},
    )


def _stored_condition(entry: AddedCondition) -> StoredCondition:
    found = entry.posterior
    if isinstance(found, GaussianCondition):
        latents = StoredGaussian(found.latents.mean, found.latents.variance, found.noise)
    else:
        latents = StoredParticles(found.latents, found.noise, found.log_weights)
    method = cast(Literal["exact", "gaussian"], entry.method)
    return StoredCondition(entry.inputs, entry.outputs, entry.errors, entry.features, method, latents)


# Reading


def _restored(stored: StoredModel) -> TrainedModel:
    _check(stored)
    parameters, input_factor, latent_factor, mean, covariance = stored.posterior
    posterior = Posterior(
        parameters,
        Basis(parameters.input_kernel, parameters.inducing_inputs, input_factor),
        Basis(parameters.latent_kernel, parameters.inducing_latents, latent_factor),
        mean,
        covariance,
    )
    about = {name: getattr(stored, name) for name in ("ids", "columns", "is_grid", "date_columns", "output_name")}
    model = TrainedModel(
        n_columns=len(stored.scaling.input_mean),
        posterior=posterior,
        curves=kept_curves(posterior),
        outcome=Outcome(parameters=parameters, **stored.fit._asdict()),
        observations=None if stored.data is None else Observations(**stored.data._asdict(), **about),
        added={},
        **{name: getattr(stored, name) for name in _KEPT_AS_THEY_ARE if name != "draws"},
    )
    if stored.draws is not None:
        model = with_draws(model, stored.draws)
    added = {
        name: AddedCondition(
            inputs=entry.inputs,
            outputs=entry.outputs,
            method=entry.method,
            posterior=_restored_latents(model, entry, stored.answering),
            features=entry.features,
            errors=entry.errors,
        )
        for name, entry in stored.added.items()
    }
    return model._replace(added=added)


def _restored_latents(
    model: TrainedModel, entry: StoredCondition, answering: Int[np.ndarray, " S"] | None
) -> Condition | DrawnCondition:
    given, latents = (entry.inputs, entry.outputs, entry.errors), entry.posterior
    known = known_of(model, entry.features)
    if isinstance(latents, StoredGaussian):
        q = LatentGaussians(latents.mean, latents.variance, known.n_uncertain)
        moments = latent_moments(model.posterior.latent_basis, q)
        return GaussianCondition(q, latents.noise, curves(model.posterior, moments))
    if model.drawn is None or answering is None:
        return condition_on(model.posterior, evidence_of(model, *given), *latents)
    # Particles belong to draws. When the file was written others may have been chosen for answers.
    if not np.array_equal(answering, model.drawn.places):
        return infer_under_draws(model.drawn, few_of(model, *given), known)
    return drawn_condition(model.drawn, *latents, few_of(model, *given))


def _check(stored: StoredModel) -> None:
    """Refuse what fits together field by field, but not as a whole."""
    parameters, draws, covariance = stored.posterior.parameters, stored.draws, stored.posterior.covariance
    (n_inputs, n_columns), (n_latents, n_coordinates) = (
        points.shape for points in (parameters.inducing_inputs, parameters.inducing_latents)
    )
    n_conditions, n_latent = parameters.latent_mean.shape
    n_known = 0 if parameters.known is None else parameters.known.values.shape[1]
    names = () if stored.descriptions is None else stored.descriptions.coordinate_names
    for is_wrong, fault in (
        (0 in (n_inputs, n_columns, n_latents, n_conditions), "there are no conditions, inputs or inducing points"),
        (
            parameters.noise_variance.shape[0] not in (1, n_conditions),
            "noise_variance fits neither one condition nor all",
        ),
        (
            n_coordinates != n_latent + n_known,
            f"inducing latents have {n_coordinates} coordinates, conditions {n_latent + n_known}",
        ),
        (len(names) != n_known, f"descriptions name {len(names)} coordinates of {n_known}"),
        (
            isinstance(covariance, DenseCovariance) and len(covariance.matrix) != n_inputs * n_latents,
            "posterior.covariance is not that of all inducing points",
        ),
        (stored.data is not None and not len(stored.data.outputs), "data holds no rows"),
        ((draws is None) != (stored.answering is None), "draws and answering do not go together"),
        (draws is not None and stored.data is None, "draws do not go without data"),
        (not stored.added.keys().isdisjoint(stored.ids), "a condition is both trained and added"),
    ):
        if is_wrong:
            raise ModelFileError(fault)
    for name, entry in stored.added.items():
        latents = entry.posterior
        is_gaussian = isinstance(latents, StoredGaussian)
        n_axes = 2 if is_gaussian or draws is None else 3
        if is_gaussian != (entry.method == "gaussian") or latents[0].ndim != n_axes or not latents[0].size:
            raise ModelFileError(f"added condition {name!r} is of another kind of model")
    for kernels, leading in ((parameters, ()), *(() if draws is None else ((draws, (draws.n_draws,)),))):
        _check_kernel(kernels.input_kernel, n_columns, leading)
        _check_kernel(kernels.latent_kernel, n_coordinates, leading)


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
