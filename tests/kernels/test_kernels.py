"""Kernels against scikit-learn's and against loops; settings that make no sense fail in words."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.gaussian_process.kernels as sk
from jax.test_util import check_grads
from numpy.testing import assert_allclose

from lvmogp.errors import SettingError
from lvmogp.kernels import RBF, Constant, Kernel, Linear, Matern12, Matern32, Matern52, Periodic, RationalQuadratic
from lvmogp.kernels.covariances import Product, Sum, complete, cross, diagonal, gram, leaves, named, plain_kernel, rank

SCALES = [0.7, 1.9]

# Ours beside scikit-learn's, whose rational quadratic kernel has one lengthscale for all columns.
WITH_SKLEARN = {
    "rbf": (RBF(SCALES, 1.3), 1.3 * sk.RBF(SCALES)),
    "matern12": (Matern12(SCALES, 1.3), 1.3 * sk.Matern(SCALES, nu=0.5)),
    "matern32": (Matern32(SCALES, 1.3), 1.3 * sk.Matern(SCALES, nu=1.5)),
    "matern52": (Matern52(SCALES, 1.3), 1.3 * sk.Matern(SCALES, nu=2.5)),
    "rational-quadratic": (RationalQuadratic(0.7, 1.3, 2.5), 1.3 * sk.RationalQuadratic(0.7, alpha=2.5)),
    "linear": (Linear(1.3), 1.3 * sk.DotProduct(sigma_0=0)),
    "constant": (Constant(1.3), sk.ConstantKernel(1.3)),
    "linear + constant": (Linear(1.0) + Constant(0.25), sk.DotProduct(sigma_0=0.5)),
    "sum": (RBF(SCALES) + Linear(2.0) + Constant(0.1), sk.RBF(SCALES) + 2.0 * sk.DotProduct(0) + 0.1),
    "product": (RBF(SCALES, 2.0) * Matern32(1.1), 2.0 * sk.RBF(SCALES) * sk.Matern(1.1, nu=1.5)),
    "sum in product": (
        (RBF(0.5) + Constant(1.0)) * Matern12(2.0),
        (sk.RBF(0.5) + 1.0) * sk.Matern(2.0, nu=0.5),
    ),
}


# Programs of all kernels at once: compiling each by itself would take several times as long.
@jax.jit
def all_covariances(kernels, first, second):
    return [(cross(kernel, first, second), gram(kernel, first), diagonal(kernel, first)) for kernel in kernels]


@jax.jit
def all_grams(kernels, points):
    return [gram(kernel, own) for kernel, own in zip(kernels, points, strict=True)]


def assert_same(found, expected, rtol=1e-12):
    jax.tree.map(lambda one, other: assert_allclose(one, other, rtol=rtol, atol=1e-14), found, expected)


def assert_those_of_scikit_learn(pairs, first, second):
    kernels, references = zip(*pairs, strict=True)
    expected = [(each(first, second), each(first), each.diag(first)) for each in references]
    assert_same(all_covariances(kernels, first, second), expected)


def test_covariances_equal_those_of_scikit_learn(rng):
    assert_those_of_scikit_learn(WITH_SKLEARN.values(), rng.normal(size=(5, 2)), rng.normal(size=(3, 2)))
    periodic = Periodic(1.4, 0.8, 1.7), 1.7 * sk.ExpSineSquared(length_scale=0.8, periodicity=1.4)
    assert_those_of_scikit_learn([periodic], rng.normal(size=(5, 1), scale=2), rng.normal(size=(3, 1), scale=2))


def test_kernels_weigh_each_column(rng):
    points, periods, scales = rng.normal(size=(4, 2)), [1.4, 0.6], [0.8, 1.1]
    kernels = Linear([0.5, 2.0]), RationalQuadratic(SCALES, shape=1e9), Periodic(periods, scales, 1.7), RBF(SCALES)
    linear, rational, periodic, rbf = all_grams(kernels, [points] * 4)
    assert_same(linear, [[0.5 * x[0] * y[0] + 2.0 * x[1] * y[1] for y in points] for x in points])
    assert_same(rational, rbf, 1e-7)  # to which it tends
    factors = all_grams([Periodic(periods[q], scales[q]) for q in (0, 1)], [points[:, q : q + 1] for q in (0, 1)])
    assert_same(periodic, 1.7 * factors[0] * factors[1])


def test_a_kernel_looks_only_at_its_columns(rng):
    points, kinds = rng.normal(size=(4, 3)), (RBF, Matern12, Matern32, Matern52, RationalQuadratic, Linear, Periodic)
    some = [kind([0.7, 1.9], columns=(2, 0)) for kind in kinds] + [kind(0.7, columns=1) for kind in kinds]
    alone = [kind([0.7, 1.9]) for kind in kinds] + [kind(0.7) for kind in kinds]
    expected = all_grams(alone, [points[:, [2, 0]]] * len(kinds) + [points[:, 1:2]] * len(kinds))
    assert_same(all_grams(some, [points] * len(some)), expected)


def test_sums_and_products_are_flat():
    kernels = RBF(0.7), Linear(1.5), Constant(0.3)
    total, product = kernels[0] + (kernels[1] + kernels[2]), kernels[0] * (kernels[1] * kernels[2])
    assert (type(total), type(product)) == (Sum, Product)
    assert total.terms == product.terms == kernels


@pytest.mark.parametrize("kind", [RBF, Matern12, Matern32, Matern52, RationalQuadratic, Periodic])
def test_gradients_equal_finite_differences_even_with_coincident_points(rng, kind):
    points = rng.normal(size=(4, 2))
    points[3] = points[0]
    weights = jnp.asarray(rng.normal(size=(4, 4)))
    arguments = jax.tree.map(jnp.asarray, (kind([0.7, 1.9]), points))

    @jax.jit
    def weighted_gram(kernel, points):
        return jnp.sum(weights * gram(kernel, points))

    check_grads(weighted_gram, arguments, order=1, modes=("rev",), eps=1e-5, atol=1e-7, rtol=1e-7)


# What users write


LENGTHSCALE = "^lengthscale must be a positive number or one positive number per column, got"


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        *((RBF, {"lengthscale": value}, LENGTHSCALE) for value in (0, [1.0, -2.0], np.inf, np.nan, [[1.0]], "long")),
        (RBF, {"variance": [1, 2]}, r"^variance must be a positive number, got \[1, 2\]"),
        (Periodic, {"period": None}, r"^period must be .* got None$"),
        (RationalQuadratic, {"shape": 0}, r"^shape must be .* got 0$"),
        (RBF, {"fixed": "period"}, "RBF has no hyperparameter 'period' to hold fixed"),
        *(
            (RBF, {"columns": value}, "must be different column numbers, got")
            for value in ([], [[0]], [0.5], [1, 1], "a")
        ),
    ],
)
def test_settings_that_make_no_sense_fail_in_words(kind, options, message):
    with pytest.raises(SettingError, match=message):
        kind(**options)


def test_numbers_stay_numpy_until_the_fit():
    kernel = RBF(lengthscale=0.5)
    assert isinstance(kernel.lengthscale, np.ndarray)
    assert isinstance(kernel.variance, np.ndarray)
    assert RBF().lengthscale is None


def test_kernels_have_names():
    for name in ("constant", "linear", "matern12", "matern32", "matern52", "rational-quadratic", "rbf"):
        assert type(named(name)) is type(WITH_SKLEARN[name][0])
    kernel = RBF() + Linear()
    assert named(kernel) is kernel
    for name in ("periodic", "gauss"):
        with pytest.raises(SettingError, match=r"one of \['constant', 'linear', .*'rbf'\], got " + repr(name)):
            named(name)


def test_leaves_are_the_simple_kernels_in_order_and_plain_values_name_them():
    first, second, third = RBF(columns=(1,)), Linear([0.5, 2.0]), Periodic(3.0)
    assert leaves((first + second) * third) == (first, second, third)
    assert leaves(first) == (first,)
    plain = [
        {"kind": "rbf", "lengthscale": None, "variance": 1.0, "columns": (1,), "fixed": ()},
        {"kind": "linear", "variance": [0.5, 2.0], "columns": None, "fixed": ()},
        {"kind": "periodic", "period": 3.0, "lengthscale": 1.0, "variance": 1.0, "columns": None, "fixed": ("period",)},
    ]
    expected = {"kind": "product", "terms": [{"kind": "sum", "terms": plain[:2]}, plain[2]]}
    assert plain_kernel((first + second) * third) == expected


def test_the_rank_counts_independent_functions():
    constant, linear = Constant(), Linear()
    assert [rank(kernel, 3) for kernel in (constant, linear, Linear(columns=(0, 2)), RBF())] == [1, 3, 2, np.inf]
    assert rank(linear + constant, 3) == 4
    assert rank((linear + constant) * Linear(columns=(0, 2)), 3) == 8


# Completing a kernel before a fit


def test_completed_kernels_on_standardised_points_are_the_users_on_raw_points(rng):
    kernels = [
        RBF([0.5, 3.0], 1.3),
        RBF(0.8),
        Matern32(3.0, columns=(1,)),
        RationalQuadratic([0.5, 3.0], 1.2, 0.7),
        Periodic([7.0, 2.0], [0.6, 0.9], 1.3),
        Periodic(7.0, columns=0),
        RBF(0.5) * Periodic(7.0, columns=0) + Constant(0.4),
    ]
    scale, centre, points = np.array([2.0, 30.0]), np.array([5.0, -100.0]), rng.normal(size=(5, 2))
    completed = [complete(kernel, scale, 1.0) for kernel in kernels]
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(completed))
    raw = points * scale + centre
    assert_same(all_grams(completed, [points] * 7), all_grams(kernels, [raw] * 7), 1e-7)


def test_missing_hyperparameters_are_filled_in():
    scale = np.array([2.0, 30.0])
    completed = complete(RBF() + Linear() + Matern52(columns=(1,), variance=2.0), scale, 0.9)
    rbf, linear, matern = completed.terms
    assert_allclose(rbf.lengthscale, [0.9, 0.9])
    assert_allclose(rbf.variance, 1)
    assert_allclose(linear.variance, [1, 1])
    assert_allclose(matern.lengthscale, [0.9])
    assert_allclose(matern.variance, 2)
    assert_allclose(complete(RBF(), scale, np.array([0.9, 0.4])).lengthscale, [0.9, 0.4])
    assert_allclose(complete(RBF(columns=(1,)), scale, np.array([0.9, 0.4])).lengthscale, [0.4])
    # One number becomes one per column, in that column's units.
    assert_allclose(complete(RBF(6.0), scale, 1.0).lengthscale, [3.0, 0.2])
    assert_allclose(complete(Linear(6.0), scale, 1.0).variance, [6.0, 6.0])


def test_completing_keeps_columns_and_what_is_fixed():
    completed = complete(RBF(columns=(1,), fixed="variance") * Periodic(1.0, fixed=()), np.ones(2), 1.0)
    assert isinstance(completed, Product)
    rbf, periodic = completed.terms
    assert (rbf.columns, rbf.fixed) == ((1,), ("variance",))
    assert (periodic.columns, periodic.fixed) == (None, ())
    assert complete(Periodic(1.0), np.ones(2), 1.0).fixed == ("period",)
    assert complete(Constant(2.0, fixed="variance"), np.ones(2), 1.0).fixed == ("variance",)


class Foreign(Kernel):
    def evaluate(self, first, second):
        return jnp.sum(first * second)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (RBF(columns=(0, 2)), r"columns \(.*\) of a kernel lie outside the 2 columns of the input"),
        (RBF(columns=(-1,)), r"columns \(.*\) of a kernel lie outside the 2 columns of the input"),
        (RBF([1.0, 2.0, 3.0]), "lengthscale of RBF has 3 values for 2 columns; give one number, or one per column"),
        (Linear([1.0, 2.0, 3.0]), "variance of Linear has 3 values for 2 columns"),
        (Periodic([1.0, 2.0], columns=0), "period of Periodic has 2 values for 1 columns"),
        (Periodic(1.0, [1.0, 2.0], columns=0), "lengthscale of Periodic has 2 values for 1 columns"),
        (RBF() + Foreign(), "Foreign is not a kernel that can be fitted here"),
    ],
)
def test_kernels_that_do_not_suit_the_input_fail_in_words(kernel, message):
    with pytest.raises(SettingError, match=message):
        complete(kernel, np.ones(2), 1.0)
