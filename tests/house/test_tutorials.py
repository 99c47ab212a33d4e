"""The tutorials run as they stand, draw the figures that they show, and find the numbers that they claim."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
SCRIPTS = ["growth_curves", "new_machine", "sensors", "simulator_grid"]
LARGEST = 150_000  # bytes of a figure


def shown_by(name):
    """Figures that the text of a tutorial shows."""
    return sorted(re.findall(r"\]\(images/(.+?)\)", (FOLDER / f"{name}.py").read_text()))


def test_every_tutorial_is_run():
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == SCRIPTS


@pytest.mark.long
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_tutorial_keeps_its_word(name, tmp_path):
    settings = {**os.environ, "MPLBACKEND": "Agg", "LVMOGP_IMAGES": str(tmp_path)}
    command = [sys.executable, "-W", "error::UserWarning", str(FOLDER / f"{name}.py")]
    process = subprocess.run(command, env=settings, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == shown_by(name)


@pytest.mark.parametrize("name", SCRIPTS)
def test_figures_are_there_and_small(name):
    assert shown_by(name)
    for figure in shown_by(name):
        assert (FOLDER / "images" / figure).stat().st_size < LARGEST
