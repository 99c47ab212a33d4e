"""The command line: the library's numbers, one-line errors, whole files, exit codes."""

import copy
import json
import re
import shlex
import signal
import subprocess
import sys
import warnings
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from command_line import ROLES, SIZES, SMALL, data, document, failed, listening_to_ctrl_c, lvmogp, succeeded
from papers_model import PapersModel

from lvmogp.__about__ import __version__
from lvmogp.estimator import LVMOGPRegressor
from lvmogp.inference.optimise import Status
from lvmogp.inference.restarts import Progress
from lvmogp.insight.summary import leave_out_calibration, summary
from lvmogp.insight.variance import in_words, variance_shares
from lvmogp.progress import in_words as time_in_words
from lvmogp.progress import shares_done

SETTINGS = {"n_latent": 1, "n_restarts": 1, "n_inducing_inputs": 6, "random_state": 0}


@pytest.fixture
def model(folder, fitted, tmp_path):
    """A model file of one's own."""
    path = tmp_path / "own.lvmogp"
    path.write_bytes((folder / "brakes.lvmogp").read_bytes())
    return path


@pytest.fixture(scope="module")
def direct():
    """The library's fit."""
    frame = data()
    return PapersModel(condition="tyre", **SETTINGS).fit(frame[["speed", "tyre"]], frame["distance"])


def test_fit_is_that_of_the_library_and_says_what_it_understood_and_found(folder, fitted, direct):
    saved = LVMOGPRegressor.load(folder / "brakes.lvmogp")
    assert saved.outcome_.bound == direct.outcome_.bound
    assert saved.conditions_ == ("000", "001", "002", "003", "004")
    assert (saved.model_.schema.output_name, saved.condition) == ("distance", "tyre")
    found = summary(direct)
    for words in (
        r"file +\S*data.csv  comma-separated, decimal point, UTF-8",
        r"points +30 points of 5 conditions",
        r"inputs +speed\n",
        rf"bound +{found.bound:.1f}  {found.status}",
        rf"noise +{found.noise_sd:.4g}  standard deviation of distance",
        rf"variance +{in_words(found.variance_shares)}\n",
        rf"left-out error +{found.leave_out.rmse:.4g}  of points left out",
        rf"latent 1 .*{found.latent_relevance['relevance'][0]:.2f}",
        "Model written to",
    ):
        assert re.search(words, fitted.stdout)


def test_fit_as_json_holds_the_summary(folder, tmp_path, direct):
    (tmp_path / "data.csv").write_text((folder / "data.csv").read_text() + "3.0,000,\n3.0,,2\n")
    found = document("fit", tmp_path / "data.csv", *ROLES, "--model", tmp_path / "m.lvmogp", *SMALL)
    assert found["summary"]["bound"] == pytest.approx(summary(direct).bound, rel=1e-9)
    assert found["summary"]["noise"][0]["condition"] == "000"
    assert found["data"]["left_out"] == {"distance": 1, "tyre": 1}
    assert found["model"] == str(tmp_path / "m.lvmogp")


def test_fit_of_a_wide_table_with_dates_decimal_commas_and_numbers_as_names(tmp_path):
    times = pd.date_range("2024-01-01", periods=6)
    grid = pd.DataFrame({str(number): np.sin(np.arange(6) / 3) * (1 + number / 3) for number in range(5)}).round(4)
    grid.iloc[2, 1] = np.nan
    grid.insert(0, "when", times.strftime("%d.%m.%Y"))
    grid.to_csv(tmp_path / "wide.csv", sep=";", decimal=",", index=False)
    model, new = tmp_path / "m.lvmogp", tmp_path / "new.csv"
    printed = succeeded("fit", tmp_path / "wide.csv", "--wide", "--model", model, *SMALL, "--max-iter", 5).stdout
    for words in ("semicolon-separated, decimal comma", "29 points of 5 conditions", "when (dates)"):
        assert words in printed
    assert re.search(r"missing +1 cell of 30", printed)
    expected = PapersModel(max_iter=5, **SETTINGS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected.fit(pd.DataFrame({"when": times}), grid.drop(columns="when").rename(columns=int))
    saved = LVMOGPRegressor.load(model)
    assert saved.conditions_ == (0, 1, 2, 3, 4)
    assert saved.outcome_.bound == expected.outcome_.bound
    # without a condition, all of them are predicted
    grid[["when"]].head(2).to_csv(new, index=False)
    rows = document("predict", model, new)["rows"]
    assert [row["condition"] for row in rows] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert rows[0]["when"] == "2024-01-01T00:00:00"
    means = expected.predict(pd.DataFrame({"when": times[:2]})).T.ravel()
    np.testing.assert_allclose([row["mean"] for row in rows], means, rtol=1e-9)


def test_a_condition_for_every_row_is_noted(folder, tmp_path):
    (tmp_path / "data.csv").write_text("tyre,distance,speed\nA,1,2.5\nB,2,3.5\nC,3,4\n")
    note = "note: each of the 3 rows has a 'tyre' of its own, so nothing can be learnt about any one of them; is it"
    for file, noted in ((tmp_path / "data.csv", True), (folder / "data.csv", False)):
        result = lvmogp("fit", file, *ROLES, "--input-kernel", "none", "--model", tmp_path / "m")
        assert (note in result.stderr) is noted


def test_targets_are_checked_before_the_fit(folder, tmp_path, monkeypatch):
    arguments = ["fit", folder / "data.csv", *ROLES, "--model"]
    assert f"there is no folder {tmp_path / 'none'}" in failed(*arguments, tmp_path / "none" / "m.lvmogp")
    assert "is the file that is read; write to another one" in failed(*arguments, folder / "data.csv")
    monkeypatch.setattr("tempfile.TemporaryFile", Mock(side_effect=OSError(30, "Read-only file system")))
    line = failed(*arguments, tmp_path / "m.lvmogp")
    assert f"the folder {tmp_path} cannot be written to (Read-only file system); choose another one" in line


FIT = "fit DATA --model M --output distance --condition tyre "


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("fit DATA --model M --output distanse --condition tyre", r"column 'distanse' \(did you mean 'distance'\?\)"),
        ("fit DATA --model M --output distance", "name the columns of the output and of the condition with --output"),
        ("fit DATA --model M --wide --condition tyre", "one column per condition, so there is no --condition column"),
        ("fit DATA --model M --wide --error-column sd", "one column per condition, so there is no --error-column"),
        (FIT + "--input-kernel nonsense", "nonsense"),
        (FIT + "--log-input speed --input-transform auto", "name inputs with --log-input, or let the bound choose"),
        (FIT + "--log-input spede", r"input_transform names a column 'spede', .*; name some of \['speed'\]"),
        (FIT + "--input tyre", "column 'tyre' was named twice"),
        (FIT + "--resume", "resume=True needs to know the folder of the checkpoints"),
        (FIT + "--process 1", "--coordinator, --processes and --process belong to --distributed; add it"),
        (FIT + "--distributed", "--distributed fits Parquet files by minibatches; give a .parquet file or a folder"),
        (FIT + "--distributed --keep-on-interrupt", "--keep-on-interrupt is not for --distributed"),
        (FIT.replace("DATA", "PARQUET") + "--inference stochastic --error-column sd", "in pieces cannot be fitted"),
        ("fit PARQUET --model M --inference stochastic", "name the columns of the output and of the condition with"),
        ("fit TEXT --model M --output distance --condition tyre", "got 'fast' in line 32; correct it"),
        ("predict MODEL NEW", "has no column 'tyre'; name another column with --condition-column, or one condition"),
        ("predict MODEL NEW --condition-column wheel", "new.csv has no column 'wheel'"),
        ("predict MODEL NEW --level 1", "level must lie between 0 and 1, got 1.0"),
        ("predict MODEL NEW --condition 03", r"no condition '03' \(did you mean '0\d3'\?\).*--unseen prior"),
        ("predict MODEL NEW --condition 003 --output-file out.json", "cannot write a table with the ending '.json'"),
        ("predict none.lvmogp NEW", "there is no model file at"),
        ("conditions NEW", "is not a model file, or it is damaged"),
        ("add-condition MODEL", "give the points of the new condition as a file, or with --point, one of the two"),
        ("add-condition MODEL NEW --point speed=2", "as a file, or with --point, one of the two"),
        ("add-condition MODEL --point speed=2 --error-column s", "leave it out where there is no file of points"),
        ("add-condition MODEL --point speed=2,distance=3", "which condition the points belong to: --condition NAME"),
        ("add-condition MODEL NO-IDS", "say which condition the points belong to: --condition NAME for all rows, or"),
        ("add-condition MODEL --condition z --point speed=2", r"given as speed=…,distance=… \(decimals with a point\)"),
        ("add-condition MODEL --condition z --point speed=2,5,distance=3", "must be given as speed=…,distance=…"),
        ("add-condition MODEL --condition z --point speed=two,distance=3", "the values of a point must be numbers"),
        ("add-condition MODEL --condition 003 --point speed=2,distance=3", "condition '003' was part of the training"),
        ("suggest MODEL --condition new --grid speed=1:5:9 --candidates NEW", "or as a grid, with --grid, not both"),
        ("suggest MODEL --condition new --grid load=2", "needs each input once, as in --grid speed=FROM:TO:COUNT, got"),
        ("suggest MODEL --condition new --grid speed=1:5", "must be FROM:TO:COUNT or one value, got '1:5'"),
        ("suggest MODEL --condition new --grid speed=2 --n 2", "n must be a whole number from 1 to the 1 candidates"),
        ("calibration MODEL --error-column error", "name a file of held-out observations"),
        ("calibration MODEL DATA --condition new", "knows no condition 'new'"),
    ],
)
def test_commands_refuse_in_one_line_and_leave_everything(folder, model, monkeypatch, command, message):
    files = {word: folder / f"{word.lower()}.csv" for word in ("DATA", "NEW", "TEXT", "NO-IDS")}
    places = {**files, "MODEL": model, "M": model.parent / "m", "PARQUET": folder / "data.parquet"}
    monkeypatch.chdir(model.parent)
    before = model.read_bytes()
    assert re.search(message, failed(*(places.get(word, word) for word in shlex.split(command))))
    assert model.read_bytes() == before
    assert [path.name for path in model.parent.iterdir()] == ["own.lvmogp"]


@pytest.mark.parametrize("more", ["", "--model m --latents none", "--model m --restarts 0", "--model m --noise loud"])
def test_usage_errors_exit_with_2(folder, more):
    assert lvmogp("fit", folder / "data.csv", *more.split()).exit_code == 2
    assert lvmogp("predict", "m", "d", "--level", "2").exit_code == 2


def test_predictions_are_those_of_the_library(folder, fitted, direct, tmp_path):
    result = succeeded("predict", folder / "brakes.lvmogp", folder / "new.csv", "--condition", "003", "--level", 0.8)
    (tmp_path / "printed.csv").write_text(result.stdout)
    frame = pd.read_csv(tmp_path / "printed.csv", dtype={"tyre": str})
    inputs = pd.read_csv(folder / "new.csv")
    moments = direct.predict(inputs, "003", return_std=True)
    lower, upper, median = direct.predict_quantiles(inputs, "003", levels=[0.1, 0.9, 0.5]).T
    assert list(frame.columns) == ["speed", "tyre", "mean", "sd", "median", "lower", "upper"]
    assert frame["tyre"].tolist() == ["003"] * 3
    np.testing.assert_allclose(frame.iloc[:, 2:].T, [*moments, median, lower, upper], rtol=1e-9)


def test_on_a_terminal_the_first_predictions_are_shown(folder, fitted, direct, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = re.sub(r"\x1b\[\d*m", "", succeeded("predict", folder / "brakes.lvmogp", folder / "data.csv").stdout)
    assert re.search(r"speed +tyre +mean +sd +median +lower 95 % +upper 95 %", shown)
    mean, deviation = direct.predict(data()[["speed", "tyre"]], return_std=True)
    decimals = 1 - int(np.floor(np.log10(deviation[:20].min())))
    first = data().iloc[0]
    assert re.search(rf"{first['speed']:.4g} +000 +{mean[0]:.{decimals}f} +{deviation[0]:.{decimals}f} ", shown)
    assert "… and 10 more rows" in shown


def test_predictions_in_a_file_with_the_condition_of_each_row(folder, fitted, direct, tmp_path):
    rows = data().iloc[:6].drop(columns="distance").rename(columns={"tyre": "wheel"})
    rows.loc[4, "speed"] = rows.loc[5, "wheel"] = None
    rows.to_excel(tmp_path / "new.xlsx", index=False)
    arguments = ["--condition-column", "wheel", "--output-file", tmp_path / "out.parquet", "--function"]
    result = succeeded("predict", folder / "brakes.lvmogp", tmp_path / "new.xlsx", *arguments)
    assert "some rows cannot be predicted and are left out: 1 without 'speed', 1 without 'wheel'" in result.stderr
    frame = pd.read_parquet(tmp_path / "out.parquet")
    _, deviation = direct.predict(rows[["speed"]][:4], rows["wheel"][:4], return_std=True, include_noise=False)
    np.testing.assert_allclose(frame["sd"], deviation, rtol=1e-9)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.xlsx", "out.parquet"]


def test_conditions_never_seen_are_predicted_from_the_prior_on_request(folder, fitted):
    asked = ["--condition", "03", "--unseen", "prior"]
    rows = document("predict", folder / "brakes.lvmogp", folder / "new.csv", *asked)["rows"]
    prior = LVMOGPRegressor.load(folder / "brakes.lvmogp").set_params(unseen="prior")
    np.testing.assert_allclose([row["mean"] for row in rows], prior.predict(pd.read_csv(folder / "new.csv"), "03"))


def test_a_condition_added_from_points_is_that_of_the_library(model, direct):
    points = ["--point", "speed=2,distance=6.5", "--point", "distance=14, speed=3"]
    (found,) = document("add-condition", model, "--condition", "new", *points)["added"]
    library = copy.copy(direct).add_condition("new", [[2.0], [3.0]], [6.5, 14.0])
    expected, alike = library.latents_.iloc[-1], library.similarities().loc["new"].drop("new")
    assert [found["mean_1"], found["sd_1"]] == pytest.approx([expected["mean_1"], expected["sd_1"]], rel=1e-9)
    assert (found["points"], found["most like"]) == (2, f"{alike.idxmax()} ({alike.max():.2f})")
    assert LVMOGPRegressor.load(model).conditions_[-1] == "new"


def test_several_conditions_from_a_file_into_another_model(model, tmp_path):
    before = model.read_bytes()
    (tmp_path / "few.csv").write_text("tyre;distance;speed\nx;6,5;2\ny;9,25;2\ny;;3\n")
    target = tmp_path / "other.lvmogp"
    result = succeeded("add-condition", model, tmp_path / "few.csv", "--out", target)
    assert "note: some rows say nothing and are left out: 1 without 'distance'" in result.stderr
    assert re.search(r"x +[-+]\d\.\d\d ± \d\.\d\d +1 ", result.stdout)
    assert model.read_bytes() == before
    assert LVMOGPRegressor.load(target).conditions_[-2:] == ("x", "y")


def test_conditions_are_the_latents(folder, fitted, direct):
    rows = document("conditions", folder / "brakes.lvmogp")["conditions"]
    assert [row["condition"] for row in rows] == list(direct.conditions_)
    np.testing.assert_allclose([row["mean_1"] for row in rows], direct.latents_["mean_1"], rtol=1e-9)
    assert [row["points"] for row in rows] == [6] * 5
    printed = succeeded("conditions", folder / "brakes.lvmogp").stdout.splitlines()
    assert printed[0] == "condition,mean_1,sd_1,added,points"
    assert len(printed) == 6


def test_show_tells_settings_seed_and_what_the_fit_was_made_with(folder, fitted, direct):
    found = document("show", folder / "brakes.lvmogp")
    assert found["origin"] == direct.origin_._asdict()
    assert found["settings"].items() >= {**SETTINGS, "condition": "tyre"}.items()
    told = [found[name] for name in ("n_conditions", "n_added", "n_observations", "inputs", "output", "bound")]
    assert told == [5, 0, 30, ["speed"], "distance", direct.outcome_.bound]
    printed = succeeded("show", folder / "brakes.lvmogp").stdout
    assert "30 points of 5 conditions" in printed
    (chosen,) = re.findall(r"^settings +(.*)$", printed, flags=re.MULTILINE)
    settings = {"condition='tyre'", "n_inducing_inputs=6", "n_latent=1", "n_restarts=1", "random_state=0"}
    settings |= {"shared_kernel=None", "own_kernel=None", "input_kernel='rbf'", "latent_kernel='rbf'", "noise='shared'"}
    assert set(chosen.split(", ")) == settings
    assert re.search(rf"^made with +seed 0; lvmogp {re.escape(__version__)}, .*python ", printed, flags=re.MULTILINE)


@pytest.mark.parametrize("given", [["rbf,matern32"], ["rbf", "matern32"]])
def test_several_kernels_shared_and_own_curves_from_file_to_file(folder, tmp_path, given):
    named = [part for name in given for part in ("--input-kernel", name)]
    kernels = [*named, "--shared-kernel", "auto", "--own-kernel", "matern52", "--max-iter", 3]
    path = tmp_path / "m.lvmogp"
    fitted = document("fit", folder / "data.csv", *ROLES, "--model", path, *SIZES, *kernels)
    saved = LVMOGPRegressor.load(path)
    assert (saved.input_kernel, saved.shared_kernel, saved.own_kernel) == (("rbf", "matern32"), "auto", "matern52")
    shares = fitted["summary"]["variance_shares"]
    assert [row["part"] for row in shares[:4]] == ["shared", "latent", "own", "noise"]
    expected = variance_shares(saved)
    np.testing.assert_allclose([row["share"] for row in shares], expected["share"], rtol=1e-6, atol=1e-9)
    shown = document("show", path)
    assert shown["settings"]["input_kernel"] == ["rbf", "matern32"]
    assert shown["variance_shares"][4]["condition"] == "000"
    assert re.search(rf"variance +{in_words(expected)}\n", succeeded("show", path).stdout)
    row = document("predict", path, folder / "new.csv", "--condition", "001")["rows"][0]
    assert row["mean"] == pytest.approx(saved.predict([[row["speed"]]], "001")[0], rel=1e-9)


def test_no_kernel_over_inputs_leaves_latents_out(folder, tmp_path):
    path = tmp_path / "m.lvmogp"
    asked = ("fit", folder / "data.csv", *ROLES, "--model", path, *SIZES, "--max-iter", 3, "--input-kernel")
    found = document(*asked, "none", "--shared-kernel", "rbf", "--own-kernel", "auto")["summary"]
    assert [row["part"] for row in found["variance_shares"][:3]] == ["shared", "own", "noise"]
    words = failed(*asked, "none", "--shared-kernel", "none")
    assert "without an input_kernel conditions have only what they share" in words
    assert "--input-kernel none leaves latents out" in failed(*asked, "rbf,none")


@pytest.fixture(scope="module")
def doses(tmp_path_factory):
    """A folder with responses to doses over three powers of ten, and a model of the logarithms of both."""
    folder = tmp_path_factory.mktemp("doses")
    rng = np.random.default_rng(0)
    dose, number = (10 ** rng.uniform(-1, 2, 30)).round(4), np.arange(30) % 5
    response = (dose**0.8 / (1 + number) * np.exp(0.05 * rng.standard_normal(30))).round(4)
    table = pd.DataFrame({"dose": dose, "age": rng.uniform(1, 90, 30).round(1), "batch": number, "response": response})
    table.to_csv(folder / "doses.csv", index=False)
    arguments = ["fit", folder / "doses.csv", "--output", "response", "--condition", "batch", *SMALL]
    result = succeeded(
        *arguments, "--log-input", "dose", "--output-transform", "log", "--model", folder / "doses.lvmogp"
    )
    return folder, table, arguments, result


def test_log_inputs_are_those_of_the_library_and_shown(doses):
    folder, table, _, result = doses
    settings = SETTINGS | {"input_transform": {"dose": "log"}, "output_transform": "log"}
    expected = PapersModel(condition="batch", **settings).fit(table[["dose", "age", "batch"]], table["response"])
    saved = LVMOGPRegressor.load(folder / "doses.lvmogp")
    assert saved.outcome_.bound == expected.outcome_.bound
    assert saved.input_transform_ == {"dose": "log"}
    assert re.search(r"^log inputs +dose$", result.stdout, flags=re.MULTILINE)
    assert "orders of magnitude" not in result.stderr
    printed = succeeded("show", folder / "doses.lvmogp").stdout
    assert re.search(r"^inputs +log dose, age\noutput +log response$", printed, flags=re.MULTILINE)
    assert "input_transform={'dose': 'log'}" in printed
    found = document("show", folder / "doses.lvmogp")
    assert (found["input_transform"], found["output_transform"]) == ({"dose": "log"}, "log")
    succeeded("report", folder / "doses.lvmogp")
    page = (folder / "doses.html").read_text()
    assert '["Inputs as they are modelled", "log dose, age"]' in page
    assert re.search(r"rbf: variance [\d.]+; lengthscale [\d.]+ \(log dose\), [\d.e+]+ \(age\)", page)
    # candidates of a grid are even in the logarithm
    found = saved.suggest(7, np.column_stack([np.geomspace(0.1, 100, 7), np.full(7, 40)]))
    suggested = document(
        "suggest", folder / "doses.lvmogp", "--condition", 7, "--grid", "dose=0.1:100:7", "--grid", "age=40"
    )
    assert suggested["measurements"][0]["dose"] == pytest.approx(found.inputs[0, 0])
    words = failed("suggest", folder / "doses.lvmogp", "--condition", 7, "--grid", "dose=0:100:7", "--grid", "age=40")
    assert "column 'dose' of X must be positive" in words
    line = failed("add-condition", folder / "doses.lvmogp", "--condition", 9, "--point", "dose=-1,age=3,response=1")
    assert "column 'dose' of X must be positive, since its logarithm is modelled" in line


@pytest.mark.parametrize("named", [[], ["--log-input", "dose"], ["--input-transform", "auto"]])
def test_columns_over_orders_of_magnitude_are_noted_before_the_fit_and_once(doses, tmp_path, named):
    _, table, arguments, _ = doses
    result = succeeded(*arguments, *named, "--max-iter", 3, "--model", tmp_path / "m.lvmogp")
    low, high = table["dose"].min(), table["dose"].max()
    note = f"note: Input 'dose' is positive and spans orders of magnitude ({low:.3g} to {high:.3g}): its logarithm"
    assert result.stderr.count("spans orders of magnitude") == 2 * (not named) + 1 * bool(named)
    assert (note in result.stderr) is (not named)
    assert "note: The output 'response' is positive and spans orders of magnitude" in result.stderr
    assert "--log-input dose" in result.stderr or named
    failing = lvmogp(*arguments, *named, "--latents", 0, "--model", tmp_path / "n.lvmogp")
    assert (note in failing.stderr) is (not named)  # although there was no fit
    if "auto" in named:
        assert LVMOGPRegressor.load(tmp_path / "m.lvmogp").input_transform == "auto"


def test_report_writes_the_page_of_the_model(model, direct, tmp_path):
    succeeded("report", model)
    succeeded("report", model, "-o", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert model.with_suffix(".html").read_text() == page
    assert all(name in page for name in (*direct.conditions_, f"{direct.outcome_.bound:.2f}"))


def test_suggestions_are_those_of_the_library(folder, model, direct, monkeypatch):
    new, candidates = (pd.read_csv(folder / f"{name}.csv")[["speed"]] for name in ("new", "candidates"))
    asked = ["--grid", "speed=1:5:9", "--region", folder / "new.csv"]
    found = document("suggest", model, "--condition", "009", *asked)
    expected = direct.suggest("009", candidates, region=new)
    assert found["sd_before"] == pytest.approx(expected.sd_before, rel=1e-9)
    assert [row["speed"] for row in found["measurements"]] == expected.inputs[:, 0].tolist()
    np.testing.assert_allclose([row["sd_after"] for row in found["measurements"]], expected.sd_after, rtol=1e-9)
    assert found["notes"] == ["the model knows no condition '009'; it is taken to be new, with nothing measured so far"]

    def suggest(self, name, inputs, **more):
        pd.testing.assert_frame_equal(inputs, candidates)
        assert more == {"region": None, "condition_features": None, "n": 2, "goal": "latents"}
        return expected._replace(condition=name, goal="latents", n_measured=6)

    monkeypatch.setattr(LVMOGPRegressor, "suggest", suggest)
    asked = ["--goal", "latents", "--candidates", folder / "candidates.csv", "--n", 2]
    result = succeeded("suggest", model, "--condition", "003", *asked)
    assert f"003  6 points so far; sd of the latents now {expected.sd_before:.4g}" in result.stdout
    assert re.search(rf"1 +{expected.inputs[0, 0]:.4g} +{expected.sd_after[0]:.4g}\n", result.stdout)
    assert result.stderr == ""


def test_calibration_is_that_of_the_library(folder, model, direct, tmp_path):
    frame = data().assign(error=np.linspace(0, 0.1, len(data())))
    frame["distance"] += np.where(frame["tyre"] == "002", 2, 0)
    frame.to_csv(tmp_path / "held-out.csv", index=False)
    asked = ["calibration", model, tmp_path / "held-out.csv", "--error-column", "error"]
    found = document(*asked, "--plot", tmp_path / "calibration.png")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        expected = direct.calibration(frame[["speed", "tyre"]], frame["distance"], y_std=frame["error"])
    assert found["coverage"] == expected.as_dict()["coverage"]
    assert found["log_density"] == pytest.approx(expected.log_density, rel=1e-9)
    remarks = expected.remarks[int(expected.intervals_are_off) :]
    assert found["notes"] == [*(str(each.message) for each in caught), *remarks]
    assert (tmp_path / "calibration.png").read_bytes().startswith(b"\x89PNG")
    shown = succeeded(*asked).stdout
    assert "30 observations of 5 conditions" in shown
    level, share, error, verdict = expected.coverage.iloc[0]
    assert re.search(rf"{100 * level:g} % +{100 * share:.1f} % ± {100 * error:.1f} +{verdict or 'as promised'}", shown)
    row = expected.by_condition.set_index("condition").loc["002"]
    assert re.search(rf"^002 +6 +{row['rmse']:.4g} +{100 * row['coverage']:.0f} %$", shown, flags=re.MULTILINE)


def test_calibration_without_data_leaves_out_the_training_data(model, direct):
    found = document("calibration", model)
    np.testing.assert_allclose(found["rmse"], leave_out_calibration(direct).rmse, rtol=1e-6)
    LVMOGPRegressor.load(model).save(model, include_data=False)
    assert "give held-out data as a file" in failed("calibration", model)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "Disk full", "m.lvmogp"), "error: m.lvmogp: Disk full; free some space on that disk, or write to"),
        (RuntimeError("odd\nthings"), "error: unexpected RuntimeError: odd things; run the command again with --debug"),
        (MemoryError(), "error: there is not enough memory; use fewer inducing points, or fewer rows"),
        (
            RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes"),
            "error: there is not enough memory; use",
        ),
    ],
)
def test_anything_unexpected_is_one_line(tmp_path, monkeypatch, error, message):
    monkeypatch.setattr(LVMOGPRegressor, "load", Mock(side_effect=error))
    assert message in failed("conditions", tmp_path)
    assert "Traceback" in lvmogp("conditions", tmp_path, "--debug").output
    assert message in f"error: {json.loads(lvmogp('conditions', tmp_path, '--json').stdout)['error']}"


def test_help_is_quick_and_has_examples():
    for name in ("fit", "predict", "add-condition", "suggest", "calibration", "conditions", "show", "report", "demo"):
        assert f"Example: lvmogp {name}" in lvmogp(name, "--help").stdout
    heavy = {"jax", "pandas", "sklearn", "matplotlib", "numpy"}
    code = f"import sys, lvmogp.cli.app; print(sorted({heavy} & set(sys.modules)))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "[]\n"


@pytest.fixture
def ctrl_c(monkeypatch):
    """Press Ctrl-C in the second start of a fit."""
    original = LVMOGPRegressor.fit

    def fit(self, *arguments, on_progress=None, **more):
        seen = []

        def report(progress):
            seen.append(progress.restart)
            if seen.count(2) == 1:
                signal.raise_signal(signal.SIGINT)
            if on_progress is not None:
                on_progress(progress)

        return original(self, *arguments, on_progress=report, **more)

    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # one start after the other
    monkeypatch.setattr(LVMOGPRegressor, "fit", fit)
    with listening_to_ctrl_c():
        yield [*SMALL, "--restarts", 20, "--max-iter", 15]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_keeps_the_best_model_on_request(folder, tmp_path, ctrl_c):
    model = tmp_path / "m.lvmogp"
    result = lvmogp("fit", folder / "data.csv", *ROLES, "--model", model, *ctrl_c, "--keep-on-interrupt", "--json")
    assert result.exit_code == 130
    words = f"interrupted; the best model so far is in {model}"
    assert f"note: stopping after this iteration; press Ctrl-C again to stop at once\nnote: {words}\n" in result.stderr
    found = json.loads(result.stdout)
    assert (found["model"], found["interrupted"]) == (str(model), True)
    outcome = LVMOGPRegressor.load(model).outcome_
    assert outcome.status is Status.INTERRUPTED
    assert [restart.status for restart in outcome.restarts] == [Status.ITERATION_LIMIT, Status.INTERRUPTED]
    assert outcome.bound == max(restart.bound for restart in outcome.restarts)
    assert [path.name for path in tmp_path.iterdir()] == ["m.lvmogp"]


@pytest.mark.parametrize("kept", [False, True])
def test_ctrl_c_otherwise_leaves_nothing(folder, tmp_path, ctrl_c, kept):
    more = ["--checkpoint", tmp_path / "kept"] if kept else []
    line = failed("fit", folder / "data.csv", *ROLES, "--model", tmp_path / "m.lvmogp", *ctrl_c, *more, code=130)
    way_on = f"the same command with --resume goes on from the last checkpoint in {tmp_path / 'kept'}"
    assert line == f"error: interrupted; {way_on if kept else 'no model was written'}"
    assert not (tmp_path / "m.lvmogp").exists()


def test_the_share_done_follows_the_starts_before():
    share_done = shares_done()

    def report(restart: int, iteration: int, ended: set[int], share: float | None = None) -> Progress:
        return Progress(2, restart, 4, "x", iteration, 0.0, share, frozenset(ended))

    assert share_done(report(1, 100, set())) == pytest.approx(100 / 150 / 4)
    # half of a start that will need 100, then a fifth of another beside it
    assert share_done(report(2, 50, {1})) == pytest.approx(1.5 / 4)
    assert share_done(report(3, 20, {1})) == pytest.approx(1.7 / 4)
    assert share_done(report(2, 51, set())) < 0.1  # another search begins anew, wherever it reports from first
    assert share_done(report(1, 1, set(), 0.3)) == 0.3  # where it is known
    assert [time_in_words(seconds) for seconds in (0.4, 61, 600, 7200)] == ["0 s", "61 s", "10 min", "2.0 h"]
