"""Independent GPs, the optimiser, starting recipes and fits."""

import functools
import itertools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from scipy.spatial.distance import pdist
from small_models import INDUCING_INPUTS, Case, grid_case, long_case, number, rbf

from lvmogp.algebra.constraints import positive
from lvmogp.errors import NumericalError
from lvmogp.ground.compiling import compiled
from lvmogp.inference.independent import IndependentParameters, independent_bound, independent_curves
from lvmogp.inference.optimise import Run, Status, StopFit, maximise
from lvmogp.inference.options import Settings
from lvmogp.inference.restarts import Outcome, Progress, fit, with_explicit_inducing
from lvmogp.inference.starts import (
    RECIPES,
    Embedding,
    IndependentCurves,
    independent_start,
    isomap,
    principal_components,
    recipe_names,
    representatives,
    start,
)
from lvmogp.kernels.covariances import RBF
from lvmogp.model.bounds import collapsed, explicit
from lvmogp.model.layouts import GridData
from lvmogp.model.parameters import Parameters
from lvmogp.tables.features import FeatureCoordinates

compiled_independent_bound = compiled(independent_bound)
compiled_independent_curves = compiled(independent_curves)
compiled_collapsed = compiled(collapsed)
compiled_explicit = compiled(explicit)

CASES = {"grid": grid_case, "long": long_case}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]()


# Independent sparse GPs.


def independent_parameters(inducing: np.ndarray = INDUCING_INPUTS) -> IndependentParameters:
    return IndependentParameters(rbf([1.6, 1.3], 1.2), jnp.asarray(inducing), number(0.15))


def distinct_inputs(case: Case) -> np.ndarray:
    return np.unique(np.concatenate([inputs for inputs, _ in case.observations]), axis=0)


def dense_titsias(parameters: IndependentParameters, inputs: np.ndarray, outputs: np.ndarray) -> float:
    """log N(y; 0, Q + σ²I) − tr(K − Q)/2σ² with Q = K_fu K_uu⁻¹ K_uf."""
    inducing, noise = np.asarray(parameters.inducing_inputs), float(parameters.noise_variance)
    cross = references.covariance(parameters.kernel, inputs, inducing)
    explained = cross @ np.linalg.inv(references.jittered_gram(parameters.kernel, inducing)) @ cross.T
    left = np.trace(references.covariance(parameters.kernel, inputs, inputs) - explained)
    return references.log_normal(outputs, explained + noise * np.eye(len(inputs))) - left / (2 * noise)


def exact_covariance(parameters: IndependentParameters, inputs: np.ndarray) -> np.ndarray:
    """K + σ²I."""
    noise = float(parameters.noise_variance)
    return references.covariance(parameters.kernel, inputs, inputs) + noise * np.eye(len(inputs))


def test_independent_bound_is_the_sum_of_dense_bounds(case: Case):
    parameters = independent_parameters()
    expected = sum(dense_titsias(parameters, inputs, outputs) for inputs, outputs in case.observations)
    assert float(compiled_independent_bound(parameters, case.data)) == pytest.approx(expected, rel=1e-10)


def test_independent_bound_with_inducing_inputs_at_the_data_is_the_exact_log_likelihood(case: Case):
    parameters = independent_parameters(distinct_inputs(case))
    expected = sum(
        references.log_normal(outputs, exact_covariance(parameters, inputs)) for inputs, outputs in case.observations
    )
    gap = expected - float(compiled_independent_bound(parameters, case.data))
    assert 0 < gap < 1e-4  # what the jitter leaves


def test_independent_curves_with_inducing_inputs_at_the_data_are_the_exact_means(case: Case):
    parameters = independent_parameters(distinct_inputs(case))
    points = np.random.default_rng(51).uniform(-2, 2, (6, 2))
    found = compiled_independent_curves(parameters, case.data, jnp.asarray(points))
    for curve, (inputs, outputs) in zip(found, case.observations, strict=True):
        cross = references.covariance(parameters.kernel, points, inputs)
        expected = cross @ np.linalg.solve(exact_covariance(parameters, inputs), outputs)
        np.testing.assert_allclose(curve, expected, atol=1e-4)


def test_independent_curves_are_the_sparse_means(case: Case):
    parameters = independent_parameters()
    points = np.random.default_rng(51).uniform(-2, 2, (6, 2))
    found = compiled_independent_curves(parameters, case.data, jnp.asarray(points))
    gram = references.jittered_gram(parameters.kernel, INDUCING_INPUTS)
    at_points = references.covariance(parameters.kernel, points, INDUCING_INPUTS)
    for curve, (inputs, outputs) in zip(found, case.observations, strict=True):
        cross = references.covariance(parameters.kernel, inputs, INDUCING_INPUTS)
        # K_*u (K_uu + K_uf K_fu/σ²)⁻¹ K_uf y/σ²
        noise = float(parameters.noise_variance)
        expected = at_points @ np.linalg.solve(gram + cross.T @ cross / noise, cross.T @ outputs / noise)
        np.testing.assert_allclose(curve, expected, rtol=1e-8, atol=1e-10)


# The optimiser.


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


def walled(tree: Point, offset: jax.Array) -> jax.Array:
    """Not a number outside the unit cube, infinitely low at its walls; highest at tanh-like places inside."""
    return offset + jnp.sum(jnp.log(1 - tree.place**2) + CENTRE * tree.place)


def cliff(tree: Point, offset: jax.Array) -> jax.Array:
    """A parabola that ends shortly behind its top."""
    height = offset - jnp.sum((tree.place - CENTRE) ** 2)
    return jnp.where(jnp.all(tree.place < CENTRE + 0.3), height, jnp.nan)


OFFSET = number(7.0)


def climb(objective: Callable, begin: Point, *, max_iterations: int = 500, tolerance: float = 1e-12) -> Run:
    return maximise(objective, begin, OFFSET, max_iterations=max_iterations, tolerance=tolerance)


def assert_never_falls(run: Run):
    assert len(run.history) > 0
    assert all(later >= earlier for earlier, later in itertools.pairwise(run.history))
    assert run.bound == pytest.approx(run.history[-1], rel=1e-12)


def test_maximise_finds_the_top_of_a_concave_function():
    run = climb(concave, point(0.0, 0.0, 0.0))
    np.testing.assert_allclose(run.tree.place, CENTRE, atol=1e-6)
    assert float(run.tree.scale) == pytest.approx(3, rel=1e-6)
    assert run.bound == pytest.approx(7, abs=1e-10)
    assert run.status is Status.CONVERGED
    assert_never_falls(run)


def test_maximise_leaves_fixed_fields_alone():
    run = climb(concave, point(0.0, 0.0, 0.0, scale=2.0, fixed=("scale",)))
    assert float(run.tree.scale) == 2
    np.testing.assert_allclose(run.tree.place, CENTRE, atol=1e-6)
    assert run.bound == pytest.approx(7 - np.log(2 / 3) ** 2, abs=1e-10)


def test_maximise_stays_inside_the_box():
    run = climb(rising, point(0.5, 0.5))
    assert float(run.tree.scale) == pytest.approx(np.exp(16), rel=1e-9)
    assert run.bound == pytest.approx(7 + 16, abs=1e-9)
    assert run.status is Status.CONVERGED


def test_maximise_follows_a_valley_to_its_end():
    run = climb(valley, point(-1.2, 1.0))
    np.testing.assert_allclose(run.tree.place, [1, 1], atol=1e-4)
    assert run.status is Status.CONVERGED
    assert_never_falls(run)


def test_maximise_says_when_it_reached_the_limit_of_iterations():
    run = climb(valley, point(-1.2, 1.0), max_iterations=5)
    assert run.status is Status.ITERATION_LIMIT
    assert len(run.history) == 5
    assert_never_falls(run)


def test_maximise_stops_when_twenty_iterations_gain_little():
    run = climb(valley, point(-1.2, 1.0), tolerance=1e3)
    assert run.status is Status.CONVERGED
    assert len(run.history) == 21


def test_maximise_says_when_the_start_is_not_finite():
    begin = point(2.0, 0.0, 0.0)
    run = climb(walled, begin)
    assert run.status is Status.NOT_FINITE
    assert run.bound == -np.inf
    assert run.history == ()
    np.testing.assert_array_equal(run.tree.place, begin.place)


def test_maximise_steps_back_from_where_a_bound_is_not_finite():
    run = climb(walled, point(0.9, 0.9, -0.99))
    # 2x/(1 − x²) = c where the derivative vanishes
    expected = (np.sqrt(1 + CENTRE**2) - 1) / CENTRE
    np.testing.assert_allclose(run.tree.place, expected, atol=1e-6)
    assert_never_falls(run)


def test_maximise_finds_a_top_beside_a_cliff():
    run = climb(cliff, point(-60.0, -40.0, -80.0))
    np.testing.assert_allclose(run.tree.place, CENTRE, atol=1e-5)
    assert_never_falls(run)


def cliff_into(tree: Point, beyond: jax.Array) -> jax.Array:
    """A parabola that ends shortly behind its top, in whatever lies ``beyond``."""
    height = 7 - jnp.sum((tree.place - CENTRE) ** 2)
    return jnp.where(jnp.all(tree.place < CENTRE + 0.3), height, beyond)


def without_slope(tree: Point, offset: jax.Array) -> jax.Array:
    """The same parabola, finite everywhere, whose slope is not a number behind its top."""
    inside = jnp.all(tree.place < CENTRE + 0.3)
    return offset - jnp.sum((tree.place - CENTRE) ** 2) + 0 * jnp.sqrt(jnp.where(inside, 1.0, 0 * tree.place[0]))


@pytest.mark.parametrize("beyond", [np.nan, np.inf, -np.inf])
def test_maximise_steps_back_from_a_cliff_into_anything(beyond):
    begin = point(-60.0, -40.0, -80.0)
    run = maximise(cliff_into, begin, number(beyond), max_iterations=500, tolerance=1e-12)
    np.testing.assert_allclose(run.tree.place, CENTRE, atol=1e-5)
    assert np.all(np.isfinite(run.history))
    assert_never_falls(run)


def test_maximise_steps_back_from_where_there_is_no_slope():
    run = climb(without_slope, point(-60.0, -40.0, -80.0))
    np.testing.assert_allclose(run.tree.place, CENTRE, atol=1e-5)
    assert_never_falls(run)


def test_maximise_reports_every_iteration():
    seen = []
    run = maximise(concave, point(0.0, 0.0, 0.0), OFFSET, max_iterations=50, tolerance=0.0, on_iteration=seen.append)
    assert tuple(seen) == run.history
    assert run.n_evaluations > len(run.history)


def test_threads_make_no_difference_to_the_optimum():
    alone, together = (
        maximise(concave, point(0.0, 0.0, 0.0), OFFSET, max_iterations=50, tolerance=0.0, one_thread=one_thread)
        for one_thread in (True, False)
    )
    np.testing.assert_allclose(together.tree.place, alone.tree.place, atol=1e-7)


# Recipes.


def curves_of(latents: np.ndarray, lengthscale: float, n_points: int = 4_000) -> np.ndarray:
    """Values of curves at so many far-apart points that their correlations are those of the latent kernel."""
    latent_gram = references.covariance(RBF(lengthscale, 1.0), latents, latents)
    values, vectors = np.linalg.eigh(latent_gram)
    root = vectors * np.sqrt(np.maximum(values, 0))
    return root @ np.random.default_rng(52).normal(size=(len(latents), n_points))


def configuration(n_dimensions: int, n_conditions: int = 30) -> np.ndarray:
    """Latents with unit covariance."""
    latents = np.random.default_rng(53).uniform(-1, 1, (n_conditions, n_dimensions))
    latents -= latents.mean(axis=0)
    return latents @ np.linalg.inv(np.linalg.cholesky(np.cov(latents.T, ddof=0).reshape(n_dimensions, -1))).T


def distances(embedding: Embedding) -> np.ndarray:
    """In lengthscales."""
    return pdist(embedding.means / embedding.lengthscales)


RNG = np.random.default_rng


@pytest.mark.parametrize("n_dimensions", [1, 2])
def test_principal_components_recover_where_conditions_lie(n_dimensions: int):
    latents = configuration(n_dimensions)
    values = curves_of(latents, 4.0)
    embedding = principal_components(values - values.mean(axis=0), n_dimensions, RNG(54))
    assert np.corrcoef(distances(embedding), pdist(latents))[0, 1] > 0.95
    np.testing.assert_allclose(np.mean(embedding.means**2, axis=0), 1, rtol=1e-9)


@pytest.mark.parametrize("n_dimensions", [1, 2])
@pytest.mark.parametrize("n_neighbours", [8, 12])
def test_isomap_recovers_where_conditions_lie_and_their_distances(n_dimensions: int, n_neighbours: int):
    latents = configuration(n_dimensions, 80)
    embedding = isomap(curves_of(latents, 0.7), n_dimensions, RNG(54), n_neighbours=n_neighbours)
    assert np.corrcoef(distances(embedding), pdist(latents))[0, 1] > 0.95
    assert np.median(distances(embedding) / (pdist(latents) / 0.7)) == pytest.approx(1, abs=0.15)


CURVES = {
    "one condition": lambda: np.random.default_rng(55).normal(size=(1, 20)),
    "two conditions": lambda: np.random.default_rng(56).normal(size=(2, 20)),
    "three conditions": lambda: np.random.default_rng(57).normal(size=(3, 20)),
    "equal curves": lambda: np.tile(np.sin(np.arange(20)), (6, 1)),
    "curves of zeros": lambda: np.zeros((6, 20)),
    "curves with opposite signs": lambda: np.outer([1, -1, 1, -1, 1, -1], np.sin(np.arange(20))),
}


@pytest.mark.parametrize("curves", CURVES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_hold_for_few_and_for_equal_curves(recipe: str, curves: str):
    values = CURVES[curves]()
    for n_latent in (1, 2, 3):
        means, lengthscales = RECIPES[recipe](values, n_latent, RNG(58))
        assert means.shape == (len(values), n_latent)
        assert lengthscales.shape == (n_latent,)
        assert np.all(np.abs(means) < 10)
        assert np.all((lengthscales > 0.01) & (lengthscales < 100))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("with_features", [False, True])
def test_where_conditions_start_does_not_depend_on_their_order(recipe: str, with_features: bool):
    values, order = RNG(60).normal(size=(7, 9)), RNG(61).permutation(7)
    known = FeatureCoordinates(RNG(62).normal(size=(7, 1)), np.ones(1), np.ones(1))

    def begin(rows: np.ndarray) -> Parameters:
        coordinates = known._replace(values=known.values[rows]) if with_features else None
        curves = IndependentCurves(independent_parameters(), values[rows])
        sizes = {"n_latent": 2, "n_inducing": 3, "noise_per_condition": False}
        return start(recipe, curves, RBF(), rng=RNG(63), coordinates=coordinates, **sizes)

    plain, moved = begin(np.arange(7)), begin(order)
    np.testing.assert_allclose(moved.latent_mean, plain.latent_mean[order], atol=1e-12)
    np.testing.assert_allclose(moved.inducing_latents, plain.inducing_latents, atol=1e-12)


def test_recipes_beyond_the_table_are_random():
    assert recipe_names(2) == ["isomap of 8 neighbours", "principal components"]
    assert recipe_names(9)[-3:] == ["random latents"] * 3


def test_representatives_are_the_points_or_centres_of_clusters():
    points = np.array([[0.0], [0.1], [5.0], [5.1], [0.0]])
    np.testing.assert_array_equal(representatives(points, 4, 0), [[0.0], [0.1], [5.0], [5.1]])
    np.testing.assert_allclose(np.sort(representatives(points, 2, 0), axis=0), [[0.05], [5.05]])


def test_points_that_differ_by_rounding_are_clustered_without_a_warning():
    points = np.repeat([[0.0], [1.0], [2.0]], 4, axis=0) + 1e-17 * np.arange(12.0)[:, None]
    assert len(np.unique(points)) == 6  # those at zero are different
    centres = representatives(points, 5, 0)
    assert len(centres) == 5
    np.testing.assert_allclose(np.unique(np.round(centres, 9)), [0, 1, 2], atol=1e-9)


# Fits.


@functools.cache
def simulated(n_conditions: int = 6, n_inputs: int = 8) -> GridData:
    """Sine waves whose phase depends on the condition, with noise, standardised."""
    rng = np.random.default_rng(59)
    inputs = np.linspace(-1.6, 1.6, n_inputs)[:, None]
    phases = np.linspace(-1, 1, n_conditions)
    outputs = np.sin(2 * inputs + phases) + 0.1 * rng.normal(size=(n_inputs, n_conditions))
    return GridData(jnp.asarray(inputs), jnp.asarray((outputs - outputs.mean()) / outputs.std()))


SETTINGS = Settings(
    input_kernel=RBF(),
    latent_kernel=RBF(),
    n_latent=1,
    n_inducing_inputs=4,
    most_inducing_inputs=4,
    n_inducing_latents=3,
    noise_per_condition=False,
    inference="collapsed",
    n_restarts=3,
    max_iterations=60,
    seed=3,
)


def fitted(data: GridData, settings: Settings, on_progress: Callable[[Progress], None] | None = None) -> Outcome:
    return fit(data, np.asarray(data.inputs), np.ones(1), settings, on_progress)


@functools.cache
def first_fit() -> tuple[Outcome, list[Progress]]:
    reports = []
    return fitted(simulated(), SETTINGS, reports.append), reports


@functools.cache
def curves_at_start() -> IndependentCurves:
    data = simulated()
    return independent_start(
        RBF(), data, np.asarray(data.inputs), input_scale=np.ones(1), n_inducing=4, most_inducing=4, seed=3
    )


def start_of(recipe: str, number_of_start: int) -> Parameters:
    return start(
        recipe,
        curves_at_start(),
        RBF(),
        n_latent=1,
        n_inducing=3,
        noise_per_condition=False,
        rng=np.random.default_rng([3, number_of_start]),
    )


def test_every_start_is_improved_upon():
    outcome, _ = first_fit()
    for place, restart in enumerate(outcome.restarts):
        begin = float(compiled_collapsed(start_of(restart.recipe, place), simulated()).total)
        assert restart.bound > begin + 1
        assert outcome.bound >= restart.bound
        assert all(later >= earlier for earlier, later in itertools.pairwise(restart.history))


def test_fit_reports_the_bound_of_its_parameters():
    outcome, _ = first_fit()
    found = compiled_collapsed(outcome.parameters, simulated())
    assert float(found.penalised) == pytest.approx(outcome.bound, rel=1e-10)
    assert found.total - found.penalised == pytest.approx(0.5e-6 * found.signal)


def test_fit_keeps_the_best_restart():
    outcome, _ = first_fit()
    best = max(outcome.restarts, key=lambda restart: restart.bound)
    assert outcome.bound == best.bound
    assert outcome.status is best.status
    assert outcome.history == best.history
    assert outcome.history[-1] == outcome.bound
    assert outcome.converged == (best.status is Status.CONVERGED)


def test_counts_and_histories_of_a_fit_agree():
    outcome, reports = first_fit()
    assert [restart.recipe for restart in outcome.restarts] == recipe_names(3)
    assert outcome.n_iterations == len(reports) == sum(len(restart.history) for restart in outcome.restarts)
    assert outcome.n_evaluations == sum(restart.n_evaluations for restart in outcome.restarts)
    assert outcome.seconds > max(restart.seconds for restart in outcome.restarts) > 0
    assert reports[0].ended == frozenset()
    assert all(earlier.ended <= later.ended for earlier, later in itertools.pairwise(reports))
    for report in reports:
        assert report.restart not in report.ended
    for place, restart in enumerate(outcome.restarts):
        own = [report for report in reports if report.restart == place + 1]
        assert tuple(report.bound for report in own) == restart.history
        assert [report.iteration for report in own] == list(range(1, len(own) + 1))
        assert {(report.n_restarts, report.recipe) for report in own} == {(3, restart.recipe)}
        assert restart.n_evaluations > len(restart.history)
        assert len(restart.history) <= SETTINGS.max_iterations


def test_same_seed_gives_the_same_bits():
    (first, _), second = first_fit(), fitted(simulated(), SETTINGS)
    assert first.bound == second.bound
    assert [restart.history for restart in first.restarts] == [restart.history for restart in second.restarts]
    for left, right in zip(jax.tree.leaves(first.parameters), jax.tree.leaves(second.parameters), strict=True):
        np.testing.assert_array_equal(left, right)


def test_starts_side_by_side_end_like_starts_one_by_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lvmogp.inference.restarts._SIDE_BY_SIDE", 0)
    ends = {}
    for threads in (1, 3):
        monkeypatch.setattr("lvmogp.inference.restarts.n_threads", lambda threads=threads: threads)
        ends[threads] = fitted(simulated(), SETTINGS)
    assert [restart.history for restart in ends[1].restarts] == [restart.history for restart in ends[3].restarts]
    assert [restart.recipe for restart in ends[1].restarts] == [restart.recipe for restart in ends[3].restarts]
    for left, right in zip(jax.tree.leaves(ends[1].parameters), jax.tree.leaves(ends[3].parameters), strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_request_to_stop_ends_all_starts(monkeypatch: pytest.MonkeyPatch, threads: int):
    def stop(progress: Progress) -> None:
        if progress.iteration == 4:
            raise StopFit

    monkeypatch.setattr("lvmogp.inference.restarts._SIDE_BY_SIDE", 0)
    monkeypatch.setattr("lvmogp.inference.restarts.n_threads", lambda: threads)
    outcome = fitted(simulated(), SETTINGS, stop)
    assert outcome.status is Status.INTERRUPTED
    assert len(outcome.restarts) == (1 if threads == 1 else 3)
    assert all(restart.n_iterations <= 5 for restart in outcome.restarts)
    assert {restart.status for restart in outcome.restarts} == {Status.INTERRUPTED}


def test_fit_recovers_the_order_of_the_conditions():
    outcome, _ = first_fit()
    latents = np.asarray(outcome.parameters.latent_mean)[:, 0]
    assert abs(np.corrcoef(latents, np.arange(6))[0, 1]) > 0.98


def test_fit_reports_the_jitter_it_needed():
    outcome, _ = first_fit()
    assert outcome.jitter_inputs == references.JITTER
    assert outcome.jitter_latents == references.JITTER


def test_fit_without_a_finite_start_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lvmogp.inference.restarts.independent_start", lambda *_, **__: curves_at_start())
    data = simulated()
    broken = GridData(data.inputs, data.outputs.at[0, 0].set(jnp.inf))
    with pytest.raises(NumericalError, match="none of 3 starts gave a finite bound"):
        fitted(broken, SETTINGS)


# Explicit inference.


@functools.cache
def converged(inference: str) -> Outcome:
    return fitted(
        simulated(), SETTINGS._replace(inference=inference, n_restarts=1, max_iterations=2_000, tolerance=1e-4)
    )


def test_explicit_full_inference_reaches_the_collapsed_bound():
    full, highest = converged("full"), converged("collapsed")
    assert full.status is highest.status is Status.CONVERGED
    assert highest.bound - 1e-3 < full.bound < highest.bound + 1e-5
    np.testing.assert_allclose(full.parameters.latent_mean, highest.parameters.latent_mean, atol=0.02)


def test_kronecker_inference_stays_below_the_full_one():
    kronecker, full = converged("kronecker"), converged("full")
    assert kronecker.status is Status.CONVERGED
    assert full.bound - 1 < kronecker.bound < full.bound


@pytest.mark.parametrize("inference", ["full", "kronecker"])
def test_explicit_inference_stays_below_the_collapsed_bound_of_the_same_parameters(inference: str):
    outcome = converged(inference)
    without = eqx.tree_at(lambda tree: tree.inducing, outcome.parameters, None)
    assert outcome.bound < float(compiled_collapsed(without, simulated()).total) + 1e-9


def test_explicit_full_inference_starts_at_the_collapsed_bound():
    begin = start_of("principal components", 1)
    full = float(compiled_explicit(with_explicit_inducing(begin, simulated(), "full"), simulated()).total)
    assert full == pytest.approx(float(compiled_collapsed(begin, simulated()).total), rel=1e-9)


def test_kronecker_inference_starts_at_the_nearest_product_of_the_optimal_covariance():
    begin, data = start_of("principal components", 1), simulated()
    inputs, outputs = np.asarray(data.inputs), np.asarray(data.outputs)
    mean, matrix = references.optimal_inducing(begin, [(inputs, values) for values in outputs.T])
    found = with_explicit_inducing(begin, data, "kronecker").inducing
    np.testing.assert_allclose(found.mean, mean, rtol=1e-8, atol=1e-10)
    # the mean of the diagonal blocks, and the traces of all blocks, with the trace of the whole kept
    n_inputs, n_latents = mean.shape
    blocks = matrix.reshape(n_latents, n_inputs, n_latents, n_inputs)
    over_latents = sum(blocks[j, :, j, :] for j in range(n_latents)) / n_latents
    over_inputs = np.array([[np.trace(blocks[j, :, k, :]) for k in range(n_latents)] for j in range(n_latents)])
    product = np.kron(over_inputs / np.trace(over_latents), over_latents)
    factor = np.kron(np.asarray(found.latent_factor), np.asarray(found.input_factor))
    np.testing.assert_allclose(factor @ factor.T, product, rtol=1e-8, atol=1e-11)
    assert np.trace(product) == pytest.approx(np.trace(matrix), rel=1e-9)
