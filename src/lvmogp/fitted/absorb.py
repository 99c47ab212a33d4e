"""Conditions that were added, folded into the trained model for good."""

import dataclasses

import jax.numpy as jnp

from lvmogp.conditions.condition import mean_noise
from lvmogp.conditions.ensemble import ensemble_of_fit
from lvmogp.errors import DataError
from lvmogp.fitted.model import FittedModel, all_features, all_latents
from lvmogp.ground.compiling import compiled
from lvmogp.model.expected_likelihood import quadratic
from lvmogp.model.layouts import LongData, long_data
from lvmogp.model.parameters import Parameters, known_coordinates
from lvmogp.model.posterior import Posterior, updated
from lvmogp.tables.observations import joined

_MOST_DENSE = 4_000


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
    scaling, schema, parameters = model.scaling, model.schema, _all_parameters(model)
    new = joined([entry.observations(number) for number, entry in enumerate(model.added.values(), len(model.ids))])
    data = long_data(
        scaling.inputs(new.inputs),
        scaling.outputs(new.outputs),
        new.conditions,
        len(model.all_ids),
        str(posterior.mean.dtype),
        error_variances=None if new.errors is None else scaling.error_variances(new.errors, new.outputs),
    )
    refreshed = _updated(posterior, parameters, data)
    if model.observations is not None:
        schema = joined([schema, new])
    return model._replace(
        schema=schema._replace(ids=model.all_ids),
        condition_features=all_features(model),
        fit=model.fit._replace(posterior=refreshed),
        added={},
        ensemble=ensemble_of_fit(refreshed),
    )


@compiled
def _updated(posterior: Posterior, parameters: Parameters, data: LongData) -> Posterior:
    found = updated(posterior, quadratic(parameters, data, careful=True))
    return dataclasses.replace(found, parameters=parameters)


def _all_parameters(model: FittedModel) -> Parameters:
    # Those of trained and added conditions together; kernels and inducing points are those of the fit.
    trained, features, latents, known = model.posterior.parameters, all_features(model), all_latents(model), None
    (mean, known_mean), (variance, known_variance) = (
        jnp.split(part, [model.n_latent], axis=1) for part in (latents.mean, latents.variance)
    )
    if features is not None:  # what the features say; what was found where they are missing
        values = features.standardised(features.values[: len(mean)])
        known = known_coordinates(values, known_mean, known_variance)
    noise = trained.noise_variance
    if len(noise) > 1:
        added = [mean_noise(model.ensemble, entry.condition) for entry in model.added.values()]
        noise = jnp.concatenate([noise, jnp.asarray(added, noise.dtype)])
    return dataclasses.replace(
        trained, latent_mean=mean, latent_variance=variance, noise_variance=noise, inducing=None, known=known
    )
