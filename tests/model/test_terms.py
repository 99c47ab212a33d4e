"""Several terms, a shared curve and own curves: bounds and posteriors against loops, quadrature and dense Gaussians."""

import dataclasses

import dense_terms
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from dense_terms import exact, mixture_moments, optimal, quadratic, rows
from numpy.testing import assert_allclose
from scipy.stats import norm
from small_models import D, as_long, build, grid_as_long, lower_factor, number, rbf

from lvmogp.algebra.constraints import join, split
from lvmogp.conditions import closed_form
from lvmogp.conditions.ensemble import ensemble_of_fit
from lvmogp.conditions.predictive import trained_curves
from lvmogp.ground.compiling import compiled
from lvmogp.ground.precision import in_precision
from lvmogp.inference.nuts.parameters import Priors
from lvmogp.kernels.covariances import Linear, Matern52, cross, gram
from lvmogp.kernels.psi_statistics import LatentGaussians, feature_covariance
from lvmogp.model.bounds import collapsed, collapsed_objective, explicit
from lvmogp.model.layouts import GridData
from lvmogp.model.parameters import (
    LENGTHSCALE_PRIOR,
    SPREAD_PRIOR,
    FullInducing,
    Kernels,
    KroneckerInducing,
    Parameters,
    Term,
    of_conditions,
)
from lvmogp.model.posterior import posterior

LATENT = Term(rbf([1.1], 1.1), rbf([1.3], 0.9))
OTHER = Term(Matern52(jnp.array([0.9]), number(0.6)), rbf([0.7], 0.5))
LINEAR = Term(rbf([0.8], 0.7), Linear(jnp.array([0.4])))
ROUGH = Term(rbf([0.8], 0.7), Matern52(jnp.array([1.2]), number(0.8)))
SHARED = Term(rbf([1.6], 0.8))
OWN = Matern52(jnp.array([0.8]), number(0.4))
KERNELS = {
    "two latent terms": Kernels((LATENT, OTHER)),
    "all": Kernels((LATENT, OTHER, SHARED), OWN),
    "linear": Kernels((LATENT, LINEAR, SHARED), OWN),
    "by quadrature": Kernels((ROUGH, LATENT), OWN),
    "latent and own": Kernels((LATENT,), OWN),
    "shared and own": Kernels((SHARED,), OWN),
}
NOISES = {
    "one noise": ((0.05,), None),
    "many": ((0.05, 0.1, 0.03, 0.2), None),
    "many, free": ((0.05, 0.1, 0.03, 0.2), (0.5, 1.0, 2.0, 1.3)),
}
# Each kernel, each noise and each form at least once: every one is a program to compile.
CASES = [
    ("two latent terms", "many", "long"),
    ("all", "one noise", "grid"),
    ("all", "many", "grid"),
    ("all", "many, free", "grid"),
    ("all", "many, free", "long"),
    ("linear", "one noise", "long"),
    ("by quadrature", "many", "grid"),
    ("latent and own", "many", "grid"),
    ("shared and own", "one noise", "grid"),
    ("shared and own", "many, free", "long"),
]
every_case = pytest.mark.parametrize(("kernels", "noise", "form"), CASES)
X_NEW = np.array([[-1.7], [-0.4], [0.3], [1.1], [2.2]])
bound_of, explicit_of = compiled(collapsed), compiled(explicit)


def observations_of(form):
    rng = np.random.default_rng(3)
    if form == "grid":
        x = np.sort(rng.uniform(-2, 2, (6, 1)), axis=0)
        return [(x, rng.normal(size=6)) for _ in range(D)]
    return [(rng.uniform(-2, 2, (count, 1)), rng.normal(size=count)) for count in (3, 6, 1, 5)]


def data_of(form):
    observations = observations_of(form)
    if form == "long":
        return as_long(observations)
    return GridData(jnp.asarray(observations[0][0]), jnp.asarray(np.stack([y for _, y in observations], axis=1)))


def parameters_of(kernels, noise, *, known=False):
    """Three inducing inputs, three inducing latents, latents that are uncertain or known."""
    rng, (variances, own) = np.random.default_rng(4), NOISES[noise]
    n_latent = len(KERNELS[kernels].of_latents) > 0
    mean = rng.normal(size=(D, 1))[:, :n_latent]
    return Parameters(
        kernels=KERNELS[kernels],
        inducing_inputs=jnp.array([[-1.4], [0.1], [1.5]]),
        inducing_latents=jnp.array([[-1.2], [0.1], [1.3]])[:, :n_latent],
        latent_mean=jnp.asarray(mean),
        latent_variance=jnp.asarray(rng.uniform(0.05, 0.4, mean.shape) * (not known)),
        noise_variance=jnp.asarray(variances),
        own_scale=None if own is None else jnp.asarray(own),
    )


def dense_collapsed(parameters, observations, **errors):
    constant, linear, gram = quadratic(parameters, observations, **errors)
    precision = np.eye(len(linear)) + gram
    return constant - references.log_det(precision) / 2 + linear @ np.linalg.solve(precision, linear) / 2


# Bounds


@every_case
def test_the_collapsed_bound_is_that_of_quadrature_and_loops(kernels, noise, form):
    parameters, observations = parameters_of(kernels, noise), observations_of(form)
    found = bound_of(parameters, data_of(form))
    assert_allclose(found.fit, dense_collapsed(parameters, observations), rtol=1e-8)
    if form == "grid":
        assert_allclose(bound_of(parameters, grid_as_long(data_of(form))).fit, found.fit, rtol=1e-10)


@pytest.mark.parametrize(("kernels", "noise", "form"), [CASES[1], CASES[2], CASES[4]])
def test_known_errors_of_measurements_add_to_the_noise(kernels, noise, form):
    parameters, observations, data = parameters_of(kernels, noise), observations_of(form), data_of(form)
    if form == "grid":
        data, errors = GridData(data.inputs, data.outputs, jnp.asarray(0.2)), [np.full(6, 0.2)] * D
    else:
        errors = [np.linspace(0.0, 0.3, len(y)) for _, y in observations]
        data = as_long(observations, error_variances=np.concatenate(errors))
    assert_allclose(bound_of(parameters, data).fit, dense_collapsed(parameters, observations, errors=errors), rtol=1e-8)


@pytest.mark.parametrize(("kernels", "noise", "form"), [CASES[2], CASES[4]])
def test_single_precision_stays_single(kernels, noise, form):
    parameters, data = parameters_of(kernels, noise), data_of(form)
    single = bound_of(*in_precision((parameters, data), "float32"))
    assert {leaf.dtype for leaf in jax.tree.leaves(single)} == {jnp.dtype("float32")}
    assert_allclose(single.total, bound_of(parameters, data).total, rtol=3e-4)


@every_case
def test_no_bound_exceeds_the_likelihood_and_inducing_points_everywhere_reach_it(kernels, noise, form):
    parameters, observations = parameters_of(kernels, noise, known=True), observations_of(form)
    latents, own = np.asarray(parameters.latent_mean), np.asarray(parameters.own_per_condition)
    noises = np.asarray(parameters.noise_per_condition)
    likelihood = exact(parameters.kernels, latents, own, noises, observations).log_likelihood
    assert bound_of(parameters, data_of(form)).fit < likelihood - 0.1
    points = np.unique(np.concatenate([x for x, _ in observations]), axis=0)
    whole = dataclasses.replace(
        parameters, inducing_inputs=jnp.asarray(points), inducing_latents=parameters.latent_mean
    )
    # Up to the jitter of the gram matrices of the inducing points.
    assert_allclose(bound_of(whole, data_of(form)).fit, likelihood, rtol=2e-4)


@pytest.mark.parametrize(("kernels", "noise", "form"), [CASES[2], CASES[4]])
def test_explicit_bounds_are_below_the_collapsed_one_and_reach_it(kernels, noise, form):
    parameters, observations, data = parameters_of(kernels, noise), observations_of(form), data_of(form)
    constant, linear, gram = quadratic(parameters, observations)
    best, rng = optimal(parameters, observations), np.random.default_rng(5)
    n_inputs = len(parameters.inducing_inputs)
    n_latents = len(linear) // n_inputs
    mean = jnp.asarray(best.mean.reshape(n_latents, n_inputs).T)
    factors = lower_factor(rng, n_inputs, 0.5), lower_factor(rng, n_latents, 0.5)
    ways = {
        "optimal": (FullInducing(mean, jnp.asarray(np.linalg.cholesky(best.variance))), best.variance),
        "kronecker": (
            KroneckerInducing(mean, *factors),
            np.kron(*(np.asarray(each @ each.T) for each in factors[::-1])),
        ),
    }
    top = float(bound_of(parameters, data).total)
    for name, (inducing, variance) in ways.items():
        found = explicit_of(dataclasses.replace(parameters, inducing=inducing), data)
        second = best.mean @ gram @ best.mean + np.trace(gram @ variance)
        divergence = references.gaussian_kl(best.mean, variance, np.eye(len(linear)))
        assert_allclose(found.fit, constant + linear @ best.mean - second / 2 - divergence, rtol=1e-8)
        assert found.total < top + 1e-8
        assert (abs(float(found.total) - top) < 1e-6) == (name == "optimal")
        # Trained curves under this q(v), in closed form.
        chosen, numbers = dataclasses.replace(parameters, inducing=inducing), np.array([0, 1, 2, 3, 1])
        moments = closed_form.trained_row_moments(ensemble_of_fit(build(chosen, data), data).fit, X_NEW, numbers)
        assert_trained(moments, best._replace(variance=variance), numbers)


@pytest.mark.parametrize(("kernels", "noise", "form"), [CASES[1], CASES[4], CASES[6]])
def test_gradients_are_finite_differences(kernels, noise, form):
    data = data_of(form)
    vector, fixed, structure = split(parameters_of(kernels, noise))
    value = jax.jit(lambda vector: collapsed_objective(join(vector, fixed, structure), data))
    gradient, rng = np.asarray(jax.jit(jax.grad(value))(vector)), np.random.default_rng(7)
    for _ in range(3):
        direction = rng.normal(size=gradient.shape)
        near, far = (float(value(vector + s * direction) - value(vector - s * direction)) for s in (1e-3, 2e-3))
        assert_allclose(gradient @ direction, (8 * near - far) / 0.012, rtol=1e-6)  # exact up to step⁴


def pooled(noise, **spreads):
    numbers = {name: number(value) for name, value in spreads.items()}
    return dataclasses.replace(parameters_of("all", noise), **numbers)


def dense_information(parameters, observations, known=0.0):
    """½ tr(R⁻¹ ∂R R⁻¹ ∂R) of every pair of log σ_d² and log ρ_d², R = (σ_d² + s²)I + ρ_d² Q_o."""
    kernel, points = parameters.kernels.own, parameters.inducing_inputs
    factor, found = np.linalg.cholesky(gram(kernel, points)), []
    for (x, _), noise, own in zip(observations, parameters.noise_variance, parameters.own_per_condition, strict=True):
        features = np.linalg.solve(factor, cross(kernel, points, jnp.asarray(x)))
        slopes = [float(noise) * np.eye(len(x)), float(own) * features.T @ features]
        inverse = np.linalg.inv(sum(slopes) + known * np.eye(len(x)))
        found.append([[np.trace(inverse @ one @ inverse @ two) / 2 for two in slopes] for one in slopes])
    return np.array(found)


def dense_log_pooled(parameters, information):
    """−½ [z²/τ² + log|I + diag(τ²) I_d|] summed over conditions, with the log density of each log τ."""
    deviations = [np.log(parameters.noise_variance) - np.mean(np.log(parameters.noise_variance))]
    spreads = [float(parameters.noise_spread)]
    if parameters.own_spread is not None:
        deviations.append(np.log(parameters.own_scale))
        spreads.append(float(parameters.own_spread))
    squares, median, width = np.square(spreads), *SPREAD_PRIOR
    total = -sum((np.log(spread) - np.log(median)) ** 2 / (2 * width**2) for spread in spreads)
    for each, told in zip(np.transpose(deviations), information, strict=True):
        told = told[: len(squares), : len(squares)]
        total -= np.sum(each**2 / squares) / 2 + references.log_det(np.eye(len(squares)) + squares[:, None] * told) / 2
    return total


def dense_log_lengthscales(kernels):
    """Of the lengthscales of terms and of own curves, one column after the other, log ℓ ~ N(log √Q, 1)."""
    kernels_of_inputs = [term.input_kernel for term in kernels.terms] + ([kernels.own] if kernels.own else [])
    densities = [
        norm.logpdf(np.log(value), np.log(len(kernel.lengthscale)) / 2, 1) - norm.logpdf(0)
        for kernel in kernels_of_inputs
        for value in kernel.lengthscale
    ]
    return sum(densities)


def dense_deviations(information, spreads, open_median):
    """Deviations of the first of each condition and of the median that is not known, by one precision matrix of all.

    −½ Σ_d [z_dᵀ I_d z_d + Σ_k (z_dk − m_k)²/τ_k²] − ½ m²/1.5², with m_k = 0 of the other median.
    """
    n_conditions, n_kinds = len(information), len(spreads)
    precision = np.zeros((n_conditions * n_kinds + 1,) * 2)
    for d, told in enumerate(information):
        own = slice(d * n_kinds, (d + 1) * n_kinds)
        precision[own, own] = told[:n_kinds, :n_kinds] + np.diag(np.square(spreads) ** -1.0)
        precision[d * n_kinds + open_median, -1] = precision[-1, d * n_kinds + open_median] = -(
            spreads[open_median] ** -2
        )
    precision[-1, -1] = n_conditions * spreads[open_median] ** -2 + 1.5**-2
    deviations = np.sqrt(np.diag(np.linalg.inv(precision)))
    return deviations[:-1:n_kinds], deviations[-1]


def test_noise_and_own_variances_are_pooled():
    for noise, spreads in (
        ("many", {"noise_spread": 0.3}),
        ("many, free", {"noise_spread": 0.3, "own_spread": 0.8}),
        ("many, free", {"noise_spread": 1.7, "own_spread": 0.2}),
    ):
        parameters = pooled(noise, **spreads)
        information = dense_information(parameters, observations_of("long"))
        if noise == "many":  # all of R_d goes with σ_d²
            counts = [len(y) for _, y in observations_of("long")]
            information = np.array(counts)[:, None, None] / 2
        expected = dense_log_pooled(parameters, information) + dense_log_lengthscales(parameters.kernels)
        found = bound_of(parameters, data_of("long"))
        assert_allclose(found.prior, expected, rtol=1e-7)
        assert_allclose(found.penalised + 5e-7 * found.signal, found.total + found.prior, rtol=1e-12)
        pooled_ones = posterior(parameters, data_of("long")).pooled
        of_noise, of_median = dense_deviations(information, list(spreads.values()), open_median=0)
        assert_allclose(pooled_ones.of_noise, of_noise, rtol=1e-7)
        assert_allclose(pooled_ones.of_median, of_median, rtol=1e-7)
        if "own_spread" in spreads:
            _, of_own_median = dense_deviations(information, list(spreads.values()), open_median=1)
            assert_allclose(pooled_ones.of_own_median, of_own_median, rtol=1e-7)
    alone = parameters_of("all", "many, free")  # without spreads
    assert_allclose(bound_of(alone, data_of("long")).prior, dense_log_lengthscales(alone.kernels), rtol=1e-12)
    papers = dataclasses.replace(parameters_of("two latent terms", "one noise"), kernels=Kernels((LATENT,)))
    assert float(bound_of(papers, data_of("long")).prior) == 0
    assert Priors().input_lengthscale == LENGTHSCALE_PRIOR
    assert Priors().noise_spread == SPREAD_PRIOR
    assert posterior(parameters_of("all", "many, free"), data_of("long")).pooled is None


def test_errors_of_measurements_tell_less_of_the_noise():
    parameters, observations = pooled("many, free", noise_spread=0.3, own_spread=0.8), observations_of("long")
    errors = np.full(sum(len(y) for _, y in observations), 0.2)
    found = bound_of(parameters, as_long(observations, errors)).prior - dense_log_lengthscales(parameters.kernels)
    assert_allclose(found, dense_log_pooled(parameters, dense_information(parameters, observations, 0.2)), rtol=1e-7)


@pytest.mark.parametrize("noise", ["many", "many, free"])
def test_the_order_of_conditions_does_not_matter(noise):
    parameters, observations, order = parameters_of("all", noise), observations_of("long"), np.array([2, 0, 3, 1])
    turned = as_long([observations[place] for place in order])
    found = bound_of(of_conditions(parameters, order), turned)
    for one, other in zip(
        jax.tree.leaves(found), jax.tree.leaves(bound_of(parameters, as_long(observations))), strict=True
    ):
        assert_allclose(one, other, rtol=1e-10)


# Uncertain latents


@pytest.mark.parametrize(
    "other", [rbf([0.7, 2.1], 0.5), Linear(jnp.array([0.4, 0.9])), Matern52(jnp.array([1.2, 1.5]), number(0.8))]
)
def test_features_of_two_kernels_covary_as_their_samples_do(other):
    rng, first = np.random.default_rng(8), rbf([1.3, 0.9], 1.1)
    points, mean, variance = rng.normal(size=(3, 2)), rng.normal(size=(2, 2)), rng.uniform(0.1, 0.6, (2, 2))
    found = feature_covariance(first, jnp.asarray(points), LatentGaussians(*map(jnp.asarray, (mean, variance))), other)
    for d in range(2):
        h = mean[d] + np.sqrt(variance[d]) * rng.standard_normal((400_000, 2))
        values, others = (references.covariance(kernel, h, points) for kernel in (first, other))
        products = (values - values.mean(axis=0))[:, :, None] * (others - others.mean(axis=0))[:, None, :]
        assert_allclose(found[d], products.mean(axis=0), atol=5 * np.max(products.std(axis=0)) / np.sqrt(len(h)))


# Trained curves


def assert_trained(moments, dense, numbers):
    """Those of conditions at rows of X_NEW, averaged over their latents by quadrature."""
    scales = np.asarray(dense.parameters.own_per_condition)
    for place, d in enumerate(numbers):
        nodes, masses = dense_terms.latent_nodes(dense.parameters, d)
        parts = [dense.joint([rows(X_NEW[place][None], node, d, scales[d])]) for node in nodes]
        mean, variance = mixture_moments(masses, parts)
        assert_allclose(moments[:, place], [mean[0], variance[0, 0]], rtol=1e-6)


@every_case
def test_trained_curves_are_those_of_dense_gaussians_at_every_latent(kernels, noise, form):
    parameters, observations, data = parameters_of(kernels, noise), observations_of(form), data_of(form)
    ensemble, dense = ensemble_of_fit(build(parameters, data), data), optimal(parameters, observations)
    numbers = np.array([0, 1, 2, 3, 1])
    found = closed_form.trained_row_moments(ensemble.fit, X_NEW, numbers)
    grid = closed_form.trained_grid_moments(ensemble.fit, X_NEW, with_variance=True)
    assert_allclose(grid[:, np.arange(5), numbers], found, rtol=1e-9, atol=1e-12)
    assert_trained(found, dense, numbers)
    curves = trained_curves(ensemble, X_NEW, numbers)
    assert_allclose((curves.weights @ curves.means[0])[:5], found[0], atol=0.03)  # by few quasi-random points


@pytest.mark.parametrize(("kernels", "noise", "form"), [CASES[2], CASES[4], CASES[8]])
def test_trained_curves_at_known_latents_are_those_of_the_dense_process(kernels, noise, form):
    parameters, observations = parameters_of(kernels, noise, known=True), observations_of(form)
    points = np.unique(np.concatenate([x for x, _ in observations]), axis=0)
    whole = dataclasses.replace(
        parameters, inducing_inputs=jnp.asarray(points), inducing_latents=parameters.latent_mean
    )
    latents, own = np.asarray(parameters.latent_mean), np.asarray(parameters.own_per_condition)
    process = exact(parameters.kernels, latents, own, np.asarray(parameters.noise_per_condition), observations)
    for given, tolerance in ((parameters, 1e-7), (whole, 5e-4)):
        ensemble = ensemble_of_fit(build(given, data_of(form)), data_of(form))
        dense = optimal(given, observations) if given is parameters else process
        numbers = np.array([0, 1, 2, 3, 1])
        found = trained_curves(ensemble, X_NEW, numbers)
        means, variances = (np.asarray(found.weights @ each[0])[:5] for each in (found.means, found.variances))
        for place, d in enumerate(numbers):
            mean, variance = dense.joint([rows(X_NEW[place][None], latents[d], d, own[d])])
            assert_allclose([means[place], variances[place]], [mean[0], variance[0, 0]], rtol=tolerance, atol=tolerance)
