"""The optimiser, on functions whose tops are known."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import number

from lvmogp.algebra.constraints import positive
from lvmogp.inference.optimise import Run, Status, maximise


class Point(eqx.Module):
    """Free coordinates and a positive number."""

    place: jax.Array
    scale: jax.Array = positive()
    fixed: tuple[str, ...] = eqx.field(static=True, default=())


def point(*place: float, scale: float = 1.0, fixed: tuple[str, ...] = ()) -> Point:
    return Point(jnp.array(place), number(scale), fixed)


CENTRE, CURVATURE = np.array([1.0, -2.0, 0.5]), np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.3], [0.0, 0.3, 4.0]])


def concave(tree: Point, offset: jax.Array) -> jax.Array:
    """Highest at the centre, with value ``offset`` there, and at a scale of 3."""
    away = tree.place - CENTRE
    return offset - away @ CURVATURE @ away / 2 - (jnp.log(tree.scale) - jnp.log(3.0)) ** 2


def valley(tree: Point, offset: jax.Array) -> jax.Array:
    """Rosenbrock's, upside down."""
    return offset - 100 * (tree.place[1] - tree.place[0] ** 2) ** 2 - (1 - tree.place[0]) ** 2


def rising(tree: Point, offset: jax.Array) -> jax.Array:
    """Grows with the scale for ever."""
    return offset + jnp.log(tree.scale) - jnp.sum(tree.place**2)


def climb(objective, begin: Point, offset: float = 7.0, **limits) -> Run:
    return maximise(objective, begin, number(offset), **{"max_iterations": 500, "tolerance": 1e-12} | limits)


def assert_never_falls(run: Run):
    assert np.all(np.isfinite(run.history))
    assert all(later >= earlier for earlier, later in itertools.pairwise(run.history))
    assert run.bound == pytest.approx(run.history[-1], rel=1e-12)


def test_maximise_finds_the_top_of_a_concave_function_and_reports_every_iteration():
    seen = []
    run = climb(concave, point(0.0, 0.0, 0.0), on_iteration=seen.append)
    np.testing.assert_allclose(run.tree.place, CENTRE, atol=1e-6)
    assert float(run.tree.scale) == pytest.approx(3, rel=1e-6)
    assert run.bound == pytest.approx(7, abs=1e-10)
    assert run.status is Status.CONVERGED
    assert tuple(seen) == run.history
    assert run.n_evaluations > len(run.history)
    assert_never_falls(run)
    threads = {"tolerance": 0.0, "max_iterations": 50, "one_thread": False}
    np.testing.assert_allclose(climb(concave, point(0.0, 0.0, 0.0), **threads).tree.place, run.tree.place, atol=1e-7)


def test_maximise_leaves_fixed_fields_alone_and_stays_inside_the_box():
    run = climb(concave, point(0.0, 0.0, 0.0, scale=2.0, fixed=("scale",)))
    assert float(run.tree.scale) == 2
    np.testing.assert_allclose(run.tree.place, CENTRE, atol=1e-6)
    assert run.bound == pytest.approx(7 - np.log(2 / 3) ** 2, abs=1e-10)
    run = climb(rising, point(0.5, 0.5))
    assert float(run.tree.scale) == pytest.approx(np.exp(16), rel=1e-9)
    assert run.bound == pytest.approx(7 + 16, abs=1e-9)
    assert run.status is Status.CONVERGED


def test_maximise_follows_a_valley_to_its_end_or_as_far_as_it_may():
    run = climb(valley, point(-1.2, 1.0))
    np.testing.assert_allclose(run.tree.place, [1, 1], atol=1e-4)
    short, lazy = (climb(valley, point(-1.2, 1.0), **limits) for limits in ({"max_iterations": 5}, {"tolerance": 1e3}))
    assert (run.status, short.status) == (Status.CONVERGED, Status.ITERATION_LIMIT)
    assert lazy.status is Status.CONVERGED  # twenty iterations gained little
    assert [len(each.history) for each in (short, lazy)] == [5, 21]
    for each in (run, short, lazy):
        assert_never_falls(each)


def cliff_into(tree: Point, beyond: jax.Array) -> jax.Array:
    """A parabola that ends shortly behind its top, in whatever lies ``beyond``."""
    height = 7 - jnp.sum((tree.place - CENTRE) ** 2)
    return jnp.where(jnp.all(tree.place < CENTRE + 0.3), height, beyond)


def without_slope(tree: Point, offset: jax.Array) -> jax.Array:
    """The same parabola, finite everywhere, whose slope is not a number behind its top."""
    inside = jnp.all(tree.place < CENTRE + 0.3)
    return offset - jnp.sum((tree.place - CENTRE) ** 2) + 0 * jnp.sqrt(jnp.where(inside, 1.0, 0 * tree.place[0]))


@pytest.mark.parametrize(
    ("objective", "beyond"),
    [(cliff_into, np.nan), (cliff_into, np.inf), (cliff_into, -np.inf), (without_slope, 7.0)],
)
def test_maximise_steps_back_from_a_cliff_into_anything(objective, beyond):
    run = climb(objective, point(-60.0, -40.0, -80.0), beyond)
    np.testing.assert_allclose(run.tree.place, CENTRE, atol=1e-5)
    assert_never_falls(run)


def test_maximise_says_when_the_start_is_not_finite():
    begin = point(2.0, 0.0, 0.0)
    run = climb(cliff_into, begin, np.nan)
    assert (run.status, run.bound, run.history) == (Status.NOT_FINITE, -np.inf, ())
    np.testing.assert_array_equal(run.tree.place, begin.place)
