"""Model files written by earlier stages of the code load, and predict what they predicted then."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lvmogp import LVMOGPRegressor
from lvmogp.storage.tensor_file import VERSION, read

FOLDER = Path(__file__).parents[1] / "data" / "models"
PREDICTED = json.loads((FOLDER / "predictions.json").read_text())
ASKED = [0.5, 1.5, 3.0]
LONG = ("version-1-draws", "version-1-features", "version-1-grid")


def inputs_of(model):
    columns = model.model_.schema.columns
    if columns is None:
        return np.asarray(ASKED)[:, None]
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta([10 * each for each in ASKED], unit="D")
    return pd.DataFrame({name: days if name == "day" else ASKED for name in columns})


def test_there_is_a_file_of_every_version():
    stems = sorted(path.stem for path in FOLDER.glob("*.lvmogp"))
    assert stems == sorted(PREDICTED)
    assert {int(stem.split("-")[1]) for stem in stems} == set(range(1, VERSION + 1))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in LONG else []) for name in PREDICTED]
)
def test_an_old_file_predicts_what_it_predicted_when_it_was_written(name):
    model = LVMOGPRegressor.load(FOLDER / f"{name}.lvmogp")
    assert model.outcome_.bound == PREDICTED[name]["bound"]
    wanted = PREDICTED[name]["conditions"]
    assert "new" in wanted  # one that was added after the fit
    ids = {str(each): each for each in model.conditions_}
    for condition, expected in wanted.items():
        mean, deviation = model.predict(inputs_of(model), [ids[condition]] * 3, return_std=True)
        np.testing.assert_allclose(mean, expected["mean"], rtol=1e-7)
        np.testing.assert_allclose(deviation, expected["std"], rtol=1e-7)


def test_the_files_differ_in_what_they_hold():
    """So that each of them tests something."""
    entries = {name: frozenset(read(FOLDER / f"{name}.lvmogp").document) for name in PREDICTED}
    assert len(set(entries.values())) > 2
    held = set().union(*(read(FOLDER / f"{name}.lvmogp").tensors for name in PREDICTED))
    for part in ("known.values", "draws.latents", "data.errors", "covariance.variances", "covariance.matrix"):
        assert part in held
