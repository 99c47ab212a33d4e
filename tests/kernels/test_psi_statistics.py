"""Expectations of kernels against sums over fine grids, fifty digits and the limit of no variance."""

import operator
from functools import reduce

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from lvmogp.errors import SettingError
from lvmogp.kernels import psi_statistics
from lvmogp.kernels.covariances import (
    RBF,
    Constant,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    cross,
    diagonal,
    gram,
)
from lvmogp.kernels.psi_statistics import (
    LatentGaussians,
    closed_form_terms,
    expected_cross,
    feature_covariance,
    of_all_conditions,
    psi0,
    psi1,
    psi2,
    weighted_covariance,
    weighted_psi2,
)

CLOSED_FORMS = {
    "constant": Constant(0.7),
    "linear": Linear([0.4, 1.2]),
    "linear in 1": Linear([0.8], columns=1),
    "rbf": RBF([0.8, 1.6], 1.3),
    "rbf in 0": RBF([0.9], 0.6, columns=0),
    "rbf in 1": RBF([1.4], 1.1, columns=1),
}
THREE_TERMS = [
    ("rbf", "linear", "constant"),
    ("rbf in 0", "rbf in 1", "rbf"),
    ("linear in 1", "rbf", "rbf in 0"),
]
SUMS = [
    *((name,) for name in CLOSED_FORMS),
    ("constant", "rbf in 1"),
    ("linear", "linear in 1"),
    ("rbf", "rbf"),
    ("rbf in 0", "linear in 1"),
    *THREE_TERMS,
]


def total_of(names):
    return reduce(operator.add, [CLOSED_FORMS[name] for name in names])


def random_latents(rng, n_conditions=3, n_dimensions=2):
    mean = rng.normal(size=(n_conditions, n_dimensions))
    return LatentGaussians(jnp.asarray(mean), jnp.asarray(rng.uniform(0.05, 0.8, size=mean.shape)))


def random_inducing(rng, n_dimensions=2):
    return jnp.asarray(rng.normal(size=(4, n_dimensions)))


# The second, dumber way: sums over many points of kernels that are tested elsewhere


def even_grid(mean, variance, n_nodes):
    """Points within eight standard deviations of the mean with their probabilities: the trapezoidal rule."""
    axes = [m + np.sqrt(s) * np.linspace(-8, 8, n_nodes) for m, s in zip(mean, variance, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(mean))
    weights = np.exp(-np.sum((points - mean) ** 2 / variance, axis=-1) / 2)
    return points, weights / weights.sum()


def grids_of(latents, n_nodes):
    return [even_grid(m, s, n_nodes) for m, s in zip(*map(np.asarray, (latents.mean, latents.variance)), strict=True)]


def statistics_on_grids(kernel, inducing, latents, n_nodes=65):
    """All four statistics, condition by condition, as plain weighted sums."""
    found = []
    for points, weights in grids_of(latents, n_nodes):
        to_inducing = np.asarray(cross(kernel, jnp.asarray(points), inducing))
        centred = to_inducing - weights @ to_inducing
        second, spread = (values.T @ (weights[:, None] * values) for values in (to_inducing, centred))
        found.append(
            (weights @ np.asarray(diagonal(kernel, jnp.asarray(points))), weights @ to_inducing, second, spread)
        )
    return tuple(map(np.stack, zip(*found, strict=True)))


def cross_on_grids(kernel, first, second, n_nodes=25):
    """⟨k(h_d, h_e)⟩ as a double sum for each pair of conditions."""
    return np.array(
        [
            [
                weights @ np.asarray(cross(kernel, jnp.asarray(points), jnp.asarray(others))) @ other_weights
                for others, other_weights in grids_of(second, n_nodes)
            ]
            for points, weights in grids_of(first, n_nodes)
        ]
    )


@jax.jit
def all_statistics(kernel, inducing, latents):
    others = (statistic(kernel, inducing, latents) for statistic in (psi1, psi2, feature_covariance))
    return psi0(kernel, latents), *others


def assert_same_statistics(found, expected, **tolerances):
    for statistic, reference in zip(found, expected, strict=True):
        assert_allclose(statistic, reference, **tolerances)


# Closed forms


@pytest.mark.parametrize("names", SUMS, ids=" + ".join)
def test_closed_forms_equal_sums_over_a_fine_grid(rng, names):
    kernel, inducing, latents = total_of(names), random_inducing(rng), random_latents(rng)
    expected = statistics_on_grids(kernel, inducing, latents)
    found = all_statistics(kernel, inducing, latents)
    assert_same_statistics(found, expected, rtol=1e-9, atol=1e-11)
    assert_allclose(found[2], np.swapaxes(found[2], 1, 2), rtol=0)
    others = random_latents(rng, n_conditions=2)
    between = cross_on_grids(kernel, latents, others)
    assert_allclose(jax.jit(expected_cross)(kernel, latents, others), between, rtol=1e-10, atol=1e-11)


def test_without_variance_the_kernel_itself_remains(rng):
    kernel, inducing, latents = total_of(THREE_TERMS[0]), random_inducing(rng), random_latents(rng)
    certain = LatentGaussians(latents.mean, jnp.full_like(latents.variance, 1e-14))
    to_inducing = cross(kernel, latents.mean, inducing)
    expected = diagonal(kernel, latents.mean), to_inducing, to_inducing[:, :, None] * to_inducing[:, None, :]
    assert_same_statistics(all_statistics(kernel, inducing, certain)[:3], expected, rtol=1e-12, atol=1e-12)
    between = gram(kernel, latents.mean)
    assert_allclose(expected_cross(kernel, certain, certain), between, rtol=1e-12, atol=1e-12)


def test_far_from_the_origin_the_second_moment_stays_exact(rng):
    kernel, inducing, latents = CLOSED_FORMS["rbf"], random_inducing(rng), random_latents(rng)
    moved = LatentGaussians(latents.mean + 1e4, latents.variance)
    assert_allclose(psi2(kernel, inducing + 1e4, moved), psi2(kernel, inducing, latents), rtol=1e-9)


def exact_rbf_covariance(lengthscale, mean, variance, z, other):
    """Φ − ΨΨ' of one pair of inducing points in one dimension, in fifty digits."""
    with mp.workdps(50):
        a, mu, s, z, other = (mp.mpf(float(each)) for each in (lengthscale**2, mean, variance, z, other))

        def first(point):
            return mp.exp(-((mu - point) ** 2) / (a + s) / 2) / mp.sqrt(1 + s / a)

        exponent = -((z - other) ** 2) / (4 * a) - (mu - (z + other) / 2) ** 2 / (a + 2 * s)
        return float(mp.exp(exponent) / mp.sqrt(1 + 2 * s / a) - first(z) * first(other))


@pytest.mark.parametrize("variance", [1e-12, 1e-6, 1e-2])
@pytest.mark.parametrize("lengthscale", [0.5, 200.0])
def test_covariances_of_nearly_known_latents_keep_their_digits(rng, variance, lengthscale):
    inducing, mean = rng.normal(size=(3, 1)), rng.normal(size=(2, 1))
    latents = LatentGaussians(jnp.asarray(mean), jnp.full((2, 1), variance))
    found = feature_covariance(RBF([lengthscale]), jnp.asarray(inducing), latents)
    for d, m, n in np.ndindex(2, 3, 3):
        expected = exact_rbf_covariance(lengthscale, mean[d, 0], variance, inducing[m, 0], inducing[n, 0])
        assert_allclose(found[d, m, n], expected, rtol=1e-11)


def test_sets_of_conditions_are_put_one_after_the_other(rng):
    parts = [LatentGaussians(*map(jnp.asarray, rng.normal(size=(2, 2, 3))), n_uncertain) for n_uncertain in (1, 2)]
    together = of_all_conditions(parts)
    assert_allclose(together.mean, [*parts[0].mean, *parts[1].mean])
    assert_allclose(together.variance, [*parts[0].variance, *parts[1].variance])
    assert together.n_uncertain == 2
    assert of_all_conditions([parts[0], random_latents(rng, 1, 3)]).n_uncertain is None


# Sums over conditions


@pytest.mark.parametrize("elements", [2**24, 3 * 16, 1], ids=["at once", "three at a time", "one at a time"])
@pytest.mark.parametrize("kernel", [CLOSED_FORMS["rbf"], Matern32([0.8, 1.1])], ids=["closed form", "quadrature"])
def test_weighted_sums_and_their_gradients_equal_a_loop(rng, monkeypatch, kernel, elements):
    monkeypatch.setattr(psi_statistics, "_ELEMENTS_ON_CPU", elements)
    kernel = jax.tree.map(jnp.asarray, kernel)
    arguments = kernel, random_inducing(rng), random_latents(rng, 7), jnp.asarray(rng.normal(size=7))
    directions = jnp.asarray(rng.normal(size=(2, 4, 4)))

    def sums(*arguments):
        return jnp.stack([weighted_psi2(*arguments), weighted_covariance(*arguments)])

    def loop(kernel, inducing, latents, weights):
        matrices = psi2(kernel, inducing, latents), feature_covariance(kernel, inducing, latents)
        return jnp.stack([sum(weight * each for weight, each in zip(weights, of, strict=True)) for of in matrices])

    def with_gradients(way):
        gradient = jax.grad(lambda *arguments: jnp.sum(directions * way(*arguments)), (0, 1, 2, 3))
        return jax.jit(lambda *arguments: (way(*arguments), gradient(*arguments)))(*arguments)

    found, expected = with_gradients(sums), with_gradients(loop)
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-11, atol=1e-12), found, expected)
    program = str(jax.make_jaxpr(sums)(*arguments))
    assert ("length=3" in program, "length=7" in program) == (elements == 3 * 16, elements == 1)


# Quadrature for all other kernels


def test_a_visible_rule_chooses_between_closed_form_and_quadrature():
    rbf, linear, matern = RBF(1.0), Linear(1.0), Matern32(1.0)
    assert closed_form_terms(rbf) == (rbf,)
    assert closed_form_terms(rbf + linear) == (rbf, linear)
    assert closed_form_terms(rbf + matern) is None
    assert closed_form_terms(rbf * linear) is None


@pytest.mark.parametrize("n_dimensions", [1, 2, 3])
def test_quadrature_equals_the_closed_form_of_a_product_of_rbf_kernels(rng, n_dimensions):
    first, second = rng.uniform(1.2, 2.0, size=(2, n_dimensions))
    inducing, latents = random_inducing(rng, n_dimensions), random_latents(rng, 2, n_dimensions)
    product, same = RBF(first, 1.3) * RBF(second, 0.5), RBF((first**-2 + second**-2) ** -0.5, 1.3 * 0.5)
    expected = all_statistics(same, inducing, latents)
    tolerance = {1: 1e-14, 2: 5e-7, 3: 2e-5}[n_dimensions]  # 40, 16 and 10 nodes a dimension
    assert_same_statistics(all_statistics(product, inducing, latents), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("n_uncertain", [0, 1])
def test_nothing_is_integrated_over_what_is_known(rng, n_uncertain):
    first, second = rng.uniform(1.2, 2.0, size=(2, 5))
    inducing, drawn = random_inducing(rng, 5), random_latents(rng, 3, 5)
    variance = drawn.variance * (jnp.arange(5) < n_uncertain)
    product, same = RBF(first, 1.3) * RBF(second, 0.5), RBF((first**-2 + second**-2) ** -0.5, 1.3 * 0.5)
    expected = all_statistics(same, inducing, LatentGaussians(drawn.mean, variance))
    found = all_statistics(product, inducing, LatentGaussians(drawn.mean, variance, n_uncertain))
    assert_same_statistics(found, expected, rtol=0, atol=1e-14)


# How exact quadrature is depends on how smooth the kernel is where the latent meets an inducing point.
BY_QUADRATURE = {
    "periodic": (Periodic([4.0], [0.9], 1.3), 1e-7),
    "product": (RBF([0.9], 1.3) * Linear([0.8]), 1e-13),
    "sum with a product": (Constant(0.4) + RBF([0.9]) * Periodic([4.0]), 1e-7),
    "rational quadratic": (RationalQuadratic([0.8], 1.2, 1.5), 1e-8),
    "matern52": (Matern52([0.9]), 2e-5),
    "matern32": (Matern32([0.9]), 5e-4),
    "matern12": (Matern12([0.9]), 2e-2),
}


@pytest.mark.parametrize("name", BY_QUADRATURE)
def test_quadrature_equals_sums_over_a_finer_grid(rng, name):
    kernel, tolerance = BY_QUADRATURE[name]
    inducing, latents = random_inducing(rng, 1), random_latents(rng, 3, 1)
    expected = statistics_on_grids(kernel, inducing, latents, n_nodes=4001)
    assert_same_statistics(all_statistics(kernel, inducing, latents), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["product", "matern32"])
def test_cross_expectations_by_quadrature_equal_double_sums(rng, name):
    kernel, tolerance = BY_QUADRATURE[name]
    first, second = random_latents(rng, 3, 1), random_latents(rng, 2, 1)
    expected = cross_on_grids(kernel, first, second, n_nodes=801)
    assert_allclose(jax.jit(expected_cross)(kernel, first, second), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("statistic", [psi0, lambda kernel, latents: psi1(kernel, latents.mean, latents)])
def test_too_many_dimensions_for_quadrature_is_an_error_in_words(statistic):
    latents = LatentGaussians(jnp.zeros((2, 4)), jnp.ones((2, 4)))
    message = (
        "no closed-form expectations, and quadrature in 4 latent dimensions costs too much; "
        "use at most 3 dimensions, or a sum of RBF, linear and constant kernels"
    )
    with pytest.raises(SettingError, match=message):
        statistic(Matern32(1.0), latents)


# Derivatives and precision


@pytest.mark.parametrize(
    "kernel",
    [CLOSED_FORMS["rbf"], total_of(("rbf", "rbf in 0", "linear", "constant")), Matern52([0.8, 1.1])],
    ids=["rbf", "closed forms", "quadrature"],
)
def test_gradients_equal_finite_differences(rng, kernel):
    arguments = jax.tree.map(jnp.asarray, (kernel, random_inducing(rng), random_latents(rng)))
    weights = [jnp.asarray(rng.normal(size=shape)) for shape in [(3,), (3, 4), (3, 4, 4), (3, 4, 4), (3, 3)]]

    @jax.jit
    def objective(kernel, inducing, latents):
        moments = *all_statistics(kernel, inducing, latents), expected_cross(kernel, latents, latents)
        return sum(jnp.sum(weight * moment) for weight, moment in zip(weights, moments, strict=True))

    direction = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), arguments)
    gradient = jax.jit(jax.grad(objective, (0, 1, 2)))(*arguments)
    slope = sum(jax.tree.leaves(jax.tree.map(lambda a, b: np.sum(a * b), gradient, direction)))
    ahead, behind = (
        jax.tree.map(lambda leaf, step, size=size: leaf + size * step, arguments, direction) for size in (1e-5, -1e-5)
    )
    assert_allclose(slope, (objective(*ahead) - objective(*behind)) / 2e-5, rtol=1e-7)


def test_single_precision_is_kept_and_close(rng):
    arguments = total_of(("rbf", "linear")), random_inducing(rng), random_latents(rng)
    single = jax.tree.map(lambda leaf: jnp.asarray(leaf, "float32"), arguments)
    found, expected = all_statistics(*single), statistics_on_grids(*arguments)
    assert {statistic.dtype for statistic in found} == {jnp.dtype("float32")}
    assert_same_statistics(found, expected, rtol=5e-6, atol=1e-6)
