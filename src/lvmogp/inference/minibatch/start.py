"""Where stochastic inference starts: a small fit to some conditions, and all others placed in its latent space."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.ground.compiling import compiled
from lvmogp.inference.minibatch.bound import Shared
from lvmogp.inference.minibatch.minibatches import ranks
from lvmogp.inference.options import Options, minibatch_inducing, minibatch_start_options
from lvmogp.inference.restarts import Report, chosen, search
from lvmogp.inference.starts import representatives
from lvmogp.kernels.psi_statistics import LatentGaussians
from lvmogp.model.layouts import long_data
from lvmogp.model.posterior import Posterior, posterior
from lvmogp.tables.observations import Observations
from lvmogp.typing import Array, Float, HostFloat, HostInt, Scalar

# Conditions and observations of the small fit, which takes seconds, and observations by which others are placed.
MOST_CONDITIONS, MOST_OBSERVATIONS = 300, 3_000
POINTS_PER_CONDITION = 32
_CONDITIONS_AT_ONCE = 1_024
# Levenberg and Marquardt's steps: the damping goes down by 4 or up by 8, from little.
_NEWTON_STEPS, _FIRST_DAMPING = 10, 1e-2
# The curves of the small fit are themselves uncertain, by about as much as an observation.
_EXCESS_VARIANCE = 2.0
_posterior = compiled(posterior)


class Start(NamedTuple):
    """Where stochastic inference starts: what all conditions share, and the table of their latents."""

    shared: Shared
    table: Float[np.ndarray, "D K"]


def points_per_condition(n_conditions: int) -> int:
    """Return how many observations of each condition are drawn, for the small fit and for placing the conditions."""
    return max(POINTS_PER_CONDITION, -(-MOST_OBSERVATIONS // min(n_conditions, MOST_CONDITIONS)))


def start_from(
    rows: Observations, n_conditions: int, input_scale: HostFloat, options: Options, on_progress: Report = None
) -> Start:
    """Fit some of the conditions, place the others, and choose inducing points; rows are in standardised units."""
    few, fitted = some_conditions(rows, n_conditions, options.random_state)
    data = long_data(few.inputs, few.outputs, few.conditions, len(fitted))
    reduced = minibatch_start_options(options, data, few.inputs)
    found = chosen(search(reduced, data, few.inputs, input_scale, on_progress)).parameters
    latents = placed(_posterior(found, data), rows, n_conditions, fitted)
    means = np.asarray(latents.mean)
    n_inputs, n_latents = minibatch_inducing(
        options, n_conditions, n_latent=means.shape[1], latent_kernel=found.latent_kernel
    )
    own_noise = options.noise == "per-condition"
    shared = Shared(
        input_kernel=found.input_kernel,
        latent_kernel=found.latent_kernel,
        inducing_inputs=jnp.asarray(representatives(rows.inputs, n_inputs, options.random_state)),
        inducing_latents=jnp.asarray(representatives(means, n_latents, options.random_state)),
        noise_variance=jnp.zeros(0) if own_noise else found.noise_variance,
    )
    columns = [means, np.log(np.asarray(latents.variance))]
    if own_noise:
        noise = np.full((n_conditions, 1), np.mean(np.log(found.noise_variance)))
        noise[fitted, 0] = np.log(found.noise_variance)
        columns.append(noise)
    return Start(shared, np.concatenate(columns, axis=1))


def some_conditions(rows: Observations, n_conditions: int, seed: int) -> tuple[Observations, HostInt]:
    """Return some observations of at most 300 conditions, about as many of each, and the conditions' numbers."""
    rng = np.random.default_rng(seed)
    seen = np.unique(rows.conditions)
    drawn = np.sort(rng.choice(seen, min(len(seen), MOST_CONDITIONS), replace=False))
    numbers = np.full(n_conditions, -1)
    numbers[drawn] = np.arange(len(drawn))
    order = rng.permutation(np.flatnonzero(numbers[rows.conditions] >= 0))
    few = rows.some(order[ranks(rows.conditions[order]) < -(-MOST_OBSERVATIONS // len(drawn))])
    return few._replace(conditions=numbers[few.conditions]), drawn


def placed(model: Posterior, rows: Observations, n_conditions: int, fitted: HostInt) -> LatentGaussians:
    """Return q(h_d) of all conditions: as fitted, and the others where their observations put them, the model fixed."""
    parameters = model.parameters
    n_latent = parameters.latent_mean.shape[1]
    mean, variance = np.zeros((n_conditions, n_latent)), np.ones((n_conditions, n_latent))
    order = np.argsort(rows.conditions, kind="stable")
    order = order[ranks(rows.conditions[order]) < POINTS_PER_CONDITION]
    conditions, rank = rows.conditions[order], ranks(rows.conditions[order])
    at_once = min(_CONDITIONS_AT_ONCE, n_conditions)
    for begin in range(0, n_conditions, at_once):
        now = slice(*np.searchsorted(conditions, [begin, begin + at_once]))
        place = (conditions[now] - begin, rank[now])
        inputs = np.zeros((at_once, POINTS_PER_CONDITION, rows.inputs.shape[1]))
        outputs, present = np.zeros((2, at_once, POINTS_PER_CONDITION))
        inputs[place], outputs[place], present[place] = rows.inputs[order[now]], rows.outputs[order[now]], 1.0
        found = _place(model, jnp.asarray(inputs), jnp.asarray(outputs), jnp.asarray(present))
        these = slice(begin, min(begin + at_once, n_conditions))
        mean[these], variance[these] = (np.asarray(each)[: these.stop - begin] for each in found)
    mean[fitted], variance[fitted] = np.asarray(parameters.latent_mean), np.asarray(parameters.latent_variance)
    return LatentGaussians(jnp.asarray(mean), jnp.asarray(variance))


@compiled
def _place(
    model: Posterior, inputs: Float[Array, "C b Q_X"], outputs: Float[Array, "C b"], present: Float[Array, "C b"]
) -> tuple[Float[Array, "C Q_H"], Float[Array, "C Q_H"]]:
    # Means and variances of Laplace's approximation, by Gauss-Newton steps from the best of the fitted latents, damped
    # as by Levenberg and Marquardt.
    noise = _EXCESS_VARIANCE * jnp.exp(jnp.mean(jnp.log(model.parameters.noise_variance)))
    candidates = model.parameters.latent_mean
    candidate_weights = model.latent_basis.features(candidates) @ model.mean.T  # w(h) = M c(h)
    identity = jnp.eye(candidates.shape[1], dtype=candidates.dtype)

    def one_condition(points: Array, values: Array, weights: Array) -> tuple[Array, Array]:
        features, precision = model.input_basis.features(points), weights / noise

        def predicted(latent: Float[Array, " Q_H"]) -> Float[Array, " b"]:
            return features @ (model.mean @ model.latent_basis.features(latent[None])[0])

        def log_density(latent: Float[Array, " Q_H"]) -> Scalar:
            return -(weights @ (values - predicted(latent)) ** 2 / noise + latent @ latent) / 2

        def curvature(latent: Array) -> tuple[Array, Array]:
            slope = jax.jacfwd(predicted)(latent)
            gradient = slope.T @ (precision * (values - predicted(latent))) - latent
            return gradient, (slope.T * precision) @ slope + identity

        def improve(_, state: tuple[Array, Array]) -> tuple[Array, Array]:
            latent, damping = state
            gradient, precision_matrix = curvature(latent)
            step = jnp.linalg.solve(precision_matrix * (1 + damping * identity), gradient)
            better = log_density(latent + step) > log_density(latent)
            return jax.lax.select(better, latent + step, latent), jax.lax.select(better, damping / 4, damping * 8)

        errors = weights @ (values[:, None] - features @ candidate_weights.T) ** 2 / noise
        first = candidates[jnp.argmin(errors + jnp.sum(candidates**2, axis=1))]
        damping = jnp.asarray(_FIRST_DAMPING, first.dtype)
        latent, _ = jax.lax.fori_loop(0, _NEWTON_STEPS, improve, (first, damping))
        return latent, jnp.diagonal(jnp.linalg.inv(curvature(latent)[1]))

    return jax.vmap(one_condition)(inputs, outputs, present)
