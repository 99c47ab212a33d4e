"""Small fixed models, and the q(f) that each implies written densely: un-whitened, every Kronecker product formed."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import references
from references import InducingGaussian, covariance, grams, kernel_values, unwhitened

from lvmogp.kernels import RBF, Kernel
from lvmogp.parameters import FullInducing, Parameters
from lvmogp.posterior import Posterior, posterior

# As many inducing inputs as the fewest padded places of evidence: exact and compressed evidence share programs.
D, M_X, M_H = 4, 4, 3
INDUCING_INPUTS = np.array([[-1.8], [-0.6], [0.5], [1.7]])
INDUCING_LATENTS = {
    1: np.array([[-1.4], [0.0], [1.4]]),
    2: np.array([[-1.1, -0.4], [0.9, -0.8], [0.1, 1.2]]),
}

build = eqx.filter_jit(posterior)


def number(value: float) -> jax.Array:
    return jnp.array(value, float)  # with its type, lest the same program be compiled twice


def rbf(lengthscale: list[float], variance: float) -> Kernel:
    return RBF(jnp.array(lengthscale, float), number(variance))


def replace(parameters: Parameters, **changes) -> Parameters:
    names = list(changes)
    return eqx.tree_at(
        lambda tree: [getattr(tree, name) for name in names],
        parameters,
        [changes[name] for name in names],
        is_leaf=lambda leaf: leaf is None,
    )


def small_parameters(n_latent: int = 1, *, noise: tuple[float, ...] = (0.02,), seed: int = 0) -> Parameters:
    """Well-spread inducing points and an explicit q(v) that knows most of what there is to know."""
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=(M_X, M_H))
    factor = np.tril(rng.normal(size=(M_X * M_H, M_X * M_H)) / 30, -1) + np.diag(rng.uniform(0.1, 0.3, M_X * M_H))
    return Parameters(
        input_kernel=rbf([1.1], 1.2),
        latent_kernel=rbf([1.3, 1.5][:n_latent], 0.9),
        inducing_inputs=jnp.asarray(INDUCING_INPUTS),
        inducing_latents=jnp.asarray(INDUCING_LATENTS[n_latent]),
        latent_mean=jnp.asarray(rng.normal(size=(D, n_latent))),
        latent_variance=jnp.asarray(rng.uniform(0.05, 0.4, (D, n_latent))),
        noise_variance=jnp.asarray(noise),
        inducing=FullInducing(jnp.asarray(mean), jnp.asarray(factor)),
    )


@functools.cache
def small_model(n_latent: int = 1, *, noise: tuple[float, ...] = (0.02,), seed: int = 0) -> Posterior:
    return build(small_parameters(n_latent, noise=noise, seed=seed), None)


@functools.cache
def even_model() -> Posterior:
    """One latent dimension in which every curve is even: f(x, −h) and f(x, h) have the same distribution."""
    parameters = small_parameters()
    input_factor, latent_factor = (np.linalg.cholesky(gram) for gram in grams(parameters))
    # u = z² cos x, and S = s²I, which is s²(K_H ⊗ K_X) without whitening: both even in z.
    inducing = np.cos(INDUCING_INPUTS) * INDUCING_LATENTS[1][:, 0] ** 2
    mean = np.linalg.solve(latent_factor, np.linalg.solve(input_factor, inducing).T).T
    even = FullInducing(jnp.asarray(mean), 0.1 * jnp.eye(M_X * M_H))
    return build(replace(parameters, inducing=even), None)


# The process f(x, h) under q(u), as the paper writes it.


class DenseProcess:
    """Mean and covariance of f at rows (x, h) given: p(f|u) with u ~ q(u) = N(m, S) integrated out."""

    def __init__(self, parameters: Parameters, q: InducingGaussian | None = None):
        self.parameters = parameters
        input_gram, latent_gram = grams(parameters)
        gram = np.kron(latent_gram, input_gram)
        q = unwhitened(parameters) if q is None else q
        inverse = np.linalg.inv(gram)
        self.weights = inverse @ q.mean
        # − K_fu K_uu⁻¹ K_uf + K_fu K_uu⁻¹ S K_uu⁻¹ K_uf
        self.core = inverse @ q.covariance @ inverse - inverse

    def cross(self, inputs: np.ndarray, latents: np.ndarray) -> np.ndarray:
        """Rows k_H(h, Z_H) ⊗ k_X(x, Z_X)."""
        by_input = covariance(self.parameters.input_kernel, inputs, np.asarray(self.parameters.inducing_inputs))
        by_latent = covariance(self.parameters.latent_kernel, latents, np.asarray(self.parameters.inducing_latents))
        return np.stack([np.kron(latent, point) for latent, point in zip(by_latent, by_input, strict=True)])

    def mean(self, inputs: np.ndarray, latents: np.ndarray) -> np.ndarray:
        return self.cross(inputs, latents) @ self.weights

    def covariance(
        self, inputs: np.ndarray, latents: np.ndarray, other_inputs: np.ndarray, other_latents: np.ndarray
    ) -> np.ndarray:
        prior = covariance(self.parameters.latent_kernel, latents, other_latents) * covariance(
            self.parameters.input_kernel, inputs, other_inputs
        )
        return prior + self.cross(inputs, latents) @ self.core @ self.cross(other_inputs, other_latents).T

    def at(self, inputs: np.ndarray, latent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance of one curve f(·, h)."""
        latents = np.tile(latent, (len(inputs), 1))
        return self.mean(inputs, latents), self.covariance(inputs, latents, inputs, latents)
