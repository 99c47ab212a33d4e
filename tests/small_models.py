"""Small fixed models."""

import functools
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import references

from lvmogp.ground.compiling import compiled
from lvmogp.kernels.covariances import RBF, Kernel
from lvmogp.model.layouts import Data, GridData, LongData, long_data
from lvmogp.model.parameters import FullInducing, KnownCoordinates, KroneckerInducing, Parameters, plain_kernels
from lvmogp.model.posterior import posterior

# As many inducing inputs as the fewest padded places of evidence: exact and compressed evidence share programs.
D, N, M_X, M_H, Q_X = 4, 7, 4, 3, 2
COUNTS = (3, 9, 1, 5)  # observations of each condition in long form
INDUCING_INPUTS = np.array([[-1.5, -1.0], [1.2, -1.1], [-0.9, 1.3], [1.4, 1.1]])
INDUCING_LATENTS = {
    1: np.array([[-1.4], [0.0], [1.4]]),
    2: np.array([[-1.1, -0.4], [0.9, -0.8], [0.1, 1.2]]),
}
SHARED, PER_CONDITION = (0.05,), (0.02, 0.05, 0.2, 0.1)
MISSING = (np.array([1, 3]), np.array([1, 0]))  # conditions and coordinates of features that nobody knows

build = compiled(posterior)


class Case(NamedTuple):
    """The same observations for the library and for the references."""

    data: Data
    observations: references.Observations


@functools.cache
def grid_case() -> Case:
    rng = np.random.default_rng(1)
    inputs, outputs = rng.uniform(-2, 2, (N, Q_X)), rng.normal(size=(N, D))
    return Case(GridData(jnp.asarray(inputs), jnp.asarray(outputs)), [(inputs, outputs[:, d]) for d in range(D)])


@functools.cache
def long_case() -> Case:
    rng = np.random.default_rng(2)
    observations = [(rng.uniform(-2, 2, (count, Q_X)), rng.normal(size=count)) for count in COUNTS]
    return Case(as_long(observations), observations)


def as_long(observations: references.Observations, error_variances: np.ndarray | None = None) -> Data:
    inputs, outputs = (np.concatenate(parts) for parts in zip(*observations, strict=True))
    conditions = np.repeat(np.arange(len(observations)), [len(values) for _, values in observations])
    return long_data(inputs, outputs, conditions, len(observations), error_variances=error_variances)


def grid_as_long(data: GridData) -> LongData:
    """Return the observations of a grid in long form."""
    n_inputs, n_conditions = data.outputs.shape
    return long_data(
        np.tile(np.asarray(data.inputs), (n_conditions, 1)),
        np.asarray(data.outputs).T.ravel(),
        np.repeat(np.arange(n_conditions), n_inputs),
        n_conditions,
        str(data.outputs.dtype),
        error_variances=None if data.error_variance is None else np.full(data.outputs.size, data.error_variance),
    )


def number(value: float) -> jax.Array:
    return jnp.array(value, float)  # with its type, lest the same program be compiled twice


def rbf(lengthscale: list[float], variance: float) -> Kernel:
    return RBF(jnp.array(lengthscale, float), number(variance))


def small_parameters(n_latent: int = 1, *, noise: tuple[float, ...] = SHARED, seed: int = 0) -> Parameters:
    """Well-spread inducing points; no q(v)."""
    rng = np.random.default_rng(seed)
    return Parameters(
        kernels=plain_kernels(rbf([1.6, 1.3], 1.2), rbf([1.3, 1.5][:n_latent], 0.9)),
        inducing_inputs=jnp.asarray(INDUCING_INPUTS),
        inducing_latents=jnp.asarray(INDUCING_LATENTS[n_latent]),
        latent_mean=jnp.asarray(rng.normal(size=(D, n_latent))),
        latent_variance=jnp.asarray(rng.uniform(0.05, 0.4, (D, n_latent))),
        noise_variance=jnp.asarray(noise),
    )


def lower_factor(rng: np.random.Generator, size: int, scale: float) -> jax.Array:
    below = np.tril(rng.normal(size=(size, size)) / 8, -1)
    return jnp.asarray(scale * (below + np.diag(rng.uniform(0.3, 1.0, size))))


def full_inducing(scale: float = 1.0, seed: int = 4) -> FullInducing:
    rng = np.random.default_rng(seed)
    return FullInducing(jnp.asarray(rng.normal(size=(M_X, M_H))), lower_factor(rng, M_X * M_H, scale))


def kronecker_inducing(seed: int = 5) -> KroneckerInducing:
    rng = np.random.default_rng(seed)
    mean = jnp.asarray(rng.normal(size=(M_X, M_H)))
    return KroneckerInducing(mean, lower_factor(rng, M_X, 1.0), lower_factor(rng, M_H, 1.0))


def described_parameters() -> Parameters:
    """One latent and two coordinates from features, two values of which are missing."""
    rng = np.random.default_rng(40)
    plain = small_parameters(1)
    values = rng.normal(size=(D, 2))
    values[MISSING] = 0.0
    return replace(
        plain,
        kernels=plain_kernels(plain.kernels.of_inputs[0], rbf([1.3, 1.1, 1.7], 0.9)),
        inducing_latents=jnp.asarray(rng.normal(size=(3, 3))),
        known=KnownCoordinates(
            values=jnp.asarray(values),
            missing_condition=jnp.asarray(MISSING[0]),
            missing_coordinate=jnp.asarray(MISSING[1]),
            missing_mean=jnp.array([0.4, -0.7]),
            missing_variance=jnp.array([0.3, 0.6]),
        ),
    )
