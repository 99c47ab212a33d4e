"""Ill-conditioned matrices against arithmetic of fifty digits."""

import itertools
import json
from contextlib import nullcontext
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from many_digits import exact
from small_models import as_long, number, rbf

from lvmogp.errors import LVMOGPWarning
from lvmogp.ground.compiling import compiled
from lvmogp.ground.precision import in_precision
from lvmogp.inference.restarts import jitters
from lvmogp.model.bounds import collapsed
from lvmogp.model.layouts import GridData
from lvmogp.model.parameters import Parameters, plain_kernels
from lvmogp.model.posterior import CurveMoments, Posterior, curve_moments, grid_marginals, posterior
from lvmogp.pipeline import stored_in

D, N = 3, 5
POINTS = np.array([[-2.3], [0.05], [0.9], [7.0]])
INPUTS = np.array([[-1.5], [-0.4], [0.1], [0.8], [1.4]])
OUTPUTS = np.array([[0.3, -0.7, 1.1], [0.9, -0.2, 0.4], [1.2, 0.1, -0.3], [0.2, 0.8, -1.0], [-0.8, 1.3, -0.6]])
# Inducing points that crowd more and more: 4 inputs, 3 latents.
CROWDED = {"apart": 1.0, "close": 1e-3, "nearly the same": 1e-9, "the same": 0.0}
_collapsed, _posterior, _marginals = (compiled(each) for each in (collapsed, posterior, grid_marginals))


@compiled
def _curves(model: Posterior) -> CurveMoments:
    return curve_moments(model, model.parameters.latents)


class Case(NamedTuple):
    """One place of the sweep."""

    crowding: str
    lengthscale: float
    latent_lengthscale: float
    noise: float
    latent_variance: float
    is_grid: bool


SWEEP = [
    Case(*values)
    for values in itertools.product(
        CROWDED, (1e-4, 0.3, 2.0, 1e4), (0.05, 1.0, 1e3), (1e-7, 1e-3, 1.0), (1e-7, 0.1), (False, True)
    )
]


def parameters_of(case: Case) -> Parameters:
    spread = CROWDED[case.crowding]
    return Parameters(
        kernels=plain_kernels(rbf([case.lengthscale], 1.3), rbf([case.latent_lengthscale], 0.9)),
        inducing_inputs=jnp.asarray(0.2 + spread * np.array([[-1.5], [-0.5], [0.4], [1.3]])),
        inducing_latents=jnp.asarray(-0.1 + spread * np.array([[-1.0], [0.1], [1.2]])),
        latent_mean=jnp.array([[-0.8], [0.2], [1.1]]),
        latent_variance=jnp.full((D, 1), case.latent_variance),
        noise_variance=number(case.noise)[None],
    )


class Errors(NamedTuple):
    """Of the bound, relative to the largest term it is made of; of mean and variance, in units of the prior's."""

    bound: float
    mean: float
    variance: float


def errors_of(case: Case, dtype: str) -> Errors:
    """What the library's arithmetic costs, against fifty digits."""
    parameters = parameters_of(case)
    observations = [(INPUTS, OUTPUTS[:, d]) for d in range(D)]
    data = GridData(jnp.asarray(INPUTS), jnp.asarray(OUTPUTS)) if case.is_grid else as_long(observations)
    used = tuple(float(value) for value in jitters(parameters))
    truth = exact(parameters, observations, POINTS, used)
    model = in_precision(_posterior(parameters, data), dtype)
    mean, variance = _marginals(model.input_basis, _curves(model), jnp.asarray(POINTS, dtype))
    prior = 1.3 * 0.9
    largest = (np.sum(OUTPUTS**2) + prior * OUTPUTS.size) / case.noise + OUTPUTS.size
    return Errors(
        abs(float(_collapsed(parameters, data).total - float(truth.bound))) / largest,
        float(np.max(np.abs(np.asarray(mean, float) - truth.mean.astype(float)))) / prior**0.5,
        float(np.max(np.abs(np.asarray(variance, float) - truth.variance.astype(float)))) / prior,
    )


# The smaller the noise, the more digits are lost; the bound, always in double precision, loses more of them.
LIMITS = {
    ("float64", 1e-7): Errors(5e-4, 1e-4, 1e-4),
    ("float64", 1e-3): Errors(1e-8, 5e-8, 5e-8),
    ("float64", 1.0): Errors(1e-8, 1e-9, 1e-9),
    ("float32", 1e-7): Errors(5e-4, 1.0, 0.1),
    ("float32", 1e-3): Errors(1e-8, 5e-3, 1e-3),
    ("float32", 1.0): Errors(1e-8, 5e-5, 1e-4),
}
# The corners of the sweep, all of crowding and lengthscales in each; the whole sweep takes minutes.
CORNERS = [
    case for case in SWEEP if case.noise == 1e-3 and case.latent_variance == 0.1 and case.latent_lengthscale != 0.05
]
SOME = [
    *((case, "float64", LIMITS["float64", 1e-3]) for case in CORNERS[::9]),
    *((case, "float32", LIMITS["float32", 1e-3]) for case in CORNERS[1::15]),
    # Whitening by a gram matrix of condition 1e7 costs all the digits of single precision.
    (Case("apart", 2.0, 1e3, 1e-7, 0.1, is_grid=False), "float32", Errors(5e-4, 1.0, 1e-3)),
    # The precision 1/σ² multiplies what whitening loses; covariances whitened by themselves lose little (equation 50).
    (Case("apart", 2.0, 1e3, 1e-7, 1e-7, is_grid=True), "float64", Errors(5e-4, 1e-8, 1e-8)),
]


@pytest.mark.parametrize(("case", "dtype", "limits"), SOME, ids=str)
def test_some_of_the_sweep_agrees_with_fifty_digits(case: Case, dtype: str, limits: Errors):
    assert np.all(np.less(errors_of(case, dtype), limits))


@pytest.mark.parametrize(("noise", "does"), [(1e-7, False), (1e-3, True)])
def test_where_single_precision_does_not_do_a_warning_says_so(noise, does):
    parameters = parameters_of(Case("apart", 1e4, 0.05, noise, 1e-7, is_grid=True))
    model = _posterior(parameters, GridData(jnp.asarray(INPUTS), jnp.asarray(OUTPUTS)))
    expected = nullcontext() if does else pytest.warns(LVMOGPWarning, match="single precision moves predictions by")
    with expected:
        assert stored_in(model, "float32").mean.dtype == jnp.float32


@pytest.mark.long
@pytest.mark.parametrize("case", SWEEP, ids=str)
def test_the_whole_sweep_agrees_with_fifty_digits(case: Case, record_property):
    found = {dtype: errors_of(case, dtype) for dtype in ("float64", "float32")}
    record_property("measured", json.dumps({"case": case._asdict()} | {k: v._asdict() for k, v in found.items()}))
    for dtype, errors in found.items():
        assert np.all(np.less(errors, LIMITS[dtype, case.noise]))
