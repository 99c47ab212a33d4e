"""A fitted model comes back from its file as it was, and a file that another program made is checked."""

import datetime
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from lvmogp import LVMOGPRegressor, Priors
from lvmogp.conditions.condition import condition_of_gaussian, condition_of_particles
from lvmogp.conditions.few_observations import few_observations
from lvmogp.errors import ModelFileError
from lvmogp.fitted.model import AddedCondition, Fit, Origin, Schema, fitted_model
from lvmogp.fitted.model_file import load_model, save_model
from lvmogp.ground.precision import in_precision
from lvmogp.inference.optimise import Status
from lvmogp.inference.restarts import Outcome, Restart
from lvmogp.kernels.covariances import RBF, Constant, Matern32, Periodic, complete
from lvmogp.kernels.psi_statistics import LatentGaussians
from lvmogp.model.layouts import GridData, long_data
from lvmogp.model.parameters import Parameters
from lvmogp.model.posterior import posterior
from lvmogp.storage.codec import Content
from lvmogp.storage.tensor_file import read, write
from lvmogp.tables.observations import Observations
from lvmogp.tables.scaling import Scaling
from lvmogp.tables.transforms import Logarithm

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
IDS = (("ω", 1), datetime.date(2020, 1, 2), 3)
INPUTS, OUTPUTS = np.random.default_rng(4).normal(size=(5, 2)), np.random.default_rng(5).normal(size=(5, 3))
AS_ROWS = np.tile(INPUTS, (3, 1)), OUTPUTS.T.ravel(), np.repeat(np.arange(3), 5)


def made_up_parameters(n_noise):
    rng = np.random.default_rng(3)
    arrays = {
        "inducing_inputs": rng.normal(size=(4, 2)),
        "inducing_latents": rng.normal(size=(3, 2)),
        "latent_mean": rng.normal(size=(3, 2)),
        "latent_variance": rng.uniform(0.1, 0.3, (3, 2)),
        "noise_variance": rng.uniform(0.1, 0.3, n_noise),
    }
    return Parameters(
        input_kernel=complete(RBF(2.0) + Periodic(5.0, columns=1) * Matern32(), np.ones(2), 1.3),
        latent_kernel=complete(RBF([1.0, 2.0]) + Constant(0.2, fixed="variance"), np.ones(2), 1.0),
        **{name: jnp.asarray(values) for name, values in arrays.items()},
    )


def particles(ensemble, seen):
    """A condition of five made-up particles."""
    rng = np.random.default_rng(6)
    found = rng.normal(size=(1, 5, 2)), rng.uniform(0.1, 1, (1, 5)), np.log(rng.dirichlet(np.ones(5)))[None]
    return condition_of_particles(ensemble, *(jnp.asarray(each, ensemble.dtype) for each in found), seen)


def one_gaussian(ensemble, _):
    latents = LatentGaussians(*(jnp.asarray(each, ensemble.dtype) for each in ([[0.3, -0.2]], [[0.1, 0.2]])))
    return condition_of_gaussian(ensemble, latents, jnp.asarray(0.3, ensemble.dtype))


def made_up_model(form, dtype="float64", added=None):
    """Three conditions with made-up parameters, and everything else that a fit leaves behind."""
    grid = form == "grid"
    data = GridData(jnp.asarray(INPUTS), jnp.asarray(OUTPUTS)) if grid else long_data(*AS_ROWS, 3)
    fitted = in_precision(eqx.filter_jit(posterior)(made_up_parameters(1 if grid else 3), data), dtype)
    restarts = (
        Restart("isomap of 8 neighbours", 1.25, Status.ITERATION_LIMIT, (-3.0, 1.0, 1.25), 5, 0.1),
        Restart("random latents", -np.inf, Status.NOT_FINITE, (), 1, 0.2),
    )
    outcome = Outcome(fitted.parameters, 1.25, Status.ITERATION_LIMIT, restarts, 1e-10, 0.0, 0.3)
    origin = Origin(7, {"jax": "0.1", "numpy": "2"}, "abacus")
    scaling = Scaling(np.array([1 / 3, 2.0]), np.array([0.1, 7.0]), 1 / 3, 2 / 3, None if grid else Logarithm())
    names = {"columns": ("speed", "Größe"), "output_name": "time", "date_columns": ("speed",), "is_grid": grid}
    outputs = AS_ROWS[1] if grid else np.exp(AS_ROWS[1])
    rows = Observations(AS_ROWS[0], outputs, AS_ROWS[2], IDS, errors=None if grid else np.abs(AS_ROWS[1]), **names)
    model = fitted_model(
        Schema(IDS, n_columns=2, **names),
        scaling,
        Fit(fitted, outcome, {2: 1.25, 1: 0.5}, {None: 1.25, "log": -2.0}, origin),
        observations=rows,
    )
    if added is None:
        return model
    points, values = np.random.default_rng(7).uniform(1, 2, (2, 2)), np.array([1.0, 2.0])
    errors = scaling.error_variances(np.ones(2), values)
    seen = few_observations(scaling.inputs(points), scaling.outputs(values), errors, dtype)
    method, condition = "exact" if added is particles else "gaussian", added(model.ensemble, seen)
    entry = AddedCondition(points, values, np.ones(2), None, method, condition)
    return model._replace(added={("new", "✓"): entry})


def saved_and_loaded(model, path, **options):
    save_model(path, model, SETTINGS, **({"include_data": True} | options))
    return load_model(path)


def assert_same(found, wanted):
    """Every array bit for bit, everything else equal."""
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for leaf, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        if isinstance(other, np.ndarray | jax.Array):
            assert (leaf.dtype, leaf.shape) == (other.dtype, other.shape)
            assert np.asarray(leaf).tobytes() == np.asarray(other).tobytes()
        else:
            assert leaf == other


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("form", ["grid", "long"])
def test_a_model_comes_back_as_it_was(tmp_path, form, dtype):
    """Also in single precision, whose factors are rounded ones of double precision."""
    model = made_up_model(form, dtype)
    loaded, _ = saved_and_loaded(model, tmp_path / "model")
    assert loaded.schema == model.schema
    for name in ("bounds_by_n_latent", "bounds_by_transform", "origin"):
        assert getattr(loaded.fit, name) == getattr(model.fit, name)
    for name in ("scaling", "posterior", "observations", "ensemble"):
        assert_same(getattr(loaded, name), getattr(model, name))
    assert_same(loaded.fit.outcome, model.fit.outcome)
    assert str(loaded.fit.outcome) == str(model.fit.outcome)


def test_the_data_can_be_left_out(tmp_path):
    loaded, _ = saved_and_loaded(made_up_model("long"), tmp_path / "model", include_data=False)
    assert loaded.observations is None
    assert not any(np.isin(OUTPUTS, values).any() for values in read(tmp_path / "model").tensors.values())


def test_settings_come_back(tmp_path):
    _, settings = saved_and_loaded(made_up_model("grid"), tmp_path / "model")
    kernel = settings["input_kernel"]
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(kernel))
    assert eqx.tree_equal(kernel, SETTINGS["input_kernel"])
    assert {**settings, "input_kernel": None} == {**SETTINGS, "input_kernel": None, "random_state": None}
    assert type(settings["n_latent"]) is int
    assert LVMOGPRegressor(**settings).n_latent == 2


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("added", [particles, one_gaussian])
def test_an_added_condition_comes_back(tmp_path, added, dtype):
    model = made_up_model("grid", dtype, added=added)
    loaded, _ = saved_and_loaded(model, tmp_path / "model")
    ((name, entry),) = loaded.added.items()
    expected = model.added[name]
    assert name == ("new", "✓")
    assert entry.method == expected.method
    for field in ("inputs", "outputs", "errors"):
        assert_array_equal(getattr(entry, field), getattr(expected, field))
    assert_same(entry.condition, expected.condition)


# Files made by others, with digests that are right


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The content of a model file with an added condition."""
    path = tmp_path_factory.mktemp("whole") / "model"
    save_model(path, made_up_model("long", added=particles), SETTINGS, include_data=True)
    return read(path)


def assert_refused(path, content, words):
    write(path / "model", content)
    with pytest.raises(ModelFileError, match=f"model does not hold what a model file must hold: .*{words}"):
        load_model(path / "model")


def test_a_file_without_a_model_in_it_fails_in_words(tmp_path):
    assert_refused(tmp_path, Content({}, {"number": 1}), "added is not there")


PARAMETERS = "posterior.parameters"
ARRAY_CHANGES = [
    (f"{PARAMETERS}.inducing_inputs", lambda values: np.zeros((10**6, 2)), r"input_factor has the shape \(4, 4\)"),
    (f"{PARAMETERS}.inducing_latents", lambda values: values[:, :1], r"has the shape \(1, 5, 2\), where \(1, 5, 1\)"),
    (f"{PARAMETERS}.latent_", lambda values: values[:, :1], "inducing latents have 2 coordinates, conditions another"),
    (f"{PARAMETERS}.noise_variance", lambda values: values[:2], "noise_variance fits neither one nor all conditions"),
    (f"{PARAMETERS}.latent_variance", lambda values: -values, "latent_variance holds values that are not positive"),
    (
        f"{PARAMETERS}.latent_kernel.terms.0.lengthscale",
        lambda values: np.ones(3),
        "cannot be evaluated at points of 2",
    ),
    ("posterior.covariance.matrix", lambda values: values[:5, :5], "covariance is not of all inducing points"),
    ("data.conditions", lambda values: values + 1, "data.conditions counts beyond the 3 there are"),
    ("data.errors", lambda values: -values, "data.errors holds negative values"),
    ("added.0.1.latents.latents", lambda values: values[:, :1], r"noise has the shape \(1, 5\), where \(1, 1\)"),
    ("added.0.1.latents.log_weights", lambda values: values + 1, "log_weights holds numbers that are no logarithms"),
]


@pytest.mark.parametrize(("name", "change", "words"), ARRAY_CHANGES)
def test_arrays_that_do_not_fit_together_fail_in_words(whole, tmp_path, name, change, words):
    names = [name] if name in whole.tensors else [f"{name}mean", f"{name}variance"]
    changed = {own: change(whole.tensors[own]) for own in names}
    assert_refused(tmp_path, whole._replace(tensors=whole.tensors | changed), words)


@pytest.mark.parametrize("axis", ["n", "M_X"])
def test_arrays_that_are_empty_where_there_must_be_something_fail_in_words(whole, tmp_path, axis):
    names = ["data.inputs", "data.outputs", "data.conditions", "data.errors"]
    words = "data holds no rows"
    tensors = {name: values[:0] if name in names else values for name, values in whole.tensors.items()}
    if axis == "M_X":
        words = "there are no conditions, inputs or inducing points"
        nothing = {f"{PARAMETERS}.inducing_inputs": (0, 2), "posterior.input_factor": (0, 0), "posterior.mean": (0, 3)}
        tensors = whole.tensors | {name: np.zeros(shape) for name, shape in nothing.items()}
        covariance = whole.document["posterior"]["covariance"] | {}
        covariance["DenseCovariance"] = covariance["DenseCovariance"] | {"n_inputs": 0}
        document = whole.document | {"posterior": whole.document["posterior"] | {"covariance": covariance}}
        whole = whole._replace(document=document)
    assert_refused(tmp_path, whole._replace(tensors=tensors), words)


DOCUMENT_CHANGES = [
    (("schema", "columns"), ["one"], "where"),
    (("schema", "ids", 0), ["tuple", [["str", "new"], ["str", "✓"]]], "a condition is both trained and added"),
    (("posterior", "covariance", "DenseCovariance", "n_inputs"), 5, "n_inputs has the length 5, where 4"),
    (("posterior", "parameters", "latent_kernel"), {"sum": {"terms": []}}, "which this version|does not know"),
    (("posterior", "parameters", "input_kernel", "sum", "terms", 0, "rbf", "columns"), [7], r"columns \(7,\) of 2"),
    (("added", 0, 1, "method"), "gaussian", "added holds conditions of another kind of model"),
]


@pytest.mark.parametrize(("place", "value", "words"), DOCUMENT_CHANGES)
def test_entries_that_mean_nothing_fail_in_words(whole, tmp_path, place, value, words):
    document = json.loads(json.dumps(whole.document))
    holder = document
    for name in place[:-1]:
        holder = holder[name]
    holder[place[-1]] = value
    assert_refused(tmp_path, whole._replace(document=document), words)


def test_a_setting_of_a_later_version_fails_in_words(whole, tmp_path):
    settings = [*whole.document["settings"], ["later", {"int": 1}]]
    write(tmp_path / "model", whole._replace(document=whole.document | {"settings": settings}))
    with pytest.raises(ModelFileError, match=r"model holds a setting that this version does not know .*'later'"):
        LVMOGPRegressor.load(tmp_path / "model")
