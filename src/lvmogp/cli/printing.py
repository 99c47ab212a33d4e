"""What the commands print: words and tables for people, JSON for machines."""

import errno
import json
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lvmogp.errors import LVMOGPError, LVMOGPWarning

INTERRUPTED, TERMINATED = 130, 143
_ENDING_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
_ADVICE = {
    errno.ENOSPC: "free some space on that disk, or write to another one",
    errno.EDQUOT: "delete what you no longer need there, or write to another disk",
    errno.EROFS: "write to another folder",
    errno.EACCES: "ask for permission, or use another folder",
    errno.EPERM: "ask for permission, or use another folder",
}
_NO_MEMORY = "there is not enough memory; use fewer inducing points, or fewer rows"
# Names in a file may hold commands for a terminal; they are shown, never carried out. Tabs and new lines may stay.
_SHOWN_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


class Terminated(KeyboardInterrupt):
    """The system asks this process to end; like Ctrl-C, but nobody is there to be asked back."""


class Screen:
    """Where a command's words go: standard output for results, standard error for notes and errors."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False, debug: bool = False) -> None:
        self.as_json: bool = as_json
        self.quiet: bool = quiet
        self.debug: bool = debug
        self.notes: list[str] = []
        self.after_failure = ""  # how to go on once this command has been stopped
        self.ends_at_once = False  # after a failure, as one of several processes, which wait for each other at an end
        self._out, self._errors = Console(), Console(stderr=True)

    @property
    def for_people(self) -> bool:
        """Whether anybody reads along."""
        return not (self.as_json or self.quiet)

    @property
    def is_terminal(self) -> bool:
        """Whether results go to a terminal, rather than into a file or another program."""
        return self._out.is_terminal

    def say(self, text: str = "") -> None:
        """Print a line, which may hold rich's markup, for people."""
        if self.for_people:
            with _into_output():
                self._out.print(text.translate(_SHOWN_CONTROLS), highlight=False, soft_wrap=True)

    def show(self, rows: Sequence[Sequence[str]], columns: Sequence[str], *, left: Sequence[str] = ()) -> None:
        """Print a table for people; columns are flush right but those named in ``left``."""
        if not self.for_people:
            return
        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for name in columns:
            table.add_column(_shown(name), justify="left" if name in left else "right", overflow="fold")
        for row in rows:
            table.add_row(*map(_shown, row))
        with _into_output():
            self._out.print(table, highlight=False)

    def note(self, text: str) -> None:
        """Tell about something that the user should know; the work goes on."""
        self.notes.append(text)
        if not self.quiet:
            self._errors.print(f"[yellow]note:[/] {_shown(text)}", highlight=False, soft_wrap=True)

    def error(self, text: str) -> None:
        """Tell what went wrong, in one line."""
        line = " ".join(text.split())
        self._errors.print(f"[bold red]error:[/] {_shown(line)}", highlight=False, soft_wrap=True)
        if self.as_json:
            self.document({"error": line})

    def document(self, content: Mapping[str, Any]) -> None:
        """Print JSON, for machines only."""
        if self.as_json:
            # JSON knows no NaN and no infinity.
            self.raw(json.dumps(plain(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n")

    def raw(self, text: str) -> None:
        """Write text for other programs, as it is."""
        with _into_output():
            sys.stdout.write(text)


@contextmanager
def _into_output() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        _drop_output()
        raise OSError(error.errno, error.strerror, "the output") from error


def _shown(text: str) -> str:
    return escape(text.translate(_SHOWN_CONTROLS))


@contextmanager
def reported(*, as_json: bool = False, quiet: bool = False, debug: bool = False) -> Iterator[Screen]:
    """Turn warnings into notes, and whatever goes wrong into one line and an exit code."""
    screen = Screen(as_json=as_json, quiet=quiet, debug=debug)
    with _ended_in_words(), warnings.catch_warnings():
        if not screen.debug:
            warnings.simplefilter("ignore")
        warnings.simplefilter("always", LVMOGPWarning)
        warnings.showwarning = lambda message, *_, **__: screen.note(str(message))
        try:
            yield screen
            with _into_output():
                sys.stdout.flush()  # a full disk is told of here, not when Python exits
        except typer.Exit:
            raise
        except BrokenPipeError:  # the reader, such as `head`, has seen enough
            _drop_output()
            raise typer.Exit from None
        except KeyboardInterrupt as interrupt:
            terminated = isinstance(interrupt, Terminated)
            screen.error(and_then("terminated" if terminated else "interrupted", screen.after_failure))
            _leave(screen, TERMINATED if terminated else INTERRUPTED)
        except Exception as error:
            _give_up(screen, error)


@contextmanager
def _ended_in_words() -> Iterator[None]:
    # When the system asks the process to end, what it was writing is cleared away as after Ctrl-C.
    def end(number: int, frame: FrameType | None) -> None:
        for each in taken:
            signal.signal(each, signal.SIG_IGN)  # once is enough, and nothing disturbs the clearing away
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Those that are ignored, as under nohup, stay so.
    taken = [number for number in _ENDING_SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _drop_output() -> None:
    # What is still to be written has no place to go, and Python must not try when it exits.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _give_up(screen: Screen, error: Exception) -> NoReturn:
    if screen.debug:
        traceback.print_exc()
    words = _in_words(error)
    screen.error(words if isinstance(error, LVMOGPError) else and_then(words, screen.after_failure))
    _leave(screen, 1)


def _leave(screen: Screen, code: int) -> NoReturn:
    if screen.ends_at_once:
        sys.stdout.flush()
        os._exit(code)
    raise typer.Exit(code) from None


def and_then(words: str, more: str) -> str:
    """Words, and what else there is to say."""
    return f"{words}; {more}" if more else words


def _in_words(error: Exception) -> str:
    if isinstance(error, LVMOGPError):
        return str(error)
    if isinstance(error, OSError):
        return and_then(f"{error.filename or 'a file'}: {error.strerror or error}", _ADVICE.get(error.errno or 0, ""))
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):  # the latter is XLA's
        return _NO_MEMORY
    return f"unexpected {type(error).__name__}: {error}; run the command again with --debug to see where"


def plain(value: Any) -> Any:
    """A value as JSON can hold it: NumPy's numbers as Python's, NaN and infinity as null, other objects as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if value - value == 0 else None
    return value if isinstance(value, str | int | bool | None) else str(value)


def number(value: float) -> str:
    """A number for people: four significant digits, without the noise of trailing zeros."""
    return f"{value:.4g}"
