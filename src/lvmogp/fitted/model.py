"""A fitted model together with the conditions added to it afterwards."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from lvmogp.conditions.drawn_condition import DrawnCondition, infer_under_draws
from lvmogp.conditions.drawn_curves import Few, few
from lvmogp.conditions.drawn_joint import Asked
from lvmogp.conditions.drawn_latents import aligned_latents, similarities_under_draws
from lvmogp.conditions.drawn_model import DrawnModel, drawn_model
from lvmogp.conditions.evidence import Evidence, evidence
from lvmogp.conditions.known_latents import KnownLatents, known_latents
from lvmogp.conditions.new_condition import infer
from lvmogp.conditions.predictions import (
    Condition,
    trained_condition,
)
from lvmogp.conditions.variational_condition import GaussianCondition, infer_gaussian
from lvmogp.errors import DataError, NumericalError, SettingError
from lvmogp.fitted.origin import Origin
from lvmogp.ground.compiling import compiled
from lvmogp.ground.padding import rounded_up
from lvmogp.inference.nuts.diagnostics import SamplingDiagnostics
from lvmogp.inference.restarts import Outcome
from lvmogp.kernels.psi_statistics import LatentGaussians, expected_cross, of_all_conditions, psi0
from lvmogp.model.draws import Draws
from lvmogp.model.inducing_features import latent_moments
from lvmogp.model.layouts import standardised
from lvmogp.model.posterior import Curves, Posterior, curves_at, trained_curves
from lvmogp.model.posterior import curves as curves_of_moments
from lvmogp.tables.features import Descriptions
from lvmogp.tables.ids import Id, unknown_condition
from lvmogp.tables.reading import Observations
from lvmogp.tables.scaling import Scaling
from lvmogp.typing import HostFloat, HostInt

_trained_curves, _curves_at, _expected_cross = compiled(trained_curves), compiled(curves_at), compiled(expected_cross)
METHODS = ("exact", "gaussian")
# Half a gigabyte of them in double precision.
_MOST_CURVE_ELEMENTS = 2**26
_Tree = TypeVar("_Tree")


class AddedCondition(NamedTuple):
    """A condition added after the fit: its observations in the user's units, and what they say of it.

    ``features`` are the values of its features, where it has any, as in
    :class:`lvmogp.tables.features.Descriptions`, and ``errors`` known standard deviations of the measurements.
    """

    inputs: HostFloat
    outputs: HostFloat
    method: str
    posterior: Condition | DrawnCondition
    features: HostFloat | None = None
    errors: HostFloat | None = None


class TrainedModel(NamedTuple):
    """Everything needed to predict: the posterior, the units, the conditions.

    A model with posterior draws answers from those, conditioned on its observations (``drawn``); its variational
    posterior is where they started.
    """

    ids: tuple[Id, ...]
    columns: tuple[str, ...] | None
    n_columns: int
    is_grid: bool
    scaling: Scaling
    posterior: Posterior
    curves: Curves | None
    outcome: Outcome
    observations: Observations | None
    added: Mapping[Id, AddedCondition]
    bounds_by_n_latent: Mapping[int, float] = MappingProxyType({})
    bounds_by_transform: Mapping[str | None, float] = MappingProxyType({})
    date_columns: tuple[str, ...] = ()
    output_name: str | None = None
    draws: Draws | None = None
    sampling: SamplingDiagnostics | None = None
    drawn: DrawnModel | None = None
    descriptions: Descriptions | None = None
    origin: Origin | None = None

    @property
    def all_ids(self) -> tuple[Id, ...]:
        """Trained conditions, then added ones."""
        return (*self.ids, *self.added)


def trained_model(
    model: Posterior, outcome: Outcome, *, ids: tuple[Id, ...], scaling: Scaling, observations: Observations
) -> TrainedModel:
    """Put a fitted posterior and its account together."""
    curves = kept_curves(model)
    if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(curves or model.mean)):
        raise NumericalError(
            "the posterior of the fitted model is not finite; the inducing points lie too close together or the noise "
            'is vanishing: use fewer inducing points, or dtype="float64"'
        )
    return TrainedModel(
        ids=ids,
        columns=observations.columns,
        n_columns=observations.inputs.shape[1],
        is_grid=observations.is_grid,
        scaling=scaling,
        posterior=model,
        curves=curves,
        outcome=outcome,
        observations=observations,
        added={},
        date_columns=observations.date_columns,
        output_name=observations.output_name,
    )


def with_draws(model: TrainedModel, draws: Draws) -> TrainedModel:
    """The model with posterior draws, from which it answers from now on."""
    if model.observations is None:
        raise DataError(
            "a model with posterior draws predicts from its training data, which this one has not kept; fit in memory"
        )
    data = standardised(model.observations, model.scaling)
    drawn = drawn_model(draws, data, model.posterior.parameters)
    return model._replace(draws=draws, drawn=drawn)


def mapped_arrays(model: TrainedModel, function: Callable[[Any], Any]) -> TrainedModel:
    """The model with a function applied to each of its device arrays."""

    def mapped(tree: _Tree) -> _Tree:
        return jax.tree.map(function, tree)

    return model._replace(
        posterior=mapped(model.posterior),
        curves=mapped(model.curves),
        outcome=model.outcome._replace(parameters=mapped(model.outcome.parameters)),
        added={name: entry._replace(posterior=mapped(entry.posterior)) for name, entry in model.added.items()},
        bounds_by_n_latent=dict(model.bounds_by_n_latent),
        bounds_by_transform=dict(model.bounds_by_transform),
        draws=mapped(model.draws),
        drawn=mapped(model.drawn),
    )


def kept_curves(model: Posterior) -> Curves | None:
    """Curves of all trained conditions, to be kept if they are not too many; else they are computed when asked for."""
    n_conditions, n_inputs = len(model.parameters.latent_mean), len(model.mean)
    return _trained_curves(model) if n_conditions * n_inputs**2 <= _MOST_CURVE_ELEMENTS else None


def curves_of(model: TrainedModel, numbers: HostInt) -> tuple[Curves, HostInt]:
    """Curves that hold the trained conditions of these numbers, and their places among them."""
    if model.curves is not None:
        return model.curves, numbers
    distinct, places = np.unique(numbers, return_inverse=True)
    padded = np.resize(distinct, rounded_up(len(distinct)))
    latents = jax.tree.map(lambda leaf: leaf[padded], model.posterior.parameters.latents)
    return _curves_under(model.posterior, latents), places.reshape(-1)


@compiled
def _curves_under(model: Posterior, latents: LatentGaussians) -> Curves:
    return curves_of_moments(model, latent_moments(model.latent_basis, latents))


def find_condition(model: TrainedModel, name: Id, *, unseen: str) -> Condition:
    """A condition by its id; one never seen is an error, or with ``unseen="prior"`` the prior over latents."""
    if name in model.added:
        found = model.added[name].posterior
        assert not isinstance(found, DrawnCondition)  # only a model with draws adds such
        return found
    if name in model.ids:
        number = model.ids.index(name)
        shapes, (place,) = curves_of(model, np.asarray([number]))
        return trained_condition(model.posterior, shapes, number, int(place))
    if unseen == "prior":
        nothing = evidence(model.posterior, np.empty((0, model.n_columns)), np.empty(0))
        return infer(model.posterior, nothing, known_of(model, features_of(model, name)))
    raise unknown_condition(name, model.all_ids)


def find_under_draws(model: TrainedModel, drawn: DrawnModel, name: Id, *, unseen: str) -> Asked:
    """The same in a model with posterior draws: the number of a trained condition, or a new one."""
    if name in model.added:
        found = model.added[name].posterior
        assert isinstance(found, DrawnCondition)  # what a model with draws adds
        return found
    if name in model.ids:
        return model.ids.index(name)
    if unseen == "prior":
        nothing = few(np.empty((0, model.n_columns)), np.empty(0))
        return infer_under_draws(drawn, nothing, known_of(model, features_of(model, name)))
    raise unknown_condition(name, model.all_ids)


def features_of(model: TrainedModel, name: Id) -> HostFloat | None:
    """The values of a condition's features: those it was added with, else those of the table of the fit."""
    if name in model.added:
        return model.added[name].features
    return None if model.descriptions is None else model.descriptions.row(name)


def known_of(model: TrainedModel, features: HostFloat | None) -> KnownLatents:
    """Which coordinates of a new condition are known from its features, if it has any."""
    if model.descriptions is None or features is None:
        return known_latents(model.posterior, None)
    return known_latents(model.posterior, model.descriptions.standardised(features))


def latent_gaussian(model: TrainedModel, entry: AddedCondition) -> LatentGaussians:
    """Mean and variance of the latents of an added condition."""
    condition = entry.posterior
    if isinstance(condition, GaussianCondition):
        return condition.latents
    known = known_of(model, entry.features)
    return LatentGaussians(condition.latent_mean[None], condition.latent_variance[None], known.n_uncertain)


def noise_variances(model: TrainedModel) -> HostFloat:
    """Noise variance of each trained condition, standardised; of draws, their mean."""
    if model.drawn is not None:
        return model.drawn.weights @ np.asarray(model.drawn.noise)
    return model.posterior.parameters.host_noise


def all_latents(model: TrainedModel) -> LatentGaussians:
    """Mean and variance of the latents of all conditions, trained and added; of draws, once they are aligned."""
    trained = model.posterior.parameters.latents if model.drawn is None else aligned_latents(model.drawn)
    return of_all_conditions([trained, *(latent_gaussian(model, entry) for entry in model.added.values())])


def similarities(model: TrainedModel) -> HostFloat:
    """Prior correlation of the curves of each pair of conditions, ⟨k_H(h, h')⟩/√(ψψ'), one on the diagonal."""
    if model.drawn is not None:
        added = [entry.posterior for entry in model.added.values() if isinstance(entry.posterior, DrawnCondition)]
        return similarities_under_draws(model.drawn, added)
    latents = all_latents(model)
    kernel = model.posterior.parameters.latent_kernel
    between = np.array(_expected_cross(kernel, latents, latents))
    scale = np.sqrt(np.asarray(psi0(kernel, latents)))
    between = between / np.outer(scale, scale)
    np.fill_diagonal(between, 1.0)
    return between


def with_condition(
    model: TrainedModel,
    name: Id,
    inputs: HostFloat,
    outputs: HostFloat,
    *,
    method: str,
    features: HostFloat | None = None,
    errors: HostFloat | None = None,
) -> TrainedModel:
    """The model with a condition added, or with more observations of one added earlier.

    ``features`` are values of its features; without them, those known already. ``errors`` are standard deviations of
    the measurements.
    """
    if name in model.ids:
        raise DataError(
            f"condition {name!r} was part of the training; its curve is already learnt. Use another name, or refit "
            "with the new points"
        )
    if name in model.added:
        earlier = model.added[name]
        errors = _together(earlier, errors, len(outputs))
        inputs = np.vstack([earlier.inputs, inputs])
        outputs = np.concatenate([earlier.outputs, outputs])
    features = features_of(model, name) if features is None else features
    found = _inferred(model, inputs, outputs, errors, known_of(model, features), method)
    entry = AddedCondition(inputs, outputs, method, found, features, errors)
    if not np.all(np.isfinite(latent_gaussian(model, entry).mean)):
        raise NumericalError(f"the posterior of condition {name!r} is not finite; are its points of extreme size?")
    return model._replace(added={**model.added, name: entry})


def _together(earlier: AddedCondition, errors: HostFloat | None, n_new: int) -> HostFloat | None:
    # Errors of earlier and new measurements, zero where none were given.
    if earlier.errors is None and errors is None:
        return None
    before = np.zeros(len(earlier.outputs)) if earlier.errors is None else earlier.errors
    return np.concatenate([before, np.zeros(n_new) if errors is None else errors])


def evidence_of(model: TrainedModel, inputs: HostFloat, outputs: HostFloat, errors: HostFloat | None) -> Evidence:
    """Observations in the user's units as evidence about a condition."""
    return evidence(model.posterior, *_in_standardised_units(model.scaling, inputs, outputs, errors))


def few_of(model: TrainedModel, inputs: HostFloat, outputs: HostFloat, errors: HostFloat | None) -> Few:
    """Observations in the user's units of a condition that is inferred under each draw."""
    return few(*_in_standardised_units(model.scaling, inputs, outputs, errors))


def _in_standardised_units(
    scaling: Scaling, inputs: HostFloat, outputs: HostFloat, errors: HostFloat | None
) -> tuple[HostFloat, HostFloat, HostFloat | None]:
    variances = None if errors is None else scaling.error_variances(errors, outputs)
    return scaling.inputs(inputs), scaling.outputs(outputs), variances


def _inferred(
    model: TrainedModel,
    inputs: HostFloat,
    outputs: HostFloat,
    errors: HostFloat | None,
    known: KnownLatents,
    method: str,
) -> Condition | DrawnCondition:
    if model.drawn is None:
        seen = evidence_of(model, inputs, outputs, errors)
        return (infer if method == "exact" else infer_gaussian)(model.posterior, seen, known)
    if method != "exact":
        raise SettingError(
            f"method={method!r} is an answer of the variational fit, and this model answers from posterior draws; "
            'leave it at method="exact"'
        )
    return infer_under_draws(model.drawn, few_of(model, inputs, outputs, errors), known)


def without_condition(model: TrainedModel, name: Id) -> TrainedModel:
    """The model without a condition that was added to it."""
    if name in model.ids:
        raise DataError(f"condition {name!r} was part of the training and cannot be removed; refit without it")
    if name not in model.added:
        raise unknown_condition(name, model.all_ids)
    return model._replace(added={other: entry for other, entry in model.added.items() if other != name})
