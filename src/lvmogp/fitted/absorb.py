"""Conditions that were added, folded into the trained model for good."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.conditions.condition import mean_noise
from lvmogp.conditions.ensemble import ensemble_of_fit
from lvmogp.errors import DataError
from lvmogp.fitted.model import AddedCondition, FittedModel, added_latents, features_of
from lvmogp.ground.compiling import compiled
from lvmogp.kernels.psi_statistics import of_all_conditions
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
    entries = list(model.added.values())
    new_only = _parameters_of(model, entries)
    scaling, schema = model.scaling, model.schema
    new = joined([entry.observations(number) for number, entry in enumerate(entries)])
    data = long_data(
        scaling.inputs(new.inputs),
        scaling.outputs(new.outputs),
        new.conditions,
        len(entries),
        str(posterior.mean.dtype),
        error_variances=None if new.errors is None else scaling.error_variances(new.errors, new.outputs),
    )
    refreshed = _updated(posterior, new_only, data)
    refreshed = eqx.tree_at(lambda tree: tree.parameters, refreshed, _joined(posterior.parameters, new_only))
    if model.observations is not None:
        schema = joined([schema, new._replace(conditions=len(model.ids) + new.conditions)])
    condition_features = model.condition_features
    if condition_features is not None:
        condition_features = condition_features.with_trained({name: features_of(model, name) for name in model.all_ids})
    return model._replace(
        schema=schema._replace(ids=model.all_ids),
        condition_features=condition_features,
        fit=model.fit._replace(posterior=refreshed),
        added={},
        ensemble=ensemble_of_fit(refreshed),
    )


@compiled
def _updated(posterior: Posterior, new_only: Parameters, data: LongData) -> Posterior:
    return updated(posterior, quadratic(new_only, data, careful=True))


def _parameters_of(model: FittedModel, entries: list[AddedCondition]) -> Parameters:
    # Those of the new conditions alone.
    trained, condition_features = model.posterior.parameters, model.condition_features
    latents, noise, known = of_all_conditions([added_latents(model, entry) for entry in entries]), None, None
    if trained.noise_variance.shape[0] > 1:
        noise = jnp.asarray([mean_noise(model.ensemble, each.condition) for each in entries], latents.mean.dtype)
    mean, variance = (jnp.split(part, [model.n_latent], axis=1) for part in (latents.mean, latents.variance))
    if condition_features is not None:  # what the features say; what was found where they are missing
        nothing = np.full(condition_features.n_coordinates, np.nan)
        values = np.stack([nothing if entry.features is None else entry.features for entry in entries])
        known = known_coordinates(condition_features.standardised(values), mean[1], variance[1])
    return dataclasses.replace(
        trained,
        latent_mean=mean[0],
        latent_variance=variance[0],
        noise_variance=trained.noise_variance if noise is None else noise,
        inducing=None,
        known=known,
    )


def _joined(trained: Parameters, new: Parameters) -> Parameters:
    # The conditions of both; kernels and inducing points are the same.
    known = None
    if trained.known is not None and new.known is not None:
        places = new.known.missing_condition + len(trained.latent_mean)
        moved = dataclasses.replace(new.known, missing_condition=places)
        known = jax.tree.map(lambda *both: jnp.concatenate(both), trained.known, moved)
    names = ["latent_mean", "latent_variance"] + ["noise_variance"] * (trained.noise_variance.shape[0] > 1)
    both = {name: jnp.concatenate([getattr(trained, name), getattr(new, name)]) for name in names}
    return dataclasses.replace(trained, **both, inducing=None, known=known)
