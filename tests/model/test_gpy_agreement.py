"""GPy's own LVMOGP at the same parameters: the bound, its gradient and the predictions.

GPy keeps q(U) un-whitened, with covariances W Wᵀ + diag(d) for inputs and for latents. Our bound is written
as a function of those values, so that JAX differentiates what GPy differentiates by hand.
"""

import warnings
from operator import attrgetter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from threadpoolctl import threadpool_limits

from lvmogp.algebra.linalg import whiten
from lvmogp.kernels.covariances import RBF
from lvmogp.model.bounds import explicit
from lvmogp.model.features import Basis, basis
from lvmogp.model.layouts import Data, GridData, long_data
from lvmogp.model.parameters import KroneckerInducing, Parameters, plain_kernels

# What is ignored are GPy's own warnings, about NumPy's and SciPy's deprecations.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

N, D, M_X, M_H, Q_X, Q_H = 9, 5, 4, 3, 2, 2
COUNTS = (3, 9, 2, 6, 4)
VARIANCE = 1.3  # of both kernels: our jitter is relative to it, GPy knows one jitter only
JITTER = references.JITTER * VARIANCE
RTOL = 1e-10

Values = dict[str, jax.Array | np.ndarray]


def common_values(noise: np.ndarray) -> Values:
    """Parameters under GPy's names, in which rows are conditions and columns are inputs."""
    rng = np.random.default_rng(11)
    return {
        "kern.variance": np.array(VARIANCE),
        "kern.lengthscale": np.array([1.6, 1.3]),
        "kern_row.variance": np.array(VARIANCE),
        "kern_row.lengthscale": np.array([0.9, 1.2]),
        "Z": np.array([[-1.5, -1.0], [1.2, -1.1], [-0.9, 1.3], [1.4, 1.1]]),
        "Z_row": np.array([[-1.2, 0.2], [0.8, -1.0], [0.9, 1.1]]),
        "X_row.mean": rng.normal(size=(D, Q_H)),
        "X_row.variance": rng.uniform(0.05, 0.5, (D, Q_H)),
        "likelihood.variance": noise,
        "qU_mean": rng.normal(size=(M_X, M_H)),
        "qU_var_c_W": rng.normal(size=(M_X, M_X)) / 2,
        "qU_var_c_diag": rng.uniform(0.1, 0.5, M_X),
        "qU_var_r_W": rng.normal(size=(M_H, M_H)) / 2,
        "qU_var_r_diag": rng.uniform(0.1, 0.5, M_H),
    }


def our_parameters(values: Values) -> Parameters:
    values = {name: jnp.asarray(value) for name, value in values.items()}
    inputs = basis((RBF(values["kern.lengthscale"], values["kern.variance"]),), values["Z"])
    latents = basis((RBF(values["kern_row.lengthscale"], values["kern_row.variance"]),), values["Z_row"])
    return Parameters(
        kernels=plain_kernels(*inputs.kernels, *latents.kernels),
        inducing_inputs=inputs.points,
        inducing_latents=latents.points,
        latent_mean=values["X_row.mean"],
        latent_variance=values["X_row.variance"],
        noise_variance=values["likelihood.variance"],
        inducing=KroneckerInducing(
            whiten(inputs.factors[0], whiten(latents.factors[0], values["qU_mean"].T).T),  # L_X⁻¹ M L_H⁻ᵀ
            whitened_factor(inputs, values["qU_var_c_W"], values["qU_var_c_diag"]),
            whitened_factor(latents, values["qU_var_r_W"], values["qU_var_r_diag"]),
        ),
    )


def whitened_factor(points: Basis, root: jax.Array, diagonal: jax.Array) -> jax.Array:
    """L⁻¹ chol(W Wᵀ + diag(d))."""
    return whiten(points.factors[0], jnp.linalg.cholesky(root @ root.T + jnp.diag(diagonal)))


@jax.jit
def our_bound(values: Values, data: Data) -> tuple[jax.Array, Values]:
    """The explicit bound and its gradient with respect to GPy's values."""
    return jax.value_and_grad(lambda values: explicit(our_parameters(values), data).total)(values)


def gpy():
    """The library where it is installed; importing it takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("GPy")


class Pair(NamedTuple):
    """GPy's model beside our parameters and data."""

    model: object
    values: Values
    data: Data


def starting_options(values: Values) -> dict:
    """What GPy's constructors need lest they train another model or draw at random what can be given."""
    return {
        "Xr_dim": Q_H,
        "kernel": gpy().kern.RBF(Q_X, ARD=True),
        "kernel_row": gpy().kern.RBF(Q_H, ARD=True, name="kern_row"),
        "Z": values["Z"].copy(),
        "Z_row": values["Z_row"].copy(),
        "X_row": values["X_row.mean"].copy(),
        "Xvariance_row": values["X_row.variance"].copy(),
        "num_inducing": (M_X, M_H),
        "init": "rand",
    }


def set_to(model, values: Values) -> None:
    model.inference_method.const_jitter = JITTER  # GPy's own is 1e-6
    for name, value in values.items():
        attrgetter(name)(model)[:] = value
    # GPy keeps the derivatives through the psi-statistics until the latents change, whatever else changes.
    model.X_row.mean[:] = values["X_row.mean"]


def grid_pair() -> Pair:
    rng = np.random.default_rng(12)
    inputs, outputs = rng.uniform(-2, 2, (N, Q_X)), rng.normal(size=(N, D))
    values = common_values(np.array([0.2]))
    model = gpy().models.GPMultioutRegression(inputs, outputs, **starting_options(values))
    set_to(model, values)
    return Pair(model, values, GridData(jnp.asarray(inputs), jnp.asarray(outputs)))


def long_pair() -> Pair:
    rng = np.random.default_rng(13)
    conditions = np.repeat(np.arange(D), COUNTS)
    inputs, outputs = rng.uniform(-2, 2, (len(conditions), Q_X)), rng.normal(size=len(conditions))
    values = common_values(np.array([0.2, 0.3, 0.15, 0.4, 0.1]))
    options = starting_options(values) | {"heter_noise": True}
    model = gpy().models.GPMultioutRegressionMD(inputs, outputs[:, None], conditions, **options)
    set_to(model, values)
    return Pair(model, values, long_data(inputs, outputs, conditions, D))


@pytest.fixture(scope="module", params=[grid_pair, long_pair])
def pair(request: pytest.FixtureRequest) -> Pair:
    with threadpool_limits(1):  # small matrices on a busy machine: threads cost ten times what they give
        return request.param()


def test_bound_and_gradient_are_gpys(pair: Pair):
    ours, gradient = our_bound(pair.values, pair.data)
    theirs = np.asarray(pair.model.log_likelihood()).item()
    assert float(ours) == pytest.approx(theirs, rel=RTOL, abs=0)
    for name, own in gradient.items():
        theirs = gpy_gradient(pair.model, name).reshape(own.shape)
        assert np.all(np.abs(theirs) > 1e-3)  # the agreement says something
        np.testing.assert_allclose(own, theirs, rtol=RTOL, atol=RTOL, err_msg=name)


def gpy_gradient(model, name: str) -> np.ndarray:
    """GPy's gradient, with what its jitter would add if it grew with a kernel's variance as ours does."""
    of_gram = {"kern.variance": "dL_dKuu_c", "kern_row.variance": "dL_dKuu_r"}.get(name)
    from_jitter = 0.0 if of_gram is None else references.JITTER * np.trace(model.grad_dict[of_gram])
    return np.array(attrgetter(name)(model).gradient) + from_jitter


def test_predictions_are_gpys(pair: Pair):
    inputs = np.random.default_rng(14).uniform(-3, 3, (6, Q_X))
    mean, variance = references.reference_prediction(our_parameters(pair.values), inputs)
    their_mean, their_variance = pair.model.predict(inputs, include_likelihood=False)
    np.testing.assert_allclose(mean, their_mean, rtol=RTOL)
    np.testing.assert_allclose(variance, their_variance, rtol=RTOL)
    _, of_observations = pair.model.predict(inputs)
    np.testing.assert_allclose(variance + pair.values["likelihood.variance"], of_observations, rtol=RTOL)
