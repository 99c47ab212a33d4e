"""What a model says about itself agrees with loops over its predictions."""

import json

import drawn_models as drawn
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn_models import fitted, with_draws
from numpy.testing import assert_allclose
from papers_model import PapersModel
from scipy.special import logsumexp
from scipy.stats import norm
from sklearn.exceptions import NotFittedError
from small_models import build, rbf, replace

from lvmogp import LVMOGPRegressor
from lvmogp.conditions.search import normal_nodes
from lvmogp.errors import SettingError
from lvmogp.fitted.model import fitted_model
from lvmogp.inference.optimise import Status
from lvmogp.insight import summary as insight
from lvmogp.model.layouts import standardised
from lvmogp.model.parameters import Kernels, Term, plain_kernels


def holding(model, inner):
    """A copy of the estimator that holds another model."""
    copied = drawn.forgetting(model)
    copied.model_ = inner
    return copied


def changed(model, **parts):
    return holding(model, model.model_._replace(**parts))


def waves_of(latent_lengthscale=1.4, kernels=None):
    """A model of named columns of which the second does nothing, having a very long lengthscale."""
    model = fitted("long", answers="fit", n_columns=2)
    own, columns = model.model_, ("x", "idle")
    kernels = kernels or plain_kernels(rbf([0.6, 1e4], 1.1), rbf([latent_lengthscale], 0.9))
    posterior = build(replace(own.posterior.parameters, kernels=kernels), standardised(own.observations, own.scaling))
    schema = own.schema._replace(columns=columns, output_name="height")
    return holding(model, fitted_model(schema, own.scaling, own.fit._replace(posterior=posterior)))


@pytest.fixture(scope="module")
def waves():
    return waves_of()


@pytest.mark.parametrize("question", ["summary", "remarks", "noise", "leave_out", "input_relevance"])
def test_a_model_that_is_not_fitted_says_so(question):
    with pytest.raises(NotFittedError, match="this LVMOGPRegressor is not fitted yet; call fit"):
        getattr(insight, question)(PapersModel())


# Relevance


def relevance(model):
    return np.array([*insight.input_relevance(model)["relevance"], *insight.latent_relevance(model)["relevance"]])


def test_relevance_is_the_total_effect_of_each_coordinate(waves):
    model = waves.model_
    inputs, latents = model.observations.inputs, np.asarray(model.posterior.parameters.latent_mean)
    points = np.hstack([inputs, latents[model.observations.conditions]])

    def predicted(rows):
        return waves.predict_at_latent(rows[:, :2], rows[:, 2:])

    # All pairs of observations, where the library draws some.
    here, other = np.repeat(points, len(points), axis=0), np.tile(points, (len(points), 1))
    values, expected = predicted(here), []
    for q in range(3):
        moved = here.copy()
        moved[:, q] = other[:, q]
        expected.append(np.mean((predicted(moved) - values) ** 2) / (2 * np.var(values)))
    found = relevance(waves)
    assert_allclose(found, expected, rtol=0.08, atol=1e-4)  # four standard errors of 4096 pairs
    assert np.all(found[[0, 2]] > 0.2)
    assert found[1] < 1e-6


def test_relevance_under_draws_is_the_mean_of_that_under_each():
    model = fitted("long", n_columns=2, n_latent=2)
    draws = drawn.made_draws(model.model_, n_draws=3)
    each = []
    for number in range(3):
        one = jax.tree.map(lambda leaf, number=number: leaf[number : number + 1], draws)
        alone = with_draws(model.model_, eqx.tree_at(lambda tree: tree.log_weight, one, jnp.zeros(1)))
        each.append(relevance(holding(model, alone)))
    some = holding(model, with_draws(model.model_, draws))
    assert_allclose(relevance(some), np.exp(np.asarray(draws.log_weight)) @ each, rtol=1e-6)


def test_relevance_needs_no_data(waves, tmp_path):
    waves.save(tmp_path / "m", include_data=False)
    found = insight.input_relevance(LVMOGPRegressor.load(tmp_path / "m"))
    assert list(found["input"]) == ["x", "idle"]
    assert found["relevance"][0] > 0.2
    assert found["relevance"][1] < 1e-6


def test_nothing_matters_where_all_predictions_are_alike(waves):
    posterior = waves.model_.posterior
    flat = eqx.tree_at(lambda fit: fit.mean, posterior, jnp.zeros_like(posterior.mean))
    silent = with_draws(waves.model_._replace(fit=waves.model_.fit._replace(posterior=flat)), None)
    assert list(relevance(holding(waves, silent))) == [0, 0, 0]


# Noise


@pytest.mark.parametrize("answers", ["fit", "draws"])
def test_noise_is_what_separates_an_observation_from_the_function(answers):
    model = fitted("long", answers=answers, noise="per-condition")
    found = insight.noise(model)
    for condition, own in found.itertuples(index=False):
        of_observation, of_function = (
            model.predict([[0.5]], condition, return_std=True, include_noise=include)[1] for include in (True, False)
        )
        assert_allclose(own, np.sqrt(of_observation**2 - of_function**2)[0], rtol=1e-6)


# Observations left out

LEFT_OUT = {
    "long": {"form": "long", "answers": "fit", "noise": "per-condition"},
    "grid": {"form": "grid", "answers": "fit", "transform": "log"},
    "draws": {"form": "long", "error": 0.2},
    "draws on a grid": {"form": "grid"},
}


def left_out_by_hand(model):
    """Weights, means and variances of each observation given all others; on a grid, given all other inputs."""
    own = model.model_
    seen, x = own.observations, own.scaling.inputs(own.observations.inputs)
    found = []
    for row, number in enumerate(seen.conditions):
        out = np.all(seen.inputs == seen.inputs[row], axis=1) if seen.is_grid else np.arange(len(x)) == row
        dense = drawn.dense_ensemble(own._replace(schema=seen.some(~out)))
        points = drawn.trained_points(dense, number, normal_nodes(128, dense.latents.shape[2]), np.full(128, 1 / 128))
        mixture = drawn.mixed(dense, drawn.DenseCondition(points, drawn.nothing_seen(1)), x[row : row + 1])
        errors = 0.0 if seen.errors is None else (seen.errors[row] / own.scaling.output_scale) ** 2
        found.append((mixture.weights, mixture.means[:, 0], mixture.variances(include_noise=True)[:, 0] + errors))
    return found


@pytest.mark.parametrize("case", ["long", "draws", "draws on a grid", pytest.param("grid", marks=pytest.mark.long)])
def test_observations_left_out_are_predicted_from_the_rest(case):
    model = fitted(**LEFT_OUT[case])
    scaling, actual = model.model_.scaling, model.model_.observations.outputs
    below, density, predicted = [], [], []
    slopes = 1 / actual if scaling.transform else np.ones(len(actual))
    rows = zip(left_out_by_hand(model), scaling.outputs(actual), slopes / scaling.output_scale, strict=True)
    for (weights, means, variances), y, slope in rows:
        below.append(weights @ norm.cdf(y, means, np.sqrt(variances)))
        density.append(logsumexp(norm.logpdf(y, means, np.sqrt(variances)), b=weights) + np.log(slope))
        location, scale = scaling.output_mean + scaling.output_scale * means, scaling.output_scale**2 * variances
        predicted.append(weights @ (np.exp(location + scale / 2) if scaling.transform else location))
    whole = insight.leave_out(model, n_folds=1000)
    found = insight.leave_out_calibration(model, levels=[0.95], n_folds=1000)
    assert_allclose(found.probability_below, below, rtol=1e-5, atol=1e-8)
    expected = {
        "rmse": np.sqrt(np.mean((np.array(predicted) - actual) ** 2)),
        "coverage": np.mean(np.abs(np.array(below) - 0.5) <= 0.475),
        "log_density": np.mean(density),
        "spread": np.std(actual),
        "n_observations": len(actual),
    }
    for name, value in expected.items():
        assert getattr(whole, name) == pytest.approx(value, rel=1e-6)
    assert list(found.by_condition["condition"]) == list(model.model_.ids)


def test_fewer_folds_leave_less_to_predict_from():
    model = fitted(**LEFT_OUT["long"])
    errors = [insight.leave_out(model, **folds).rmse for folds in ({}, {"n_folds": 5}, {"n_folds": 2})]
    assert errors[0] == errors[1] != errors[2]


def test_what_cannot_be_checked_by_leaving_out(waves):
    unknown = changed(waves, schema=waves.model_.schema.without_rows())
    assert insight.leave_out(unknown) is insight.leave_out_calibration(unknown) is None
    grid = fitted("grid", answers="fit")
    seen = grid.model_.observations
    one_input = seen.some(np.all(seen.inputs == seen.inputs[0], axis=1))
    assert insight.leave_out(changed(grid, schema=one_input)) is None
    for check in (insight.leave_out, insight.leave_out_calibration):
        with pytest.raises(SettingError, match="n_folds must be a whole number from 2 on, got 1"):
            check(waves, n_folds=1)


# Remarks and summary


def with_outcome(model, **parts):
    fit = model.model_.fit
    return changed(model, fit=fit._replace(outcome=fit.outcome._replace(**parts)))


def with_noise(model, standard_deviations):
    """The noise of each condition as a share of the scale of the outputs."""
    ensemble = model.model_.ensemble
    variances = jnp.asarray(np.broadcast_to(standard_deviations, ensemble.noise.shape)) ** 2
    return changed(model, ensemble=eqx.tree_at(lambda tree: tree.noise, ensemble, variances))


def test_remarks_tell_of_the_fit(waves):
    (restart,) = waves.outcome_.restarts
    apart = [restart._replace(bound=bound) for bound in (4.0, 1.0, np.nan)]
    found = insight.remarks(
        with_outcome(waves, status=Status.ITERATION_LIMIT, jitter_latents=2e-4, restarts=(*apart, *apart[1:]))
    )
    assert found[0].startswith("The fit did not converge (")
    assert found[1].startswith("A jitter of 2e-04 of the variance was needed to keep the algebra stable; use fewer")
    assert found[2].startswith("Only one of 3 starts reached the best bound (4.0; the next 1.0); more starts")
    near = [restart._replace(bound=bound) for bound in (4.0, 2.1)]
    assert "Only one" not in " ".join(insight.remarks(with_outcome(waves, restarts=tuple(near))))


def test_remarks_tell_what_is_not_used(waves):
    text = " ".join(insight.remarks(waves))
    assert "Input 'idle' hardly matters (relevance 0.000)." in text
    assert not any(words in text for words in ("Input 'x'", "atent", "not converge", "left out"))
    alike = insight.remarks(waves_of(latent_lengthscale=1e4))
    assert "The conditions hardly differ: no latent dimension is used." in alike


def test_remarks_know_of_own_curves():
    over_inputs = rbf([0.6, 1e4], 1.1)
    unused = Kernels((Term(over_inputs, rbf([1e4], 0.9)),), own=over_inputs)
    words = "Conditions differ by their own curves alone: no latent dimension is used."
    assert words in insight.remarks(waves_of(kernels=unused))
    without_latents = Kernels((Term(over_inputs),), own=over_inputs)
    assert "atent" not in " ".join(insight.remarks(waves_of(kernels=without_latents)))


@pytest.mark.parametrize(
    ("deviations", "words"),
    [
        (0.98, "The noise is 96 % of the variance of the output: the inputs and conditions explain little."),
        (1e-4, "The noise is nearly zero. With exact data that is right; otherwise the model follows the noise."),
        ([0.1, 5e-4, 1, 1, 1], "The noise of condition 'b' is nearly zero; the model may follow the noise there."),
        (0.1, None),
    ],
)
def test_remarks_tell_of_the_noise(waves, deviations, words):
    about = [remark for remark in insight.remarks(with_noise(waves, deviations)) if remark.startswith("The noise")]
    assert about == ([] if words is None else [words])


def test_remarks_tell_of_observations(waves):
    seen = waves.model_.observations
    shuffled = np.random.default_rng(0).permutation(seen.outputs)
    text = " ".join(insight.remarks(changed(waves, schema=seen._replace(outputs=shuffled))))
    assert "Observations left out are predicted no better than by their mean." in text
    assert "% of the observations left out: they are too narrow. Try noise='per-condition'" in text
    rest = seen.some((seen.conditions != 2) & (np.arange(22) > 1))
    assert insight.remarks(changed(waves, schema=rest))[-2:] == [
        "condition 'c' had no observation; only the prior speaks for that.",
        "1 of 5 conditions had a single observation.",
    ]


def test_remarks_name_what_spans_orders_of_magnitude_until_it_is_decided_on(waves):
    seen = waves.model_.observations
    inputs = np.exp(2 * seen.inputs / seen.inputs.std(axis=0))
    spread = changed(waves, schema=seen._replace(inputs=inputs, outputs=np.exp(3 * seen.outputs)))

    def about(**settings):
        for name, value in ({"input_transform": None, "output_transform": None} | settings).items():
            setattr(spread, name, value)
        return [remark.split(" is positive")[0] for remark in insight.remarks(spread) if "magnitude" in remark]

    assert about() == ["Input 'x'", "Input 'idle'", "The output 'height'"]
    assert about(input_transform={"x": None}) == ["Input 'idle'", "The output 'height'"]
    assert about(input_transform={"x": "log"}, output_transform="sqrt") == ["Input 'idle'"]
    assert about(input_transform="auto") == ["The output 'height'"]
    spread.model_ = spread.model_._replace(schema=spread.model_.schema._replace(date_columns=("idle",)))
    assert about() == ["Input 'x'", "The output 'height'"]
    assert not any("magnitude" in remark for remark in insight.remarks(waves))


def test_the_summary_holds_what_json_can_hold(waves):
    found = insight.summary(waves)
    assert (found.n_observations, found.n_conditions, found.output) == (22, 5, "height")
    assert found.inputs == ["x", "idle"]
    assert found.bound == waves.outcome_.bound
    assert found.noise_sd == pytest.approx(np.sqrt(np.mean(found.noise["noise_sd"] ** 2)))
    document = json.loads(json.dumps(found.as_dict()))
    assert document["leave_out"]["rmse"] == found.leave_out.rmse
    assert document["noise"][1] == {"condition": "b", "noise_sd": found.noise["noise_sd"][1]}
    assert document["input_relevance"][0]["input"] == "x"
    assert document["variance_shares"][0] == {"condition": None, **found.variance_shares.iloc[0, 1:].to_dict()}
