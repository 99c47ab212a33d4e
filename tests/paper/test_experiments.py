"""The paper's experiments: their data, quick runs with numbers to hold, and results that survive interruption."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import matplotlib.pyplot as plt
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist
from scipy.stats import norm

from lvmogp.errors import LVMOGPError, LVMOGPWarning
from paper import datasets, figures, methods, page, problems, records, report, runner
from paper.__main__ import main
from paper.methods import Family, FittedMethod, Task
from paper.plan import GP_IND, GP_OH, GP_WO, GPY, LMC, OURS, OURS_OWN, Entry, Experiment, experiments
from paper.synthetic import synthetic_uneven

ROOT = Path(__file__).parents[2]
DATA, RESULTS_FOLDER = ROOT / "tests" / "data", ROOT / "results"


def test_uneven_conditions_break_a_stick_in_four_and_follow_the_model_they_are_drawn_from():
    uneven = synthetic_uneven(3, n_groups=3)
    counts = np.bincount(uneven.train_conditions, minlength=12).reshape(3, 4)
    assert_array_equal(counts.sum(axis=1), 200)
    assert counts.min() < 5
    assert counts.max() > 120
    assert_array_equal(np.bincount(uneven.test_conditions), 50)
    # The exact posterior mean under the true latents and kernels has the error that its own variance promises.
    latents = np.random.RandomState(3).rand(12, 2)

    def covariance(x, d, x2, d2):
        k_x = np.exp(-cdist(x, x2, "sqeuclidean") / 0.1**2 / 2)
        return k_x * np.exp(-cdist(latents[d], latents[d2], "sqeuclidean") / 0.4**2 / 2)

    train, test = (uneven.train_inputs, uneven.train_conditions), (uneven.test_inputs, uneven.test_conditions)
    noisy = covariance(*train, *train) + 0.3 * np.eye(len(uneven.train_outputs))
    gain = np.linalg.solve(noisy, covariance(*train, *test)).T
    variance = 1 - np.sum(gain * covariance(*test, *train), axis=1)
    error = gain @ uneven.train_outputs - uneven.test_values
    assert np.mean(error**2 / variance) == pytest.approx(1, abs=0.1)
    assert np.sqrt(np.mean(error**2)) < 0.3


def test_problems_are_those_of_the_paper():
    servo = problems.servo(4, DATA)
    assert (len(servo.train.outputs), len(servo.test.outputs)) == (117, 50)
    both = np.concatenate([servo.train.outputs, servo.test.outputs])
    assert_array_equal(np.sort(both), np.sort(datasets.servo(DATA)["rise_time"]))
    assert_array_equal(servo.factors[7], [1, 2])
    sensors = problems.sensors(0, DATA)
    assert (len(sensors.train.outputs), len(sensors.test.outputs)) == (2488, 2764 * 18 - 2488)
    values, conditions = (
        np.concatenate([getattr(part, name) for part in (sensors.train, sensors.test)])
        for name in ("outputs", "conditions")
    )
    for number in range(18):
        assert_allclose([values[conditions == number].mean(), values[conditions == number].std()], [0, 1], atol=1e-9)
    braking = problems.braking(0)
    assert_array_equal(braking.added.conditions, np.arange(10, 20))
    assert len(braking.all_observations.outputs) == 60
    friction = braking.test.inputs[:, 0] ** 2 / (2 * 9.81 * braking.test.outputs)
    assert_allclose(friction.reshape(10, 100).std(axis=1), 0, atol=1e-12)


class Counted:
    """A method that predicts zero with unit deviation and counts its fits; it fails when told to."""

    def __init__(self, fails_at=None):
        self.fits, self.fails_at = [], fails_at

    def __call__(self, task):
        if len(self.fits) == self.fails_at:
            raise KeyboardInterrupt
        self.fits.append(task)
        return FittedMethod(standard_normal, {"bound": -1.0})


def toy_problem(repeat, data_dir=None):
    rng = np.random.default_rng(repeat)
    rows = problems.LabelledRows(rng.normal(size=(6, 1)), rng.normal(size=6), np.arange(6) % 2)
    return problems.PaperProblem(train=rows, test=rows, n_conditions=2, observed_test=True)


def toy(*methods):
    entries = {name: Entry(method, Family()) for name, method in zip((OURS, GP_IND), methods, strict=False)}
    return Experiment("A toy", toy_problem, entries, {OURS: ".5"}, "all")


def run_all(experiment, folder, repeats=3):
    results = []
    earlier = records.stored("toy", folder, quick=False)
    pending = [job for job in runner.jobs("toy", experiment, repeats=repeats, quick=False) if job not in earlier]
    runner.run(pending, experiment, folder, data_dir=None, n_jobs=1, on_result=results.append)
    return results


def standard_normal(inputs, conditions):
    return np.zeros(len(inputs)), np.ones(len(inputs))


def two_peaks(inputs, conditions, actual):
    """Two equal peaks at ±1, of which a normal distribution of the same moments knows nothing."""
    peaks = [norm(-1, 0.1), norm(1, 0.1)]
    return sum(peak.cdf(actual) for peak in peaks) / 2, np.log(sum(peak.pdf(actual) for peak in peaks) / 2)


def test_the_measures_of_a_repeat(tmp_path):
    result = run_all(toy(Counted()), tmp_path)[1]
    actual = toy_problem(1).test.outputs
    assert (result["repeat"], result["bound"]) == (1, -1.0)
    assert result["rmse"] == pytest.approx(np.sqrt(np.mean(actual**2)))
    assert result["nlpd"] == pytest.approx(-norm.logpdf(actual).mean())
    assert result["coverage"] == np.mean(np.abs(actual) < 1.96)
    assert result["calibration"][9] == np.mean(np.abs(actual) < norm.ppf(0.75))
    result = run_all(toy(lambda task: FittedMethod(standard_normal, {}, two_peaks)), tmp_path / "own")[1]
    assert result["rmse"] == pytest.approx(np.sqrt(np.mean(actual**2)))
    assert result["nlpd"] == pytest.approx(-two_peaks(None, None, actual)[1].mean())
    # Half of all lies between the median of the left peak and that of the right one; 95 % up to their upper fifths.
    assert result["calibration"][9] == np.mean(np.abs(actual) < 1)
    assert result["coverage"] == np.mean(np.abs(actual) < 1 + 0.1 * norm.ppf(0.95))


def repeats_of(results):
    return [result["repeat"] for result in results]


def test_an_interrupted_run_goes_on_where_it_stopped_but_not_in_another_version(tmp_path, monkeypatch):
    method = Counted(fails_at=2)
    experiment = toy(method)
    with pytest.raises(KeyboardInterrupt):
        run_all(experiment, tmp_path)
    assert len(method.fits) == 2
    method.fails_at = None
    assert repeats_of(run_all(experiment, tmp_path)) == [2]
    assert len(method.fits) == 3
    # Results count from the file of all repeats as well.
    stored = list(records.stored("toy", tmp_path, quick=False).values())
    report.write(tmp_path, "toy", experiment, stored, quick=False)
    for path in (tmp_path / "repeats" / "toy").iterdir():
        path.unlink()
    assert repeats_of(run_all(experiment, tmp_path, repeats=4)) == [3]
    monkeypatch.setattr(records, "__version__", "another")
    assert len(run_all(experiment, tmp_path)) == 3


@pytest.mark.parametrize("changed_by_hand", [False, True])
def test_a_result_that_is_not_as_it_was_written_is_run_again(tmp_path, changed_by_hand):
    experiment = toy(Counted())
    found = run_all(experiment, tmp_path)[1]
    path = records.Job("toy", OURS, 1, False).path(tmp_path)
    changed = json.dumps(json.loads(path.read_text()) | {"rmse": 0.5 * found["rmse"]})
    path.write_text(changed if changed_by_hand else "{")
    words = r"-01\.json is damaged or was changed by hand: 1 of its results do not count"
    with pytest.warns(LVMOGPWarning, match=words):
        assert repeats_of(run_all(experiment, tmp_path)) == [1]


class DiesOnce(Counted):
    """A method whose process is killed while a file is there, which it takes away before."""

    marker = Path()

    def __call__(self, task):
        if self.marker.exists() and task.problem.train.outputs[0] == toy_problem(2).train.outputs[0]:
            self.marker.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(task)


@pytest.mark.long
def test_a_dying_worker_ends_the_run_in_words_and_loses_nothing(tmp_path):
    method, done = DiesOnce(), []
    method.marker = tmp_path / "marker"
    method.marker.touch()
    experiment = toy(method)
    everything = runner.jobs("toy", experiment, repeats=3, quick=False)
    with pytest.raises(LVMOGPError, match=r"one of the 2 processes that run repeats was ended from outside.* run the"):
        runner.run(everything, experiment, tmp_path, data_dir=None, n_jobs=2, on_result=done.append)
    kept = {job.repeat for job in records.stored("toy", tmp_path, quick=False)}
    assert {found["repeat"] for found in done} <= kept <= {0, 1}
    assert {found["repeat"] for found in run_all(experiment, tmp_path)} == {0, 1, 2} - kept
    assert set(records.stored("toy", tmp_path, quick=False)) == set(everything)


def test_quick_runs_use_the_quick_problem_and_leave_slow_methods_out(tmp_path):
    method = Counted()
    entries = {name: Entry(each, Family()) for name, each in ((OURS, method), (GPY, Counted()), (OURS_OWN, Counted()))}
    experiment = toy()._replace(entries=entries, quick_problem=lambda repeat, _: toy_problem(repeat + 100))
    jobs = runner.jobs("toy", experiment, repeats=1, quick=True)
    assert [job.method for job in jobs] == [OURS]
    runner.run_job(jobs[0], experiment, tmp_path, None)
    assert_array_equal(method.fits[0].problem.train.outputs, toy_problem(100).train.outputs)
    assert method.fits[0].quick


def result(method, repeat, rmse, **more):
    return {
        "experiment": "toy", "method": method, "repeat": repeat, "rmse": rmse, "nlpd": 1.0, "coverage": 0.9,
        "calibration": list(runner.LEVELS), "seconds": 2.0, "device": "cpu", **more,
    }  # fmt: skip


RESULTS = [result(OURS, 0, 0.2), result(OURS, 1, 0.4), result(GP_IND, 0, 0.4), result(GP_IND, 1, 0.3)]


def test_the_table_sets_the_papers_numbers_beside_ours(tmp_path):
    experiment = toy(Counted(), Counted())
    table = report.markdown("toy", experiment, RESULTS)
    assert f"| {OURS} | 0.300 ± 0.100 | .5 | 1.000 ± 0.000 | 0.900 ± 0.000 | 2.000 ± 0.000 |" in table
    data, written = report.write(tmp_path, "toy", experiment, RESULTS[::-1], quick=False)
    assert written.read_text() == table
    document = json.loads(data.read_text())
    assert [entry["repeat"] for entry in document["repeats"]] == [0, 1, 0, 1]
    assert document["summary"][OURS]["rmse"] == {"mean": pytest.approx(0.3), "deviation": pytest.approx(0.1)}
    # Comparisons use the same repeats.
    for each in (table, report.markdown("toy", experiment, [*RESULTS, result(GP_IND, 2, 9.0)])):
        assert f"| {OURS} / {GP_IND} | 0.917 ± 0.417 | 1 of 2 |" in each
        assert f"Ratio of mean RMSE to that of {GP_IND}: {OURS} 0.857." in each


def test_figures_are_drawn_with_names_that_fit(tmp_path):
    files = figures.draw(tmp_path, "toy", toy(Counted(), Counted()), RESULTS, data_dir=None, quick=False)
    assert [path.name for path in files] == ["toy-errors.png", "toy-calibration.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in files)
    for name, experiment in experiments().items():
        figure = figures.calibration_plot(experiment, records.results_in(RESULTS_FOLDER / f"{name}.json"))
        figure.draw_without_rendering()
        ax = figure.axes[0]
        for drawn in (ax.get_legend(), ax.yaxis.label, ax.title):
            extent = drawn.get_window_extent()
            assert 0 <= extent.x0 < extent.x1 <= figure.bbox.x1
        plt.close(figure)


def test_our_methods_stand_out_in_colour_whatever_their_settings():
    experiment = experiments()["synthetic"]
    figure = figures.box_plot(experiment, records.results_in(RESULTS_FOLDER / "synthetic.json"))
    ax = figure.axes[0]
    names = [label.get_text() for label in ax.get_yticklabels()]
    dots = [line.get_color() for line in ax.lines if line.get_marker() == "."]
    plt.close(figure)
    coloured = {name for name, colour in zip(names, dots, strict=True) if colour != "0.5"}
    assert coloured == {name for name in names if name.startswith(("LVMOGP", "lvmogp"))}
    assert {"LVMOGP", "lvmogp, defaults"} <= coloured


def test_figures_show_the_condition_with_few_data():
    problem = problems.synthetic_missing(0, n_groups=2)
    asked = []

    def fitted(method):
        asked.append(method)
        return FittedMethod(lambda inputs, conditions: (inputs[:, 0] + conditions, np.ones(len(inputs))), {})

    figure = figures.functions_plot(problem, fitted)
    assert asked == [GP_IND, LMC, OURS]
    counts = np.bincount(problem.train.conditions, minlength=problem.n_conditions)
    number = min(np.flatnonzero(counts >= 3), key=lambda n: counts[n])
    assert_allclose(figure.axes[0].lines[0].get_ydata()[[0, -1]], [number, number + 1])
    problem = problems.servo(0, DATA)
    least = figures.linkage(int(np.argmin(np.bincount(problem.train.conditions, minlength=25))))
    title = figures.surface_plot(problem, fitted(OURS)).axes[0].get_title()
    assert title == f"Servo {least}, observations for training: 1"


def test_the_readme_and_the_page_are_made_from_the_results():
    readme = (ROOT / "README.md").read_text()
    known = {name: json.loads((RESULTS_FOLDER / f"{name}.json").read_text())["repeats"] for name in experiments()}
    assert page.with_table(readme, page.summary_table(known)) == readme
    assert page.page_text(known, RESULTS_FOLDER, "../results") == (ROOT / "docs" / "results.md").read_text()


def test_the_page_puts_a_picture_where_it_belongs_and_says_where_repeats_are_missing(tmp_path):
    for name in ("synthetic-errors.png", "synthetic-missing-errors.png", "other.png"):
        (tmp_path / name).touch()
    found = {"synthetic": [result(OURS, 0, 0.2)], "synthetic-missing": [result(OURS, 0, 0.3)]}
    first, second = page.page_text(found, tmp_path, "there").split("## Synthetic data, uneven conditions")
    assert "(there/synthetic-errors.png)" in first
    assert "missing-errors" not in first
    assert "(there/synthetic-missing-errors.png)" in second
    found = [result(OURS, 0, 0.2), result(GP_IND, 0, 0.3), result(GP_IND, 1, 0.5)]
    row = page.summary_table({"servo": found}).splitlines()[-1]
    assert ".52 ± .16 | 0.200 ± 0.000 (1 of 2 repeats) |  |  | 0.400 ± 0.100 |" in row


def test_baselines_see_the_added_rows_and_answer_in_the_units_of_the_problem():
    problem = problems.braking(0)
    fitted = methods.ignoring(Task(problem, Family(), True))
    seen = problem.all_observations
    mean, deviation = fitted.predict(seen.inputs, seen.conditions)
    assert np.corrcoef(mean, seen.inputs[:, 0] ** 2)[0, 1] > 0.75
    assert 5 < np.sqrt(np.mean((mean - seen.outputs) ** 2)) < 40
    assert np.all(deviation > 0)


def test_noise_is_counted_where_observations_are_tested():
    problem = toy_problem(0)
    rows = problem.test.inputs, problem.test.conditions
    quiet, noisy = (
        methods.apart_shared(Task(problem._replace(observed_test=observed), Family(), True)).predict(*rows)
        for observed in (False, True)
    )
    assert np.all(noisy[1] > quiet[1])
    assert_allclose(noisy[0], quiet[0])


def test_the_command_refuses_what_it_does_not_know(tmp_path, capsys):
    assert main(["serve", "--out", str(tmp_path)]) == 1
    assert "error: there is no experiment 'serve'; choose one of braking, synthetic" in capsys.readouterr().err
    assert main(["servo", "--method", "GP", "--out", str(tmp_path)]) == 1
    assert "servo has no method 'GP'; choose among 'LVMOGP'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["servo", "--repeats", "0"])
    assert "'0' is no whole number of at least 1" in capsys.readouterr().err
    assert main(["servo", "--data-dir", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    assert "servo.data is not in" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_command_runs_chosen_methods_and_says_where_the_files_are(tmp_path, capsys):
    asked = ["braking", "--quick", "--method", GP_WO, "--out", str(tmp_path), "--no-figures"]
    assert main(asked) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert GP_WO in said
    assert f"Files: {tmp_path / 'braking-quick.json'}, {tmp_path / 'braking-quick.md'}" in said
    assert main([*asked, "--json"]) == 0  # from what is kept
    document = json.loads(capsys.readouterr().out)["experiments"][0]
    assert document["experiment"] == "braking"
    assert document["table"] == (tmp_path / "braking-quick.md").read_text()


@pytest.mark.parametrize(
    ("stopped_by", "code", "words"), [(KeyboardInterrupt, 130, "interrupted"), (OSError, 1, "OSError")]
)
def test_the_command_says_how_to_go_on_once_it_was_stopped(tmp_path, capsys, monkeypatch, stopped_by, code, words):
    monkeypatch.setattr(runner, "run", mock.Mock(side_effect=stopped_by))
    assert main(["braking", "--out", str(tmp_path)]) == code
    said = capsys.readouterr().err
    assert f"error: {words}" in said
    assert f"finished repeats are kept in {tmp_path}, and the same command goes on from there" in said


# The most that our error may be: of itself, and as a share of the errors of others; and how much of the truth lies in
# our intervals of 95 %.
CLAIMS = {
    "braking": ({GP_WO: 1 / 3}, 0.85),
    "synthetic": ({OURS: 0.21, GP_IND: 0.9, LMC: 1.0}, 0.85),
    "synthetic-missing": ({GP_IND: 0.85, LMC: 1.0}, 0.0),
    "servo": ({OURS: 0.5, GP_WO: 0.6, GP_OH: 1.0}, 0.85),
    "sensors": ({GP_WO: 0.9}, 0.9),
}


@pytest.mark.long
@pytest.mark.parametrize("name", CLAIMS)
def test_a_quick_run_by_the_command_shows_what_its_experiment_is_about(name, tmp_path):
    command = [sys.executable, "-m", "paper", name, "--quick", "--jobs", "2", "--no-figures"]
    command += ["--data-dir", DATA, "--out", tmp_path]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    results = json.loads((tmp_path / f"{name}-quick.json").read_text())["repeats"]
    found = {result["method"]: result for result in results}
    shares, coverage = CLAIMS[name]
    for method, most in shares.items():
        assert found[OURS]["rmse"] < most * (1.0 if method == OURS else found[method]["rmse"])
    assert coverage < found[OURS]["coverage"] <= (0.99 if name == "sensors" else 1.0)
    if name == "braking":
        assert found[OURS]["r_squared"] > 0.95
    if name == "synthetic":
        assert found[GP_IND]["rmse"] == pytest.approx(0.24, abs=0.03)
