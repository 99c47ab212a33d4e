"""Environments of the rivals, made once and kept under ``out/rivals``."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FOLDER = ROOT / "out" / "rivals"
_WORKERS = Path(__file__).parent
# Versions that were looked at in docs/comparison.md.
_REQUIREMENTS = {
    "gpy": ("GPy==1.15.0", "numpy==2.4.6", "scipy==1.17.1"),
    "torch": (
        "torch==2.13.0",
        "gpytorch==1.15.2",
        "botorch==0.18.1",
        "linear-operator==0.6.1",
        "numpy==2.4.6",
        "scipy==1.17.1",
    ),
    "statsmodels": ("statsmodels==0.15.0", "patsy==1.0.3", "numpy==2.4.6", "scipy==1.17.1", "pandas==3.1.1"),
}


def python_of(name: str) -> Path:
    """The interpreter of a rival's environment, installed at first use."""
    folder = _FOLDER / name
    python = folder / "bin" / "python"
    installed = folder / "installed.txt"
    wanted = "\n".join(_REQUIREMENTS[name])
    if not (installed.exists() and installed.read_text() == wanted):
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *_REQUIREMENTS[name]], check=True)
        installed.write_text(wanted)
    return python


def worker(name: str) -> list[str]:
    """The command that starts a rival's worker."""
    return [str(python_of(name)), str(_WORKERS / f"{name}_worker.py")]


def versions(name: str) -> list[str]:
    """What is installed there, as pinned."""
    return list(_REQUIREMENTS[name])
