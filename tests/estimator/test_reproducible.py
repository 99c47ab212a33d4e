"""The same seed on the same machine is the same fit, and a model knows what it was made with."""

import os
import platform
import subprocess
import sys

import jax
import numpy as np
import pytest
from papers_model import PapersModel
from safetensors.numpy import load_file
from test_estimator import X, Y
from whole_models import read

from lvmogp import LVMOGPRegressor
from lvmogp.__about__ import __version__
from lvmogp.storage.tensor_file import write

# Of two starts, one by clustering and one at random, to the end.
FIT = """
import sys
import numpy as np
from lvmogp import PAPERS_MODEL, LVMOGPRegressor

rng = np.random.default_rng(5)
ids = np.repeat(np.arange(5), 8)
X = rng.uniform(0, 3, (40, 2))
y = np.sin(X.sum(axis=1) + ids / 3) + 0.1 * rng.standard_normal(40)
model = LVMOGPRegressor(**PAPERS_MODEL, n_latent=1, n_inducing_inputs=8, n_restarts=2, random_state=11)
model.fit(X, y, conditions=ids).add_condition("new", X[:2], y[:2]).save(sys.argv[1])
"""
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false --xla_backend_optimization_level=0",
}
# Sums in another order: two threads, and programs that the compiler has rearranged.
TWO_THREADS = {"OMP_NUM_THREADS": "2", "XLA_FLAGS": "--xla_backend_optimization_level=3"}
# Of predictions, in standard deviations of the prediction, as docs/trust-package.md says.
ACROSS_ORDERINGS = 1e-2


def model_file(folder, name, environment):
    path = folder / name
    command = [sys.executable, "-c", FIT, path]
    subprocess.run(command, check=True, env={**os.environ, **environment}, capture_output=True)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reproducible")


@pytest.fixture(scope="module")
def first(folder):
    return model_file(folder, "first", ONE_THREAD)


def test_a_second_process_finds_the_same_parameters_bit_for_bit(folder, first):
    ours, theirs = load_file(first), load_file(model_file(folder, "second", ONE_THREAD))
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name].tobytes() != theirs[name].tobytes()] == []


@pytest.mark.long
def test_another_order_of_sums_changes_predictions_by_less_than_is_promised(folder, first):
    ours, theirs = (LVMOGPRegressor.load(path) for path in (first, model_file(folder, "other", TWO_THREADS)))
    points = np.random.default_rng(1).uniform(0, 3, (200, 2))
    for name in (0, 3, "new"):
        (mean, std), (other_mean, other_std) = (
            model.predict(points, name, return_std=True) for model in (ours, theirs)
        )
        assert np.max(np.abs(mean - other_mean) / std) < ACROSS_ORDERINGS
        assert np.max(np.abs(std - other_std) / std) < ACROSS_ORDERINGS


# What a model was made with


def test_a_model_file_knows_its_seed_versions_and_machine_and_keeps_them_when_it_is_saved_again(first, tmp_path):
    saved = read(first)
    assert ["random_state", {"int": 11}] in saved.document["settings"]
    origin = saved.document["model"]["fit"]["origin"]
    assert (origin["seed"], origin["machine"]) == (11, f"{platform.machine()} cpu")
    versions = {"lvmogp": __version__, "python": platform.python_version(), "jax": jax.__version__}
    assert dict(origin["versions"]).items() >= {**versions, "numpy": np.__version__}.items()
    origin["versions"].append(["abacus", "0.0.1"])
    write(tmp_path / "model", saved)
    LVMOGPRegressor.load(tmp_path / "model").remove_condition("new").save(tmp_path / "again")
    assert read(tmp_path / "again").document["model"]["fit"]["origin"] == origin


@pytest.mark.filterwarnings("ignore:the fit did not converge")
def test_a_generator_of_numbers_is_asked_for_one_seed_which_makes_the_same_fit():
    settings = {"n_latent": 1, "output_transform": "auto", "n_restarts": 1, "max_iter": 3}
    drawn = np.random.RandomState(3)
    ours = PapersModel(random_state=drawn, **settings).fit(X, 3 + Y)
    assert ours.origin_.seed == np.random.RandomState(3).randint(2**31)
    expected = np.random.RandomState(3)
    expected.randint(2**31)
    assert drawn.randint(1000) == expected.randint(1000)
    theirs = PapersModel(random_state=ours.origin_.seed, **settings).fit(X, 3 + Y)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))
    assert str(ours.origin_).startswith(f"seed {ours.origin_.seed}; lvmogp {__version__}, python ")
