"""The benchmark of real data: rivals against dense algebra, tables against sums by hand, a runner that goes on."""

import json

import jax
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from benchmarks.real import exact, page, runner
from benchmarks.real.problems import GroupedRows, Task
from lvmogp.ground.precision import double_precision
from lvmogp.insight.validation import Forecast


def toy_task(split=0):
    """Two curves that differ by a level, the second known from two points."""
    rng = np.random.default_rng(split)
    inputs = rng.uniform(-1, 1, (12, 1))
    conditions = np.repeat([0, 1], 6)
    outputs = np.sin(2 * inputs[:, 0]) + conditions + 0.1 * rng.standard_normal(12)
    rows = GroupedRows(inputs, outputs, conditions)
    return Task(rows.at(np.arange(6)), rows.at(np.arange(6, 8)), rows.at(np.arange(8, 12)))


def hierarchical_by_loops(free, first, second):
    """Covariance of two lists of rows, entry by entry."""
    variances = np.exp(free["variances"])

    def entry(x, d, z, e):
        def alike(name):
            return np.exp(-(((x - z) / np.exp(free[name][0])) ** 2) / 2)

        common = variances[0] * alike("common") + variances[1]
        return common + (d == e) * (variances[2] * alike("own") + variances[3])

    return np.array([[entry(x, d, z, e) for z, e in second] for x, d in first])


def test_a_hierarchical_gp_is_the_dense_one():
    task = toy_task()
    together = task.train.and_then(task.few)
    free = {"common": [-0.3], "own": [0.4], "variances": [0.2, -1.0, -0.5, -0.7], "noise": [-3.0]}
    known, asked = (list(zip(rows.inputs[:, 0], rows.conditions, strict=True)) for rows in (together, task.test))
    noise = np.exp(-3.0) + 1e-6
    covariance = hierarchical_by_loops(free, known, known) + noise * np.eye(len(known))
    between = hierarchical_by_loops(free, asked, known)
    prior = hierarchical_by_loops(free, asked, asked) + noise * np.eye(len(asked))
    with double_precision():
        arrays = {name: jax.numpy.asarray(values) for name, values in free.items()}
        programs = exact._programs("hierarchical GP", True)
        rows = exact._padded(together)
        value, gradient = programs.loss(arrays, rows)
        mean, variance = programs.moments(arrays, rows, exact._padded(task.test))
        constant = len(known) * np.log(2 * np.pi) / 2
        density = multivariate_normal(np.zeros(len(known)), covariance).logpdf(together.outputs)
        assert value + constant == pytest.approx(-density, rel=1e-10)
        n_asked = len(asked)
        np.testing.assert_allclose(mean[:n_asked], between @ np.linalg.solve(covariance, together.outputs), rtol=1e-8)
        left = prior - between @ np.linalg.solve(covariance, between.T)
        np.testing.assert_allclose(variance[:n_asked], np.diag(left), rtol=1e-8)
        # The gradient, which is written by hand, is that of finite differences.
        step = 1e-5
        for name, values in arrays.items():
            for place in range(len(values)):
                up, down = (programs.loss(arrays | {name: values.at[place].add(by)}, rows)[0] for by in (step, -step))
                assert gradient[name][place] == pytest.approx(float(up - down) / (2 * step), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(("name", "most"), [("hierarchical GP", 0.6), ("coregionalisation", 0.6), ("GPs alone", 1.0)])
def test_exact_gps_predict_a_condition_from_two_points(name, most, monkeypatch):
    monkeypatch.setattr(exact, "_N_STARTS", 1)
    task = toy_task()
    with double_precision():
        mean, variance = exact.exact_gp(name, task)
    assert np.sqrt(np.mean((mean - task.test.outputs) ** 2)) < most
    assert np.all(variance > 0)


def line(task, method, split, squared_error, **more):
    usual = {"n_test": 4, "absolute_error": 0.5, "log_density": -1.0, "coverage": 0.5, "width": 2.0, "seconds": 1.0}
    return {"task": task, "method": method, "split": split, "squared_error": squared_error, **usual, **more}


def test_tables_compare_with_the_best_rival_of_each_set(tmp_path):
    lines = [
        *(line("Orange, new from 1", "lvmogp", split, error) for split, error in enumerate((4.0, 12.0, 8.0))),
        *(line("Orange, new from 1", "a", split, error) for split, error in enumerate((1.0, 3.0, 2.0))),
        *(line("Orange, new from 1", "b", split, error) for split, error in enumerate((16.0, 16.0, 16.0))),
        line("Orange, new from 1", "hardly begun", 0, 0.01),
        line("Loblolly, new from 1", "lvmogp", 0, 1.0, log_density=3.0),
        line("Loblolly, new from 1", "b", 0, 9.0),
        line("Loblolly, new from 1", "b", 0, 4.0),  # once more: the last counts
    ]
    path = tmp_path / "some.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    found = page.by_task(page.read([path]))
    ours = found["Orange, new from 1"]["lvmogp"]
    assert ours.scores.rmse.value == pytest.approx(np.sqrt(24 / 12))
    assert np.exp(ours.beside_rival.value) == pytest.approx(2)
    assert ours.beside_rival.standard_error == pytest.approx(0, abs=1e-12)  # the same ratio on all splits
    assert np.exp(found["Orange, new from 1"]["hardly begun"].beside_rival.value) == pytest.approx(0.1)
    assert np.exp(found["Loblolly, new from 1"]["lvmogp"].beside_rival.value) == pytest.approx(0.5)
    text = page.tables(page.read([path]))
    row = next(each for each in text.splitlines() if each.startswith("| lvmogp"))
    # 2 × ½ is 1; one split has no standard error, so their mean has none.
    assert [cell.strip() for cell in row.split("|")[2:7]] == ["2", "1.000", "1.000", "1.000", "50.0 %"]
    assert "### New conditions from one point, by set" in text
    seeds = [line("Jura", "lvmogp", seed, 1.0, absolute_error=error) for seed, error in enumerate((0.5, 0.25, 0.75))]
    text = page.tables({"Jura": {"lvmogp": dict(enumerate(seeds))}})
    row = next(each for each in text.split("as the literature has it")[1].splitlines() if "lvmogp" in each)
    assert [cell.strip() for cell in row.split("|")[2:6]] == ["3", "0.500", "0.250", "0.750"]
    assert page.tables({}) == "Nothing has been measured yet."


def test_the_runner_goes_on_from_what_is_on_file(tmp_path, monkeypatch):
    asked = []

    def dummy(task):
        asked.append(task)
        if len(asked) == 2:
            raise RuntimeError("fails once")
        mean = task.test.outputs + 0.5
        return Forecast(mean, mean - 1, mean + 1, np.full(len(mean), -2.0))

    monkeypatch.setattr(runner, "tasks", lambda folder: {"toy": toy_task, "Jura": toy_task})
    monkeypatch.setattr(runner, "RIVALS", {"dummy": dummy})
    out = tmp_path / "results" / "real.jsonl"
    for n_lines, n_asked in ((3, 4), (4, 5), (4, 5)):
        runner.run(tmp_path, out, methods={"dummy": {}}, n_splits=3)
        found = runner.lines_of([out])
        assert (len(found), len(asked)) == (n_lines, n_asked)
    assert [runner.piece_of(each) for each in found] == [("Jura", "dummy", 0), *(("toy", "dummy", s) for s in range(3))]
    assert found[0] | {"seconds": 0} == line("Jura", "dummy", 0, 1.0, log_density=-2.0, coverage=1.0, seconds=0)
