"""Expectations of kernels against sums over fine grids, fifty digits and each other."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from references import covariance, kernel_values

from lvmogp.errors import SettingError
from lvmogp.kernels import psi_statistics
from lvmogp.kernels.covariances import RBF, Constant, Linear, Matern32, Matern52, Periodic
from lvmogp.kernels.psi_statistics import LatentGaussians, feature_covariance, psi2, weighted_covariance, weighted_psi2

RBF_ALONE = RBF([0.8, 1.6], 1.3)
CLOSED_FORMS = {
    "constant": Constant(0.7),
    "rbf": RBF_ALONE,
    "rbf of a column": RBF([1.4], 1.1, columns=1),
    "linear": Linear([0.4, 1.2]) + Linear([0.8], columns=1),
    "all": Linear([0.8], columns=1) + RBF_ALONE + Constant(0.7) + RBF([0.9], 0.6, columns=0),
}


def random_latents(rng, n_conditions=3, n_dimensions=2):
    mean = rng.normal(size=(n_conditions, n_dimensions))
    return LatentGaussians(jnp.asarray(mean), jnp.asarray(rng.uniform(0.05, 0.8, size=mean.shape)))


def random_inducing(rng, n_dimensions=2):
    return jnp.asarray(rng.normal(size=(4, n_dimensions)))


# The second, dumber way: sums over many points in NumPy


def even_grids(latents, n_nodes):
    """For each condition points within eight standard deviations with their probabilities: the trapezoidal rule."""
    for mean, variance in zip(np.asarray(latents.mean), np.asarray(latents.variance), strict=True):
        axes = [m + np.sqrt(s) * np.linspace(-8, 8, n_nodes) for m, s in zip(mean, variance, strict=True)]
        points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(mean))
        weights = np.exp(-np.sum((points - mean) ** 2 / variance, axis=-1) / 2)
        yield points, weights / weights.sum()


def statistics_on_grids(kernel, inducing, latents, n_nodes=65):
    """ψ, Ψ, Φ and Cov, condition by condition, as plain weighted sums."""
    found = []
    for points, weights in even_grids(latents, n_nodes):
        to_inducing = covariance(kernel, points, np.asarray(inducing))
        centred = to_inducing - weights @ to_inducing
        second, spread = (values.T @ (weights[:, None] * values) for values in (to_inducing, centred))
        found.append((weights @ kernel_values(kernel, points, points), weights @ to_inducing, second, spread))
    return tuple(map(np.stack, zip(*found, strict=True)))


def cross_on_grids(kernel, first, second, n_nodes=25):
    """⟨k(h_d, h_e)⟩ as a double sum for each pair of conditions."""
    grids, others = (list(even_grids(latents, n_nodes)) for latents in (first, second))
    return np.array([[own @ covariance(kernel, x, y) @ other for y, other in others] for x, own in grids])


@jax.jit
def all_statistics(kernel, inducing, latents):
    """ψ, Ψ, Φ and Cov, and the expected covariances of all conditions with the first two."""
    others = (statistic(kernel, inducing, latents) for statistic in (psi_statistics.psi1, psi2, feature_covariance))
    return (
        psi_statistics.psi0(kernel, latents),
        *others,
        psi_statistics.expected_cross(kernel, latents, first_two(latents)),
    )


def first_two(latents):
    return LatentGaussians(latents.mean[:2], latents.variance[:2], latents.n_uncertain)


def assert_same_statistics(found, expected, **tolerances):
    for statistic, reference in zip(found, expected, strict=True):
        assert_allclose(statistic, reference, **tolerances)


# Closed forms


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_closed_forms_equal_sums_over_a_fine_grid(rng, name):
    kernel, inducing, latents = CLOSED_FORMS[name], random_inducing(rng), random_latents(rng)
    # The last of them is known for certain: the kernel itself remains.
    latents = LatentGaussians(latents.mean, latents.variance.at[2].set(1e-14))
    found = all_statistics(kernel, inducing, latents)
    assert_same_statistics(found[:4], statistics_on_grids(kernel, inducing, latents), rtol=1e-9, atol=1e-11)
    assert_allclose(found[2], np.swapaxes(found[2], 1, 2), rtol=0)
    assert_allclose(found[4], cross_on_grids(kernel, latents, first_two(latents)), rtol=1e-10, atol=1e-11)


def test_far_from_the_origin_the_statistics_stay_exact(rng):
    kernel, inducing, latents = RBF_ALONE, random_inducing(rng), random_latents(rng)
    moved = LatentGaussians(latents.mean + 1e4, latents.variance)
    expected = all_statistics(kernel, inducing, latents)
    assert_same_statistics(all_statistics(kernel, inducing + 1e4, moved), expected, rtol=1e-9)


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
    found = jax.jit(feature_covariance)(RBF([lengthscale]), jnp.asarray(inducing), latents)
    for d, m, n in np.ndindex(2, 3, 3):
        expected = exact_rbf_covariance(lengthscale, mean[d, 0], variance, inducing[m, 0], inducing[n, 0])
        assert_allclose(found[d, m, n], expected, rtol=1e-11)


def test_sets_of_conditions_are_put_one_after_the_other(rng):
    parts = [LatentGaussians(*map(jnp.asarray, rng.normal(size=(2, 2, 3))), n_uncertain) for n_uncertain in (1, 2)]
    together = psi_statistics.of_all_conditions(parts)
    assert_allclose(together.mean, [*parts[0].mean, *parts[1].mean])
    assert_allclose(together.variance, [*parts[0].variance, *parts[1].variance])
    assert together.n_uncertain == 2
    assert psi_statistics.of_all_conditions([parts[0], random_latents(rng, 1, 3)]).n_uncertain is None


# Sums over conditions


@pytest.mark.parametrize(("kernel", "elements"), [(RBF_ALONE, 3 * 16), (Linear([0.8, 1.1]), 2**24)])
def test_weighted_sums_and_their_gradients_equal_plain_ones(rng, monkeypatch, kernel, elements):
    """Eight conditions, three at a time or all at once."""
    monkeypatch.setattr(psi_statistics, "_ELEMENTS_ON_CPU", elements)
    kernel = jax.tree.map(jnp.asarray, kernel)
    arguments = kernel, random_inducing(rng), random_latents(rng, 8), jnp.asarray(rng.normal(size=8))
    directions = jnp.asarray(rng.normal(size=(4, 4)))

    def plain(statistic):
        return lambda *given: jnp.einsum("d,dmn->mn", given[3], statistic(*given[:3]))

    def with_gradients(second, spread):
        gradient = jax.grad(lambda *given: jnp.sum(directions * second(*given)), (0, 1, 2, 3))
        return jax.jit(lambda *given: (second(*given), spread(*given), gradient(*given)))(*arguments)

    found = with_gradients(weighted_psi2, weighted_covariance)
    expected = with_gradients(plain(psi2), plain(feature_covariance))
    jax.tree.map(lambda one, other: assert_allclose(one, other, rtol=1e-11, atol=1e-12), found, expected)
    for sums in (weighted_psi2, weighted_covariance):
        assert ("length=2" in str(jax.make_jaxpr(sums)(*arguments))) == (elements == 3 * 16)


# Quadrature for all other kernels


# Nodes for each uncertain dimension are 40, 16 and 10; nothing is integrated over what is known.
@pytest.mark.parametrize(
    ("n_dimensions", "n_uncertain", "tolerance"),
    [(2, None, 5e-7), (3, None, 2e-5), (5, 0, 1e-14), (5, 1, 1e-14)],
)
def test_quadrature_equals_the_closed_form_of_a_product_of_rbf_kernels(rng, n_dimensions, n_uncertain, tolerance):
    first, second = rng.uniform(1.2, 2.0, size=(2, n_dimensions))
    inducing, drawn = random_inducing(rng, n_dimensions), random_latents(rng, 2, n_dimensions)
    variance = drawn.variance if n_uncertain is None else drawn.variance * (jnp.arange(n_dimensions) < n_uncertain)
    product, same = RBF(first, 1.3) * RBF(second, 0.5), RBF((first**-2 + second**-2) ** -0.5, 1.3 * 0.5)
    expected = all_statistics(same, inducing, LatentGaussians(drawn.mean, variance))
    found = all_statistics(product, inducing, LatentGaussians(drawn.mean, variance, n_uncertain))
    assert_same_statistics(found, expected, rtol=0, atol=tolerance)


# How exact quadrature is depends on how smooth the kernel is where the latent meets an inducing point.
@pytest.mark.parametrize(
    ("kernel", "tolerance"),
    [
        (RBF([0.9], 1.3) * Linear([0.8]), 1e-13),
        (Periodic([4.0], [0.9], 1.3), 1e-7),
        (Matern52([0.9]) + RBF([1.4], 0.1), 2e-5),
    ],
    ids=["product", "periodic", "sum with matern52"],
)
def test_quadrature_equals_sums_over_a_finer_grid(rng, kernel, tolerance):
    inducing, latents = random_inducing(rng, 1), random_latents(rng, 3, 1)
    expected = statistics_on_grids(kernel, inducing, latents, n_nodes=801)
    between = cross_on_grids(kernel, latents, first_two(latents), n_nodes=801)
    assert_same_statistics(all_statistics(kernel, inducing, latents), (*expected, between), rtol=0, atol=tolerance)


def test_too_many_dimensions_for_quadrature_is_an_error_in_words():
    latents = LatentGaussians(jnp.zeros((2, 4)), jnp.ones((2, 4)))
    message = (
        "no closed-form expectations, and quadrature in 4 latent dimensions costs too much; "
        "use at most 3 dimensions, or a sum of RBF, linear and constant kernels"
    )
    with pytest.raises(SettingError, match=message):
        psi_statistics.psi0(Matern32(1.0), latents)


def test_single_precision_is_kept_and_close(rng):
    arguments = CLOSED_FORMS["all"], random_inducing(rng), random_latents(rng)
    single = jax.tree.map(lambda leaf: jnp.asarray(leaf, "float32"), arguments)
    found, expected = all_statistics(*single), all_statistics(*arguments)
    assert {statistic.dtype for statistic in found} == {jnp.dtype("float32")}
    assert_same_statistics(found, expected, rtol=5e-6, atol=1e-6)
