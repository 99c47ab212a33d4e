"""The benchmark suite: its page says what was measured, its lines what the bars ask for."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial import KDTree
from small_models import grid_case, small_parameters

from benchmarks import between, condition_features, simulation_based_calibration, suggest, trust
from benchmarks.pages import with_part
from benchmarks.real import page as real_page
from benchmarks.suite import page, problems
from benchmarks.suite.fits import time_to_better
from benchmarks.suite.floors import grid_floor, independent_floor, least_seconds
from benchmarks.suite.questions import QUESTIONS
from benchmarks.suite.records import Bar, dearer, quicker, record

ROOT = Path(__file__).parents[2]
MACHINE = {"processor": "an abacus", "cores": 2, "memory_gb": 1, "system": "wood", "versions": {"lvmogp": "1.2"}}
MACHINE |= {"date": "2017-12-04", "gflops_one_thread": 2.0, "gb_per_second": 4.0, "load_before": 0.0}


def stored_for(script):
    """What the table of a script is made from."""
    if script is not condition_features:
        return json.loads(script.FILE.read_text())
    return {name: json.loads((script.FOLDER / f"{name}.json").read_text())["repeats"] for name in script.REPEATS}


def test_pages_are_made_from_the_results():
    assert page.page_text(ROOT / "results" / "benchmarks") == (ROOT / "docs" / "benchmarks.md").read_text()
    text = (ROOT / "docs" / "next-measurement.md").read_text()
    assert suggest.page_text(text, ROOT / "results" / "suggest") == text
    text = real_page.PAGE.read_text(encoding="utf-8")
    assert real_page.page_text(text, [real_page.RESULTS]) == text
    for path, text in trust.pages().items():
        assert text == path.read_text(encoding="utf-8")
    for script in (condition_features, between, simulation_based_calibration):
        text = script.PAGE.read_text(encoding="utf-8")
        assert with_part(text, script.BEGIN, script.END, script.table(stored_for(script))) == text
    with pytest.raises(ValueError, match="lacks <y>"):
        with_part("a <x> old", "<x>", "<y>", "new")


def test_suggested_measurements_need_fewer_than_others():
    """Better than random on average at every number of measurements, and never worse than space-filling ones."""
    for found in suggest.stored(ROOT / "results" / "suggest").values():
        errors = {method: np.asarray(curves)[:, 1:] for method, curves in found["errors"].items()}
        for method in ("farthest", "evenly", "random"):
            assert np.all(errors["suggest"].mean(axis=0) < errors[method].mean(axis=0))
        assert errors["suggest"].mean(axis=0)[3] < errors["random"].mean(axis=0)[5]


def test_the_page_shows_every_bar_with_what_was_measured(tmp_path):
    growth = dearer("twice N", [0.3, 0.5], [0.1], "itself", bar=Bar(2.2, at_least=False))
    for name, found in (("growth", growth), ("adding", record("a condition", ours=3.0, figures_in="ms"))):
        document = {"command": f"measure {name}", "machine": MACHINE, "records": [found]}
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    line = {"what": "psi2", "bar": "≥ 10", "measured": 12.3, "unit": "×", "reached": True, "device": "H200"}
    (tmp_path / "gpu-psi2.json").write_text(json.dumps([{**line, "command": "make gpu"}]))
    text = page.page_text(tmp_path)
    assert "| twice N | itself | ≤ 2.2 | 3 × | **no** |" in text
    assert "| twice N | 300 ms (400 ms, 2 times) | 100 ms | itself | 3 × | ≤ 2.2 | **no** |" in text
    assert "| a condition | 3 ms |" in text
    assert "an abacus, 2 cores" in text
    assert "| psi2 | ≥ 10 | 12.3 | × | yes | H200 | make gpu |" in text
    assert text.index(QUESTIONS["growth"].title) < text.index(QUESTIONS["adding"].title)


def test_a_ratio_is_that_of_the_least_times_and_a_bar_is_reached_if_all_it_asks_for_is_there():
    assert quicker("", [2.0, 9.0], [8.0, 90.0], "")["measured"] == 4
    assert dearer("", [8.0, 90.0], [2.0, 9.0], "")["measured"] == 4
    for measured, passed, reached in ((3, True, True), (2.9, True, False), (3, False, False)):
        assert record("", measured=measured, bar=Bar(3), passed=passed)["reached"] is reached
    assert "reached" not in record("", measured=3)
    assert record("", bar=Bar(3))["reached"] is False
    # The time to a better error counts from where it stays better.
    points = [{"seconds": float(place), "rmse": error} for place, error in enumerate((0.2, 0.5, 0.3, 0.1))]
    assert time_to_better(points, 0.4) == points[2]
    assert time_to_better(points, 0.1) is None


def test_the_floor_of_a_large_grid_is_two_products_with_its_outputs():
    assert grid_floor(10**6, 10**6, 50, 20)["operations"] == pytest.approx(4 * 10**12 * 20, rel=1e-2)
    assert independent_floor(10**6, 10**6, 50)["operations"] == pytest.approx(4 * 10**12 * 50, rel=1e-2)
    assert least_seconds({"operations": 6e9, "bytes": 4e9}, MACHINE) == 3
    assert least_seconds({"operations": 2e9, "bytes": 8e9}, MACHINE) == 2


def test_many_rows_are_smooth_functions_with_the_noise_they_are_said_to_have(tmp_path, monkeypatch):
    monkeypatch.setattr(problems, "_FOLDER", tmp_path)
    data = np.load(problems.many_rows(20_000, 3))
    # Neighbours of the same condition differ by their noise.
    chosen = data["conditions"] == 1
    inputs, outputs = data["inputs"][chosen], data["outputs"][chosen]
    distance, nearest = (part[:, 1] for part in KDTree(inputs).query(inputs, k=2))
    near = distance < 0.02
    assert near.sum() > 200
    assert np.std((outputs - outputs[nearest])[near]) == pytest.approx(0.3 * np.sqrt(2), rel=0.15)
    assert len(data["test_values"]) == 10_000


def test_ranks_of_the_truth_among_the_draws_are_uniform_over_all_data_sets():
    kinds = simulation_based_calibration.by_kind(stored_for(simulation_based_calibration)["ranks"])
    assert simulation_based_calibration.ONE_NOISE in kinds
    for found in kinds.values():
        assert len(found) == simulation_based_calibration.N_SETS == 200
        values = simulation_based_calibration.p_values(found)
        assert min(values.values()) > 0.01 / len(values)  # the least of several p-values


@pytest.mark.long
@pytest.mark.parametrize("noise", [(0.05,), (0.02, 0.05, 0.2, 0.1)])
def test_draws_between_a_fit_and_chains_are_about_the_fit(noise):
    start = between.Start(small_parameters(noise=noise), grid_case().data)
    draws = between.mean_field(start)
    fitted = start.parameters
    np.testing.assert_allclose(np.mean(draws.latents, axis=0), fitted.latent_mean, atol=0.01)
    np.testing.assert_allclose(np.var(draws.latents, axis=0), fitted.latent_variance, rtol=0.05)
    np.testing.assert_allclose(draws.noise_variance, np.tile(noise, (between.N_DRAWS, 1)))
    np.testing.assert_allclose(np.exp(draws.log_weight).sum(), 1)
    for way in (between.linear_response, between.laplace):
        assert np.all(np.isfinite(way(start).latents))
