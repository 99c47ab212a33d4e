"""Fits: the best of several starts, one by one or side by side, with optimal and explicit q(v)."""

import functools
import itertools

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
import references

from lvmogp.errors import NumericalError
from lvmogp.ground.compiling import compiled
from lvmogp.inference.optimise import Status, StopFit
from lvmogp.inference.options import DescribedKernels, Settings
from lvmogp.inference.restarts import Outcome, Progress, fit, grown
from lvmogp.inference.starts import farthest, independent_start, recipe_names, start, with_explicit_inducing
from lvmogp.kernels.covariances import RBF, Linear
from lvmogp.model.bounds import collapsed, explicit
from lvmogp.model.layouts import GridData

compiled_collapsed = compiled(collapsed)


@functools.cache
def simulated(n_conditions: int = 6, n_inputs: int = 8) -> GridData:
    """Sine waves whose phase depends on the condition, with noise, standardised."""
    rng = np.random.default_rng(59)
    inputs = np.linspace(-1.6, 1.6, n_inputs)[:, None]
    phases = np.linspace(-1, 1, n_conditions)
    outputs = np.sin(2 * inputs + phases) + 0.1 * rng.normal(size=(n_inputs, n_conditions))
    return GridData(jnp.asarray(inputs), jnp.asarray((outputs - outputs.mean()) / outputs.std()))


SETTINGS = Settings(
    kernels=DescribedKernels(None, (RBF(),), None, RBF(), np.ones(1)),
    n_latent=1,
    n_inducing_inputs=4,
    most_inducing_inputs=4,
    most_at_start=4,
    n_distinct_inputs=8,
    n_inducing_latents=3,
    most_inducing_latents=3,
    noise_per_condition=False,
    own_variances=False,
    inference="collapsed",
    n_restarts=3,
    max_iterations=60,
    seed=3,
)


def fitted(data: GridData, settings: Settings, on_progress=None) -> Outcome:
    return fit(data, np.asarray(data.inputs), np.ones(1), settings, on_progress)


@functools.cache
def first_fit() -> tuple[Outcome, list[Progress]]:
    reports = []
    return fitted(simulated(), SETTINGS, reports.append), reports


@functools.cache
def independent() -> tuple:
    return independent_start(simulated(), np.asarray(simulated().inputs), np.ones(1), SETTINGS)


def start_of(recipe: str, number_of_start: int):
    return start(recipe, *independent(), SETTINGS, np.random.default_rng([3, number_of_start]))


def test_a_fit_is_its_best_restart_and_tells_the_bound_of_its_parameters():
    outcome, _ = first_fit()
    best = max(outcome.restarts, key=lambda restart: restart.bound)
    assert (outcome.bound, outcome.status, outcome.history) == (best.bound, best.status, best.history)
    assert outcome.history[-1] == outcome.bound
    assert outcome.converged == (best.status is Status.CONVERGED)
    assert (outcome.jitter_inputs, outcome.jitter_latents) == (references.JITTER, references.JITTER)
    found = compiled_collapsed(outcome.parameters, simulated())
    assert float(found.penalised) == pytest.approx(outcome.bound, rel=1e-10)
    assert found.total - found.penalised == pytest.approx(0.5e-6 * found.signal)
    latents = np.asarray(outcome.parameters.latent_mean)[:, 0]  # which recover the order of the conditions
    assert abs(np.corrcoef(latents, np.arange(6))[0, 1]) > 0.98


def test_every_start_is_improved_upon_and_counts_and_histories_agree():
    outcome, reports = first_fit()
    assert [restart.recipe for restart in outcome.restarts] == recipe_names(SETTINGS, 6)
    assert outcome.n_iterations == len(reports) == sum(len(restart.history) for restart in outcome.restarts)
    assert outcome.n_evaluations == sum(restart.n_evaluations for restart in outcome.restarts)
    assert outcome.seconds > max(restart.seconds for restart in outcome.restarts) > 0
    assert reports[0].ended == frozenset()
    assert all(earlier.ended <= later.ended for earlier, later in itertools.pairwise(reports))
    for place, restart in enumerate(outcome.restarts):
        begin = float(compiled_collapsed(start_of(restart.recipe, place), simulated()).total)
        assert begin + 1 < restart.bound <= outcome.bound
        assert list(restart.history) == sorted(restart.history)
        own = [report for report in reports if report.restart == place + 1]
        assert [(report.iteration, report.bound) for report in own] == list(enumerate(restart.history, 1))
        assert {(report.n_restarts, report.recipe) for report in own} == {(3, restart.recipe)}
        assert not any(place + 1 in report.ended for report in own)
        assert restart.n_evaluations > len(restart.history) <= SETTINGS.max_iterations


def test_starts_differ_however_few_conditions_there_are():
    def names(n_restarts, n_conditions):
        return recipe_names(SETTINGS._replace(n_restarts=n_restarts), n_conditions)

    assert names(2, 50) == ["isomap of 8 neighbours", "principal components"]
    assert names(9, 50)[-3:] == ["random latents"] * 3  # beyond the table
    assert len(set(names(6, 50))) == 6
    # Of ten conditions each has nine neighbours: twelve and twenty are all of them.
    assert names(6, 10)[-2:] == ["isomap of 3 neighbours", "random latents"]
    # Of six all Isomaps but that of three neighbours are alike.
    assert [name for name in names(6, 6) if "isomap" in name] == ["isomap of 8 neighbours", "isomap of 3 neighbours"]
    assert names(6, 6).count("random latents") == 3


def test_inducing_inputs_grow_while_the_bound_of_the_model_gains():
    settings = SETTINGS._replace(n_inducing_inputs=3, most_inducing_inputs=3, n_restarts=1)
    data, stays = simulated(), fitted(simulated(), settings)
    grows = grown(stays, data, np.asarray(data.inputs), settings._replace(most_inducing_inputs=8))
    assert grown(stays, data, np.asarray(data.inputs), settings) is stays
    assert len(stays.parameters.inducing_inputs) == 3
    assert len(grows.parameters.inducing_inputs) > 3
    assert grows.bound > stays.bound + 1
    (restart,) = grows.restarts
    assert (restart.bound, restart.history[-1]) == (grows.bound, grows.bound)
    found = compiled_collapsed(grows.parameters, simulated())
    assert float(found.penalised) == pytest.approx(grows.bound, rel=1e-10)


def test_inducing_latents_grow_while_the_bound_of_the_model_gains():
    latents = np.random.default_rng(1).normal(size=12)
    inputs = np.linspace(-1.5, 1.5, 8)[:, None]
    outputs = np.sin(3 * latents) * np.cos(inputs) + np.cos(3 * latents) * inputs  # turns often along the latent
    data = GridData(jnp.asarray(inputs), jnp.asarray(outputs / outputs.std()))
    settings = SETTINGS._replace(n_inducing_latents=3, n_restarts=1, max_iterations=300)
    stays = fitted(data, settings)
    grows = grown(stays, data, inputs, settings._replace(most_inducing_latents=12))
    assert len(stays.parameters.inducing_latents) == 3
    assert 3 < len(grows.parameters.inducing_latents) <= 12
    assert grows.bound > stays.bound + 1


def test_points_far_from_those_given_are_chosen_one_after_the_other():
    points = np.array([[0.0], [1.0], [2.0], [10.0], [4.9]])
    np.testing.assert_array_equal(farthest(points, np.array([[0.1]]), 3), [[10.0], [4.9], [2.0]])


def test_starts_that_agree_are_enough_where_conditions_have_curves_of_their_own():
    own = DescribedKernels(RBF(), (RBF(),), RBF(), Linear(), np.ones(1))
    settings = SETTINGS._replace(kernels=own, n_inducing_latents=1, n_restarts=5, max_iterations=300)
    outcome = fitted(simulated(), settings)
    assert len(outcome.restarts) == 3
    assert np.ptp([restart.bound for restart in outcome.restarts]) < 0.1
    assert len(fitted(simulated(), settings._replace(max_iterations=2)).restarts) == 5  # these do not agree yet
    assert len(fitted(simulated(), SETTINGS._replace(n_restarts=5)).restarts) == 5
    (only,) = fitted(simulated(), settings._replace(recipe="principal components")).restarts
    assert only.recipe == "principal components"


def run_on(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lvmogp.inference.restarts._SIDE_BY_SIDE", 0)
    monkeypatch.setattr("lvmogp.inference.restarts.n_threads", lambda: threads)


def test_starts_side_by_side_end_like_starts_one_by_one_bit_for_bit(monkeypatch: pytest.MonkeyPatch):
    run_on(3, monkeypatch)
    alone, together = first_fit()[0], fitted(simulated(), SETTINGS)
    for one, other in zip(alone.restarts, together.restarts, strict=True):
        assert (one.recipe, one.bound, one.history) == (other.recipe, other.bound, other.history)
    assert eqx.tree_equal(alone.parameters, together.parameters)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_request_to_stop_ends_all_starts(threads: int, monkeypatch: pytest.MonkeyPatch):
    run_on(threads, monkeypatch)

    def stop(progress: Progress) -> None:
        if progress.iteration == 4:
            raise StopFit

    outcome = fitted(simulated(), SETTINGS._replace(n_restarts=5), stop)
    assert outcome.status is Status.INTERRUPTED
    assert len(outcome.restarts) == threads  # none begins afterwards
    assert all(restart.n_iterations <= 5 for restart in outcome.restarts)
    assert {restart.status for restart in outcome.restarts} == {Status.INTERRUPTED}


def test_fit_without_a_finite_start_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lvmogp.inference.restarts.independent_start", lambda *_: independent())
    data = simulated()
    broken = GridData(data.inputs, data.outputs.at[0, 0].set(jnp.inf))
    with pytest.raises(NumericalError, match="none of 3 starts gave a finite bound"):
        fitted(broken, SETTINGS)


@pytest.mark.long
def test_explicit_full_inference_reaches_the_collapsed_bound_and_kronecker_stays_below():
    converging = SETTINGS._replace(n_restarts=1, max_iterations=2_000, tolerance=1e-4)
    highest, full, kronecker = (
        fitted(simulated(), converging._replace(inference=inference))
        for inference in ("collapsed", "full", "kronecker")
    )
    assert full.status is highest.status is kronecker.status is Status.CONVERGED
    assert highest.bound - 1e-3 < full.bound < highest.bound + 1e-5
    np.testing.assert_allclose(full.parameters.latent_mean, highest.parameters.latent_mean, atol=0.02)
    assert full.bound - 1 < kronecker.bound < full.bound
    for outcome in (kronecker, full):
        without = eqx.tree_at(lambda tree: tree.inducing, outcome.parameters, None)
        assert outcome.bound < float(compiled_collapsed(without, simulated()).total) + 1e-9


def test_explicit_inference_starts_at_the_optimum_or_its_nearest_product():
    begin, data = start_of("principal components", 1), simulated()
    full = float(compiled(explicit)(with_explicit_inducing(begin, data, "full"), data).total)
    assert full == pytest.approx(float(compiled_collapsed(begin, data).total), rel=1e-9)
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
