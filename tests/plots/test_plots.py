"""Pictures show what the model predicts: the numbers in the artists are compared with the library's own."""

import copy
import subprocess
import sys

import matplotlib as mpl
import matplotlib.dates as mdates
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from drawn_models import fitted, forgetting
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.colors import same_color
from matplotlib.contour import QuadContourSet
from matplotlib.patches import Ellipse
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp
from scipy.stats import norm

from lvmogp import DataError, LVMOGPRegressor, SettingError, UnknownConditionError
from lvmogp.algebra.linalg import smallest_jitter
from lvmogp.fitted.model import known_of
from lvmogp.inference.optimise import Status
from lvmogp.insight.summary import input_relevance, latent_relevance
from lvmogp.plots import (
    COLOURS,
    default_grid,
    observed,
    plot_calibration,
    plot_convergence,
    plot_curve,
    plot_curves,
    plot_data,
    plot_latent_space,
    plot_latents,
    plot_new_condition,
    plot_relevance,
    plot_surface,
)
from lvmogp.plots.labels import label_points
from lvmogp.plots.latent_density import log_latent_density

mpl.use("Agg")

NAMES = ["a", "b", "c", "d"]
SPEEDS = np.linspace(3.0, 30.0, 8)[:, None]
FRICTIONS = np.array([0.3, 0.5, 0.7, 0.9])
DAYS = pd.date_range("2024-03-01", periods=40, freq="D")
NEW_POINTS = ([[20.0], [12.0]], [34.0, 13.0])


@pytest.fixture(scope="module")
def brakes():
    """A grid: one input without a name, one latent, with one condition added."""
    rng = np.random.default_rng(0)
    outputs = SPEEDS**2 / (20 * FRICTIONS) + 0.3 * rng.standard_normal((8, 4))
    model = LVMOGPRegressor(1, n_restarts=1, n_inducing_inputs=5, n_inducing_latents=4)
    return model.fit(SPEEDS, outputs, conditions=NAMES).add_condition("new", *NEW_POINTS)


@pytest.fixture(scope="module")
def plants():
    """Long form: a date and a number as inputs, a named output, two latents, noise of each condition."""
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"day": DAYS, "water": rng.exponential(0.8, 40).round(1)})
    ids = np.resize(NAMES, 40)
    height = np.arange(40) / 10 * np.resize([1, 2, 1, 2], 40) + table["water"] * np.resize([1, 1, 3, 3], 40)
    height = (height + rng.normal(0, np.resize([0.1, 0.2, 0.1, 0.4], 40))).rename("height (cm)")
    model = LVMOGPRegressor(
        2, noise="per-condition", n_restarts=1, n_inducing_inputs=5, n_inducing_latents=4, max_iter=60
    )
    with pytest.warns(match="did not converge"):
        return model.fit(table, height, conditions=ids)


@pytest.fixture(autouse=True)
def _no_figures_left():
    yield
    plt.close("all")


@pytest.fixture
def ax():
    return plt.subplots()[1]


def days(*dates):
    return (np.array(dates, dtype="datetime64[D]") - np.datetime64(0, "D")).astype(float)


def band(ax):
    """Lower and upper edge of the only band on the axes, at the places of its line."""
    (polygon,) = [item for item in ax.collections if isinstance(item, PolyCollection)]
    corners = polygon.get_paths()[0].vertices
    n = (len(corners) - 3) // 2  # along the lower edge, back along the upper one, with closing corners
    return corners[1 : n + 1, 1], corners[n + 2 : 2 * n + 2, 1][::-1]


def assert_unchanged(model, before):
    assert model.model_ is before


# Curves and data


@pytest.mark.parametrize("include_noise", [False, True])
def test_a_curve_is_the_prediction_and_its_band_the_interval(brakes, ax, include_noise):
    before = brakes.model_
    assert plot_curve(brakes, "b", level=0.8, include_noise=include_noise, ax=ax) is ax
    grid, mean = ax.lines[0].get_data()
    assert_allclose(grid, np.linspace(3, 30, 200))
    assert_allclose(mean, brakes.predict(grid[:, None], "b"))
    expected = brakes.predict_interval(grid[:, None], "b", level=0.8, include_noise=include_noise)
    assert_allclose(band(ax), expected)
    assert_unchanged(brakes, before)


def test_data_are_the_observations(brakes, ax):
    plot_data(brakes, "c", marker="s", ax=ax)
    chosen = brakes.model_.observations.conditions == 2
    assert_array_equal(ax.lines[0].get_xdata(), brakes.model_.observations.inputs[chosen, 0])
    assert_array_equal(ax.lines[0].get_ydata(), brakes.model_.observations.outputs[chosen])
    plot_data(brakes, "new", ax=ax)
    assert_array_equal(ax.lines[1].get_ydata(), NEW_POINTS[1])


def test_parts_draw_on_the_current_axes_and_pictures_on_their_own(brakes, ax):
    assert plot_curve(brakes, "a") is ax
    assert plot_data(brakes, "a") is ax
    assert plot_latents(brakes, FRICTIONS) is ax
    assert plot_curves(brakes, ["a"]) is not ax
    n_figures = len(plt.get_fignums())
    assert plot_curves(brakes, ["a"], ax=ax) is ax
    assert len(plt.get_fignums()) == n_figures


def test_curves_of_chosen_conditions_in_different_styles(brakes, ax):
    plot_curves(brakes, ["d", "a", "new"], ax=ax)
    curves = [line for line in ax.lines if line.get_label() in brakes.conditions_]
    assert [line.get_label() for line in curves] == ["d", "a", "new"]
    for line in curves:
        grid, mean = line.get_data()
        assert_allclose(mean, brakes.predict(np.asarray(grid)[:, None], line.get_label()))
    assert len({(line.get_color(), line.get_marker(), line.get_linestyle()) for line in curves}) == 3
    assert same_color(curves[-1].get_color(), "black")
    points = [line for line in ax.lines if line not in curves]
    assert [len(line.get_xdata()) for line in points] == [8, 8, 2]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["d", "a", "new"]


def test_all_conditions_unless_chosen_and_of_many_those_across_the_latent_space(brakes):
    shown = [text.get_text() for text in plot_curves(brakes, inputs=[5.0]).get_legend().get_texts()]
    assert shown == ["a", "b", "c", "d", "new"]
    many = copy.copy(brakes)
    entry = brakes.model_.added["new"]
    many.model_ = brakes.model_._replace(added={f"new {number}": entry for number in range(20)})
    shown = [text.get_text() for text in plot_curves(many, inputs=[5.0]).get_legend().get_texts()]
    ends = many.latents_.sort_values("mean_1", kind="stable")["condition"].iloc[[0, -1]]
    assert len(shown) == 12
    assert set(ends) <= set(shown)


def test_one_input_runs_and_the_others_are_held(plants, ax):
    plot_curves(plants, ["b"], along="water", at={"day": np.datetime64("2024-03-05")}, inputs=[0.5, 1.5], ax=ax)
    points = np.column_stack([np.repeat(days("2024-03-05"), 2), [0.5, 1.5]])
    assert_allclose(ax.lines[0].get_ydata(), plants.predict(points, "b"))
    assert ax.get_title() == "at day = 2024-03-05 00:00:00"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("water", "height (cm)")


def test_inputs_are_held_at_their_medians_unless_told(plants, ax):
    plot_curve(plants, "b", inputs=days("2024-03-05", "2024-03-20"), ax=ax)
    water = plants.model_.observations.inputs[:, 1]
    assert abs(np.median(water) - water.mean()) > 0.01
    points = np.column_stack([days("2024-03-05", "2024-03-20"), np.full(2, np.median(water))])
    assert_allclose(ax.lines[0].get_ydata(), plants.predict(points, "b"))


def test_observations_away_from_the_slice_are_hollow(plants, ax):
    inputs, outputs = observed(plants, "a")
    value = inputs[2, 1]
    near = np.abs(inputs[:, 1] - value) <= 0.1 * plants.model_.scaling.input_scale[1]
    assert 0 < near.sum() < len(near)
    plot_data(plants, "a", along="day", at={"water": value}, ax=ax)
    hollow, filled = ax.lines
    assert hollow.get_markerfacecolor() == "none"
    assert_array_equal(hollow.get_ydata(), outputs[~near])
    assert same_color(filled.get_markerfacecolor(), COLOURS[0])
    assert_array_equal(filled.get_ydata(), outputs[near])


def test_dates_are_written_as_dates(plants, ax):
    moments = np.array(["2024-03-02", "2024-03-20"], dtype="datetime64[D]")
    plot_curves(plants, ["a"], along="day", inputs=moments, ax=ax)
    assert_allclose(ax.lines[0].get_xdata(), days(*moments))
    assert_allclose(mdates.date2num(moments), days(*moments))  # matplotlib counts as we do
    assert isinstance(ax.xaxis.get_major_formatter(), mdates.ConciseDateFormatter)
    assert ax.get_xlabel() == "day"


def test_the_grid_covers_the_data_or_where_they_are_not_kept_two_deviations(brakes):
    assert_allclose(default_grid(brakes)[[0, -1]], [3, 30])
    bare = copy.copy(brakes)
    bare.model_ = brakes.model_._replace(observations=None)
    mean, deviation = SPEEDS.mean(), SPEEDS.std()
    assert_allclose(default_grid(bare)[[0, -1]], [mean - 2 * deviation, mean + 2 * deviation])
    assert len(plot_data(bare, "a").lines[0].get_xdata()) == 0


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"along": "wind"}, SettingError, r"no input 'wind'; give one of the names \['day', 'water'\] or a number"),
        ({"along": 2}, SettingError, "a number from 0 to 1"),
        ({"at": {"wind": 1.0}}, SettingError, "no input 'wind'"),
        ({"at": {"water": [1.0, 2.0]}}, SettingError, "input 'water' must be held at one finite value"),
        ({"at": {"water": "much"}}, DataError, "must be numbers or dates, got 'much'"),
        ({"inputs": []}, DataError, "inputs must hold at least one value"),
        ({"conditions": "a"}, SettingError, r"must be a list of ids, got the string 'a'; write \['a'\]"),
        ({"conditions": ["z"]}, UnknownConditionError, "'z'"),
    ],
)
def test_curves_that_cannot_be_drawn(plants, arguments, error, words):
    with pytest.raises(error, match=words):
        plot_curves(plants, **({"conditions": ["a"]} | arguments))
    assert plt.get_fignums() == []


# The latent space


def test_one_latent_is_a_list_with_bars(brakes, ax):
    assert plot_latent_space(brakes, n_sd=3.0, ax=ax) is ax
    table = brakes.latents_.sort_values("mean_1").reset_index(drop=True)
    assert [text.get_text() for text in ax.get_yticklabels()] == table["condition"].tolist()
    segments = {}
    for container in ax.containers:
        for segment in container.lines[2][0].get_segments():
            segments[round(segment[0, 1])] = segment[:, 0]
    for place, row in table.iterrows():
        assert_allclose(segments[place], [row["mean_1"] - 3 * row["sd_1"], row["mean_1"] + 3 * row["sd_1"]])
    added = ax.containers[1].lines[0]
    assert added.get_marker() == "*"
    assert_array_equal(added.get_ydata(), np.flatnonzero(table["added"]))


def test_two_latents_are_points_with_ellipses(plants, ax):
    plot_latent_space(plants, (2, 1), ax=ax)
    table = plants.latents_
    ellipses = [patch for patch in ax.patches if isinstance(patch, Ellipse)]
    assert_allclose([ellipse.center for ellipse in ellipses], table[["mean_2", "mean_1"]])
    assert_allclose([ellipse.width for ellipse in ellipses], 4 * table["sd_2"])
    assert_allclose([ellipse.height for ellipse in ellipses], 4 * table["sd_1"])
    assert_allclose(np.transpose(ax.lines[0].get_data()), table[["mean_2", "mean_1"]])
    assert sorted(text.get_text() for text in ax.texts) == NAMES
    assert ax.get_xlabel() == "latent dimension 2"
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    for ellipse in ellipses:
        assert left <= ellipse.center[0] - ellipse.width / 2
        assert ellipse.center[0] + ellipse.width / 2 <= right
        assert bottom <= ellipse.center[1] - ellipse.height / 2
        assert ellipse.center[1] + ellipse.height / 2 <= top


@pytest.mark.parametrize(("labels", "expected"), [(False, []), (["b", "d"], ["b", "d"]), (True, NAMES)])
def test_labels_of_the_latent_space_on_request(plants, labels, expected):
    assert sorted(text.get_text() for text in plot_latent_space(plants, labels=labels).texts) == expected


@pytest.mark.parametrize("dimensions", [0, 3, (1, 1), (1, 2, 2)])
def test_latent_dimensions_that_are_not_there(plants, dimensions):
    with pytest.raises(SettingError, match="one or two different numbers from 1 to 2"):
        plot_latent_space(plants, dimensions)


def test_labels_of_a_condition_that_is_not_there(plants):
    with pytest.raises(UnknownConditionError, match="'z'"):
        plot_latent_space(plants, labels=["z"])


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


# Checks


def test_relevance_is_that_of_the_diagnostics(plants, ax):
    plot_relevance(plants, ax=ax)
    widths = np.array([bar.get_width() for bar in ax.patches])
    assert_allclose(widths[:2], input_relevance(plants)["relevance"])
    assert_allclose(widths[2:], latent_relevance(plants)["relevance"])
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert names == ["day", "water", "latent dimension 1", "latent dimension 2"]


def restarts_of(model, *histories):
    pattern = model.outcome_.restarts[0]._replace(status=Status.CONVERGED)
    restarts = tuple(
        pattern._replace(recipe=f"recipe {number}", bound=history[-1], history=tuple(history))
        for number, history in enumerate(histories)
    )
    changed = copy.copy(model)
    fit = model.model_.fit
    changed.model_ = model.model_._replace(fit=fit._replace(outcome=fit.outcome._replace(restarts=restarts)))
    return changed


def test_convergence_shows_every_start_and_marks_the_best(brakes, ax):
    histories = ([-900.0, -20.0, 3.0, 4.0], [-500.0, 7.0, 8.0], [-800.0, -30.0, -3.0, -2.0, -1.0])
    plot_convergence(restarts_of(brakes, *histories), ax=ax)
    for line, number in zip(ax.lines, (1, 0, 2), strict=False):
        assert_array_equal(line.get_ydata(), histories[number])
        assert_array_equal(line.get_xdata(), np.arange(1, len(histories[number]) + 1))
    assert [line.get_linewidth() > 1.5 for line in ax.lines[:3]] == [True, False, False]
    assert ax.lines[3].get_marker() == "*"
    assert ax.lines[3].get_data() == ([3], [8.0])
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["recipe 1: 8.00 (best)", "recipe 0: 4.00", "recipe 2: −1.00"]
    low, high = ax.get_ylim()
    assert -500 < low < -3  # the second half of every start, not the first rise
    assert 8 < high < 20


def test_convergence_needs_a_history(brakes):
    with pytest.raises(DataError, match="no history"):
        plot_convergence(restarts_of(brakes))


def held_out(seed=5):
    rng = np.random.default_rng(seed)
    inputs = rng.uniform(3, 30, (15, 1))
    outputs = inputs**2 / (20 * FRICTIONS) + rng.standard_normal((15, 4))
    outputs[3, 2] = np.nan
    return inputs, outputs


def test_calibration_counts_observations_inside_their_intervals(brakes, ax):
    inputs, outputs = held_out()
    levels = [0.3, 0.8]
    plot_calibration(brakes, inputs, outputs, levels=levels, ax=ax)
    known = np.isfinite(outputs)
    for level, share in zip(levels, ax.lines[1].get_ydata(), strict=True):
        lower, upper = brakes.predict_interval(inputs, level=level)
        assert share == np.mean(((lower <= outputs) & (outputs <= upper))[known])
    lower, upper = band(ax)
    half = 1.96 * np.sqrt(0.3 * 0.7 / 59)  # conditions are too few for more than that
    assert_allclose([lower[1], upper[1]], [0.3 - half, 0.3 + half])


def test_calibration_that_cannot_be_drawn(brakes):
    inputs, outputs = held_out()
    with pytest.raises(SettingError, match="levels must be numbers between 0 and 1"):
        plot_calibration(brakes, inputs, outputs, levels=[0.5, 1.0])
    with pytest.raises(DataError, match="no held-out observations"):
        plot_calibration(brakes, inputs, np.full(outputs.shape, np.nan))
    with pytest.raises(DataError, match="X has 15 rows but y has 14"):
        plot_calibration(brakes, inputs, outputs[1:])
    assert plt.get_fignums() == []


# A new condition


def jittered(model, deviation):
    """What a covariance of one observation and three empty places of unit variance gets from its factorisation."""
    scale = model.model_.scaling.output_scale
    variance = (deviation / scale) ** 2
    return scale * np.sqrt(variance + smallest_jitter(np.dtype(float)) * (variance + 3) / 4)


def test_a_new_condition_before_and_after_each_point(brakes):
    before = brakes.model_
    panels = plot_new_condition(brakes, *NEW_POINTS)
    assert panels.shape == (2, 3)
    titles = [ax.get_title() for ax in panels[0]]
    assert titles == ["before any observation", "after 1 observation", "after 2 observations"]
    # The last column is the condition that was added from the same points.
    grid, mean = panels[1, 2].lines[0].get_data()
    assert_allclose(mean, brakes.predict(np.asarray(grid)[:, None], "new"))
    assert_allclose(band(panels[1, 2]), brakes.predict_interval(np.asarray(grid)[:, None], "new", include_noise=False))
    assert_array_equal(panels[1, 1].lines[1].get_ydata(), NEW_POINTS[1][:1])
    # Above: the prior is standard normal; after one point Bayes' rule by hand, with the model's own predictions.
    latents, prior = panels[0, 0].lines[0].get_data()
    assert_allclose(prior, np.exp(-(latents**2) / 2), rtol=1e-6)
    latents, density = panels[0, 1].lines[0].get_data()
    point = np.tile(NEW_POINTS[0][0], (len(latents), 1))
    at, deviation = brakes.predict_at_latent(point, latents[:, None], return_std=True)
    expected = norm.logpdf(latents) + norm.logpdf(NEW_POINTS[1][0], at, jittered(brakes, deviation))
    assert_allclose(density, np.exp(expected - expected.max()), atol=1e-6)
    assert_unchanged(brakes, before)


def test_noise_of_its_own_is_integrated_out(plants):
    # One point: p(h | y) ∝ N(h; 0, I) ∫ N(y; m(h), v(h) + σ²) N(log σ²; prior) d log σ², by the trapezoid rule.
    point, value = [[days("2024-03-20")[0], 1.0]], 4.0
    model = copy.copy(plants).add_condition("new", point, [value]).model_
    latents = np.random.default_rng(2).normal(size=(7, 2))
    found = log_latent_density(model.ensemble, model.added["new"].condition.seen, latents, known_of(model, None))
    at, deviation = plants.predict_at_latent(np.tile(point, (7, 1)), latents, return_std=True, include_noise=False)
    log_noise = np.log(model.scaling.variance(np.asarray(model.posterior.parameters.noise_variance)))
    z = np.linspace(-7, 7, 2001)[:, None]
    total = jittered(plants, np.sqrt(deviation**2 + np.exp(log_noise.mean() + log_noise.std() * z)))
    expected = logsumexp(norm.logpdf(z) + norm.logpdf(value, at, total), axis=0)
    expected += norm.logpdf(latents).sum(axis=1)
    assert_allclose(found - found[0], expected - expected[0], atol=1e-5)


def test_regions_of_two_latents_before_any_point_are_discs(plants):
    above = plot_new_condition(plants, [[days("2024-03-20")[0], 1.0]], [4.0], steps=[0])[0, 0]
    _, edges = (item for item in above.collections if isinstance(item, QuadContourSet))
    for path, mass in zip(edges.get_paths(), (0.95, 0.5), strict=True):
        radius = np.linalg.norm(path.vertices, axis=1)
        assert_allclose(radius, np.sqrt(-2 * np.log(1 - mass)), rtol=0.03)
    assert {text.get_text() for text in above.texts} == {"95 %", "50 %"}


def aligned_particles(model, name):
    """Latents of all particles of an added condition, turned as their draws are, and their weights."""
    condition, ensemble = model.model_.added[name].condition, model.model_.ensemble
    turned = [own @ turn for own, turn in zip(condition.latents, ensemble.rotations, strict=True)]
    return np.concatenate(turned), condition.weights.reshape(-1)


@pytest.mark.parametrize(("answers", "n_latent"), [("draws", 1), ("draws", 2), ("fit", 1)])
def test_latents_that_have_no_density_are_shown_by_their_particles(answers, n_latent):
    model = forgetting(fitted("long", answers=answers, n_latent=n_latent, features=True))
    point = ([[0.4], [1.5]], [0.9, -0.2])
    above = plot_new_condition(model, *point, features=[np.nan], steps=[2])[0, 0]
    latents, weights = aligned_particles(model.add_condition("new", *point, features=[np.nan]), "new")
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


def test_a_new_condition_on_given_axes(brakes):
    axes = plt.subplots(2, 1)[1]
    panels = plot_new_condition(brakes, *NEW_POINTS, steps=[2], inputs=[5.0, 6.0], axes=axes)
    assert panels.ravel().tolist() == axes.tolist()
    assert plt.get_fignums() == [1]
    assert_allclose(axes[1].lines[0].get_ydata(), brakes.predict([[5.0], [6.0]], "new"))


def test_unless_told_a_new_condition_is_shown_after_each_of_four_points_and_all(brakes):
    speeds = np.linspace(5, 25, 6)
    panels = plot_new_condition(brakes, speeds[:, None], speeds**2 / 12, inputs=[5.0])
    shown = [len(ax.lines[1].get_xdata()) for ax in panels[1]]
    assert shown == [0, 1, 2, 3, 4, 6]


def test_a_new_condition_that_cannot_be_drawn(brakes):
    with pytest.raises(SettingError, match="steps must be whole numbers from 0 to 2"):
        plot_new_condition(brakes, *NEW_POINTS, steps=[3])
    with pytest.raises(DataError, match="X has 2 rows but y has 1"):
        plot_new_condition(brakes, NEW_POINTS[0], [1.0])
    with pytest.raises(DataError, match="one finite output for each of the 2 rows"):
        plot_new_condition(brakes, NEW_POINTS[0], [1.0, np.nan])
    with pytest.raises(SettingError, match=r"axes must have the shape \(2, 3\)"):
        plot_new_condition(brakes, *NEW_POINTS, axes=plt.subplots(2, 2)[1])


# Surfaces


def test_a_surface_shows_mean_deviation_and_data(plants, ax):
    before = plants.model_
    assert plot_surface(plants, "b", along=("water", "day"), ax=ax) is ax
    inputs, outputs = observed(plants, "b")
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
    assert_unchanged(plants, before)


def test_surfaces_that_cannot_be_drawn(brakes, plants):
    with pytest.raises(SettingError, match="needs a model of at least two inputs, this one has one"):
        plot_surface(brakes, "a")
    with pytest.raises(SettingError, match="two different inputs"):
        plot_surface(plants, "a", along=("day", 0))
    with pytest.raises(SettingError, match="must name two inputs, got 'day'"):
        plot_surface(plants, "a", along="day")


def test_the_library_does_not_wait_for_matplotlib():
    code = "import sys, lvmogp; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\n"
