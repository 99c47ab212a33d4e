"""Likelihoods given latents = normal densities with all matrices formed; gradients = finite differences."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from scipy.stats import multivariate_normal
from small_models import PER_CONDITION, SHARED, D, grid_as_long, grid_case, long_case, number, small_parameters

from lvmogp.algebra.constraints import join, split
from lvmogp.ground.compiling import compiled
from lvmogp.inference.nuts.likelihoods import fitted_values, log_likelihood
from lvmogp.inference.nuts.parameters import chain_parameters
from lvmogp.kernels.covariances import RBF, Constant, Linear, Matern52, Periodic
from lvmogp.model.layouts import GridData, ScatteredData, SparseData, likelihood_data, scattered

_log_likelihood, _fitted_values = compiled(log_likelihood), compiled(fitted_values)
NOISES = [SHARED, PER_CONDITION]
by_noise = pytest.mark.parametrize("noise", NOISES, ids=["shared noise", "noise per condition"])


def small_point(noise, n_latent=2):
    parameters = small_parameters(n_latent, noise=noise)
    return chain_parameters(parameters, parameters.latent_mean)


def dense(point, observations):
    """Covariance of the function at all observations, noise of each, and outputs, one observation after the other."""
    latents = np.asarray(point.latents)
    noise = np.broadcast_to(np.asarray(point.noise.variance), len(latents))
    rows = [(d, x, y) for d, (inputs, outputs) in enumerate(observations) for x, y in zip(inputs, outputs, strict=True)]
    condition = np.asarray([d for d, _, _ in rows])
    inputs = np.stack([x for _, x, _ in rows])
    among = references.covariance(point.latent_kernel, latents[condition], latents[condition])
    signal = among * references.covariance(point.input_kernel, inputs, inputs)
    return signal, noise[condition], np.asarray([y for _, _, y in rows])


def dense_log_likelihood(point, observations):
    signal, noise, outputs = dense(point, observations)
    return multivariate_normal(np.zeros(len(outputs)), signal + np.diag(noise)).logpdf(outputs)


def dense_fitted(point, observations):
    signal, noise, outputs = dense(point, observations)
    return signal @ np.linalg.solve(signal + np.diag(noise), outputs)


@by_noise
def test_a_grid_is_one_multivariate_normal(noise):
    point, case = small_point(noise), grid_case()
    np.testing.assert_allclose(
        _log_likelihood(point, case.data), dense_log_likelihood(point, case.observations), rtol=1e-12
    )


@by_noise
def test_scattered_observations_are_one_multivariate_normal(noise):
    point, case = small_point(noise), long_case()
    rows = scattered(case.data)
    assert len(rows.outputs) > rows.present.sum() == 18  # some places are empty
    np.testing.assert_allclose(_log_likelihood(point, rows), dense_log_likelihood(point, case.observations), rtol=1e-12)


@pytest.mark.parametrize("case", [grid_case, long_case], ids=["grid", "long"])
@by_noise
def test_sparse_likelihoods_are_exact_with_all_points_as_inducing_points(case, noise):
    point, case = small_point(noise), case()
    points = np.unique(np.concatenate([inputs for inputs, _ in case.observations]), axis=0)
    sparse = SparseData(case.data, jnp.asarray(points), jnp.arange(D))
    exact = dense_log_likelihood(point, case.observations)
    # Up to the jitter of the gram matrices of the inducing points.
    np.testing.assert_allclose(_log_likelihood(point, sparse), exact, rtol=1e-4)
    fewer = SparseData(case.data, jnp.asarray(points[:5]), jnp.asarray([0, 2]))
    assert _log_likelihood(point, fewer) < exact - 0.1


@pytest.mark.parametrize("case", [grid_case, long_case], ids=["grid", "long"])
def test_sparse_likelihoods_are_the_collapsed_bound_as_variances_vanish(case):
    data, observations = case()
    parameters = small_parameters(2, noise=PER_CONDITION)
    point = chain_parameters(parameters, parameters.latent_mean)
    chosen = jnp.asarray([0, 1, 3])
    certain = eqx.tree_at(
        lambda tree: (tree.inducing_latents, tree.latent_variance, tree.input_kernel, tree.latent_kernel),
        parameters,
        (
            parameters.latent_mean[chosen],
            jnp.full_like(parameters.latent_variance, 1e-12),
            point.input_kernel,
            point.latent_kernel,
        ),
    )
    bound = references.dense_collapsed(certain, observations) + references.latent_kl(certain)
    sparse = SparseData(data, parameters.inducing_inputs, chosen)
    np.testing.assert_allclose(_log_likelihood(point, sparse), bound, rtol=1e-5)


def small_data(kind):
    grid, long = grid_case(), long_case()
    if kind == "grid with inputs twice":
        inputs = jnp.concatenate([grid.data.inputs, grid.data.inputs[:3]])
        return GridData(inputs, jnp.concatenate([grid.data.outputs, grid.data.outputs[2:5]]))
    inducing = small_parameters(2).inducing_inputs
    return {
        "grid": grid.data,
        "scattered": scattered(long.data),
        "sparse grid": SparseData(grid.data, inducing, jnp.asarray([0, 2, 3])),
        "sparse long": SparseData(long.data, inducing, jnp.asarray([0, 2, 3])),
    }[kind]


KINDS = ["grid", "grid with inputs twice", "scattered", "sparse grid", "sparse long"]


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_finite_differences(kind):
    point, data = small_point(PER_CONDITION), small_data(kind)
    if kind == "grid with inputs twice":
        # Two conditions at the same place, too: K_H and K_X both have eigenvalues zero.
        point = eqx.tree_at(lambda tree: tree.latents, point, point.latents.at[1].set(point.latents[0]))
    vector, fixed_leaves, structure = split(point)

    @jax.jit
    def objective(vector):
        return log_likelihood(join(vector, fixed_leaves, structure), data)

    gradient = jax.jit(jax.grad(objective))(vector)
    step = 1e-5
    for place in range(len(vector)):
        away = jnp.zeros_like(vector).at[place].set(step)
        slope = (objective(vector + away) - objective(vector - away)) / (2 * step)
        np.testing.assert_allclose(gradient[place], slope, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", ["grid", "scattered"])
@by_noise
def test_fitted_values_are_the_posterior_mean(kind, noise):
    point = small_point(noise)
    case = grid_case() if kind == "grid" else long_case()
    found = np.asarray(_fitted_values(point, small_data(kind)))
    expected = dense_fitted(point, case.observations)
    if kind == "grid":
        np.testing.assert_allclose(found.T.ravel(), expected, rtol=1e-9, atol=1e-12)
    else:
        np.testing.assert_allclose(found[np.asarray(small_data(kind).present) > 0], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["grid", "long"])
def test_fitted_values_of_sparse_likelihoods_are_exact_with_all_inducing_points(kind):
    point, case = small_point(PER_CONDITION), grid_case() if kind == "grid" else long_case()
    points = np.unique(np.concatenate([inputs for inputs, _ in case.observations]), axis=0)
    found = _fitted_values(point, SparseData(case.data, jnp.asarray(points), jnp.arange(D)))
    expected = dense_fitted(point, case.observations)
    present = np.asarray(case.data.present) > 0 if kind == "long" else None
    values = np.asarray(found)[present] if kind == "long" else np.asarray(found).T.ravel()
    np.testing.assert_allclose(values, expected, atol=1e-4)


def test_the_form_follows_the_size(rng):
    parameters = small_parameters(2)
    assert likelihood_data(grid_case().data, parameters) is grid_case().data
    assert isinstance(likelihood_data(long_case().data, parameters), ScatteredData)
    many = GridData(jnp.asarray(rng.normal(size=(601, 2))), jnp.asarray(rng.normal(size=(601, D))))
    for data in (many, grid_as_long(many)):
        sparse = likelihood_data(data, parameters)
        assert isinstance(sparse, SparseData)
        np.testing.assert_array_equal(sparse.inducing_inputs, parameters.inducing_inputs)
        assert len(set(np.asarray(sparse.inducing_conditions).tolist())) == 3


def test_the_variance_of_a_stationary_latent_kernel_moves_to_the_input_kernel():
    parameters = small_parameters(2)
    point = chain_parameters(parameters, parameters.latent_mean)
    np.testing.assert_allclose(point.input_kernel.variance, 1.2 * 0.9)
    assert point.latent_kernel.variance == 1
    vector, _, _ = split(point)
    assert len(vector) == 2 + 1 + 2 + 2 * D + 1  # lengthscales, one variance, lengthscales, latents, noise


@pytest.mark.parametrize(
    ("kernel", "scaled"),
    [
        (RBF(number(1.0), number(2.0)) + Constant(number(3.0)), [4.0, 6.0]),
        (RBF(number(1.0), number(2.0), fixed="variance") * Matern52(number(1.0), number(3.0)), [2.0, 6.0]),
        (RBF(number(1.0), number(2.0), fixed="variance") + Linear(jnp.ones(2)), None),
    ],
)
def test_variances_of_composite_input_kernels(kernel, scaled):
    parameters = small_parameters(2)
    latent_kernel = Periodic(number(3.0), number(1.0), number(2.0))
    parameters = eqx.tree_at(lambda tree: (tree.input_kernel, tree.latent_kernel), parameters, (kernel, latent_kernel))
    point = chain_parameters(parameters, parameters.latent_mean)
    if scaled is None:  # held by the user, so the other one is not redundant
        assert eqx.tree_equal(point.input_kernel, kernel)
        assert eqx.tree_equal(point.latent_kernel, latent_kernel)
    else:
        assert [float(term.variance) for term in point.input_kernel.terms] == scaled
        assert point.latent_kernel.variance == 1
    points = np.asarray(parameters.latent_mean)
    product = [
        references.covariance(each.input_kernel, points, points)
        * references.covariance(each.latent_kernel, points, points)
        for each in (parameters, point)
    ]
    np.testing.assert_allclose(product[1], product[0], rtol=1e-12)
