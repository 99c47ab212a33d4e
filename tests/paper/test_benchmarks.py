"""The benchmark suite: its page says what was measured, its lines what the bars ask for."""

import json
from pathlib import Path

import numpy as np
import pytest
from small_models import grid_case, small_parameters

from benchmarks import between, condition_features, simulation_based_calibration, suggest, trust
from benchmarks.pages import with_part
from benchmarks.suite import page, problems
from benchmarks.suite.fits import time_to_better
from benchmarks.suite.floors import grid_floor, independent_floor, least_seconds
from benchmarks.suite.questions import QUESTIONS
from benchmarks.suite.records import Bar, dearer, quicker, record

ROOT = Path(__file__).parents[2]
MACHINE = {
    "processor": "an abacus",
    "cores": 2,
    "memory_gb": 1,
    "system": "wood",
    "versions": {"lvmogp": "1.2"},
    "date": "2017-12-04",
    "gflops_one_thread": 2.0,
    "gb_per_second": 4.0,
    "load_before": 0.0,
}


def test_the_page_is_made_from_the_results():
    assert page.page_text(ROOT / "results" / "benchmarks") == (ROOT / "docs" / "benchmarks.md").read_text()


def test_the_page_about_measurements_shows_their_results():
    text = (ROOT / "docs" / "next-measurement.md").read_text()
    assert suggest.page_text(text, ROOT / "results" / "suggest") == text


def test_suggested_measurements_need_fewer_than_others():
    """Better than random on average at every number of measurements, and never worse than space-filling ones."""
    for found in suggest.stored(ROOT / "results" / "suggest").values():
        errors = {method: np.asarray(curves)[:, 1:] for method, curves in found["errors"].items()}
        for method in ("farthest", "evenly", "random"):
            assert np.all(errors["suggest"].mean(axis=0) < errors[method].mean(axis=0))
        assert errors["suggest"].mean(axis=0)[3] < errors["random"].mean(axis=0)[5]


def written(folder: Path, name: str, records: list) -> None:
    found = {"command": f"measure {name}", "machine": MACHINE, "records": records}
    (folder / f"{name}.json").write_text(json.dumps(found))


def test_the_page_shows_every_bar_with_what_was_measured(tmp_path):
    written(tmp_path, "growth", [dearer("twice N", [0.3, 0.5], [0.1], "itself", bar=Bar(2.2, at_least=False))])
    written(tmp_path, "adding", [record("a condition", ours=3.0, figures_in="ms")])
    text = page.page_text(tmp_path)
    assert "| twice N | itself | ≤ 2.2 | 3 × | **no** |" in text
    assert "| twice N | 300 ms (400 ms, 2 times) | 100 ms | itself | 3 × | ≤ 2.2 | **no** |" in text
    assert "| a condition | 3 ms |" in text
    assert "an abacus, 2 cores" in text
    assert text.index(QUESTIONS["growth"].title) < text.index(QUESTIONS["adding"].title)


def test_the_page_shows_what_other_scripts_measured(tmp_path):
    line = {"what": "psi2", "bar": "≥ 10", "measured": 12.3, "unit": "×", "reached": True, "device": "H200"}
    (tmp_path / "gpu-psi2.json").write_text(json.dumps([{**line, "command": "make gpu"}]))
    assert "| psi2 | ≥ 10 | 12.3 | × | yes | H200 | make gpu |" in page.page_text(tmp_path)


def test_a_ratio_is_that_of_the_least_times():
    assert quicker("", [2.0, 9.0], [8.0, 90.0], "")["measured"] == 4
    assert dearer("", [8.0, 90.0], [2.0, 9.0], "")["measured"] == 4


@pytest.mark.parametrize(("measured", "passed", "reached"), [(3, True, True), (2.9, True, False), (3, False, False)])
def test_a_bar_is_reached_if_all_it_asks_for_is_there(measured, passed, reached):
    assert record("", measured=measured, bar=Bar(3), passed=passed)["reached"] is reached
    assert "reached" not in record("", measured=measured)


def test_a_bar_without_a_figure_is_not_reached():
    assert record("", bar=Bar(3))["reached"] is False


def test_time_to_a_better_error_counts_from_where_it_stays_better():
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
    distances = np.linalg.norm(inputs[:, None, :] - inputs[None, :500, :], axis=-1)
    distances[distances == 0] = np.inf
    nearest = distances.argmin(axis=0)
    near = distances.min(axis=0) < 0.05
    differences = (outputs[:500] - outputs[nearest])[near]
    assert near.sum() > 200
    assert np.std(differences) == pytest.approx(0.3 * np.sqrt(2), rel=0.15)
    assert len(data["test_values"]) == 10_000


@pytest.mark.parametrize("script", [between, simulation_based_calibration], ids=["between", "calibration"])
def test_the_page_of_sampling_is_made_from_the_results(script):
    stored = json.loads(script.FILE.read_text(encoding="utf-8"))
    text = script.PAGE.read_text(encoding="utf-8")
    assert with_part(text, script.BEGIN, script.END, script.table(stored)) == text


def test_ranks_of_the_truth_among_the_draws_are_uniform_over_all_data_sets():
    stored = json.loads(simulation_based_calibration.FILE.read_text(encoding="utf-8"))
    kinds = simulation_based_calibration.by_kind(stored["ranks"])
    assert simulation_based_calibration.ONE_NOISE in kinds
    for found in kinds.values():
        assert len(found) == simulation_based_calibration.N_SETS == 200
        values = simulation_based_calibration.p_values(found)
        assert min(values.values()) > 0.01 / len(values)  # the least of several p-values


def test_the_table_of_features_is_made_from_the_results():
    script = condition_features
    stored = {
        name: json.loads((script.FOLDER / f"{name}.json").read_text(encoding="utf-8"))["repeats"]
        for name in script.REPEATS
    }
    text = script.PAGE.read_text(encoding="utf-8")
    assert with_part(text, script.BEGIN, script.END, script.table(stored)) == text


def test_a_page_without_its_marks_is_told():
    assert with_part("a <x> old <y> b", "<x>", "<y>", "new") == "a <x>\n\nnew\n\n<y> b"
    with pytest.raises(ValueError, match="lacks <y>"):
        with_part("a <x> old", "<x>", "<y>", "new")


def test_pages_on_trust_say_what_was_measured():
    for path, text in trust.pages().items():
        assert text == path.read_text(encoding="utf-8")


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
