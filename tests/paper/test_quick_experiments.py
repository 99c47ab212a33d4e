"""Quick runs of the paper's five experiments: each asserts what its experiment is about."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from paper.plan import GP_IND, GP_OH, GP_WO, LMC, OURS

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"


@pytest.fixture
def quick(tmp_path):
    """Run an experiment by its command, as a user does, and give its results by method."""

    def run(name):
        command = [sys.executable, "-m", "paper", name, "--quick", "--jobs", "2", "--no-figures"]
        subprocess.run([*command, "--data-dir", DATA, "--out", tmp_path], cwd=ROOT, check=True, capture_output=True)
        results = json.loads((tmp_path / f"{name}-quick.json").read_text())["repeats"]
        return {result["method"]: result for result in results}

    return run


@pytest.mark.long
def test_quick_braking_reaches_new_conditions_from_one_observation(quick):
    found = quick("braking")
    assert found[OURS]["rmse"] < found[GP_WO]["rmse"] / 3
    assert found[OURS]["r_squared"] > 0.95
    assert found[OURS]["coverage"] > 0.85


@pytest.mark.long
def test_quick_synthetic_beats_independent_and_coregionalised_gps(quick):
    found = quick("synthetic")
    assert found[OURS]["rmse"] < 0.21
    assert found[OURS]["rmse"] < 0.9 * found[GP_IND]["rmse"]
    assert found[OURS]["rmse"] < found[LMC]["rmse"]
    assert found[OURS]["coverage"] > 0.85
    assert found[GP_IND]["rmse"] == pytest.approx(0.24, abs=0.03)


@pytest.mark.long
def test_quick_uneven_conditions_share_what_they_know(quick):
    found = quick("synthetic-missing")
    assert found[OURS]["rmse"] < 0.85 * found[GP_IND]["rmse"]
    assert found[OURS]["rmse"] < found[LMC]["rmse"]


@pytest.mark.long
def test_quick_servo_beats_what_ignores_or_codes_the_linkage(quick):
    found = quick("servo")
    assert found[OURS]["rmse"] < 0.5
    assert found[OURS]["rmse"] < 0.6 * found[GP_WO]["rmse"]
    assert found[OURS]["rmse"] < found[GP_OH]["rmse"]
    assert found[OURS]["coverage"] > 0.85


@pytest.mark.long
def test_quick_sensors_beat_one_curve_for_all(quick):
    found = quick("sensors")
    assert found[OURS]["rmse"] < 0.9 * found[GP_WO]["rmse"]
    assert 0.9 < found[OURS]["coverage"] < 0.99
