"""A fitted model: what was learnt, the units it speaks in, and the conditions added to it afterwards."""

import dataclasses
import platform
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from lvmogp.__about__ import __version__
from lvmogp.conditions import condition as conditions
from lvmogp.conditions.curves import FewObservations, few_observations, no_observations
from lvmogp.conditions.ensemble import Ensemble, ensemble_of_draws, ensemble_of_fit, thinned
from lvmogp.conditions.infer import infer, infer_gaussian
from lvmogp.errors import DataError, NumericalError, SettingError
from lvmogp.ground.compiling import compiled
from lvmogp.ground.precision import in_precision
from lvmogp.ground.rules import ANY_VALUE, NOT_KEPT, NOT_NEGATIVE
from lvmogp.inference.nuts.diagnostics import SamplingDiagnostics
from lvmogp.inference.restarts import Outcome
from lvmogp.kernels.psi_statistics import LatentGaussians, of_all_conditions
from lvmogp.model.draws import Draws
from lvmogp.model.expected_likelihood import quadratic
from lvmogp.model.layouts import Data, LongData, long_data, standardised
from lvmogp.model.parameters import Parameters, PooledDeviations, known_coordinates
from lvmogp.model.posterior import Posterior, posterior, updated
from lvmogp.tables.features import ConditionFeatures
from lvmogp.tables.ids import Id, unknown_condition
from lvmogp.tables.observations import Observations, joined
from lvmogp.tables.scaling import Scaling
from lvmogp.typing import Float, HostFloat

Method = Literal["exact", "gaussian"]
_posterior = compiled(posterior)
_MOST_DENSE = 4_000
# Of the logarithm of a noise, whatever particles say: none is known for certain.
_LEAST_DEVIATION = 1e-6


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
    versions = {"lvmogp": __version__, "python": platform.python_version()}
    versions |= {module.__name__: module.__version__ for module in (jax, np, scipy)}
    return Origin(seed, versions, f"{platform.machine()} {jax.default_backend()}")


class Fit(NamedTuple):
    """A variational fit: its posterior, how it was found, and the best bounds of all that was tried."""

    posterior: Posterior
    outcome: Outcome
    bounds_by_n_latent: Mapping[int, float]
    bounds_by_transform: Mapping[str | None, float]
    bounds_by_log_columns: Mapping[tuple[int, ...], float]
    origin: Origin | None = None


class Chains(NamedTuple):
    """What Markov chains found, and how they went; no draws where they were interrupted too early."""

    draws: Draws | None
    diagnostics: SamplingDiagnostics


class AddedCondition(NamedTuple):
    """A condition added after the fit: its observations in the user's units, and what they say of it.

    ``features`` are values of its features, if it has any, ``errors`` known standard deviations of the measurements.
    """

    inputs: Float[np.ndarray, "m Q_X"]
    outputs: Float[np.ndarray, " m"]
    errors: Annotated[Float[np.ndarray, " m"], NOT_NEGATIVE] | None
    features: Annotated[Float[np.ndarray, " Q_F"], ANY_VALUE] | None
    method: Method
    condition: Annotated[conditions.Condition, NOT_KEPT]

    def observations(self, number: int = 0) -> Observations:
        """Return the observations as those of a condition of this number."""
        return Observations(self.inputs, self.outputs, np.full(len(self.outputs), number), errors=self.errors)


class FittedModel(NamedTuple):
    """Everything needed to answer. The ensemble follows from the rest: it is one process for a fit, many for draws.

    ``schema`` says what the training data looked like, and holds their rows unless these were not kept.
    """

    schema: Observations
    scaling: Scaling
    fit: Fit
    chains: Chains | None
    condition_features: ConditionFeatures | None
    added: Annotated[Mapping[Id, AddedCondition], NOT_KEPT]
    ensemble: Annotated[Ensemble, NOT_KEPT]

    @property
    def observations(self) -> Observations | None:
        """Return the training data, where they were kept."""
        return self.schema if self.schema.n_rows else None

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
    schema: Observations,
    scaling: Scaling,
    fit: Fit,
    *,
    chains: Chains | None = None,
    condition_features: ConditionFeatures | None = None,
) -> FittedModel:
    """Put a fitted model together; with posterior draws it answers from these, conditioned on its observations."""
    draws = None if chains is None else chains.draws
    parameters = fit.posterior.parameters
    needs_data = draws is not None or parameters.kernels.own is not None
    if needs_data and schema.n_rows == 0:
        raise DataError(
            "a model with posterior draws, or with curves of conditions' own, predicts from its training data, which "
            "this one has not kept; fit in memory"
        )
    data = standardised(schema, scaling) if needs_data else None
    if draws is None or data is None:
        ensemble = ensemble_of_fit(fit.posterior, data)
    else:
        ensemble = ensemble_of_draws(draws, data, parameters)
    if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((fit.posterior.mean, ensemble.fit))):
        raise NumericalError(
            "the posterior of the fitted model is not finite; the inducing points lie too close together or the noise "
            'is vanishing: use fewer inducing points, or dtype="float64"'
        )
    return FittedModel(schema, scaling, fit, chains, condition_features, {}, ensemble)


def ensemble_given(model: FittedModel, data: Data, *, most_draws: int) -> Ensemble:
    """Return the ensemble given other data, hyperparameters and latents as they are; of draws, some."""
    parameters = model.posterior.parameters
    if model.draws is not None:
        return ensemble_of_draws(thinned(model.draws, most_draws), data, parameters)
    # Without a q(v) of its own the fit takes the optimal one for the data at hand, in double precision.
    plain = in_precision(dataclasses.replace(parameters, inducing=None), "float64")
    return ensemble_of_fit(_posterior(plain, data), data)


def mapped_arrays(model: FittedModel, function: Callable[[Any], Any]) -> FittedModel:
    """Return the model with a function applied to each of its device arrays."""
    fit, chains, mapped = model.fit, model.chains, partial(jax.tree.map, function)
    return model._replace(
        fit=fit._replace(
            posterior=mapped(fit.posterior),
            outcome=fit.outcome._replace(parameters=mapped(fit.outcome.parameters)),
        ),
        chains=None if chains is None else chains._replace(draws=mapped(chains.draws)),
        added={name: entry._replace(condition=mapped(entry.condition)) for name, entry in model.added.items()},
        ensemble=mapped(model.ensemble),
    )


def find_condition(model: FittedModel, name: Id, *, unseen: str) -> conditions.Condition:
    """Find a condition by its id; one never seen is an error, or with ``unseen="prior"`` the prior over latents."""
    if name in model.added:
        return model.added[name].condition
    if name in model.ids:
        return conditions.trained_condition(model.ensemble, model.ids.index(name))
    if unseen == "prior":
        nothing = no_observations(model.schema.n_columns, model.ensemble.dtype)
        return infer(model.ensemble, nothing, known_of(model, features_of(model, name)))
    raise unknown_condition(name, model.all_ids)


def features_of(model: FittedModel, name: Id) -> HostFloat | None:
    """Return the values of a condition's features: those it was added with, else those of the table of the fit."""
    if name in model.added:
        return model.added[name].features
    return None if model.condition_features is None else model.condition_features.row(name)


def all_features(model: FittedModel) -> ConditionFeatures | None:
    """Return the features of all conditions, trained and added, NaN where nothing is known, then of others."""
    if model.condition_features is None:
        return None
    return model.condition_features.with_trained({name: features_of(model, name) for name in model.all_ids})


def known_of(model: FittedModel, features: HostFloat | None) -> conditions.KnownLatents:
    """Return which coordinates of a new condition are known from its features, if it has any."""
    if model.condition_features is None or features is None:
        return conditions.known_latents(model.ensemble, model.n_latent)
    return conditions.known_latents(model.ensemble, model.n_latent, model.condition_features.standardised(features))


def noise_variances(model: FittedModel) -> HostFloat:
    """Return the noise variance of each trained condition, standardised; of draws, their mean."""
    return model.ensemble.weights @ np.asarray(model.ensemble.noise, dtype=float)


def trained_latents(ensemble: Ensemble) -> LatentGaussians:
    """Return mean and variance of the aligned latents of the trained conditions."""
    if ensemble.fit is not None:
        return ensemble.fit.posterior.parameters.latents
    weights, aligned = jnp.asarray(ensemble.weights), ensemble.latents @ ensemble.rotations
    mean = jnp.tensordot(weights, aligned, axes=1)
    return LatentGaussians(mean, jnp.tensordot(weights, (aligned - mean) ** 2, axes=1))


def all_latents(model: FittedModel) -> LatentGaussians:
    """Return mean and variance of the latents of all conditions, trained and added; of draws, once they are aligned."""
    found = [trained_latents(model.ensemble)]
    for entry in model.added.values():
        own, known = conditions.latent_gaussian(model.ensemble, entry.condition), known_of(model, entry.features)
        found.append(dataclasses.replace(own, n_uncertain=known.n_uncertain))
    return of_all_conditions(found)


def observations_of(
    model: FittedModel, inputs: HostFloat, outputs: HostFloat, errors: HostFloat | None
) -> FewObservations:
    """Return observations of a condition, given in the user's units, as the ensemble sees them."""
    scaling = model.scaling
    variances = None if errors is None else scaling.error_variances(errors, outputs)
    return few_observations(scaling.inputs(inputs), scaling.outputs(outputs), variances, model.ensemble.dtype)


def with_condition(
    model: FittedModel, name: Id, seen: Observations, *, features: HostFloat | None, method: str
) -> FittedModel:
    """Return the model with a condition added, or with more observations of one added earlier.

    Outputs that are NaN do not count. ``features`` are values of its features; without them, those known already.
    """
    if method not in get_args(Method):
        raise SettingError(f"method must be one of {list(get_args(Method))}, got {method!r}")
    if name in model.ids:
        raise DataError(
            f"condition {name!r} was part of the training; its curve is already learnt. Use another name, or refit "
            "with the new points"
        )
    seen, transform = seen.some(np.isfinite(seen.outputs)), model.scaling.transform
    if transform is not None and not np.all(transform.takes(seen.outputs)):
        raise DataError(
            f"condition {name!r} has outputs that are {transform.fault}; "
            f'output_transform="{transform.name}" needs {transform.demand}'
        )
    if name in model.added:
        seen = joined([model.added[name].observations(), seen])
    features = features_of(model, name) if features is None else features
    rows = seen.inputs, seen.outputs, seen.errors
    few, known, fit = observations_of(model, *rows), known_of(model, features), model.ensemble.fit
    if method == "exact":
        condition = infer(model.ensemble, few, known)
    elif fit is not None and fit.own is not None:
        raise SettingError(
            f"method={method!r} is the paper's answer for the paper's model, and this model has curves of conditions' "
            'own; leave it at method="exact", or fit with own_kernel=None'
        )
    elif fit is not None:
        condition = infer_gaussian(model.ensemble, fit, few, known)
    else:
        raise SettingError(
            f"method={method!r} is an answer of the variational fit, and this model answers from posterior draws; "
            'leave it at method="exact"'
        )
    if not np.all(np.isfinite(condition.weights)):
        raise NumericalError(f"the posterior of condition {name!r} is not finite; are its points of extreme size?")
    return model._replace(added={**model.added, name: AddedCondition(*rows, features, cast(Method, method), condition)})


def without_condition(model: FittedModel, name: Id) -> FittedModel:
    """Return the model without a condition that was added to it."""
    if name in model.ids:
        raise DataError(f"condition {name!r} was part of the training and cannot be removed; refit without it")
    if name not in model.added:
        raise unknown_condition(name, model.all_ids)
    return model._replace(added={other: entry for other, entry in model.added.items() if other != name})


def absorbed(model: FittedModel) -> FittedModel:
    """The model with its added conditions folded into q(U), hyperparameters as they are (equation 23)."""
    if not model.added:
        return model
    if model.ensemble.fit is None:
        raise DataError(
            "absorb updates the variational posterior in closed form, but this model answers from posterior draws; "
            "keep the new conditions added, or refit with them"
        )
    posterior = model.posterior
    n_inducing = posterior.mean.size
    if n_inducing > _MOST_DENSE:
        raise DataError(
            f"absorb needs a dense covariance over all {n_inducing} pairs of inducing points; it is limited to "
            f"{_MOST_DENSE}: refit with the new conditions instead"
        )
    scaling, schema, deviations = model.scaling, model.schema, _all_pooled(model)
    parameters = _all_parameters(model, deviations)
    new = joined([entry.observations(number) for number, entry in enumerate(model.added.values(), len(model.ids))])
    data = long_data(
        scaling.inputs(new.inputs),
        scaling.outputs(new.outputs),
        new.conditions,
        len(model.all_ids),
        str(posterior.mean.dtype),
        error_variances=None if new.errors is None else scaling.error_variances(new.errors, new.outputs),
    )
    refreshed = dataclasses.replace(_updated(posterior, parameters, data), pooled=deviations)
    if model.observations is not None:
        schema = joined([schema, new])
    schema = schema._replace(ids=model.all_ids)
    whole = None if parameters.kernels.own is None else standardised(schema, scaling)
    return model._replace(
        schema=schema,
        condition_features=all_features(model),
        fit=model.fit._replace(posterior=refreshed),
        added={},
        ensemble=ensemble_of_fit(refreshed, whole),
    )


@compiled
def _updated(posterior: Posterior, parameters: Parameters, data: LongData) -> Posterior:
    found = updated(posterior, quadratic(parameters, data, careful=True))
    return dataclasses.replace(found, parameters=parameters)


def _all_pooled(model: FittedModel) -> PooledDeviations | None:
    # Of log σ_d², of trained and added conditions together, where they are known.
    known = model.posterior.pooled
    if known is None:
        return None
    added = [conditions.log_noise_deviation(model.ensemble, entry.condition) for entry in model.added.values()]
    added_ones = jnp.maximum(jnp.asarray(added, known.of_noise.dtype), _LEAST_DEVIATION)
    return dataclasses.replace(known, of_noise=jnp.concatenate([known.of_noise, added_ones]))


def _all_parameters(model: FittedModel, deviations: PooledDeviations | None) -> Parameters:
    # Those of trained and added conditions together; kernels and inducing points are those of the fit.
    trained, features, latents, known = model.posterior.parameters, all_features(model), all_latents(model), None
    (mean, known_mean), (variance, known_variance) = (
        jnp.split(part, [model.n_latent], axis=1) for part in (latents.mean, latents.variance)
    )
    if features is not None:  # what the features say; what was found where they are missing
        values = features.standardised(features.values[: len(mean)])
        known = known_coordinates(values, known_mean, known_variance)
    noise, own = trained.noise_variance, None
    if len(noise) > 1:
        added = [conditions.mean_noises(model.ensemble, entry.condition) for entry in model.added.values()]
        added_noise, added_own = (jnp.asarray(each, noise.dtype) for each in zip(*added, strict=True))
        if deviations is not None:  # the mean of a log-normal variance, m exp(δ²/2)
            added_noise *= jnp.exp(-(deviations.of_noise[-len(added) :] ** 2) / 2)
        noise = jnp.concatenate([noise, added_noise])
        if trained.kernels.own is not None:
            own = jnp.concatenate([trained.own_per_condition, added_own])
    return dataclasses.replace(
        trained,
        latent_mean=mean,
        latent_variance=variance,
        noise_variance=noise,
        own_scale=own,
        inducing=None,
        known=known,
    )
