"""What the settings that a user leaves open stand for."""

import dataclasses

import numpy as np
import pytest

from lvmogp import PAPERS_MODEL, RBF, Linear, LVMOGPRegressor
from lvmogp.inference import restarts
from lvmogp.inference.minibatch.settings import without_open_curves
from lvmogp.inference.optimise import Status
from lvmogp.inference.options import Options, checked, described_kernels, fit_settings
from lvmogp.inference.restarts import Outcome, Restart
from lvmogp.model.layouts import long_data

QUICK = {"n_latent": 1, "n_restarts": 1, "max_iter": 40}


def data(n_conditions=6, seed=0):
    """Curves that differ in size, rows of which are missing."""
    rng = np.random.default_rng(seed)
    x, ids = np.tile(np.linspace(0, 1, 7), n_conditions), np.repeat(np.arange(n_conditions), 7)
    y = (1 + 0.4 * rng.standard_normal(n_conditions))[ids] * np.sin(3 * x) + 0.05 * rng.standard_normal(len(x))
    kept = rng.random(len(x)) < 0.8
    return x[kept, None], y[kept], ids[kept]


@pytest.fixture(scope="module")
def model():
    return LVMOGPRegressor(**QUICK).fit(*data())


def test_by_default_curves_are_shared_latent_and_own_with_a_noise_for_each_condition(model):
    assert (model.shared_kernel, model.input_kernel, model.own_kernel, model.latent_kernel) == ("auto",) * 4
    assert type(model.shared_kernel_) is type(model.own_kernel_) is type(model.input_kernel_)
    assert isinstance(model.latent_kernel_, Linear | RBF)
    assert model.model_.posterior.parameters.noise_variance.shape == (6,)
    x = np.array([[0.3], [0.8]])
    model.add_condition("new", x, 1.2 * np.sin(3 * x[:, 0]))
    asked = np.array([[0.5]])
    lower, upper = model.predict_interval(asked, "new")
    assert lower[0] < 1.2 * np.sin(1.5) < upper[0]
    assert abs(model.predict(asked, "new")[0] - 1.2 * np.sin(1.5)) < 0.1


def test_the_papers_model_is_one_line_away(model):
    papers = LVMOGPRegressor(**PAPERS_MODEL, **QUICK).fit(*data())
    assert papers.shared_kernel_ is papers.own_kernel_ is None
    assert isinstance(papers.latent_kernel_, RBF)
    assert papers.model_.posterior.parameters.noise_variance.shape == (1,)


@pytest.mark.filterwarnings("ignore::lvmogp.ConvergenceWarning")
def test_one_condition_and_minibatches_have_latent_curves_only():
    x, y, ids = data()
    with pytest.warns(UserWarning, match="one condition only"):
        alone = LVMOGPRegressor(**QUICK).fit(x[ids == 0], y[ids == 0])
    assert alone.shared_kernel_ is alone.own_kernel_ is None
    sizes = {"n_inducing_inputs": 5, "n_inducing_latents": 3, "batch_size": 16}
    streamed = LVMOGPRegressor(**QUICK | sizes | {"max_iter": 100}, inference="stochastic").fit(x, y, ids)
    assert streamed.shared_kernel_ is streamed.own_kernel_ is None
    parameters = streamed.model_.posterior.parameters
    assert parameters.noise_variance.shape == streamed.model_.posterior.pooled.of_noise.shape == (6,)
    assert 0 < float(parameters.noise_spread) < 2


def test_what_is_named_stays_where_open_curves_go():
    assert without_open_curves(Options(shared_kernel="rbf")).shared_kernel == "rbf"
    assert without_open_curves(Options()).own_kernel is None
    assert without_open_curves(Options(input_kernel=None)).shared_kernel == "auto"


def test_an_rbf_over_latents_has_to_gain_three_nats(monkeypatch):
    """Over a linear kernel, at whatever smoothness wins then."""
    tried, recipes = [], []

    def outcome(bound, recipe):
        restart = Restart(recipe, bound, Status.CONVERGED, (bound,), 1, 0.0)
        return Outcome(None, bound, Status.CONVERGED, (restart,), 0.0, 0.0, 0.0)

    def fit(bounds):
        def one(data, inputs, scale, settings, *_, **__):
            kernels = settings.kernels
            tried.append((type(kernels.of_latents).__name__, type(kernels.of_inputs[0]).__name__))
            recipes.append(settings.recipe)
            return outcome(bounds[tried[-1]], f"that of {tried[-1]}")

        monkeypatch.setattr(restarts, "fit", one)
        monkeypatch.setattr(restarts, "grown", lambda outcome, *_: outcome)
        tried.clear()
        x, y, ids = data()
        found = restarts.search(checked(Options(n_latent=1)), long_data(x, y, ids, 6), x, np.ones(1))
        return found[0].bound

    little = {("Linear", "RBF"): 5.0, ("RBF", "RBF"): 7.9, ("Linear", "Matern52"): 4.0}
    assert fit(little) == 5.0
    assert tried == list(little)
    much = {("Linear", "RBF"): 5.0, ("RBF", "RBF"): 8.1, ("RBF", "Matern52"): 9.0}
    assert fit(much) == 9.0
    assert tried == list(much)
    assert recipes[-3:] == [None, None, "that of ('RBF', 'RBF')"]  # another smoothness starts where the first did best


@pytest.mark.parametrize(("gain", "expected"), [(20.0, 25.0), (3.9, 8.9)])
def test_the_simplest_latent_kernel_may_win_once_it_has_more_inducing_inputs(monkeypatch, gain, expected):
    """Where another has won with few of them, both grow; that one must still be three nats ahead."""
    first = {("Linear", "RBF"): 5.0, ("RBF", "RBF"): 8.1, ("RBF", "Matern52"): 8.0}

    def fit(data, inputs, scale, settings, *_, **__):
        kernels = settings.kernels
        bound = first[type(kernels.of_latents).__name__, type(kernels.of_inputs[0]).__name__]
        restart = Restart("some", bound, Status.CONVERGED, (bound,), 1, 0.0)
        return Outcome(None, bound, Status.CONVERGED, (restart,), 0.0, 0.0, 0.0)

    def grown(outcome, data, inputs, settings, *_):
        more = {"Linear": gain, "RBF": 0.8}[type(settings.kernels.of_latents).__name__]
        return outcome._replace(bound=outcome.bound + more)

    monkeypatch.setattr(restarts, "fit", fit)
    monkeypatch.setattr(restarts, "grown", grown)
    rng, ids = np.random.default_rng(0), np.repeat(np.arange(12), 8)
    x = rng.uniform(size=(len(ids), 1))  # more inputs than a fit begins with
    found = restarts.search(checked(Options()), long_data(x, rng.standard_normal(len(ids)), ids, 12), x, np.ones(1))
    assert found[0].bound == pytest.approx(expected)


@pytest.mark.parametrize("when", ["kernels", "best", "first"])
def test_what_was_best_is_kept_when_a_search_is_cut_short(monkeypatch, when):
    """While kernels are tried, while the winner grows, and while the simplest kernel grows beside it."""
    grows = []

    def outcome(bound, status):
        restart = Restart("some", bound, status, (bound,), 1, 0.0)
        return Outcome(None, bound, status, (restart,), 0.0, 0.0, 0.0)

    def fit(data, inputs, scale, settings, *_, **__):
        if isinstance(settings.kernels.of_latents, Linear):
            return outcome(5.0, Status.CONVERGED)
        return outcome(2.0, Status.INTERRUPTED) if when == "kernels" else outcome(9.0, Status.CONVERGED)

    def grown(outcome, data, inputs, settings, *_):
        name = "first" if isinstance(settings.kernels.of_latents, Linear) else "best"
        grows.append(name)
        return outcome._replace(status=Status.INTERRUPTED if name == when else outcome.status)

    monkeypatch.setattr(restarts, "fit", fit)
    monkeypatch.setattr(restarts, "grown", grown)
    rng, ids = np.random.default_rng(0), np.repeat(np.arange(12), 8)
    x = rng.uniform(size=(len(ids), 1))
    found = restarts.search(checked(Options()), long_data(x, rng.standard_normal(len(ids)), ids, 12), x, np.ones(1))
    assert [each.status for each in found] == [Status.INTERRUPTED]
    assert found[0].bound == (5.0 if when == "kernels" else 9.0)
    assert grows == {"kernels": [], "best": ["best"], "first": ["best", "first"]}[when]


def test_inducing_inputs_that_are_all_inputs_stay_where_they_are(model):
    inputs = np.unique(np.asarray(model.model_.observations.inputs), axis=0)
    found = np.sort(np.asarray(model.model_.posterior.parameters.inducing_inputs), axis=0)
    np.testing.assert_allclose(found, model.model_.scaling.inputs(inputs), rtol=1e-12, atol=1e-12)
    assert model.model_.posterior.parameters.fixed == ()


def test_options_are_those_of_the_estimator():
    assert {field.name for field in dataclasses.fields(Options)} >= set(PAPERS_MODEL)


def inducing_inputs(n_conditions, n_each):
    """With how many a fit begins, and how many it may have."""
    rng = np.random.default_rng(3)
    ids = np.repeat(np.arange(n_conditions), n_each)
    x = rng.uniform(size=(len(ids), 1))
    options = checked(Options())
    kernels = described_kernels(options, Linear(), RBF(), np.ones(1))
    rows = long_data(x, rng.standard_normal(len(ids)), ids, n_conditions)
    settings = fit_settings(options, rows, x, n_latent=2, kernels=kernels)
    return settings.n_inducing_inputs, settings.most_inducing_inputs


def test_inducing_inputs_beside_own_curves_grow_as_far_as_a_bound_stays_affordable():
    assert inducing_inputs(3, 300)[1] == 400  # a map of three metals can have all
    # Eighteen sensors: all three kernels' sums over rows, a factor for each condition, and one over all pairs.
    found = inducing_inputs(18, 140)[1]
    assert 133 < found < 400
    assert 4 * (2520 * (3 * found) ** 2 + 180 * found**3) + (3 * found) ** 3 < 2e10


def test_fits_begin_with_as_many_inducing_inputs_as_cost_next_to_nothing():
    assert inducing_inputs(3, 100)[0] == 533 // 4  # whichever latent kernel: an RBF has three latents and a constant
    found = inducing_inputs(18, 140)[0]
    assert 25 < found < 100
    assert 4 * (2520 * (3 * found) ** 2 + 180 * found**3) + (3 * found) ** 3 < 1.2e9
    assert inducing_inputs(800, 100)[0] == 25
