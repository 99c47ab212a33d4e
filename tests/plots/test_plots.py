"""Pictures show what the model predicts: the numbers in the artists are compared with the library's own."""

import copy

import matplotlib as mpl
import matplotlib.dates as mdates
import matplotlib.pyplot as plt
import numpy as np
import pytest
from drawn_models import IDS, fitted, forgetting
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.colors import same_color
from matplotlib.contour import QuadContourSet
from matplotlib.patches import Ellipse
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp
from scipy.stats import norm

from lvmogp import DataError, LVMOGPRegressor, LVMOGPWarning, SettingError, UnknownConditionError, plots
from lvmogp.algebra.linalg import smallest_jitter
from lvmogp.insight.summary import input_relevance, latent_relevance
from lvmogp.insight.variance import variance_shares
from lvmogp.plots.labels import label_points

mpl.use("Agg")

NEW_POINTS = ([[0.4], [1.5]], [0.9, -0.2])


@pytest.fixture(scope="module")
def waves():
    """One input without a name, one latent, with one condition added."""
    return forgetting(fitted("grid", answers="fit")).add_condition("new", *NEW_POINTS)


@pytest.fixture(scope="module")
def plants():
    """A date and a number as inputs, a named output, two latents, noise of each condition."""
    model = forgetting(fitted("long", answers="fit", noise="per-condition", n_latent=2, n_columns=2))
    schema = model.model_.schema._replace(columns=("day", "water"), date_columns=("day",), output_name="height (cm)")
    model.model_ = model.model_._replace(schema=schema)
    return model


@pytest.fixture(autouse=True)
def _no_figures_left():
    yield
    plt.close("all")


@pytest.fixture
def ax():
    return plt.subplots()[1]


def changed(model, **parts):
    copied = copy.copy(model)
    copied.model_ = model.model_._replace(**parts)
    return copied


def band(ax):
    """Lower and upper edge of the only band on the axes, at the places of its line."""
    (polygon,) = [item for item in ax.collections if isinstance(item, PolyCollection)]
    corners = polygon.get_paths()[0].vertices
    n = (len(corners) - 3) // 2  # along the lower edge, back along the upper one, with closing corners
    return corners[1 : n + 1, 1], corners[n + 2 : 2 * n + 2, 1][::-1]


@pytest.mark.parametrize("include_noise", [False, True])
def test_a_curve_is_the_prediction_and_its_band_the_interval(waves, ax, include_noise):
    before = waves.model_
    assert plots.plot_curve(waves, "b", level=0.8, include_noise=include_noise, ax=ax) is ax
    grid, mean = ax.lines[0].get_data()
    seen = before.observations.inputs
    assert_allclose(grid, np.linspace(seen.min(), seen.max(), 200))
    assert_allclose(mean, waves.predict(grid[:, None], "b"))
    assert_allclose(band(ax), waves.predict_interval(grid[:, None], "b", level=0.8, include_noise=include_noise))
    assert waves.model_ is before


def test_data_are_the_observations_and_the_grid_covers_them_if_they_are_kept(waves, ax):
    seen = waves.model_.observations
    chosen = seen.conditions == 2
    plots.plot_data(waves, "c", marker="s", ax=ax)
    assert_array_equal(ax.lines[0].get_data(), [seen.inputs[chosen, 0], seen.outputs[chosen]])
    plots.plot_data(waves, "new", ax=ax)
    assert_array_equal(ax.lines[1].get_ydata(), NEW_POINTS[1])
    assert_allclose(plots.default_grid(waves)[[0, -1]], [seen.inputs.min(), seen.inputs.max()])
    bare = changed(waves, schema=waves.model_.schema.without_rows())
    mean, deviation = seen.inputs.mean(), seen.inputs.std()
    assert_allclose(plots.default_grid(bare)[[0, -1]], [mean - 2 * deviation, mean + 2 * deviation])
    assert len(plots.plot_data(bare, "a").lines[-1].get_xdata()) == 0


def test_parts_draw_on_the_current_axes_and_pictures_on_their_own(waves, ax):
    assert plots.plot_curve(waves, "a") is ax
    assert plots.plot_data(waves, "a") is ax
    assert plots.plot_latents(waves, range(5)) is ax
    assert plots.plot_curves(waves, ["a"]) is not ax
    n_figures = len(plt.get_fignums())
    assert plots.plot_curves(waves, ["a"], ax=ax) is ax
    assert len(plt.get_fignums()) == n_figures


def test_curves_of_chosen_conditions_in_different_styles(waves, ax):
    plots.plot_curves(waves, ["d", "a", "new"], ax=ax)
    curves = [line for line in ax.lines if line.get_label() in waves.conditions_]
    assert [line.get_label() for line in curves] == ["d", "a", "new"]
    for line in curves:
        grid, mean = line.get_data()
        assert_allclose(mean, waves.predict(np.asarray(grid)[:, None], line.get_label()))
    assert len({(line.get_color(), line.get_marker(), line.get_linestyle()) for line in curves}) == 3
    assert same_color(curves[-1].get_color(), "black")
    points = [line for line in ax.lines if line not in curves]
    assert [len(line.get_xdata()) for line in points] == [7, 7, 2]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["d", "a", "new"]


def test_all_conditions_unless_chosen_and_of_many_those_across_the_latent_space(waves):
    many = changed(waves, added={f"new {number}": waves.model_.added["new"] for number in range(20)})
    few_shown, many_shown = (
        [text.get_text() for text in plots.plot_curves(model, inputs=[0.5]).get_legend().get_texts()]
        for model in (waves, many)
    )
    assert few_shown == [*IDS, "new"]
    assert len(many_shown) == 12
    assert set(many.latents_.sort_values("mean_1", kind="stable")["condition"].iloc[[0, -1]]) <= set(many_shown)


def test_one_input_runs_and_the_others_are_held_where_told_or_at_their_medians(plants):
    day = np.datetime64("1970-01-02")
    ax = plots.plot_curves(plants, ["b"], along="water", at={"day": day}, inputs=[0.5, 1.5])
    assert_allclose(ax.lines[0].get_ydata(), plants.predict([[1.0, 0.5], [1.0, 1.5]], "b"))
    assert ax.get_title() == "at day = 1970-01-02 00:00:00"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("water", "height (cm)")
    ax = plots.plot_curves(plants, ["b"], along="day", inputs=[day, day + 1])
    water = plants.model_.observations.inputs[:, 1]
    assert abs(np.median(water) - water.mean()) > 0.01
    assert_allclose(ax.lines[0].get_xdata(), mdates.date2num([day, day + 1]))  # matplotlib counts as we do
    assert_allclose(ax.lines[0].get_ydata(), plants.predict([[1.0, np.median(water)], [2.0, np.median(water)]], "b"))
    assert isinstance(ax.xaxis.get_major_formatter(), mdates.ConciseDateFormatter)
    assert ax.get_xlabel() == "day"


@pytest.fixture(scope="module")
def doses():
    """The first of two inputs and the output by their logarithms."""
    return fitted("long", answers="fit", n_columns=2, transform="log", log_columns=(0,))


def test_axes_and_grids_of_logarithms_are_logarithmic(doses):
    ax, seen = plots.plot_curves(doses, ["b"]), doses.model_.observations.inputs
    grid = np.asarray(ax.lines[0].get_xdata())
    assert_allclose(grid, np.geomspace(seen[:, 0].min(), seen[:, 0].max(), 200))
    inputs = np.column_stack([grid, np.full(200, np.median(seen[:, 1]))])
    assert_allclose(ax.lines[0].get_ydata(), doses.predict(inputs, "b"))
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    ax = plots.plot_curves(doses, ["b"], along=1)
    assert (ax.get_xscale(), ax.get_yscale()) == ("linear", "log")
    ax = plots.plot_surface(doses, "b", along=(1, 0))
    assert (ax.get_xscale(), ax.get_yscale()) == ("linear", "log")
    panels = plots.plot_new_condition(doses, [[0.5, 1.0]], [2.0])
    assert {(panel.get_xscale(), panel.get_yscale()) for panel in panels[1]} == {("log", "log")}
    assert [panel.get_ylabel() for panel in panels[1]] == ["output", ""]
    assert {(panel.get_xscale(), panel.get_yscale()) for panel in panels[0]} == {("linear", "linear")}
    bare = changed(doses, schema=doses.model_.schema.without_rows())
    mean, deviation = np.log(seen[:, 0]).mean(), np.log(seen[:, 0]).std()
    assert_allclose(np.log(plots.default_grid(bare)[[0, -1]]), [mean - 2 * deviation, mean + 2 * deviation])
    title = plots.plot_curves(bare, ["b"], along=1).get_title()
    assert title == f"at input 1 = {np.exp(mean):.4g}"


def test_a_slice_is_near_in_the_logarithm(doses, ax):
    inputs, outputs = plots.observed(doses, "b")
    value = 1.62  # to which 1.75 is near by ratio only
    near = np.abs(np.log(inputs[:, 0] / value)) <= 0.1 * doses.model_.scaling.input_scale[0]
    assert 0 < near.sum() < len(near)
    plots.plot_data(doses, "b", along=1, at={0: value}, ax=ax)
    assert_array_equal(ax.lines[1].get_ydata(), outputs[near])


def test_observations_away_from_the_slice_are_hollow(plants, ax):
    inputs, outputs = plots.observed(plants, "b")
    value = inputs[2, 1]
    near = np.abs(inputs[:, 1] - value) <= 0.1 * plants.model_.scaling.input_scale[1]
    assert 0 < near.sum() < len(near)
    plots.plot_data(plants, "b", along="day", at={"water": value}, ax=ax)
    hollow, filled = ax.lines
    assert hollow.get_markerfacecolor() == "none"
    assert_array_equal(hollow.get_ydata(), outputs[~near])
    assert same_color(filled.get_markerfacecolor(), plots.COLOURS[0])
    assert_array_equal(filled.get_ydata(), outputs[near])


def test_latents_against_known_values_have_bars_of_two_deviations(plants, ax):
    values, table = np.array([3.0, 1.0, 4.0, 1.5, 9.0]), plants.latents_
    points, _, (bars,) = plots.plot_latents(plants, values, dimension=2, ax=ax).containers[0]
    assert_allclose(points.get_xdata(), values)
    assert_allclose(points.get_ydata().astype(float), table["mean_2"])
    assert_allclose([np.ptp(segment[:, 1]) for segment in bars.get_segments()], 4 * table["sd_2"])


def test_one_latent_is_a_list_with_bars(waves, ax):
    assert plots.plot_latent_space(waves, n_sd=3.0, ax=ax) is ax
    table = waves.latents_.sort_values("mean_1").reset_index(drop=True)
    assert [text.get_text() for text in ax.get_yticklabels()] == table["condition"].tolist()
    bars = [segment for container in ax.containers for segment in container.lines[2][0].get_segments()]
    segments = {round(segment[0, 1]): segment[:, 0] for segment in bars}
    for place, row in table.iterrows():
        assert_allclose(segments[place], [row["mean_1"] - 3 * row["sd_1"], row["mean_1"] + 3 * row["sd_1"]])
    added = ax.containers[1].lines[0]
    assert added.get_marker() == "*"
    assert_array_equal(added.get_ydata(), np.flatnonzero(table["added"]))


def test_two_latents_are_points_with_ellipses(plants, ax):
    plots.plot_latent_space(plants, (2, 1), ax=ax)
    table = plants.latents_
    ellipses = [patch for patch in ax.patches if isinstance(patch, Ellipse)]
    centres = np.array([ellipse.center for ellipse in ellipses])
    sizes = np.array([[ellipse.width, ellipse.height] for ellipse in ellipses])
    assert_allclose(centres, table[["mean_2", "mean_1"]])
    assert_allclose(sizes, 4 * table[["sd_2", "sd_1"]])
    assert_allclose(np.transpose(ax.lines[0].get_data()), centres)
    assert sorted(text.get_text() for text in ax.texts) == list(IDS)
    assert ax.get_xlabel() == "latent dimension 2"
    low, high = np.transpose([ax.get_xlim(), ax.get_ylim()])
    assert np.all(low <= centres - sizes / 2)
    assert np.all(centres + sizes / 2 <= high)
    for labels, expected in ((False, []), (["b", "d"], ["b", "d"]), (True, list(IDS))):
        texts = plots.plot_latent_space(plants, (1, 2), labels=labels).texts
        assert sorted(text.get_text() for text in texts) == expected


def test_labels_of_forty_points_hide_no_label_and_no_point():
    figure, ax = plt.subplots(figsize=(6, 6))
    points = np.random.default_rng(3).normal(size=(40, 2))
    ax.plot(*points.T, "o")
    ax.set(xlim=(-3.5, 3.5), ylim=(-3.5, 3.5))
    texts = label_points(ax, points, [f"sensor {number}" for number in range(40)], avoid=points)
    figure.canvas.draw()
    boxes = [super(type(text), text).get_window_extent() for text in texts]
    assert sum(first.overlaps(second) for first in boxes for second in boxes if first is not second) == 0
    pixels = ax.transData.transform(points)
    assert sum(box.contains(*pixel) for box in boxes for pixel in pixels) == 0
    assert all(ax.bbox.x0 <= box.x0 and box.x1 <= ax.bbox.x1 for box in boxes)


def test_relevance_is_that_of_the_diagnostics(plants, ax):
    plots.plot_relevance(plants, ax=ax)
    widths = [bar.get_width() for bar in ax.patches]
    assert_allclose(widths, [*input_relevance(plants)["relevance"], *latent_relevance(plants)["relevance"]])
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert names == ["day", "water", "latent dimension 1", "latent dimension 2"]


def test_shares_of_the_variance_are_stacked_bars(plants, ax, monkeypatch):
    plots.plot_variance_shares(plants, ax=ax)
    found = variance_shares(plants)
    latent, noise = (found.loc[found["part"] == part, "share"].to_numpy() for part in ("latent", "noise"))
    assert_allclose([bar.get_width() for bar in ax.patches], [*latent, *noise])
    assert_allclose([bar.get_x() for bar in ax.patches], [*np.zeros(6), *latent])
    assert [text.get_text() for text in ax.get_yticklabels()] == ["all conditions", *IDS]
    monkeypatch.setattr("lvmogp.plots.checks._MOST_BARS", 2)
    few = plots.plot_variance_shares(plants)
    order = np.argsort(noise[1:])
    assert [text.get_text() for text in few.get_yticklabels()] == ["all conditions", IDS[order[0]], IDS[order[-1]]]


def test_parts_of_a_curve_are_those_predicted(waves):
    (ax,) = plots.plot_parts(waves, "b", level=0.5)
    grid, mean = ax.lines[0].get_data()
    found = waves.predict_parts(grid[:, None], "b")
    assert_allclose(mean, found["mean"])
    half = norm.ppf(0.75) * found["sd"]
    assert_allclose(band(ax), [found["mean"] - half, found["mean"] + half])
    assert ax.get_title() == "latent"
    with pytest.raises(SettingError, match="sums of 1 parts, each on axes of its own; got 2 axes"):
        plots.plot_parts(waves, "b", axes=plt.subplots(1, 2)[1])


def restarts_of(model, *histories):
    fit, (pattern,) = model.model_.fit, model.outcome_.restarts
    restarts = tuple(
        pattern._replace(recipe=f"recipe {number}", bound=history[-1], history=tuple(history))
        for number, history in enumerate(histories)
    )
    return changed(model, fit=fit._replace(outcome=fit.outcome._replace(restarts=restarts)))


def test_convergence_shows_every_start_and_marks_the_best(waves, ax):
    histories = ([-900.0, -20.0, 3.0, 4.0], [-500.0, 7.0, 8.0], [-800.0, -30.0, -3.0, -2.0, -1.0])
    plots.plot_convergence(restarts_of(waves, *histories), ax=ax)
    for line, number in zip(ax.lines, (1, 0, 2), strict=False):
        assert_array_equal(line.get_ydata(), histories[number])
        assert_array_equal(line.get_xdata(), np.arange(1, len(histories[number]) + 1))
    assert [line.get_linewidth() > 1.5 for line in ax.lines[:3]] == [True, False, False]
    assert len({line.get_linestyle() for line in ax.lines[:3]}) == 3
    assert ax.lines[3].get_marker() == "*"
    assert ax.lines[3].get_data() == ([3], [8.0])
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["recipe 1: 8.00 (best)", "recipe 0: 4.00", "recipe 2: −1.00"]
    # The second half of every start, from −3 to 8, not the first rise.
    assert_allclose(ax.get_ylim(), [-3 - 0.5 * 11, 8 + 0.1 * 11])
    with pytest.raises(DataError, match="no history"):
        plots.plot_convergence(restarts_of(waves))


def test_calibration_counts_observations_inside_their_intervals(waves, ax):
    rng = np.random.default_rng(5)
    inputs, outputs, levels = rng.uniform(0, 2, (15, 1)), rng.standard_normal((15, 5)), [0.3, 0.8]
    outputs[3, 2] = np.nan
    plots.plot_calibration(waves, inputs, outputs, levels=levels, ax=ax)
    known = np.isfinite(outputs)
    for level, share in zip(levels, ax.lines[1].get_ydata(), strict=True):
        lower, upper = waves.predict_interval(inputs, level=level)
        assert share == np.mean(((lower <= outputs) & (outputs <= upper))[known])
    with pytest.warns(LVMOGPWarning, match="not calibrated"):  # which the picture shows without words
        errors = waves.calibration(inputs, outputs, levels=levels).coverage["standard_error"]
    lower, upper = band(ax)
    assert_allclose([lower[1], upper[1]], [0.3 - 1.96 * errors[0], 0.3 + 1.96 * errors[0]])
    plt.close(ax.figure)
    with pytest.raises(SettingError, match="levels must be numbers between 0 and 1"):
        plots.plot_calibration(waves, inputs, outputs, levels=[0.5, 1.0])
    assert plt.get_fignums() == []


def jittered(model, deviation):
    """What a covariance of one observation and three empty places of unit variance gets from its factorisation."""
    scale = model.model_.scaling.output_scale
    variance = (deviation / scale) ** 2
    return scale * np.sqrt(variance + smallest_jitter(np.dtype(float)) * (variance + 3) / 4)


def test_a_new_condition_before_and_after_each_point(waves):
    before = waves.model_
    panels = plots.plot_new_condition(waves, *NEW_POINTS)
    titles = [ax.get_title() for ax in panels[0]]
    assert titles == ["before any observation", "after 1 observation", "after 2 observations"]
    # The last column is the condition that was added from the same points.
    grid, mean = panels[1, 2].lines[0].get_data()
    assert_allclose(mean, waves.predict(np.asarray(grid)[:, None], "new"))
    assert_allclose(band(panels[1, 2]), waves.predict_interval(np.asarray(grid)[:, None], "new", include_noise=False))
    assert_array_equal(panels[1, 1].lines[1].get_ydata(), NEW_POINTS[1][:1])
    # Above: the prior is standard normal; after one point Bayes' rule by hand, with the model's own predictions.
    latents, prior = panels[0, 0].lines[0].get_data()
    assert_allclose(prior, np.exp(-(latents**2) / 2), rtol=1e-6)
    density = panels[0, 1].lines[0].get_ydata()
    point = np.tile(NEW_POINTS[0][0], (len(latents), 1))
    at, deviation = waves.predict_at_latent(point, latents[:, None], return_std=True)
    expected = norm.logpdf(latents) + norm.logpdf(NEW_POINTS[1][0], at, jittered(waves, deviation))
    assert_allclose(density, np.exp(expected - expected.max()), atol=1e-6)
    assert waves.model_ is before


def test_noise_of_its_own_is_integrated_out():
    # One point: p(h | y) ∝ N(h; 0, I) ∫ N(y; m(h), v(h) + σ²) N(log σ²; prior) d log σ², by the trapezoid rule.
    model, value = fitted("long", answers="fit", noise="per-condition"), 0.9
    panels = plots.plot_new_condition(model, [[0.4]], [value], steps=[1], inputs=[0.5])
    latents, density = panels[0, 0].lines[0].get_data()
    points = np.full((len(latents), 1), 0.4)
    at, deviation = model.predict_at_latent(points, latents[:, None], return_std=True, include_noise=False)
    log_noise = np.log(model.model_.scaling.variance(np.asarray(model.model_.posterior.parameters.noise_variance)))
    z = np.linspace(-7, 7, 1001)[:, None]
    total = jittered(model, np.sqrt(deviation**2 + np.exp(log_noise.mean() + log_noise.std() * z)))
    expected = logsumexp(norm.logpdf(z) + norm.logpdf(value, at, total), axis=0) + norm.logpdf(latents)
    assert_allclose(density, np.exp(expected - expected.max()), atol=1e-5)


def test_regions_of_two_latents_before_any_point_are_discs(plants, monkeypatch):
    monkeypatch.setattr("lvmogp.plots.latents._N_NOISE_NODES", 2)  # nothing depends on the noise, and it is quick
    above = plots.plot_new_condition(plants, [[1.0, 1.0]], [4.0], steps=[0], inputs=[0.5])[0, 0]
    _, edges = (item for item in above.collections if isinstance(item, QuadContourSet))
    for path, mass in zip(edges.get_paths(), (0.95, 0.5), strict=True):
        radius = np.linalg.norm(path.vertices, axis=1)
        assert_allclose(radius, np.sqrt(-2 * np.log(1 - mass)), rtol=0.03)
    assert {text.get_text() for text in above.texts} == {"95 %", "50 %"}


@pytest.mark.parametrize(("answers", "n_latent"), [("draws", 1), pytest.param("fit", 2, marks=pytest.mark.long)])
def test_latents_that_have_no_density_are_shown_by_their_particles(answers, n_latent):
    """Those of draws, and those beside which a feature is missing."""
    features = [np.nan] if answers == "fit" else None
    model = forgetting(fitted("long", answers=answers, n_latent=n_latent, features=answers == "fit"))
    above = plots.plot_new_condition(model, *NEW_POINTS, features=features, steps=[2], inputs=[0.5])[0, 0]
    condition = model.add_condition("new", *NEW_POINTS, features=features).model_.added["new"].condition
    turns, weights = model.model_.ensemble.rotations, condition.weights.reshape(-1)
    latents = np.concatenate([own @ turn for own, turn in zip(condition.latents, turns, strict=True)])
    if n_latent == 2:
        (points,) = above.collections
        assert_allclose(points.get_sizes() / points.get_sizes().sum(), weights, atol=1e-12)
        assert_allclose(points.get_offsets(), latents[:, :2])
        return
    grid, density = above.lines[0].get_data()
    mean, size = weights @ latents[:, 0], 1 / np.sum(weights**2)
    variance = weights @ (latents[:, 0] - mean) ** 2 / (1 - 1 / size)
    smoothed = norm.pdf(grid[:, None], latents[:, 0], np.sqrt(variance) * size**-0.2) @ weights  # Scott's rule
    assert_allclose(density, smoothed / smoothed.max(), atol=1e-9)


def test_a_new_condition_on_given_axes_or_after_each_of_four_points_and_all(waves, monkeypatch):
    axes = plt.subplots(2, 1)[1]
    panels = plots.plot_new_condition(waves, *NEW_POINTS, steps=[2], inputs=[0.5, 0.6], axes=axes)
    assert panels.ravel().tolist() == axes.tolist()
    assert plt.get_fignums() == [1]
    assert_allclose(axes[1].lines[0].get_ydata(), waves.predict([[0.5], [0.6]], "new"))

    def add(self, name, X, y, *, features):
        entry = self.model_.added["new"]._replace(inputs=X, outputs=y)
        return changed(self, added={**self.model_.added, name: entry})

    monkeypatch.setattr(LVMOGPRegressor, "add_condition", add)
    panels = plots.plot_new_condition(waves, np.linspace(0, 2, 6)[:, None], np.arange(6.0), inputs=[0.5])
    assert [len(ax.lines[1].get_xdata()) for ax in panels[1]] == [0, 1, 2, 3, 4, 6]


TWO = [[[0.4, 1.0], [1.5, 2.0]], [0.9, -0.2]]  # observations of two inputs


def test_a_surface_over_two_inputs_shows_mean_deviation_and_data(plants, waves, ax):
    before = plants.model_
    assert plots.plot_surface(plants, "b", along=("water", "day"), ax=ax) is ax
    inputs, outputs = plots.observed(plants, "b")
    water, day = (np.linspace(column.min(), column.max(), 50) for column in plants.model_.observations.inputs.T[::-1])
    points = np.column_stack([np.repeat(day, 50), np.tile(water, 50)])
    mean, deviation = plants.predict(points, "b", return_std=True, include_noise=False)
    filled, lines = (item for item in ax.collections if isinstance(item, QuadContourSet))
    assert_allclose([filled.zmin, filled.zmax], [mean.min(), mean.max()])
    assert_allclose([lines.zmin, lines.zmax], [deviation.min(), deviation.max()])
    assert filled.levels[0] <= min(mean.min(), outputs.min())
    assert filled.levels[-1] >= max(mean.max(), outputs.max())
    coloured = [item for item in ax.collections if isinstance(item, PathCollection)][-1]
    assert_array_equal(coloured.get_array(), outputs)
    assert_allclose(coloured.get_offsets(), inputs[:, ::-1])
    assert coloured.norm.vmax == filled.norm.vmax
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("water", "day")
    assert isinstance(ax.yaxis.get_major_formatter(), mdates.ConciseDateFormatter)
    assert plants.model_ is before
    bare = plots.plot_surface(plants, "b", data=False, colour_bar=False)
    assert sum(len(item.get_offsets()) for item in bare.collections if isinstance(item, PathCollection)) == 0
    assert bare.figure.axes == [bare]
    with pytest.raises(SettingError, match="needs a model of at least two inputs, this one has one"):
        plots.plot_surface(waves, "a")


@pytest.mark.parametrize(
    ("picture", "given", "options", "error", "words"),
    [
        ("curves", [["a"]], {"along": "wind"}, SettingError, r"no input 'wind'; .* names \['day', 'water'\]"),
        ("curves", [["a"]], {"along": 2}, SettingError, "a number from 0 to 1"),
        ("curves", [["a"]], {"at": {"wind": 1.0}}, SettingError, "no input 'wind'"),
        ("curves", [["a"]], {"at": {"water": [1.0, 2.0]}}, SettingError, "'water' must be held at one finite value"),
        ("curves", [["a"]], {"at": {"water": "much"}}, DataError, "must be numbers or dates, got 'much'"),
        ("curves", [["a"]], {"inputs": []}, DataError, "inputs must hold at least one value"),
        ("curves", ["a"], {}, SettingError, r"must be a list of ids, got the string 'a'; write \['a'\]"),
        ("curves", [["z"]], {}, UnknownConditionError, "'z'"),
        ("latents", [range(5)], {"dimension": 3}, SettingError, "dimension must be a number from 1 to 2, got 3"),
        ("latent_space", [0], {}, SettingError, "one or two different numbers from 1 to 2"),
        ("latent_space", [3], {}, SettingError, "one or two different numbers from 1 to 2"),
        ("latent_space", [(1, 1)], {}, SettingError, "one or two different numbers from 1 to 2"),
        ("latent_space", [(1, 2, 2)], {}, SettingError, "one or two different numbers from 1 to 2"),
        ("latent_space", [1], {"labels": ["z"]}, UnknownConditionError, "'z'"),
        ("new_condition", TWO, {"steps": [3]}, SettingError, "steps must be whole numbers from 0 to 2"),
        ("new_condition", [TWO[0], [1.0]], {}, DataError, "X has 2 rows but y has 1"),
        ("new_condition", [TWO[0], [1.0, np.nan]], {}, DataError, "one finite output for each of the 2 rows"),
        ("new_condition", TWO, {"axes": np.empty((2, 2))}, SettingError, r"axes must have the shape \(2, 3\)"),
        ("surface", ["a"], {"along": ("day", 0)}, SettingError, "two different inputs"),
        ("surface", ["a"], {"along": "day"}, SettingError, "must name two inputs, got 'day'"),
    ],
)
def test_pictures_that_cannot_be_drawn(plants, picture, given, options, error, words):
    with pytest.raises(error, match=words):
        getattr(plots, f"plot_{picture}")(plants, *given, **options)
    assert plt.get_fignums() == []
