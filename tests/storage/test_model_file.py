"""A fitted model comes back from its file as it was, and a file that another program made is checked."""

import warnings
from unittest import mock

import equinox as eqx
import jax
import numpy as np
import pytest
from drawn_models import fitted, with_made
from papers_model import PapersModel
from whole_models import assert_same, edited, one_gaussian, particles, read, whole_model

from lvmogp import LVMOGPRegressor, Priors
from lvmogp.errors import ConvergenceWarning, DataError, ModelFileError, SettingError
from lvmogp.fitted.model import fitted_model
from lvmogp.fitted.model_file import load_model, save_model
from lvmogp.insight.variance import variance_shares
from lvmogp.kernels.covariances import RBF, Matern32, Periodic
from lvmogp.storage.tensor_file import write

SETTINGS = {
    "n_latent": np.int64(2),
    "condition": None,
    "input_kernel": RBF() + Periodic(24.0, columns=0),
    "latent_kernel": "rbf",
    "n_restarts": "auto",
    "priors": Priors(variance=(2.0, 0.5)),
    "verbose": False,
    "random_state": np.random.RandomState(7),
}


def saved_and_loaded(model, path, **options):
    save_model(path, model, SETTINGS, **({"include_data": True} | options))
    return load_model(path)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("form", "added"), [("grid", particles), ("grid", one_gaussian), ("long", None)])
def test_a_model_comes_back_as_it_was(tmp_path, form, added, dtype):
    """Also in single precision, whose factors are rounded ones of double precision."""
    model = whole_model(form, dtype, added=added)
    loaded, _ = saved_and_loaded(model, tmp_path / "model")
    assert_same(loaded, model)
    assert str(loaded.fit.outcome) == str(model.fit.outcome)


def test_the_data_can_be_left_out(tmp_path):
    model = whole_model("long")
    loaded, _ = saved_and_loaded(model, tmp_path / "model", include_data=False)
    assert loaded.observations is None
    tensors = read(tmp_path / "model").tensors
    assert not any(np.isin(model.observations.outputs, values).any() for values in tensors.values())


def test_settings_come_back(tmp_path):
    _, settings = saved_and_loaded(whole_model("grid"), tmp_path / "model")
    kernel = settings["input_kernel"]
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(kernel))
    assert eqx.tree_equal(kernel, SETTINGS["input_kernel"])
    assert {**settings, "input_kernel": None} == {**SETTINGS, "input_kernel": None, "random_state": None}
    assert type(settings["n_latent"]) is int
    assert PapersModel(**settings).n_latent == 2


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_model_of_several_terms_with_shared_and_own_curves_comes_back(tmp_path, dtype):
    rng = np.random.default_rng(0)
    X, ids = rng.uniform(0, 3, (24, 1)), np.repeat(list("abcd"), 6)
    y = np.sin(2 * X[:, 0]) * np.repeat([1.0, 1.5, 2.0, 2.5], 6) + 0.1 * rng.standard_normal(24)
    kernels = {"input_kernel": ["rbf", Matern32()], "shared_kernel": "auto", "own_kernel": "auto"}
    model = PapersModel(1, **kernels, noise="per-condition", n_restarts=1, max_iter=4, dtype=dtype)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        model.fit(X, y, conditions=ids)
    model.add_condition("new", X[:3], y[:3])
    model.save(tmp_path / "model")
    loaded = LVMOGPRegressor.load(tmp_path / "model")
    first, second = loaded.input_kernel
    assert (first, loaded.shared_kernel, loaded.own_kernel) == ("rbf", "auto", "auto")
    assert eqx.tree_equal(second, Matern32())
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(second))
    for name in ("b", "new"):
        assert_same(loaded.predict(X, name, return_std=True), model.predict(X, name, return_std=True))
        assert loaded.predict_parts(X, name).equals(model.predict_parts(X, name))
    assert variance_shares(loaded).equals(variance_shares(model))


# Files made by others, with digests that are right


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The content of a model file with an added condition."""
    path = tmp_path_factory.mktemp("whole") / "model"
    save_model(path, whole_model("long", added=particles), SETTINGS, include_data=True)
    return read(path)


def assert_refused(path, content, words):
    write(path / "model", content)
    with pytest.raises(ModelFileError, match=f"model does not hold what a model file must hold: .*{words}"):
        load_model(path / "model")


POSTERIOR = "model.fit.posterior"
PARAMETERS = f"{POSTERIOR}.parameters"
TERM = f"{PARAMETERS}.kernels.terms.0"
N_INPUTS = f"{POSTERIOR}.covariance.DenseCovariance.n_inputs"
LATENTS = f"{PARAMETERS}.latent_mean|{PARAMETERS}.latent_variance"
CHANGES = [
    (f"{PARAMETERS}.inducing_inputs", lambda values: np.zeros((10**6, 2)), r"input_factors has the shape \(1, 4, 4\)"),
    (f"{PARAMETERS}.inducing_latents", lambda values: values[:, :1], r"has the shape \(1, 5, 3\), where \(1, 5, 1\)"),
    (LATENTS, lambda values: values[:, :1], "inducing latents have 3 coordinates, conditions another"),
    (f"{PARAMETERS}.noise_variance", lambda values: values[:2], "noise_variance fits neither one nor all conditions"),
    (f"{PARAMETERS}.latent_variance", lambda values: -values, "latent_variance holds values that are not positive"),
    (
        f"{TERM}.latent_kernel.lengthscale",
        lambda values: np.ones(2),
        "cannot be evaluated at points of 3",
    ),
    (f"{POSTERIOR}.covariance.matrix", lambda values: values[:5, :5], "covariance is not of all inducing points"),
    ("model.scaling.log_columns", [1], "scaling.log_columns have inputs that are not positive"),
    ("model.scaling.log_columns", [2], "log_columns.0 counts beyond the 2 there are"),
    ("model.schema.conditions", lambda values: values + 1, "schema.conditions counts beyond the 5 there are"),
    ("model.schema.errors", lambda values: -values, "schema.errors holds negative values"),
    ("added.0.1.latents", lambda values: values[:, :1], r"noise has the shape \(1, 5\), where \(1, 1\)"),
    ("added.0.1.log_weights", lambda values: values + 1, "log_weights holds numbers that are no logarithms"),
    ("model.schema.columns", ["one"], "where"),
    ("model.schema.ids.0", ["tuple", [["str", "new"], ["str", "✓"]]], "a condition is both trained and added"),
    ("model.ensemble", None, "model.ensemble is nothing that this version knows"),
    (N_INPUTS, 5, "n_inputs has the length 5, where 4"),
    (f"{TERM}.latent_kernel", {"sum": {"terms": []}}, "which this version|does not know"),
    (f"{TERM}.input_kernel.rbf.columns", [7], r"columns \(7,\) of 2"),
    ("added.0.1.entry.method", "gaussian", "added holds conditions of another kind of model"),
]


@pytest.mark.parametrize(("place", "value", "words"), CHANGES)
def test_what_does_not_fit_together_fails_in_words(whole, tmp_path, place, value, words):
    for each in place.split("|"):
        whole = edited(whole, each, value)
    assert_refused(tmp_path, whole, words)


def test_a_file_without_inducing_points_fails_in_words(whole, tmp_path):
    shapes = {
        f"{PARAMETERS}.inducing_inputs": (0, 2),
        f"{POSTERIOR}.input_factors": (1, 0, 0),
        f"{POSTERIOR}.mean": (0, 3),
    }
    nothing = {name: np.zeros(shape) for name, shape in shapes.items()}
    words = "there are no conditions, inputs or inducing points"
    assert_refused(tmp_path, edited(whole, N_INPUTS, 0)._replace(tensors=whole.tensors | nothing), words)


def test_a_setting_of_a_later_version_fails_in_words(whole, tmp_path):
    settings = [*whole.document["settings"], ["later", {"int": 1}]]
    write(tmp_path / "model", whole._replace(document=whole.document | {"settings": settings}))
    with pytest.raises(ModelFileError, match=r"model holds a setting that this version does not know .*'later'"):
        LVMOGPRegressor.load(tmp_path / "model")


@pytest.mark.parametrize(
    ("form", "answers"), [("grid", "fit"), ("long", "fit"), ("long", "draws"), ("sparse", "draws")]
)
def test_a_model_with_own_curves_comes_back_as_it_was(tmp_path, form, answers):
    """It needs its data, and says so."""
    plain = fitted(form, answers=answers, noise="per-condition", own=True)
    model = with_made(plain, "f", np.array([[0.3], [1.2]]), np.array([0.5, -0.2]))
    loaded, x = PapersModel(), np.array([[0.1], [1.4]])
    with mock.patch("lvmogp.model.layouts._MOST_SCATTERED", 10 if form == "sparse" else 1_000):
        loaded.model_, _ = saved_and_loaded(model.model_, tmp_path / "model")
    loaded.n_features_in_ = 1
    assert_same(loaded.model_, model.model_)
    for condition in ("b", "f"):
        for one, other in zip(*(each.predict(x, condition, return_cov=True) for each in (loaded, model)), strict=True):
            np.testing.assert_array_equal(one, other)
    with pytest.raises(SettingError, match="its file must hold them; leave include_data=True"):
        save_model(tmp_path / "model", model.model_, SETTINGS, include_data=False)
    with pytest.raises(DataError, match="which this one has not kept; fit in memory"):
        fitted_model(model.model_.schema.without_rows(), model.model_.scaling, model.model_.fit)
