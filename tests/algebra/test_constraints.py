"""Constrained trees to free vectors and back: nothing is lost, fixed values stay out, gradients pass."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from lvmogp.algebra.constraints import LOWER_TRIANGULAR, POINTS, join, natural_steps, positive, search_box, split
from lvmogp.kernels.covariances import RBF, Constant, Kernel, Linear, Periodic, complete
from lvmogp.model.parameters import FullInducing, KroneckerInducing, Parameters, plain_kernels


class Mixed(eqx.Module):
    """One field of each kind, and a kernel below."""

    anywhere: jax.Array
    above_zero: jax.Array = positive()
    factor: jax.Array = eqx.field(metadata=LOWER_TRIANGULAR)
    kernel: Kernel = eqx.field(default=None)
    fixed: tuple[str, ...] = eqx.field(static=True, default=())


def a_factor(rng, size):
    return jnp.asarray(np.tril(rng.normal(size=(size, size)), -1) + np.diag(rng.uniform(0.2, 2.0, size)))


def completed(kernel):
    return complete(kernel, np.ones(2), 1.0)


def full_parameters(rng, choice=None):
    mean = jnp.asarray(rng.normal(size=(2, 2)))
    inducing = {
        None: None,
        "kronecker": KroneckerInducing(mean, a_factor(rng, 2), a_factor(rng, 2)),
        "full": FullInducing(mean, a_factor(rng, 4)),
    }
    return Parameters(
        kernels=plain_kernels(
            completed(RBF([0.3, 2.0]) + Periodic(1.5) * Linear(0.7, fixed="variance")),
            completed(RBF([0.5, 0.9], fixed="variance") + Constant(0.2)),
        ),
        inducing_inputs=jnp.array([[0.1, 0.2], [0.3, -0.1]]),
        inducing_latents=jnp.asarray(rng.normal(size=(3, 2))),
        latent_mean=jnp.asarray(rng.normal(size=(4, 2))),
        latent_variance=jnp.asarray(rng.uniform(0.1, 1.0, size=(4, 2))),
        noise_variance=jnp.asarray([0.1]),
        inducing=inducing[choice],
    )


@pytest.mark.parametrize(("choice", "n_inducing"), [(None, 0), ("kronecker", 2 * 2 + 3 + 3), ("full", 2 * 2 + 10)])
def test_splitting_and_joining_is_the_identity(rng, choice, n_inducing):
    tree = full_parameters(rng, choice)
    vector, fixed_leaves, structure = split(tree)
    again = join(vector, fixed_leaves, structure)
    assert jax.tree.structure(again) == jax.tree.structure(tree)
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-14), again, tree)
    assert_allclose(np.concatenate([np.ravel(leaf) for leaf in fixed_leaves]), [1.5, 1.5, 0.7, 0.7, 1.0])
    kernels, rest = 3 + 2 + 1 + 2 + 1, 2 * 2 + 3 * 2 + 2 * (4 * 2) + 1  # the vector holds every free number once
    assert vector.shape == (kernels + rest + n_inducing,)
    # Trees of one shape share their structure, and so their program.
    other = split(full_parameters(rng, choice))[2]
    assert (structure, hash(structure)) == (other, hash(other))
    assert structure != split(full_parameters(rng, "full" if choice is None else None))[2]


def test_each_kind_of_field_has_its_map():
    factor = jnp.array([[2.0, 0.0], [-3.0, 0.5]])
    tree = Mixed(jnp.array([-1.0, 5.0]), jnp.array([0.1, 7.0]), factor)
    vector, fixed_leaves, _ = split(tree)
    # Triangles go row by row with the logarithms of the diagonal.
    assert_allclose(vector, [-1, 5, np.log(0.1), np.log(7.0), np.log(2.0), -3, np.log(0.5)], rtol=1e-15)
    assert fixed_leaves == ()


def test_the_search_box_bounds_logarithms_only():
    tree = Mixed(jnp.zeros(2), jnp.ones(3), jnp.eye(2), completed(RBF(fixed="variance")))
    lower, upper = search_box(split(tree)[2])
    assert_array_equal(upper, [np.inf] * 2 + [16] * 3 + [np.inf] * 3 + [16] * 2)
    assert_array_equal(lower, -upper)


class Placed(eqx.Module):
    """Points in space, and numbers that are none."""

    places: jax.Array = eqx.field(metadata=POINTS)
    numbers: jax.Array = eqx.field(default=None)


@pytest.mark.parametrize(
    ("places", "step"),
    [
        ([[0.0], [0.1], [0.2], [0.5]], 0.1),
        ([[0.0, 0.0], [0.3, 0.4], [3.0, 4.0]], 0.5),
        ([[0.0], [0.2], [0.2]], 0.2),
        ([[0.0], [5.0]], 1.0),
        ([[0.0], [1e-9]], 1e-3),
        ([[7.0]], 1.0),
        ([[7.0], [7.0]], 1.0),
    ],
    ids=["on a line", "in a plane", "coincident", "far apart", "very close", "one", "all coincident"],
)
def test_points_move_in_steps_of_the_distance_between_neighbours(places, step):
    vector, _, structure = split(Placed(jnp.asarray(places), jnp.asarray([0.3, 4.0])))
    expected = np.r_[np.full(np.size(places), step), 1.0, 1.0]
    assert_allclose(natural_steps(vector, structure), expected, rtol=1e-12)


def test_the_inducing_inputs_are_the_points_that_are_stepped(rng):
    parameters = full_parameters(rng)
    steps = natural_steps(*split(parameters)[::2])
    moved = eqx.tree_at(lambda tree: tree.inducing_inputs, parameters, parameters.inducing_inputs + 1)
    assert_array_equal(steps != 1, np.asarray(split(moved)[0] - split(parameters)[0]) > 0.5)


@pytest.mark.parametrize(
    ("kernel", "free", "fixed"),
    [
        (RBF([0.5, 2.0], 3.0, fixed="variance"), [0.5, 2.0], [3.0]),
        (RBF([0.5, 2.0], 3.0, fixed=("lengthscale",)), [3.0], [0.5, 2.0]),
        (Periodic([1.0, 2.0], 0.5, 3.0), [0.5, 0.5, 3.0], [1.0, 2.0]),
        (Periodic([1.0, 2.0], 0.5, 3.0, fixed="variance"), [1.0, 2.0, 0.5, 0.5], [3.0]),
        (RBF(0.5, fixed="variance") + (Constant(3.0) + RBF(2.0, 4.0)), [0.5, 0.5, 3.0, 2.0, 2.0, 4.0], [1.0]),
        ((RBF(0.5) + Constant(3.0, fixed="variance")) * Linear(2.0), [0.5, 0.5, 1.0, 2.0, 2.0], [3.0]),
    ],
)
def test_fixed_hyperparameters_stay_out_of_the_vector(kernel, free, fixed):
    vector, fixed_leaves, structure = split(completed(kernel))
    assert_allclose(np.exp(vector), free, rtol=1e-14)
    assert_allclose(np.concatenate([np.ravel(leaf) for leaf in (*fixed_leaves, np.array([]))]), fixed)
    moved = split(join(vector + 1, fixed_leaves, structure))
    assert_allclose(np.exp(moved[0]), np.e * np.array(free), rtol=1e-14)
    jax.tree.map(assert_array_equal, moved[1], fixed_leaves)


def test_a_fixed_field_fixes_all_below_it():
    tree = Mixed(jnp.zeros(2), jnp.ones(2), jnp.eye(1), completed(RBF(0.5) + Constant(3.0)), fixed=("kernel",))
    vector, fixed_leaves, _ = split(tree)
    assert_allclose(vector, np.zeros(5))
    assert_allclose(np.concatenate([np.ravel(leaf) for leaf in fixed_leaves]), [0.5, 0.5, 1.0, 3.0])
