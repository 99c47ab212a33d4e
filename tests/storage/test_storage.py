"""What is written comes back the same, and a damaged or foreign file is always noticed."""

import datetime
import json
import os
import re
import stat
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from safetensors.numpy import load_file, save, save_file

from lvmogp import LVMOGPRegressor
from lvmogp.conditions.evidence import evidence
from lvmogp.conditions.new_condition import condition_on
from lvmogp.conditions.variational_condition import GaussianCondition
from lvmogp.errors import LVMOGPError, ModelFileError
from lvmogp.fitted import model_file
from lvmogp.fitted.model import AddedCondition, trained_model
from lvmogp.fitted.model_file import load_model, save_model
from lvmogp.inference.optimise import Status
from lvmogp.inference.restarts import Outcome, Restart
from lvmogp.kernels.covariances import (
    RBF,
    Constant,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    complete,
)
from lvmogp.kernels.psi_statistics import LatentGaussians
from lvmogp.model.inducing_features import latent_moments
from lvmogp.model.layouts import GridData, long_data
from lvmogp.model.parameters import Parameters
from lvmogp.model.posterior import curves, posterior
from lvmogp.storage import tensor_file as storage
from lvmogp.storage.tensor_file import (
    ModelFile,
    decode_id,
    decode_kernel,
    encode_id,
    encode_kernel,
    read,
    write,
)
from lvmogp.tables.observations import Observations
from lvmogp.tables.scaling import Scaling
from lvmogp.tables.transforms import Logarithm

CONTENT = ModelFile(
    tensors={
        "double": np.random.default_rng(0).normal(size=(7, 3)),
        "single": np.arange(6, dtype=np.float32).reshape(2, 3),
        "whole": np.array([[-(2**62), 5]]),
        "empty": np.empty((0, 2)),
        "odd": np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324]),
        "transposed": np.arange(6.0).reshape(2, 3).T,
    },
    document={"text": "Ünïcode ✓ \ud800", "nested": [{"a": None}, [1, 2.5, True]], "tiny": 5e-324, "empty": {}},
)


def assert_same_content(first: ModelFile, second: ModelFile) -> None:
    assert first.document == second.document
    assert first.tensors.keys() == second.tensors.keys()
    for name, values in first.tensors.items():
        assert values.dtype == second.tensors[name].dtype
        assert values.shape == second.tensors[name].shape
        assert values.tobytes() == second.tensors[name].tobytes()


@pytest.fixture
def path(tmp_path):
    """A model file."""
    target = tmp_path / "brakes.lvmogp"
    write(target, CONTENT)
    return target


# Files


def test_arrays_and_document_come_back_bit_by_bit(path):
    assert_same_content(read(path), CONTENT)


def test_the_path_may_be_a_string_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("brakes.lvmogp", CONTENT)
    assert_same_content(read("brakes.lvmogp"), CONTENT)


def test_a_single_number_keeps_its_shape(tmp_path):
    write(tmp_path / "number", ModelFile({"noise": np.array(0.5)}, {}))
    assert read(tmp_path / "number").tensors["noise"].shape == ()


def test_writing_replaces_an_earlier_file_and_leaves_nothing_else(path):
    write(path, ModelFile({"new": np.ones(2)}, {"new": 1}))
    assert_same_content(read(path), ModelFile({"new": np.ones(2)}, {"new": 1}))
    assert list(path.parent.iterdir()) == [path]


def test_a_file_has_the_permissions_of_any_other_new_file(path):
    other = path.with_name("other")
    other.touch()
    assert stat.filemode(path.stat().st_mode) == stat.filemode(other.stat().st_mode)


class Crash(BaseException):
    """What no ordinary handler catches: the user's Ctrl-C, or the machine going down."""


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("crash", [OSError("no space left on device"), Crash()], ids=["error", "interrupt"])
def test_a_crash_while_writing_leaves_the_earlier_file_and_no_other(path, monkeypatch, step, crash):
    def fail(*args, **kwargs):
        raise crash

    earlier = path.read_bytes()
    monkeypatch.setattr(storage.os, step, fail)
    with pytest.raises(type(crash)):
        write(path, ModelFile({"new": np.ones(2)}, {}))
    monkeypatch.undo()
    assert path.read_bytes() == earlier
    assert list(path.parent.iterdir()) == [path]


def test_a_crash_while_writing_for_the_first_time_leaves_nothing(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError

    monkeypatch.setattr(storage.os, "replace", fail)
    with pytest.raises(OSError):  # noqa: PT011 - raised above
        write(tmp_path / "brakes.lvmogp", CONTENT)
    assert list(tmp_path.iterdir()) == []


def test_half_a_file_never_stands_at_the_path(path, monkeypatch):
    """All is on disk before the name changes hands."""
    steps = []
    replace, fsync = os.replace, os.fsync
    monkeypatch.setattr(storage.os, "fsync", lambda handle: (steps.append("on disk"), fsync(handle)))
    monkeypatch.setattr(storage.os, "replace", lambda *names: (steps.append(read(names[0])), replace(*names)))
    write(path, CONTENT)
    assert steps[0] == "on disk"
    assert_same_content(steps[1], CONTENT)


def test_a_document_that_is_no_json_fails_before_the_file_is_touched(path):
    earlier = path.read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        write(path, ModelFile({}, {"bound": np.nan}))
    assert path.read_bytes() == earlier


# Damage


def test_a_truncated_file_fails_in_words(path):
    whole = path.read_bytes()
    for length in np.unique(np.r_[0, 1, 7, 8, 9, np.linspace(10, len(whole) - 1, 40).astype(int)]):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFileError, match=r"brakes\.lvmogp is not a model file, or it is damaged"):
            read(path)


@pytest.mark.parametrize("flip", [0x01, 0x10, 0x80, 0xFF])
def test_a_flipped_byte_never_gives_another_model(path, flip):
    whole = path.read_bytes()
    n_header = 8 + int.from_bytes(whole[:8], "little")
    places = np.r_[0:12, np.linspace(12, n_header - 1, 60), np.linspace(n_header, len(whole) - 1, 30)].astype(int)
    n_noticed = 0
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= flip
        path.write_bytes(damaged)
        try:
            content = read(path)
        except ModelFileError:
            n_noticed += 1
        else:
            assert_same_content(content, CONTENT)
    assert n_noticed > 0.95 * len(places)


def test_a_flipped_byte_in_the_data_fails_in_words(path):
    damaged = bytearray(path.read_bytes())
    damaged[-3] ^= 0x01
    path.write_bytes(damaged)
    with pytest.raises(ModelFileError, match="is damaged: its content does not match its digest; restore it from a"):
        read(path)


@pytest.mark.parametrize("position", ["before", "after"])
def test_bytes_too_many_fail_in_words(path, position):
    whole = path.read_bytes()
    path.write_bytes(b"x" + whole if position == "before" else whole + b"x")
    with pytest.raises(ModelFileError, match="is not a model file, or it is damaged"):
        read(path)


def metadata_of(path: Path) -> dict[str, str]:
    whole = path.read_bytes()
    n_header = int.from_bytes(whole[:8], "little")
    return json.loads(whole[8 : 8 + n_header])["__metadata__"]


@pytest.mark.parametrize("change", ["value", "name", "type", "shape", "left out", "added"])
def test_an_edited_array_fails_in_words(path, change):
    tensors, metadata = load_file(path), metadata_of(path)
    whole = tensors.pop("whole")
    if change == "value":
        tensors["whole"] = whole + 1
    elif change == "type":
        tensors["whole"] = whole.view(float)
    elif change == "shape":
        tensors["whole"] = whole.T
    elif change != "left out":
        tensors |= {"other": whole} if change == "name" else {"whole": whole, "other": np.ones(1)}
    path.write_bytes(save({name: np.ascontiguousarray(value) for name, value in tensors.items()}, metadata))
    with pytest.raises(ModelFileError, match="does not match its digest"):
        read(path)


@pytest.mark.parametrize("entry", ["document", "digest"])
def test_an_edited_or_missing_entry_fails_in_words(path, entry):
    tensors, metadata = load_file(path), metadata_of(path)
    for changed in (metadata | {entry: metadata[entry].replace("5", "6")}, metadata.copy()):
        if changed == metadata:
            del changed[entry]
        path.write_bytes(save(tensors, changed))
        with pytest.raises(ModelFileError, match="does not match its digest"):
            read(path)


# Foreign files


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"version": "1", "document": "{}"}])
def test_a_safetensors_file_of_others_fails_in_words(tmp_path, metadata):
    save_file({"weights": np.ones(3)}, tmp_path / "other.safetensors", metadata)
    text = "other.safetensors is a safetensors file, but not a model saved by lvmogp"
    with pytest.raises(ModelFileError, match=text):
        read(tmp_path / "other.safetensors")


@pytest.mark.parametrize("content", [b"", b"x,y\n1,2\n", b"\x80\x05" * 100, b"{" * 10_000, bytes(1000)])
def test_a_file_of_another_kind_fails_in_words(tmp_path, content):
    (tmp_path / "data.csv").write_bytes(content)
    with pytest.raises(ModelFileError, match=r"data\.csv is not a model file, or it is damaged: "):
        read(tmp_path / "data.csv")


@pytest.mark.parametrize("name", ["absent", "."])
def test_a_missing_file_and_a_folder_fail_in_words(tmp_path, name):
    with pytest.raises(ModelFileError, match="there is no model file at "):
        read(tmp_path / name)


@pytest.mark.parametrize("version", [2, 17])
def test_a_later_version_fails_in_words(path, monkeypatch, version):
    monkeypatch.setattr(storage, "VERSION", version)
    write(path, CONTENT)
    monkeypatch.undo()
    text = f"has format version {version}, but this lvmogp .* reads versions up to 1; upgrade lvmogp to read it"
    with pytest.raises(ModelFileError, match=text):
        read(path)


@pytest.mark.parametrize("version", ["", "one", "-1", "1.0", "²"])
def test_a_version_that_is_no_number_fails_in_words(path, version):
    path.write_bytes(save(load_file(path), metadata_of(path) | {"version": version}))
    with pytest.raises(ModelFileError, match=r"format version|is not a model file, or it is damaged"):
        read(path)


@pytest.mark.parametrize("module", [storage, model_file])
@pytest.mark.parametrize("word", ["pickle", "eval", "exec", "joblib", "marshal", "allow_pickle", "__import__"])
def test_nothing_in_a_file_can_be_executed(module, word):
    assert not re.search(rf"\b{word}\b", Path(module.__file__).read_text())


# Ids

IDS = [
    "tyre-A",
    "",
    'Ünïcode ✓ 日本 \n"quoted" \\',
    0,
    -(2**80),
    True,
    False,
    2.5,
    1.0,
    -0.0,
    0.1,
    5e-324,
    float("inf"),
    datetime.date(2024, 2, 29),
    datetime.datetime(2024, 2, 29, 12, 34, 56, 789),
    datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=5, minutes=30))),
    (),
    ("a", 1, True),
    ("a", (datetime.date(2024, 1, 1), (2.5, ("✓", -0.0)))),
]


def types_of(value):
    return tuple(types_of(part) for part in value) if isinstance(value, tuple) else (type(value), str(value))


@pytest.mark.parametrize("value", IDS, ids=map(repr, IDS))
def test_ids_come_back_with_their_type(value):
    decoded = decode_id(json.loads(json.dumps(encode_id(value), allow_nan=False)))
    assert decoded == value
    assert types_of(decoded) == types_of(value)


def test_an_id_of_unknown_type_fails_in_words():
    with pytest.raises(ModelFileError, match="the file holds a condition id of unknown type 'complex'"):
        decode_id(["complex", "1j"])


# Kernels

KERNELS = [
    "rbf",
    RBF(),
    RBF(2.0),
    RBF([1.0, 0.1], 3.0, columns=(0, 2), fixed=("lengthscale", "variance")),
    Matern12(0.3, fixed="lengthscale"),
    Matern32(columns=1),
    Matern52([1e-9, 1e9], 1 / 3),
    RationalQuadratic(shape=2.0),
    Periodic(24.0),
    Periodic(period=[1.0, 7.0], lengthscale=0.5, variance=2.0, columns=(1, 0), fixed=()),
    Linear(),
    Linear([0.1, 0.2], columns=(3, 4)),
    Constant(),
    Constant(0.7, fixed="variance"),
    RBF() + Periodic(1.0) + Constant(),
    RBF() * Linear(columns=0) + Matern32(0.2) * (Constant(2.0) + Periodic(3.0)),
]


@pytest.mark.parametrize("kernel", KERNELS, ids=map(str, range(len(KERNELS))))
def test_kernels_come_back_with_every_hyperparameter_column_and_fixed_name(kernel):
    decoded = decode_kernel(json.loads(json.dumps(encode_kernel(kernel), allow_nan=False)))
    assert eqx.tree_equal(decoded, kernel)


def test_learnt_kernels_come_back_to_the_last_digit(rng):
    kernel = RBF(jnp.asarray(rng.random(3)), jnp.asarray(rng.random())) + Constant(jnp.asarray(1 / 3))
    decoded = decode_kernel(json.loads(json.dumps(encode_kernel(kernel))))
    assert_array_equal(decoded.terms[0].lengthscale, kernel.terms[0].lengthscale)
    assert decoded.terms[0].variance == kernel.terms[0].variance
    assert decoded.terms[1].variance == 1 / 3


def test_a_kernel_of_unknown_kind_fails_in_words():
    with pytest.raises(ModelFileError, match="the file holds a kernel of unknown kind 'spectral'"):
        decode_kernel({"kind": "spectral", "variance": 1.0})
    with pytest.raises(ModelFileError, match="unknown kind 'spectral'"):
        decode_kernel({"kind": "sum", "terms": [{"kind": "spectral"}]})


class HomeMade(RBF):
    """A kernel that the library has never heard of."""


def test_a_kernel_of_the_user_s_own_fails_in_words():
    with pytest.raises(LVMOGPError, match="HomeMade"):
        encode_kernel(HomeMade())


# Whole models

SETTINGS = {
    "n_latent": np.int64(2),
    "condition": None,
    "input_kernel": RBF() + Periodic(24.0, columns=0),
    "latent_kernel": "rbf",
    "n_restarts": "auto",
    "verbose": False,
    "random_state": 7,
}
MODEL_IDS = (("ω", 1), datetime.date(2020, 1, 2), 3)
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


def made_up_outcome(parameters):
    restarts = (
        Restart("isomap of 8 neighbours", 1.25, Status.ITERATION_LIMIT, (-3.0, 1.0, 1.25), 5, 0.1),
        Restart("random latents", -np.inf, Status.NOT_FINITE, (), 1, 0.2),
    )
    return Outcome(parameters, 1.25, Status.ITERATION_LIMIT, restarts, 1e-10, 0.0, 0.3)


def particles(model):
    """A condition of five made-up particles given two points."""
    rng = np.random.default_rng(6)
    seen = evidence(model, rng.normal(size=(2, 2)), rng.normal(size=2))
    latents, noise, log_weights = rng.normal(size=(5, 2)), rng.uniform(0.1, 1, 5), np.log(rng.dirichlet(np.ones(5)))
    return condition_on(model, seen, jnp.asarray(latents), jnp.asarray(noise), jnp.asarray(log_weights))


def one_gaussian(model):
    latents = LatentGaussians(jnp.array([[0.3, -0.2]]), jnp.array([[0.1, 0.2]]))
    return GaussianCondition(latents, jnp.asarray(0.3), curves(model, latent_moments(model.latent_basis, latents)))


def made_up_model(form, added=None):
    """Three conditions with made-up parameters, and everything else that a fit leaves behind."""
    grid = form == "grid"
    parameters = made_up_parameters(1 if grid else 3)
    data = GridData(jnp.asarray(INPUTS), jnp.asarray(OUTPUTS)) if grid else long_data(*AS_ROWS, 3)
    fitted = eqx.filter_jit(posterior)(parameters, data)
    model = trained_model(
        fitted,
        made_up_outcome(parameters),
        ids=MODEL_IDS,
        scaling=Scaling(np.array([1 / 3, 2.0]), np.array([0.1, 7.0]), 1 / 3, 2 / 3, None if grid else Logarithm()),
        observations=Observations(*AS_ROWS, MODEL_IDS, ("speed", "Größe"), is_grid=grid),
    )
    if added is None:
        return model
    points = np.random.default_rng(7).uniform(1, 2, (2, 2)), np.array([1.0, 2.0])
    method = "exact" if added is particles else "gaussian"
    return model._replace(added={("new", "✓"): AddedCondition(*points, method, added(fitted))})


def saved_and_loaded(model, path, **options):
    save_model(path, model, SETTINGS, **({"include_data": True} | options))
    return load_model(path)


@pytest.mark.parametrize("form", ["grid", "long"])
def test_a_model_comes_back_as_it_was(tmp_path, form):
    model = made_up_model(form)
    loaded, _ = saved_and_loaded(model, tmp_path / "model")
    assert (loaded.ids, loaded.columns, loaded.n_columns) == (MODEL_IDS, ("speed", "Größe"), 2)
    assert eqx.tree_equal(loaded.posterior.parameters, model.posterior.parameters)
    assert eqx.tree_equal(loaded.posterior.mean, model.posterior.mean)
    assert eqx.tree_equal(loaded.posterior.covariance, model.posterior.covariance)
    assert eqx.tree_equal(loaded.posterior, model.posterior, rtol=1e-12, atol=1e-12)
    assert eqx.tree_equal(loaded.curves, model.curves, rtol=1e-10, atol=1e-12)
    assert_array_equal(loaded.scaling.input_mean, model.scaling.input_mean)
    assert_array_equal(loaded.scaling.input_scale, model.scaling.input_scale)
    assert loaded.scaling[2:] == model.scaling[2:]


@pytest.mark.parametrize("form", ["grid", "long"])
def test_the_account_of_the_fit_comes_back(tmp_path, form):
    model = made_up_model(form)
    loaded, _ = saved_and_loaded(model, tmp_path / "model")
    assert loaded.outcome[1:] == model.outcome[1:]
    assert str(loaded.outcome) == str(model.outcome)
    assert eqx.tree_equal(loaded.outcome.parameters, model.outcome.parameters)


@pytest.mark.parametrize("form", ["grid", "long"])
def test_the_data_come_back_unless_left_out(tmp_path, form):
    model = made_up_model(form)
    loaded, _ = saved_and_loaded(model, tmp_path / "model")
    for name in ("inputs", "outputs", "conditions"):
        assert_array_equal(getattr(loaded.observations, name), getattr(model.observations, name))
    assert loaded.observations[3:] == model.observations[3:]
    without, _ = saved_and_loaded(model, tmp_path / "without", include_data=False)
    assert without.observations is None
    assert without.is_grid == loaded.is_grid == (form == "grid")
    held = read(tmp_path / "without")
    assert not any(np.isin(OUTPUTS, values).any() for values in held.tensors.values())


def test_settings_come_back(tmp_path):
    _, settings = saved_and_loaded(made_up_model("grid"), tmp_path / "model")
    assert settings.keys() == SETTINGS.keys()
    assert eqx.tree_equal(settings["input_kernel"], SETTINGS["input_kernel"])
    del settings["input_kernel"]
    assert settings == {name: SETTINGS[name] for name in settings}


@pytest.mark.parametrize(
    "added",
    [
        particles,
        one_gaussian,
    ],
)
def test_an_added_condition_comes_back(tmp_path, added):
    model = made_up_model("grid", added)
    loaded, _ = saved_and_loaded(model, tmp_path / "model")
    ((name, entry),) = loaded.added.items()
    expected = model.added[name]
    assert name == ("new", "✓")
    assert_array_equal(entry.inputs, expected.inputs)
    assert_array_equal(entry.outputs, expected.outputs)
    assert entry.method == expected.method
    assert_array_equal(entry.posterior.latents, expected.posterior.latents)
    assert_array_equal(entry.posterior.noise, expected.posterior.noise)


def test_a_file_without_a_model_in_it_fails_in_words(path):
    with pytest.raises(ModelFileError, match="does not hold what a model file must hold: KeyError"):
        load_model(path)


def test_a_model_file_that_lacks_an_array_fails_in_words(tmp_path):
    save_model(tmp_path / "model", made_up_model("grid"), SETTINGS, include_data=True)
    content = read(tmp_path / "model")
    for name in content.tensors:
        if name.startswith("data."):
            continue
        write(tmp_path / "less", ModelFile({k: v for k, v in content.tensors.items() if k != name}, content.document))
        with pytest.raises(ModelFileError, match=f"must hold: KeyError\\('{name}'\\)"):
            load_model(tmp_path / "less")


# Files made by others, with a digest that is right


@pytest.mark.parametrize(
    ("shape", "offsets"),
    [([10**12], [0, 8 * 10**12]), ([10**12], [0, 8]), ([2**62, 4], [0, 8]), ([-1], [0, 8]), ([1], [8, 0])],
)
def test_an_array_longer_than_its_file_is_refused_before_memory_is_taken(path, shape, offsets):
    array = {"dtype": "F64", "shape": shape, "data_offsets": offsets}
    header = json.dumps({"__metadata__": metadata_of(path), "big": array}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(ModelFileError, match=r"brakes\.lvmogp is not a model file, or it is damaged: "):
        read(path)


@pytest.mark.parametrize("document", ["", "{", "[" * 100_000, "[1, 2]", "7", "nothing"])
def test_a_document_that_is_none_fails_in_words_whatever_its_digest(path, document):
    digest = storage._digest({}, document)
    metadata = {"format": "lvmogp-model", "version": "1", "document": document, "digest": digest}
    path.write_bytes(save({}, metadata))
    with pytest.raises(ModelFileError, match=r"brakes\.lvmogp was changed by hand: its document is no"):
        read(path)


@pytest.fixture(scope="module")
def whole_model(tmp_path_factory):
    """The content of a model file with an added condition."""
    path = tmp_path_factory.mktemp("whole") / "model"
    save_model(path, made_up_model("long", particles), SETTINGS, include_data=True)
    return read(path)


ARRAY_CHANGES = {
    "parameters.latent_mean": (
        lambda values: values[:2],
        r"parameters\.latent_mean has the shape \(2, 2\), where \(3, 'L'",
    ),
    "parameters.inducing_inputs": (
        lambda values: np.zeros((10**6, 2)),
        r"posterior\.mean has the shape \(4, 3\), where",
    ),
    "parameters.inducing_latents": (lambda values: values[:, :1], "inducing latents have 1 coordinates"),
    "parameters.noise_variance": (lambda values: values[:2], "there are 2 noise variances for 3 conditions"),
    "parameters.latent_variance": (lambda values: -values, "holds values that are not positive"),
    "posterior.mean": (lambda values: values * np.nan, r"posterior\.mean holds NaN or infinite values"),
    "covariance.matrix": (
        lambda values: values[:5, :5],
        r"covariance\.matrix has the shape \(5, 5\), where \(12, 12\)",
    ),
    "scaling.input_scale": (lambda values: 0 * values, "holds values that are not positive"),
    "data.conditions": (lambda values: values + 1, r"data\.conditions counts beyond the 3 there are"),
    "data.outputs": (lambda values: values.astype(int), r"data\.outputs holds int64"),
    "added.0.latents": (lambda values: values[:, :1], r"added\.0\.latents has the shape \(5, 1\), where \(5, 2\)"),
}


@pytest.mark.parametrize("name", ARRAY_CHANGES)
def test_arrays_that_do_not_fit_together_fail_in_words(whole_model, tmp_path, name):
    change, words = ARRAY_CHANGES[name]
    write(
        tmp_path / "model",
        whole_model._replace(tensors=whole_model.tensors | {name: change(whole_model.tensors[name])}),
    )
    with pytest.raises(ModelFileError, match=f"model does not hold what a model file must hold: .*{words}"):
        load_model(tmp_path / "model")


DOCUMENT_CHANGES = {
    "columns": (7, "columns is no list of texts"),
    "output_name": (["y"], "output_name is no text"),
    "output_transform": ("cube", r"output_transform is none of \[None, 'log', 'sqrt'\]"),
    "log_output": (1, "log_output is neither true nor false"),
    "covariance": ("sparse", "KeyError"),
    "output_mean": ("one", "ValueError"),
    "ids": ([["str", "a"], ["date", "2024-02-30"], ["int", 3]], "ValueError"),
    "input_kernel": ({"kind": "linear", "variance": [1.0], "columns": [7]}, r"looks at the columns \(7,\) of 2"),
    "latent_kernel": (
        {"kind": "rbf", "lengthscale": [1.0, 2.0, 3.0], "variance": 1.0},
        "3 values of lengthscale for 2",
    ),
}


@pytest.mark.parametrize("name", DOCUMENT_CHANGES)
def test_entries_that_mean_nothing_fail_in_words(whole_model, tmp_path, name):
    value, words = DOCUMENT_CHANGES[name]
    write(tmp_path / "model", whole_model._replace(document=whole_model.document | {name: value}))
    with pytest.raises(ModelFileError, match=f"model does not hold what a model file must hold: .*{words}"):
        load_model(tmp_path / "model")


def test_a_setting_of_a_later_version_fails_in_words(whole_model, tmp_path):
    settings = whole_model.document["settings"] | {"later": 1}
    write(tmp_path / "model", whole_model._replace(document=whole_model.document | {"settings": settings}))
    with pytest.raises(ModelFileError, match=r"model holds a setting that this version does not know .*'later'"):
        LVMOGPRegressor.load(tmp_path / "model")
