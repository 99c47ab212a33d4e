"""Fits of logarithms of inputs, from the data to answers in the user's units."""

import copy
import functools

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from papers_model import PapersModel

from lvmogp import DataError, LVMOGPRegressor, ObservationStore, SettingError, StopFit
from lvmogp.inference.options import Options
from lvmogp.pipeline import log_columns
from lvmogp.tables.observations import Observations

# Rates of enzyme batches: v = V s/(K + s), substrate from 0.1 to 100, noise in proportion; the pH has little to say.
N_BATCHES, N_EACH = 6, 8
IDS = np.repeat([f"batch {number}" for number in range(N_BATCHES)], N_EACH)


def rates(substrate, batch, ph=7.0):
    return 40 * substrate / (np.exp(1.0 + 0.6 * (batch - 2.5)) + substrate) * np.exp(-((ph - 7) ** 2))


@functools.cache
def data():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"ph": rng.uniform(6.8, 7.2, len(IDS)), "substrate": 10 ** rng.uniform(-1, 2, len(IDS))})
    y = rates(X["substrate"], np.repeat(np.arange(N_BATCHES), N_EACH), X["ph"]) * np.exp(
        0.05 * rng.normal(size=len(IDS))
    )
    return X, y.to_numpy()


def by_hand(X):
    return X.assign(substrate=np.log(X["substrate"]))


def regressor(**settings):
    return PapersModel(**({"n_latent": 1, "n_restarts": 1, "n_inducing_inputs": 15, "random_state": 0} | settings))


X_NEW = pd.DataFrame({"ph": [7.0, 6.9, 7.1], "substrate": [0.2, 5.0, 80.0]})
FEW = X_NEW[:2], rates(X_NEW["substrate"][:2].to_numpy(), 3.2)


@functools.cache
def of_logs(inference="auto"):
    more = {} if inference == "auto" else {"inference": inference, "n_chains": 1, "n_warmup": 5, "n_draws": 5}
    X, y = data()
    fitted = [
        regressor(input_transform={"substrate": "log", "ph": None}, **more).fit(X, y, conditions=IDS),
        regressor(**more).fit(by_hand(X), y, conditions=IDS),
    ]
    for model, table in zip(fitted, (FEW[0], by_hand(FEW[0])), strict=True):
        model.add_condition("new", table, FEW[1])
    return fitted


@pytest.mark.parametrize("inference", ["auto", "nuts"])
@pytest.mark.filterwarnings("ignore")
def test_answers_are_those_of_a_fit_to_logarithms_taken_by_hand(inference):
    model, plain = of_logs(inference)
    assert model.outcome_.bound == pytest.approx(plain.outcome_.bound, rel=1e-9)
    for name in ("batch 1", "new"):
        for ask in ("predict", "predict_interval", "sample"):
            found, expected = (getattr(each, ask)(x, name) for each, x in ((model, X_NEW), (plain, by_hand(X_NEW))))
            assert_allclose(found, expected, rtol=1e-8, atol=1e-8)
        _, covariance = model.predict(X_NEW, name, return_cov=True)
        assert_allclose(covariance, plain.predict(by_hand(X_NEW), name, return_cov=True)[1], rtol=1e-7, atol=1e-7)
        found, expected = model.predict_gradient(X_NEW, name), plain.predict_gradient(by_hand(X_NEW), name)
        chain = np.column_stack([np.ones(3), 1 / X_NEW["substrate"]])  # d log s = ds/s
        assert_allclose(found, np.array(expected) * chain, rtol=1e-7, atol=1e-9)
    latent = model.predict_at_latent(X_NEW, np.zeros(1), return_std=True)
    assert_allclose(latent, plain.predict_at_latent(by_hand(X_NEW), np.zeros(1), return_std=True), rtol=1e-8)
    assert_allclose(model.similarities(), plain.similarities(), rtol=1e-7)


def test_gradients_are_those_of_differences():
    model, _ = of_logs()
    for name in ("batch 4", "new"):
        step = 1e-5 * X_NEW["substrate"]
        ends = [
            model.predict(X_NEW.assign(substrate=X_NEW["substrate"] + side * step), name, return_std=True)
            for side in (1, -1)
        ]
        differences = [(up - down) / (2 * step) for up, down in zip(*ends, strict=True)]
        by_mean, by_variance = model.predict_gradient(X_NEW, name)
        deviation = model.predict(X_NEW, name, return_std=True)[1]
        assert_allclose(by_mean[:, 1], differences[0], rtol=1e-5)
        assert_allclose(by_variance[:, 1], 2 * deviation * differences[1], rtol=1e-4, atol=1e-6)


def test_lengthscales_of_a_logarithm_are_in_its_units():
    X, y = data()
    model = regressor(input_transform={1: "log"}).fit(X.to_numpy(), y, conditions=IDS)
    assert model.input_transform_ == {1: "log"}
    assert_allclose(model.model_.scaling.input_scale, np.std(by_hand(X).to_numpy(), axis=0))


def test_a_file_keeps_the_logarithms(tmp_path):
    model, _ = of_logs()
    model.save(tmp_path / "rates.lvmogp")
    loaded = LVMOGPRegressor.load(tmp_path / "rates.lvmogp")
    assert loaded.input_transform == {"substrate": "log", "ph": None}
    assert loaded.input_transform_ == model.input_transform_ == {"substrate": "log"}
    assert loaded.bounds_by_log_columns_ == model.bounds_by_log_columns_
    for name in ("batch 1", "new"):
        assert_array_equal(loaded.predict(X_NEW, name), model.predict(X_NEW, name))


def test_inputs_without_a_logarithm_are_refused_in_words():
    X, y = data()
    wrong = X.assign(substrate=X["substrate"].where(X.index > 0, 0.0))
    words = (
        r"column 'substrate' of X must be positive, since its logarithm is modelled .*, but 1 of 48 values are not, "
    )
    with pytest.raises(DataError, match=words + "the lowest 0; leave the column out of input_transform, or shift it"):
        regressor(input_transform={"substrate": "log"}).fit(wrong, y, conditions=IDS)
    model = copy.copy(of_logs()[0])
    asked = X_NEW.assign(substrate=[1.0, -2.0, 1.0])
    for ask in (
        lambda: model.predict(asked, "batch 1"),
        lambda: model.predict_at_latent(asked, [0.0]),
        lambda: model.add_condition("other", asked, [1.0, 2.0, 3.0]),
        lambda: model.add_conditions(asked, [1.0, 2.0, 3.0], ["p", "q", "q"]),
        lambda: model.suggest("new", asked),
        lambda: model.suggest("new", region=asked),
    ):
        with pytest.raises(DataError, match=r"column 'substrate' of X must be positive, .* 1 of 3 .* lowest -2"):
            ask()
    dated = X.assign(when=pd.date_range("2024-01-01", periods=len(X)))
    with pytest.raises(
        SettingError, match="column 'when' of X holds dates or durations, which have no logarithm; leave"
    ):
        regressor(input_transform={"when": "log"}).fit(dated, y, conditions=IDS)


def test_candidates_are_even_in_the_logarithm():
    model, plain = of_logs()
    candidates = model.suggest("new").candidates
    assert_allclose(np.log(candidates[:, 1]), plain.suggest("new").candidates[:, 1], rtol=1e-12)
    assert_array_equal(candidates[:, 0], plain.suggest("new").candidates[:, 0])
    assert_allclose(model.suggest("new").inputs[:, 0], plain.suggest("new").inputs[:, 0])
    X, y = data()
    one = regressor(input_transform={"substrate": "log"}, max_iter=2)
    with pytest.warns(UserWarning, match="did not converge"):
        found = one.fit(X[["substrate"]], y, conditions=IDS).suggest("batch 1").candidates[:, 0]
    assert_allclose(found, np.geomspace(X["substrate"].min(), X["substrate"].max(), len(found)), rtol=1e-12)


@pytest.mark.filterwarnings("ignore:the fit did not converge")
def test_minibatches_take_logarithms_too():
    X, y = data()
    settings = {"inference": "stochastic", "max_iter": 60, "batch_size": 16, "n_inducing_latents": 4}
    numbers = np.repeat(np.arange(N_BATCHES), N_EACH)
    columns = tuple(X.columns)
    store = ObservationStore(X.to_numpy(), y, numbers, columns=columns)
    model = regressor(input_transform={"substrate": "log"}, **settings).fit(store)
    plain = regressor(**settings).fit(store._replace(inputs=by_hand(X).to_numpy()))
    assert_allclose(model.predict(X_NEW, 2), plain.predict(by_hand(X_NEW), 2), rtol=1e-8)
    wrong = store._replace(inputs=-store.inputs)
    with pytest.raises(DataError, match="column 'substrate' of X must be positive"):
        regressor(input_transform={"substrate": "log"}, **settings).fit(wrong)


# The logarithms that the bound prefers


def test_what_is_tried_depends_on_the_inputs():
    inputs = np.array([[1.0, 1.0, 1.0, -1.0], [9.9, 10.0, 20.0, 50.0]])
    given = Observations(
        inputs, np.ones(2), np.zeros(2, int), (0,), columns=("a", "b", "when", "c"), date_columns=("when",)
    )
    auto = Options(input_transform="auto")
    assert log_columns(auto, given) == [(), (1,)]
    assert log_columns(auto, given._replace(inputs=-inputs)) == [()]
    assert log_columns(Options(), given) == [()]
    assert log_columns(Options(input_transform={"b": "log", "a": "log", "c": None}), given) == [(0, 1)]


@functools.cache
def chosen():
    """The best of both: columns that both could have logarithms, of which one should not."""
    X, y = data()
    load = np.linspace(1, 12, len(X))[::-1]
    both = X.drop(columns="ph").assign(load=load)
    return both, y + 4 * load, regressor(input_transform="auto").fit(both, y + 4 * load, conditions=IDS)


def test_the_bound_chooses_column_by_column():
    both, y, model = chosen()
    assert model.input_transform_ == {"substrate": "log"}
    bounds = model.bounds_by_log_columns_
    assert list(bounds) == [(), ("substrate", "load"), ("load",), ("substrate",)]
    for columns, bound in bounds.items():
        alone = regressor(input_transform=dict.fromkeys(columns, "log")).fit(both, y, conditions=IDS)
        assert alone.bounds_by_log_columns_ == {columns: bound}
    assert max(bounds, key=bounds.get) == ("substrate",)


def test_the_bound_chooses_both_transforms_together():
    X, y = data()
    model = regressor(input_transform="auto", output_transform="auto").fit(X, y, conditions=IDS)
    assert (model.input_transform_, model.output_transform_) == ({"substrate": "log"}, "log")
    by_pair = {
        (logs, transform): regressor(input_transform=dict.fromkeys(logs, "log"), output_transform=transform)
        .fit(X, y, conditions=IDS)
        .bounds_by_transform_[transform]
        for logs in ((), ("substrate",))
        for transform in (None, "log", "sqrt")
    }
    for logs, bound in model.bounds_by_log_columns_.items():
        assert bound == max(value for (own, _), value in by_pair.items() if own == logs)
    for transform, bound in model.bounds_by_transform_.items():
        assert bound == max(value for (_, own), value in by_pair.items() if own == transform)


@pytest.mark.filterwarnings("ignore:the fit did not converge")
def test_a_choice_of_logarithms_that_is_stopped_keeps_the_best_so_far():
    begun = []

    def stop(progress):
        if progress.iteration == 1:
            begun.append(progress)
        if len(begun) == 2:
            raise StopFit

    X, y = data()
    model = regressor(input_transform="auto", output_transform="auto").fit(X, y, conditions=IDS, on_progress=stop)
    assert not model.outcome_.converged
    assert set(model.bounds_by_log_columns_) == {(), ("substrate",)}
    assert set(model.bounds_by_transform_) == {None}


def test_a_choice_of_logarithms_goes_on_from_its_checkpoints(tmp_path):
    both, y, model = chosen()
    regressor(input_transform="auto").fit(both, y, conditions=IDS, checkpoint=tmp_path)
    seen = []
    again = regressor(input_transform="auto")
    again.fit(both, y, conditions=IDS, checkpoint=tmp_path, resume=True, on_progress=seen.append)
    assert not seen
    assert_array_equal(again.predict(both, "batch 1"), model.predict(both, "batch 1"))
