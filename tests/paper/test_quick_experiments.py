"""Quick runs of the paper's five experiments: each asserts what its experiment is about."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from paper.plan import GP_IND, GP_OH, GP_WO, LMC, OURS

ROOT = Path(__file__).parents[2]
# The most that our error may be: of itself, and as a share of the errors of others; and how much of the truth lies in
# our intervals of 95 %.
CLAIMS = {
    "braking": ({GP_WO: 1 / 3}, 0.85),
    "synthetic": ({OURS: 0.21, GP_IND: 0.9, LMC: 1.0}, 0.85),
    "synthetic-missing": ({GP_IND: 0.85, LMC: 1.0}, 0.0),
    "servo": ({OURS: 0.5, GP_WO: 0.6, GP_OH: 1.0}, 0.85),
    "sensors": ({GP_WO: 0.9}, 0.9),
}


@pytest.mark.long
@pytest.mark.parametrize("name", CLAIMS)
def test_a_quick_run_by_the_command_shows_what_its_experiment_is_about(name, tmp_path):
    command = [sys.executable, "-m", "paper", name, "--quick", "--jobs", "2", "--no-figures"]
    command += ["--data-dir", ROOT / "tests" / "data", "--out", tmp_path]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    results = json.loads((tmp_path / f"{name}-quick.json").read_text())["repeats"]
    found = {result["method"]: result for result in results}
    shares, coverage = CLAIMS[name]
    for method, most in shares.items():
        assert found[OURS]["rmse"] < most * (1.0 if method == OURS else found[method]["rmse"])
    assert coverage < found[OURS]["coverage"] <= (0.99 if name == "sensors" else 1.0)
    if name == "braking":
        assert found[OURS]["r_squared"] > 0.95
    if name == "synthetic":
        assert found[GP_IND]["rmse"] == pytest.approx(0.24, abs=0.03)
