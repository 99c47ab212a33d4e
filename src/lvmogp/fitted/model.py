"""A fitted model: what was learnt, the units it speaks in, and the conditions added to it afterwards."""

import dataclasses
import platform
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

import jax
import numpy as np
import scipy

from lvmogp.__about__ import __version__
from lvmogp.conditions.condition import (
    Condition,
    KnownLatents,
    known_latents,
    latent_gaussian,
    trained_condition,
)
from lvmogp.conditions.curves import FewObservations, few_observations, no_observations
from lvmogp.conditions.ensemble import Ensemble, ensemble_of_draws, ensemble_of_fit
from lvmogp.conditions.infer import infer, infer_gaussian
from lvmogp.errors import DataError, NumericalError, SettingError
from lvmogp.fitted.similarity import trained_latents
from lvmogp.ground.compiling import compiled
from lvmogp.ground.precision import in_precision
from lvmogp.ground.rules import Along
from lvmogp.inference.nuts.diagnostics import SamplingDiagnostics
from lvmogp.inference.restarts import Outcome
from lvmogp.kernels.psi_statistics import LatentGaussians, of_all_conditions
from lvmogp.model.draws import Draws, thinned
from lvmogp.model.layouts import Data, standardised
from lvmogp.model.posterior import Posterior, posterior
from lvmogp.tables.features import ConditionFeatures
from lvmogp.tables.ids import Id, unknown_condition
from lvmogp.tables.observations import Observations
from lvmogp.tables.scaling import Scaling
from lvmogp.typing import HostFloat

METHODS = ("exact", "gaussian")
_posterior = compiled(posterior)
_Tree = TypeVar("_Tree")


class Schema(NamedTuple):
    """What the training data looked like: ids of the conditions, columns of the inputs, name of the output."""

    ids: Annotated[tuple[Id, ...], Along("D")]
    columns: Annotated[tuple[str, ...], Along("Q_X")] | None
    n_columns: int
    date_columns: tuple[str, ...]
    output_name: str | None
    is_grid: bool


class Origin(NamedTuple):
    """The seed of a fit, the versions of what computed it, and the kind of machine."""

    seed: int
    versions: Mapping[str, str]
    machine: str

    def __str__(self) -> str:
        """Return all of it in a line."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"seed {self.seed}; {versions}; {self.machine}"


def origin_here(seed: int) -> Origin:
    """Return the origin of a fit with this seed that this process makes."""
    versions = {
        "lvmogp": __version__,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }
    return Origin(seed, versions, f"{platform.machine()} {jax.default_backend()}")


class Fit(NamedTuple):
    """A variational fit: its posterior, how it was found, and the best bounds of all that was tried."""

    posterior: Posterior
    outcome: Outcome
    bounds_by_n_latent: Mapping[int, float]
    bounds_by_transform: Mapping[str | None, float]
    origin: Origin | None = None


class Chains(NamedTuple):
    """What Markov chains found, and how they went; no draws where they were interrupted too early."""

    draws: Draws | None
    diagnostics: SamplingDiagnostics


class AddedCondition(NamedTuple):
    """A condition added after the fit: its observations in the user's units, and what they say of it.

    ``features`` are the values of its features, where it has any, and ``errors`` known standard deviations of the
    measurements.
    """

    inputs: HostFloat
    outputs: HostFloat
    errors: HostFloat | None
    features: HostFloat | None
    method: str
    condition: Condition


class FittedModel(NamedTuple):
    """Everything needed to answer. The ensemble follows from the rest: it is one process for a fit, many for draws."""

    schema: Schema
    scaling: Scaling
    fit: Fit
    chains: Chains | None
    observations: Observations | None
    condition_features: ConditionFeatures | None
    added: Mapping[Id, AddedCondition]
    ensemble: Ensemble

    @property
    def ids(self) -> tuple[Id, ...]:
        """Return the trained conditions."""
        return self.schema.ids

    @property
    def all_ids(self) -> tuple[Id, ...]:
        """Return the trained conditions, then the added ones."""
        return (*self.ids, *self.added)

    @property
    def posterior(self) -> Posterior:
        """Return the variational posterior."""
        return self.fit.posterior

    @property
    def n_latent(self) -> int:
        """Return the dimensions of the latent space."""
        return self.posterior.parameters.latent_mean.shape[1]

    @property
    def draws(self) -> Draws | None:
        """Return the posterior draws, where there are any."""
        return None if self.chains is None else self.chains.draws


def fitted_model(
    schema: Schema,
    scaling: Scaling,
    fit: Fit,
    *,
    chains: Chains | None = None,
    observations: Observations | None = None,
    condition_features: ConditionFeatures | None = None,
) -> FittedModel:
    """Put a fitted model together; with posterior draws it answers from these, conditioned on its observations."""
    draws = None if chains is None else chains.draws
    if draws is None:
        ensemble = ensemble_of_fit(fit.posterior)
    elif observations is None:
        raise DataError(
            "a model with posterior draws predicts from its training data, which this one has not kept; fit in memory"
        )
    else:
        ensemble = ensemble_of_draws(draws, standardised(observations, scaling), fit.posterior.parameters)
    if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((fit.posterior.mean, ensemble.fit))):
        raise NumericalError(
            "the posterior of the fitted model is not finite; the inducing points lie too close together or the noise "
            'is vanishing: use fewer inducing points, or dtype="float64"'
        )
    return FittedModel(schema, scaling, fit, chains, observations, condition_features, {}, ensemble)


def ensemble_given(model: FittedModel, data: Data, *, most_draws: int) -> Ensemble:
    """Return the ensemble given other data, hyperparameters and latents as they are; of draws, some."""
    parameters = model.posterior.parameters
    if model.draws is not None:
        return ensemble_of_draws(thinned(model.draws, most_draws), data, parameters)
    # Without a q(v) of its own the fit takes the optimal one for the data at hand, in double precision.
    plain = in_precision(dataclasses.replace(parameters, inducing=None), "float64")
    return ensemble_of_fit(_posterior(plain, data))


def mapped_arrays(model: FittedModel, function: Callable[[Any], Any]) -> FittedModel:
    """Return the model with a function applied to each of its device arrays."""

    def mapped(tree: _Tree) -> _Tree:
        return jax.tree.map(function, tree)

    fit, chains = model.fit, model.chains
    return model._replace(
        fit=fit._replace(
            posterior=mapped(fit.posterior),
            outcome=fit.outcome._replace(parameters=mapped(fit.outcome.parameters)),
            bounds_by_n_latent=dict(fit.bounds_by_n_latent),
            bounds_by_transform=dict(fit.bounds_by_transform),
        ),
        chains=None if chains is None else chains._replace(draws=mapped(chains.draws)),
        added={name: entry._replace(condition=mapped(entry.condition)) for name, entry in model.added.items()},
        ensemble=mapped(model.ensemble),
    )


def find_condition(model: FittedModel, name: Id, *, unseen: str) -> Condition:
    """Find a condition by its id; one never seen is an error, or with ``unseen="prior"`` the prior over latents."""
    if name in model.added:
        return model.added[name].condition
    if name in model.ids:
        return trained_condition(model.ensemble, model.ids.index(name))
    if unseen == "prior":
        nothing = no_observations(model.schema.n_columns, model.ensemble.dtype)
        return infer(model.ensemble, nothing, known_of(model, features_of(model, name)))
    raise unknown_condition(name, model.all_ids)


def features_of(model: FittedModel, name: Id) -> HostFloat | None:
    """Return the values of a condition's features: those it was added with, else those of the table of the fit."""
    if name in model.added:
        return model.added[name].features
    return None if model.condition_features is None else model.condition_features.row(name)


def known_of(model: FittedModel, features: HostFloat | None) -> KnownLatents:
    """Return which coordinates of a new condition are known from its features, if it has any."""
    if model.condition_features is None or features is None:
        return known_latents(model.ensemble, model.n_latent)
    return known_latents(model.ensemble, model.n_latent, model.condition_features.standardised(features))


def noise_variances(model: FittedModel) -> HostFloat:
    """Return the noise variance of each trained condition, standardised; of draws, their mean."""
    return model.ensemble.weights @ np.asarray(model.ensemble.noise, dtype=float)


def added_latents(model: FittedModel, entry: AddedCondition) -> LatentGaussians:
    """Return mean and variance of the latents of an added condition; of draws, once they are aligned."""
    found = latent_gaussian(model.ensemble, entry.condition)
    return LatentGaussians(found.mean, found.variance, known_of(model, entry.features).n_uncertain)


def all_latents(model: FittedModel) -> LatentGaussians:
    """Return mean and variance of the latents of all conditions, trained and added; of draws, once they are aligned."""
    added = (added_latents(model, entry) for entry in model.added.values())
    return of_all_conditions([trained_latents(model.ensemble), *added])


def observations_of(
    model: FittedModel, inputs: HostFloat, outputs: HostFloat, errors: HostFloat | None
) -> FewObservations:
    """Return observations of a condition, given in the user's units, as the ensemble sees them."""
    scaling = model.scaling
    variances = None if errors is None else scaling.error_variances(errors, outputs)
    return few_observations(scaling.inputs(inputs), scaling.outputs(outputs), variances, model.ensemble.dtype)


def with_condition(
    model: FittedModel,
    name: Id,
    inputs: HostFloat,
    outputs: HostFloat,
    *,
    method: str,
    features: HostFloat | None = None,
    errors: HostFloat | None = None,
) -> FittedModel:
    """Return the model with a condition added, or with more observations of one added earlier.

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
    seen, known = observations_of(model, inputs, outputs, errors), known_of(model, features)
    entry = AddedCondition(inputs, outputs, errors, features, method, _inferred(model.ensemble, seen, known, method))
    if not np.all(np.isfinite(entry.condition.weights)):
        raise NumericalError(f"the posterior of condition {name!r} is not finite; are its points of extreme size?")
    return model._replace(added={**model.added, name: entry})


def _together(earlier: AddedCondition, errors: HostFloat | None, n_new: int) -> HostFloat | None:
    # Errors of earlier and new measurements, zero where none were given.
    if earlier.errors is None and errors is None:
        return None
    before = np.zeros(len(earlier.outputs)) if earlier.errors is None else earlier.errors
    return np.concatenate([before, np.zeros(n_new) if errors is None else errors])


def _inferred(ensemble: Ensemble, seen: FewObservations, known: KnownLatents, method: str) -> Condition:
    if method == "exact":
        return infer(ensemble, seen, known)
    if ensemble.fit is None:
        raise SettingError(
            f"method={method!r} is an answer of the variational fit, and this model answers from posterior draws; "
            'leave it at method="exact"'
        )
    return infer_gaussian(ensemble, ensemble.fit, seen, known)


def without_condition(model: FittedModel, name: Id) -> FittedModel:
    """Return the model without a condition that was added to it."""
    if name in model.ids:
        raise DataError(f"condition {name!r} was part of the training and cannot be removed; refit without it")
    if name not in model.added:
        raise unknown_condition(name, model.all_ids)
    return model._replace(added={other: entry for other, entry in model.added.items() if other != name})
