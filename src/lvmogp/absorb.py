"""Conditions that were added, folded into the trained model for good."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.compiling import compiled
from lvmogp.data import LongData, long_data
from lvmogp.drawn_condition import DrawnCondition
from lvmogp.errors import DataError
from lvmogp.parameters import Parameters
from lvmogp.posterior import Posterior, updated
from lvmogp.predictions import Condition
from lvmogp.quadratics import quadratic
from lvmogp.trained import AddedCondition, TrainedModel, kept_curves, latent_gaussian
from lvmogp.variational_condition import GaussianCondition

_MOST_DENSE = 4_000


def absorbed(model: TrainedModel) -> TrainedModel:
    """The model with its added conditions folded into q(U), hyperparameters as they are (equation 23)."""
    if not model.added:
        return model
    if model.draws is not None:
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
    parameters = _extended(posterior.parameters, entries)
    scaling = model.scaling
    numbers = np.repeat(np.arange(len(entries)), [len(entry.outputs) for entry in entries])
    data = long_data(
        scaling.inputs(np.vstack([entry.inputs for entry in entries])),
        scaling.outputs(np.concatenate([entry.outputs for entry in entries])),
        numbers,
        len(entries),
        str(posterior.mean.dtype),
    )
    new_only = _last(parameters, len(entries))
    refreshed = _updated(posterior, new_only, data)
    refreshed = eqx.tree_at(lambda tree: tree.parameters, refreshed, parameters)
    observations = model.observations
    if observations is not None:
        observations = observations._replace(
            inputs=np.vstack([observations.inputs, *(entry.inputs for entry in entries)]),
            outputs=np.concatenate([observations.outputs, *(entry.outputs for entry in entries)]),
            conditions=np.concatenate([observations.conditions, len(model.ids) + numbers]),
            ids=model.all_ids,
        )
    return model._replace(
        ids=model.all_ids,
        posterior=refreshed,
        curves=kept_curves(refreshed),
        observations=observations,
        added={},
    )


@compiled
def _updated(posterior: Posterior, new_only: Parameters, data: LongData) -> Posterior:
    return updated(posterior, quadratic(new_only, data))


def _extended(parameters: Parameters, entries: list[AddedCondition]) -> Parameters:
    latents = [latent_gaussian(entry.posterior) for entry in entries]
    noise = parameters.noise_variance
    if noise.shape[0] > 1:
        own = [_mean_noise(entry.posterior) for entry in entries]
        noise = jnp.concatenate([noise, jnp.stack(own)])
    return Parameters(
        input_kernel=parameters.input_kernel,
        latent_kernel=parameters.latent_kernel,
        inducing_inputs=parameters.inducing_inputs,
        inducing_latents=parameters.inducing_latents,
        latent_mean=jnp.concatenate([parameters.latent_mean, *(item.mean for item in latents)]),
        latent_variance=jnp.concatenate([parameters.latent_variance, *(item.variance for item in latents)]),
        noise_variance=noise,
    )


def _mean_noise(condition: Condition | DrawnCondition) -> jax.Array:
    if isinstance(condition, GaussianCondition):
        return condition.noise
    return jnp.sum(condition.weights * condition.noise)


def _last(parameters: Parameters, n_conditions: int) -> Parameters:
    shared = parameters.noise_variance.shape[0] == 1
    return eqx.tree_at(
        lambda tree: (tree.latent_mean, tree.latent_variance, tree.noise_variance),
        parameters,
        (
            parameters.latent_mean[-n_conditions:],
            parameters.latent_variance[-n_conditions:],
            parameters.noise_variance if shared else parameters.noise_variance[-n_conditions:],
        ),
    )
