"""Commands run in this process, and what they print."""

import json
import signal
from contextlib import contextmanager

import numpy as np
import pandas as pd
from typer.testing import CliRunner

from lvmogp.cli.app import app

SIZES = ["--latents", "1", "--restarts", "1", "--inducing-inputs", "6"]
# The paper's model, which is the quickest to fit.
PAPERS = ["--shared-kernel", "none", "--own-kernel", "none", "--input-kernel", "rbf", "--latent-kernel", "rbf"]
SMALL = [*SIZES, *PAPERS, "--noise", "shared"]
ROLES = ["--output", "distance", "--condition", "tyre"]


def data():
    """Braking distances of five tyres."""
    rng = np.random.default_rng(0)
    speed = rng.uniform(1, 5, 30).round(2)
    number = np.arange(30) % 5
    distance = (speed**2 * (1 + number / 4) + 0.1 * rng.standard_normal(30)).round(3)
    return pd.DataFrame({"speed": speed, "tyre": [f"00{each}" for each in number], "distance": distance})


def lvmogp(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def succeeded(*arguments):
    result = lvmogp(*arguments)
    assert result.exit_code == 0, result.output
    return result


def document(*arguments):
    """The JSON that a command prints."""
    return json.loads(succeeded(*arguments, "--json").stdout)


def failed(*arguments, code=1):
    """The one line that an error prints."""
    result = lvmogp(*arguments)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, result.stderr
    return lines[0]


@contextmanager
def listening_to_ctrl_c():
    """Processes started meanwhile listen to Ctrl-C, also where it was ignored when this one was started."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
