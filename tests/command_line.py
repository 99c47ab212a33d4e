"""Commands run in this process, and what they print."""

import signal
from contextlib import contextmanager

from typer.testing import CliRunner

from lvmogp.cli.app import app


def lvmogp(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def succeeded(*arguments):
    result = lvmogp(*arguments)
    assert result.exit_code == 0, result.output
    return result


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
