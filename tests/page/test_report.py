"""The page of a model, in a real browser: its numbers are Python's, and it does what people do with it."""

import json
import re
import shutil
import subprocess
from contextlib import ExitStack
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn_models import fitted, forgetting, made_draws, with_draws
from numpy.testing import assert_allclose
from papers_model import PapersModel
from sklearn.exceptions import NotFittedError
from small_models import build, replace

import lvmogp.page.data
import lvmogp.page.report
from lvmogp.errors import SettingError
from lvmogp.fitted.model import fitted_model
from lvmogp.insight.summary import LeaveOut, summary
from lvmogp.kernels.covariances import RBF, Constant, Linear, Matern12, Matern32, Matern52, Periodic, RationalQuadratic
from lvmogp.model.layouts import standardised
from lvmogp.model.parameters import Kernels, KroneckerInducing, Term, plain_kernels
from lvmogp.page.report import report_page, write_report

# Names that would be commands if they were taken for markup or code.
QUOTES, COMMENT = "\u2028\"'`${alert(4)}\u2029", '<!--<script> tyre & "co" <img src=x onerror=alert(2)>'
NAMES = ("__proto__", "constructor", "</script><script>alert(3)</script>", COMMENT, QUOTES)
COLUMNS = ('"><img src=x onerror=alert(5)>', "load <b>")
OUTPUT, CONDITION = "a' onclick=alert(6) b", "</title><script>alert(7)</script>"
REMARKS = [f"See {name}." for name in NAMES]
NODE = shutil.which("node")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FEW = np.array([[0.3], [1.4]])


def renamed(model, **kernels):
    """A copy of the model with hostile names, and with other kernels where given."""
    own, copied = model.model_, forgetting(model)
    names = {"ids": NAMES, "columns": COLUMNS[: own.schema.n_columns], "output_name": OUTPUT}
    parameters = replace(own.posterior.parameters, **jax.tree.map(lambda leaf: jnp.asarray(leaf, float), kernels))
    posterior = build(parameters, standardised(own.observations, own.scaling))
    copied.model_ = fitted_model(own.schema._replace(**names), own.scaling, own.fit._replace(posterior=posterior))
    copied.condition = CONDITION
    return copied


def long_model(transform=None):
    """Two latents, shared noise, conditions of uneven size."""
    return renamed(fitted("long", answers="fit", n_latent=2, transform=transform))


def model_with_added_conditions():
    """Two points, also with known errors, so many that they are compressed, none, and one with Gaussian latents."""
    model, many = long_model(), np.random.default_rng(2).uniform(0, 2, (40, 1))
    values = np.sin(3 * FEW[:, 0])
    model.add_condition("few", FEW, values).add_condition("many", many, np.cos(3 * many[:, 0]))
    model.add_condition("measured", FEW, values, y_std=[0.1, 1e7])
    model.add_condition("nothing", FEW[:0], values[:0])
    return model.add_condition("gaussian", FEW, values, method="gaussian")


def grid_model():
    """Two inputs on a grid, all kernels, one latent, noise per condition."""
    over_inputs = (
        RBF([0.8], 0.7, columns=[0]) * Matern52([1.1], 1.2, columns=[1])
        + Periodic([1.7, 2.0], [1.2, 0.9], 0.4)
        + RationalQuadratic([1.4, 1.1], 0.5, shape=1.3)
        + Linear([0.3], columns=[1])
        + Matern12([2.0, 3.0], 0.1) * Constant(0.5)
    )
    model = fitted("grid", answers="fit", noise="per-condition", n_columns=2)
    return renamed(model, kernels=plain_kernels(over_inputs, Matern32([1.1], 0.8)))


def model_of_logarithms():
    """The first of two inputs and the output by their logarithms."""
    return renamed(fitted("long", answers="fit", n_columns=2, transform="log", log_columns=(0,)))


def model_of_parts(form, noise, *, terms=1, **changed):
    """A curve that all conditions share, none, one or two terms with latents, and curves of conditions' own."""
    with_latents = [Term(RBF([0.6], 1.1), RBF([1.4, 2.0], 0.9)), Term(Matern32([1.3], 0.4), Matern52([0.8, 1.1], 0.6))]
    kernels = Kernels((*with_latents[:terms], Term(Matern52([1.5], 0.8))), own=Matern32([0.4], 0.3))
    return renamed(fitted(form, answers="fit", noise=noise, n_latent=2), kernels=kernels, **changed)


def model_of_parts_with_added_conditions():
    """Two points, and so many that they are compressed, of a model with noise and own curves of differing size."""
    pooled = {"noise_spread": jnp.asarray(0.6), "own_spread": jnp.asarray(0.4)}
    model = model_of_parts("long", "per-condition", own_scale=np.array([0.5, 1.2, 2.0, 0.9, 1.0]), **pooled)
    many = np.random.default_rng(2).uniform(0, 2, (40, 1))
    model.add_condition("few", FEW, np.sin(3 * FEW[:, 0]))
    return model.add_condition("many", many, np.cos(3 * many[:, 0]))


def model_of_two_terms():
    """Two terms with latents, of which q(v) has a Kronecker product as its covariance."""
    rng = np.random.default_rng(4)
    factors = (np.tril(0.1 * rng.normal(size=(size, size))) + 0.6 * np.eye(size) for size in (4, 7))
    inducing = KroneckerInducing(*map(jnp.asarray, (rng.normal(size=(4, 7)), *factors)))
    return model_of_parts("long", "shared", terms=2, inducing=inducing)


PARTS = {
    "parts": partial(model_of_parts, "long", "shared"),
    "parts-noise": model_of_parts_with_added_conditions,
    "parts-grid": partial(model_of_parts, "grid", "per-condition"),
    "parts-terms": model_of_two_terms,
    "parts-alone": partial(model_of_parts, "long", "per-condition", terms=0),
}
MAKERS = {
    **PARTS,
    "long": model_with_added_conditions,
    "log": partial(long_model, "log"),
    "sqrt": partial(long_model, "sqrt"),
    "grid": grid_model,
    "logs": model_of_logarithms,
}
COMPACT = {"compact": "long", "compact-parts": "parts"}


@pytest.fixture(scope="module")
def models():
    return {name: make() for name, make in MAKERS.items()}


def summary_of(model):
    """What diagnostics find, but for relevances and what is left out, which take long to compile."""
    effects = np.full(model.model_.schema.n_columns + model.n_latent_, 0.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lvmogp.insight.summary._total_effects", lambda _: effects)
        patch.setattr("lvmogp.insight.summary.leave_out", lambda _: LeaveOut(1.5, 0.9, -1.0, 3.0, 26))
        return summary(model)._replace(remarks=REMARKS)


@pytest.fixture(scope="module")
def paths(models, tmp_path_factory):
    """Written pages, some of them with everything in its most compact form."""
    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lvmogp.page.report, "summary", summary_of)
        for name, model in models.items():
            write_report(model, folder / f"{name}.html")
        patch.setattr(lvmogp.page.data, "_MOST_DOUBLES", 10)
        patch.setattr(lvmogp.page.data, "_MOST_SHOWN", 0)
        patch.setattr(lvmogp.page.data, "_LEAST_SHOWN_PER_CONDITION", 2)
        for name, of_model in COMPACT.items():
            write_report(models[of_model], folder / f"{name}.html")
    return {path.stem: path for path in folder.iterdir()}


# Without a browser


class Markup(HTMLParser):
    """The elements of a page, with the text of its title and of its data."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts, self.inside = [], {}, None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, sorted(name for name, _ in attrs)))
        self.inside = dict(attrs).get("id") if tag == "script" else tag

    def handle_data(self, data):
        self.texts[self.inside] = self.texts.get(self.inside, "") + data


def test_the_page_loads_nothing_and_hostile_names_are_text_to_a_parser(paths):
    text = paths["long"].read_text()
    page, template = Markup(text), Path(lvmogp.page.report.__file__).with_name("template.html")
    assert page.elements == Markup(template.read_text()).elements
    assert text.count("<script") == text.count("</script>") == 3
    assert page.texts["title"].strip() == f"{OUTPUT} by {CONDITION}"
    document = json.loads(page.texts["data"])
    assert [each["name"] for each in document["conditions"]][:5] == list(NAMES)
    assert document["inputNames"] == [COLUMNS[0]]
    assert document["outputName"] == OUTPUT
    assert not set(page.texts["data"]) & set("<>&\u2028\u2029")
    markup = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"\b(src|href)\s*=|@import|url\(", markup)
    assert "default-src 'none'" in text
    assert "Copyright 2010-2023 Mike Bostock" in text


def test_a_page_is_the_same_each_time_and_refused_in_words(models, paths, tmp_path, monkeypatch):
    with pytest.raises(NotFittedError, match="not fitted yet"):
        report_page(PapersModel())
    monkeypatch.setattr(lvmogp.page.report, "summary", summary_of)
    assert report_page(models["long"]) == paths["long"].read_text()
    with pytest.raises(SettingError, match="there is no folder .*nowhere to write page.html to; make it first"):
        write_report(models["long"], tmp_path / "nowhere" / "page.html")


def test_lengthscales_of_a_logarithm_are_said_to_be(monkeypatch):
    monkeypatch.setattr(lvmogp.page.report, "summary", summary_of)
    plain, model = (fitted("long", answers="fit", log_columns=columns) for columns in ((), (0,)))
    before, after = (dict(json.loads(Markup(report_page(each)).texts["data"])["kernels"]) for each in (plain, model))
    (lengthscale,) = np.asarray(model.input_kernel_.lengthscale) * model.model_.scaling.input_scale
    assert after["Over inputs"].endswith(f"lengthscale {lengthscale:.3g} (log input 1)")
    assert re.search(r"lengthscale [\d.]+$", before["Over inputs"])
    assert after["Over latents"] == before["Over latents"]


def test_a_page_names_the_parts_of_a_curve_and_their_kernels(paths):
    found = {name: json.loads(Markup(paths[name].read_text()).texts["data"]) for name in ("long", *PARTS)}
    facts = {name: dict(document["facts"]) for name, document in found.items()}
    parts = ("one that all conditions share", "one that depends on latents", "one of its own")
    assert "Each curve is a sum" not in facts["long"]
    assert facts["parts"]["Each curve is a sum"] == ", ".join(parts)
    assert facts["parts-terms"]["Each curve is a sum"] == ", ".join([parts[0], "2 that depend on latents", parts[2]])
    assert facts["parts-alone"]["Each curve is a sum"] == ", ".join([parts[0], parts[2]])
    assert facts["parts-alone"]["Latent dimensions"] == "none"
    shared, own = "Over inputs, of the curve that all conditions share", "Over inputs, of each condition's own curve"
    kernels = {name: dict(document["kernels"]) for name, document in found.items()}
    assert list(kernels["long"]) == ["Over inputs", "Over latents"]
    assert list(kernels["parts"]) == ["Over inputs", "Over latents", shared, own]
    assert kernels["parts"][shared].startswith("matern52: variance 0.8; lengthscale ")
    assert kernels["parts"][own].startswith("matern32: variance 0.3; lengthscale ")
    several = [f"{name}, term {number}" for number in (1, 2) for name in ("Over inputs", "Over latents")]
    assert list(kernels["parts-terms"]) == [*several, shared, own]
    assert list(kernels["parts-alone"]) == [shared, own]


def test_a_page_too_large_is_refused_in_words(models, monkeypatch):
    monkeypatch.setattr(lvmogp.page.report, "summary", summary_of)
    monkeypatch.setattr(lvmogp.page.data, "_MOST_OF_OWN", 100)
    words = (
        r"a page of 5 conditions with curves of their own would hold [\d,]+ numbers about these, and the most is 100;"
    )
    with pytest.raises(SettingError, match=words):
        report_page(models["parts"])


# Numbers, as Node computes them with the page's own code


class Calculator(subprocess.Popen):
    """The calculations of a page."""

    def __init__(self, path):
        command = [NODE, Path(__file__).with_name("ask.js"), path]
        super().__init__(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, code, *arguments):
        self.stdin.write(json.dumps([code, arguments]) + "\n")
        self.stdin.flush()
        return json.loads(self.stdout.readline())


@pytest.fixture(scope="module")
def calculators(paths):
    if NODE is None:
        pytest.skip("no Node on this machine: apt install nodejs")
    with ExitStack() as running:
        yield {name: running.enter_context(Calculator(path)) for name, path in paths.items()}


def rows_for(model, n=6, seed=5):
    observed = model.model_.observations.inputs
    return np.random.default_rng(seed).uniform(observed.min(axis=0), observed.max(axis=0), (n, observed.shape[1]))


def assert_close(model, *pairs):
    for found, expected in pairs:
        assert_allclose(found, expected, atol=1e-6 * np.std(model.model_.observations.outputs), rtol=0)


@pytest.mark.parametrize("include_noise", [False, True])
@pytest.mark.parametrize("name", [*MAKERS, *COMPACT])
def test_curves_at_latents_and_of_conditions_are_those_of_python(models, calculators, name, include_noise):
    model = models[COMPACT.get(name, name)]
    inputs = rows_for(model)
    for latent in np.random.default_rng(6).normal(size=(3, model.n_latent_)) * 1.5:
        page = calculators[name].ask("lvmogp.predictAtLatent(...a)", inputs.tolist(), latent.tolist(), include_noise)
        mean, std = model.predict_at_latent(inputs, latent, return_std=True, include_noise=include_noise)
        assert_close(model, (page["mean"], mean), (page["sd"], std))
    for condition in model.conditions_:
        page = calculators[name].ask("lvmogp.predictCondition(...a)", condition, inputs.tolist(), include_noise)
        mean, std = model.predict(inputs, condition, return_std=True, include_noise=include_noise)
        lower, upper = model.predict_interval(inputs, condition, include_noise=include_noise)
        assert_close(model, (page["mean"], mean), (page["sd"], std), (page["lower"], lower), (page["upper"], upper))


@pytest.mark.parametrize(
    ("name", "n_points"),
    [
        ("long", 0),
        ("long", 1),
        ("long", 3),
        ("grid", 0),
        ("grid", 1),
        ("grid", 4),
        ("log", 4),
        ("sqrt", 2),
        ("logs", 3),
        *((name, 2) for name in PARTS),
        ("parts-noise", 0),
        ("parts-noise", 5),
    ],
)
def test_a_new_condition_and_what_to_expect_of_measurements_are_those_of_python(models, calculators, name, n_points):
    model = forgetting(models[name])
    inputs, seen = rows_for(model, 12), rows_for(model, n_points, seed=8)
    outputs = model.predict_at_latent(seen, np.full(model.n_latent_, 0.4))
    page = calculators[name].ask(
        "(({ predict, expectedDeviations, ...found }) => ({ ...found, after: predict(a[2], false),"
        " expected: expectedDeviations(a[2]) }))(lvmogp.newCondition(a[0], a[1]))",
        *(array.tolist() for array in (seen, outputs, inputs)),
    )
    model.add_condition("new", seen, outputs)
    latent_mean, latent_sd = (model.latents_.iloc[-1].filter(like=kind).to_numpy(float) for kind in ("mean_", "sd_"))
    mean, std = model.predict(inputs, "new", return_std=True, include_noise=False)
    expected = (mean, std, *model.predict_interval(inputs, "new", include_noise=False))
    assert np.max(np.abs(page["latentMean"] - latent_mean) / latent_sd) < 1e-3
    assert np.max(np.abs(page["latentSd"] - latent_sd) / latent_sd) < 1e-3
    for key, own in zip(("mean", "sd", "lower", "upper"), expected, strict=True):
        assert np.max(np.abs(page["after"][key] - own) / std) < 1e-3
    if name in ("long", "log", "logs", *PARTS) and n_points:
        suggested = model.suggest("new", inputs)
        assert page["expected"]["before"] == pytest.approx(suggested.sd_before, rel=1e-3)
        assert_allclose(page["expected"]["after"], suggested.candidate_sd, rtol=1e-2)
        assert np.argmin(page["expected"]["after"]) == np.argmin(suggested.candidate_sd)


# In a browser


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: apt install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright to test the page")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


class Opened:
    """A page in the browser with all it complained about and asked for."""

    def __init__(self, browser, path, **context):
        self.page = browser.new_page(**context)
        self.complaints, self.requests = [], []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())

    def ask(self, code, *arguments):
        return self.page.evaluate(f"(a) => {code}", list(arguments))

    @property
    def shown(self):
        return self.ask("lvmogp.shown()")


@pytest.fixture(scope="module")
def opened(browser, paths):
    return {name: Opened(browser, path) for name, path in paths.items()}


@pytest.fixture
def fresh(browser, paths):
    """Open a page of its own for a test that changes it."""
    return lambda name="long", **context: Opened(browser, paths[name], **context)


@pytest.mark.parametrize("name", [*MAKERS, *COMPACT])
def test_a_page_opens_without_complaint_or_request(opened, paths, name):
    assert opened[name].complaints == []
    assert opened[name].requests == [paths[name].as_uri()]
    assert opened[name].ask("lvmogp.conditions")[:5] == list(NAMES)


def test_the_page_marks_where_to_measure_next(models, fresh):
    opened = fresh("long")
    page = opened.page
    page.fill("#observations", "0.8, 0.75")
    page.wait_for_selector("#posterior table")
    found = opened.shown["next"]
    low, high = (end(models["long"].model_.observations.inputs) for end in (np.min, np.max))
    model = forgetting(models["long"]).add_condition("new", [[0.8]], [0.75])
    expected = model.suggest("new", np.linspace(low, high, 25)[:, None])
    assert found["value"] == pytest.approx(expected.inputs[0, 0])
    assert found["after"] == pytest.approx(expected.sd_after[0], rel=1e-2)
    assert page.locator("#curve .next text").text_content() == "measure here next"
    assert page.inner_text("#next").startswith(f"Measure next at {COLUMNS[0]} ")
    page.click("#clear")
    page.locator("#curve .next line").wait_for(state="detached")
    assert page.inner_text("#next") == ""
    assert opened.complaints == []


def test_dragging_moves_the_curve(models, fresh):
    opened = fresh()
    box = opened.page.locator("#latent").bounding_box()
    mouse, curves = opened.page.mouse, []
    mouse.move(box["x"] + 0.35 * box["width"], box["y"] + 0.4 * box["height"])
    mouse.down()
    for share in (0.5, 0.65):
        mouse.move(box["x"] + share * box["width"], box["y"] + 0.3 * box["height"], steps=3)
        opened.page.wait_for_timeout(60)
        curves.append((opened.page.locator("#curve .line.active").get_attribute("d"), opened.shown))
    mouse.up()
    (first_path, first), (second_path, second) = curves
    assert first["active"] == second["active"] == "probe"
    assert second["latent"][0] - first["latent"][0] > 0.3
    assert first_path != second_path
    grid = np.asarray(second["grid"])[:, None]
    expected = models["long"].predict_at_latent(grid, second["latent"], include_noise=False)
    assert_close(models["long"], (second["mean"], expected))


def test_the_pointer_shows_a_condition_and_the_keyboard_moves_the_point(fresh):
    opened = fresh()
    opened.page.locator('#latent [data-condition="3"] .point').hover()
    assert (opened.shown["condition"], opened.shown["active"]) == (NAMES[3], "condition")
    assert opened.page.locator("#curve .datum").count() == 6
    opened.page.locator("#condition").focus()
    opened.page.keyboard.press("Tab")
    assert opened.ask("document.activeElement.id") == "latent"
    before = opened.page.locator("#curve .of-probe.line").get_attribute("d")
    for key in ("ArrowRight", "ArrowRight", "Shift+ArrowUp", "ArrowDown"):
        opened.page.keyboard.press(key)
    opened.page.wait_for_timeout(60)
    assert_allclose(opened.shown["latent"], [0.2, 0.4], atol=1e-12)
    assert opened.page.locator("#curve .of-probe.line").get_attribute("d") != before
    assert opened.ask("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_observations_are_typed_clicked_and_refused_in_words(models, fresh):
    opened = fresh("grid")
    page = opened.page
    page.fill("#observations", "1.5, 2.0, 0.9\n3,1;2;1,4")
    page.wait_for_selector("#posterior table")
    assert page.locator("#curve .observation").count() == 2
    shown = opened.ask("lvmogp.newCondition([[1.5, 2], [3.1, 2]], [0.9, 1.4]).latentMean")
    cells = page.locator("#posterior td.number").all_inner_texts()
    assert float(cells[0].replace("−", "-")) == float(f"{shown[0]:.3g}")
    page.locator("#curve").click(position={"x": 200, "y": 150})
    page.locator("#curve .observation").nth(2).wait_for()
    page.fill("#observations", "1.5, x, 2")
    page.locator("#observations-message", has_text="not a number").wait_for()
    assert page.inner_text("#observations-message") == "Line 1: “x” is not a number for load <b>."
    page.fill("#observations", "1, 2, 1e300")
    words = "No latents explain these observations; are they of extreme size?"
    page.locator("#observations-message", has_text=words).wait_for()
    page.fill("#observations", "1, 2, 3\n" * 33)
    page.locator("#observations-message", has_text="takes up to 32 observations").wait_for()
    assert opened.complaints == []


def test_sliders_choose_the_slice_of_further_inputs(models, fresh):
    opened = fresh("grid")
    opened.page.locator("#curve-controls input[type=range]").fill("2")
    shown = opened.shown
    load = float(opened.page.locator("#curve-controls input[type=range]").input_value())
    assert load == pytest.approx(2, abs=0.02)
    inputs = np.column_stack([shown["grid"], np.full(len(shown["grid"]), load)])
    expected = models["grid"].predict(inputs, NAMES[0])
    assert_close(models["grid"], (shown["mean"], expected))
    opened.page.locator("#curve-controls select").select_option("1")
    assert opened.page.locator("#curve .axis.name").first.text_content() == COLUMNS[1]


def places_of_ticks(page, place):
    """Numbers at the ticks of the axis below (0) or on the left (1), and where they are."""
    ticks = page.locator("#curve g.axis").nth(place).locator(".tick").all()
    found = [(tick.text_content(), tick.get_attribute("transform")) for tick in ticks]
    pairs = [(float(text), float(re.findall(r"[-\d.]+", where)[place])) for text, where in found if text]
    return np.array(pairs).T


def test_axes_of_logarithms_are_logarithmic(models, fresh):
    opened, model = fresh("logs"), models["logs"]
    for place in (0, 1):
        values, places = places_of_ticks(opened.page, place)
        assert len(values) >= 2
        slope = np.diff(places) / np.diff(np.log(values))
        assert_allclose(slope, slope[0], rtol=1e-2)
    grid = np.asarray(opened.shown["grid"])
    assert_allclose(np.diff(np.log(grid)), np.log(grid[-1] / grid[0]) / (len(grid) - 1))
    middle = np.median(model.model_.observations.inputs[:, 1])
    inputs = np.column_stack([grid, np.full(len(grid), middle)])
    assert_close(model, (opened.shown["mean"], model.predict(inputs, NAMES[0], include_noise=False)))
    # The input that is read off is the one below the pointer.
    box = opened.page.locator("#curve").bounding_box()
    ends = 54, box["width"] - 12
    opened.page.mouse.move(box["x"] + sum(ends) / 2, box["y"] + 150)
    read = float(re.findall(r" ([\d.]+): ", opened.page.inner_text("#readout"))[0])
    assert read == pytest.approx(np.sqrt(grid[0] * grid[-1]), rel=1e-2)
    # The slider of a logarithm is even in it, and a click between two powers means the number between them.
    opened.page.locator("#curve-controls select").select_option("1")
    low, high = np.quantile(model.model_.observations.inputs[:, 0], [0, 1])
    slider = opened.page.locator("#curve-controls input[type=range]")
    assert_allclose([float(slider.get_attribute(end)) for end in ("min", "max")], np.log([low, high]))
    slider.fill(str(np.log(0.5)))
    shown = opened.shown
    value = np.exp(float(slider.input_value()))
    inputs = np.column_stack([np.full(len(shown["grid"]), value), shown["grid"]])
    assert_close(model, (shown["mean"], model.predict(inputs, NAMES[0], include_noise=False)))
    assert opened.complaints == []


def test_inputs_without_a_logarithm_are_refused_and_the_next_measurement_is_even_in_it(models, fresh):
    opened, model = fresh("logs"), forgetting(models["logs"])
    opened.page.fill("#observations", "1, 2, 3\n0, 2, 3")
    words = f"Line 2: {COLUMNS[0]} must be positive, since its logarithm is modelled."
    opened.page.locator("#observations-message", has_text=words).wait_for()
    opened.page.fill("#observations", "1, 2, 3")
    opened.page.wait_for_selector("#posterior table")
    seen = model.model_.observations.inputs
    candidates = np.geomspace(seen[:, 0].min(), seen[:, 0].max(), 25)
    inputs = np.column_stack([candidates, np.full(25, np.median(seen[:, 1]))])
    expected = model.add_condition("new", [[1.0, 2.0]], [3.0]).suggest("new", inputs)
    assert opened.shown["next"]["value"] == pytest.approx(expected.inputs[0, 0])
    box = opened.page.locator("#curve").bounding_box()
    opened.page.locator("#curve").click(position={"x": box["width"] - 30, "y": 200})
    opened.page.locator("#curve .observation").nth(1).wait_for()
    typed = opened.page.input_value("#observations").splitlines()[1].split(", ")
    grid = opened.shown["grid"]
    share = (box["width"] - 30 - 54) / (box["width"] - 12 - 54)
    assert float(typed[0]) == pytest.approx(grid[0] * (grid[-1] / grid[0]) ** share, rel=1e-2)
    assert float(typed[2]) > 0
    assert opened.complaints == []


@pytest.mark.parametrize("name", ["long", "parts", "parts-alone"])
def test_curves_in_the_background_are_those_of_the_conditions(opened, name):
    page, numbers = opened[name].page, re.compile(r"[-\d.]+")
    lines = [page.locator(f"#curve {each}").first.get_attribute("d") for each in (".other", ".line.of-condition")]
    background, shown = (np.array(numbers.findall(line), dtype=float) for line in lines)
    assert_allclose(background, shown, atol=0.01)


def test_a_model_without_latents_shows_curves_alone(models, fresh):
    opened, model = fresh("parts-alone"), models["parts-alone"]
    page = opened.page
    assert not page.locator("#latent").is_visible()
    assert page.locator("#condition").is_visible()
    assert page.inner_text("#chips").split("\n")[-1] == "a condition never seen"
    assert page.inner_text("#lead").startswith(
        "22 observations of 5 conditions. Each curve is a sum: one that all conditions share and one of its own."
    )
    assert "latent" not in page.inner_text("#conditions")
    page.fill("#observations", "0.8, 0.75")
    page.wait_for_selector("#posterior table")
    assert "latent" not in page.inner_text("#posterior")
    grid = np.asarray(opened.shown["grid"])[:, None]
    expected = forgetting(model).add_condition("new", [[0.8]], [0.75]).predict(grid, "new", include_noise=False)
    assert np.max(np.abs(opened.shown["mean"] - expected)) < 1e-3 * np.std(model.model_.observations.outputs)
    assert opened.complaints == []


def test_a_new_condition_has_an_own_curve_of_its_own_size(fresh):
    opened = fresh("parts-noise")
    opened.page.fill("#observations", "0.8, 0.75")
    opened.page.wait_for_selector("#posterior table")
    found = opened.ask("lvmogp.newCondition([[0.8]], [0.75])")
    size = np.sqrt(np.dot(found["owns"], found["weights"]))
    cells = opened.page.locator("#posterior tr").last.locator("td").all_inner_texts()
    assert cells[:2] == ["own curve, sd relative to the usual", f"{size:.3g}"]


def test_hostile_names_are_text_to_a_browser(opened):
    page = opened["log"].page
    assert page.title() == f"{OUTPUT} by {CONDITION}"
    assert page.locator("#title").text_content() == f"{OUTPUT} by {CONDITION}"
    assert page.locator("#condition option").all_text_contents() == list(NAMES)
    assert page.locator("#conditions td button").all_text_contents() == list(NAMES)
    assert page.locator("#conditions th").first.text_content() == CONDITION
    labels = page.locator("#latent .label").all_text_contents()
    assert {NAMES[0], NAMES[1], QUOTES} <= set(labels)  # longer ones are shortened
    assert page.locator("#curve .axis.name").all_text_contents() == [COLUMNS[0], OUTPUT]
    assert page.locator("#remarks .remark").all_text_contents() == REMARKS
    assert page.locator("img, main script, b, [onclick], [onerror]").count() == 0


def test_thinned_observations_are_said_to_be(opened):
    assert "show a random part" not in opened["long"].page.inner_text("#conditions")
    assert "the page shows a random part" in opened["compact"].page.inner_text("#conditions")
    assert opened["compact"].page.locator("#curve .datum").count() == 2


@pytest.mark.parametrize("name", MAKERS)
def test_a_phone_needs_no_sideways_scrolling(fresh, name):
    opened = fresh(name, viewport={"width": 375, "height": 700})
    assert opened.ask("document.documentElement.scrollWidth") == 375
    assert opened.page.locator("#curve").bounding_box()["width"] > 300
    if name != "parts-alone":
        assert opened.page.locator("#latent").bounding_box()["width"] > 300


def test_a_page_is_light_or_dark(fresh):
    background = "getComputedStyle(document.body).backgroundColor"
    light, dark = fresh(color_scheme="light"), fresh(color_scheme="dark")
    seen = light.ask(background), dark.ask(background)
    assert seen == ("rgb(255, 255, 255)", "rgb(21, 24, 28)")
    for item in (light, dark):
        item.page.click("#theme")
    assert (light.ask(background), dark.ask(background)) == seen[::-1]


def drawn_model(kind):
    """A model that answers from draws: the paper's, or one with shared and own curves."""
    if kind == "plain":
        return forgetting(fitted("long"))
    model = model_of_parts("long", "shared")
    model.model_ = with_draws(model.model_, made_draws(model.model_))
    model.model_ = model.model_._replace(schema=model.model_.schema._replace(ids=tuple("abcde")))
    return model


@pytest.mark.long
@pytest.mark.parametrize("kind", ["plain", "parts"])
def test_curves_of_draws_are_those_of_python_at_the_inducing_inputs(browser, tmp_path, kind):
    model = drawn_model(kind).add_condition("f", [[0.4], [1.5]], [0.9, -0.2])
    write_report(model, tmp_path / "drawn.html")
    page = Opened(browser, tmp_path / "drawn.html")
    assert page.complaints == []
    scaling, basis = model.model_.scaling, model.model_.posterior.input_basis
    inputs = np.asarray(basis.points) * scaling.input_scale + scaling.input_mean
    for condition in ("b", "f"):
        for include_noise in (False, True):
            found = page.ask("lvmogp.predictCondition(...a)", condition, inputs.tolist(), include_noise)
            mean, std = model.predict(inputs, condition, return_std=True, include_noise=include_noise)
            scale = np.std(model.model_.observations.outputs)
            assert_allclose(found["mean"], mean, atol=1e-4 * scale)
            assert_allclose(found["sd"], std, atol=1e-4 * scale)
            assert_allclose(found["upper"], mean + 1.959964 * std, atol=3e-4 * scale)
    assert "posterior draws" in page.page.inner_text("#new-help")
