"""The one place that prints: words and tables for people, JSON for machines, one line for whatever goes wrong."""

import errno
import json
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lvmogp.errors import LVMOGPError, LVMOGPWarning

INTERRUPTED = 130  # the exit code that shells give to a command ended by Ctrl-C
_ADVICE = {
    errno.ENOSPC: "free some space on that disk, or write to another one",
    errno.EDQUOT: "delete what you no longer need there, or write to another disk",
    errno.EROFS: "write to another folder",
    errno.EACCES: "ask for permission, or use another folder",
    errno.EPERM: "ask for permission, or use another folder",
}
# Names in a file may hold commands for a terminal; they are shown, never carried out. Tabs and new lines may stay.
_SHOWN_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


class Screen:
    """Where a command's words go: standard output for results, standard error for notes and errors."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False, debug: bool = False) -> None:
        self.as_json, self.quiet, self.debug = as_json, quiet, debug
        self.for_people = not (as_json or quiet)  # whether anybody reads along
        self.notes: list[str] = []
        self.after_failure = ""  # how to go on once this command has been stopped
        self._out, self._errors = Console(highlight=False), Console(highlight=False, soft_wrap=True, stderr=True)
        self.is_terminal = self._out.is_terminal  # rather than a file or another program, to which results go

    def say(self, text: str = "") -> None:
        """Print a line, which may hold rich's markup, for people."""
        if self.for_people:
            with _into_output():
                self._out.print(text.translate(_SHOWN_CONTROLS), soft_wrap=True)

    def say_facts(self, facts: Mapping[str, str | None]) -> None:
        """Print a line per fact that there is, which may hold rich's markup, for people."""
        width = max(len(name) for name, value in facts.items() if value)
        for name, value in facts.items():
            if value:
                self.say(f"[bold]{name:<{width}}[/]  {value}")

    def say_written(self, what: str, path: Path) -> None:
        """Say where a file went."""
        self.say(f"{what} written to [bold]{escape(str(path))}[/]")

    def show(self, frame: Any, *, left: Sequence[str] = ()) -> None:
        """Print a DataFrame for people; columns are flush right but those named in ``left``."""
        if not self.for_people:
            return
        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for name in frame.columns:
            table.add_column(_shown(name), justify="left" if name in left else "right", overflow="fold")
        for row in frame.itertuples(index=False, name=None):
            table.add_row(*map(_shown, row))
        with _into_output():
            self._out.print(table)

    def note(self, text: str) -> None:
        """Tell about something that the user should know; the work goes on."""
        self.notes.append(text)
        if not self.quiet:
            self._errors.print(f"[yellow]note:[/] {_shown(text)}")

    def document(self, content: Mapping[str, Any]) -> None:
        """Print JSON, for machines only: NaN and infinity as null, dates as ISO text, other objects as text."""
        if self.as_json:
            known = json.loads(json.dumps(content, default=_simpler), parse_constant=lambda _: None)
            self.raw(json.dumps(known, indent=2, ensure_ascii=False, allow_nan=False) + "\n")

    def raw(self, text: str) -> None:
        """Write text for other programs, as it is."""
        with _into_output():
            sys.stdout.write(text)

    def fail(self, failure: BaseException) -> int:
        """Tell what went wrong, in one line, and return the exit code."""
        if self.debug:
            traceback.print_exception(failure)
        words = f"unexpected {type(failure).__name__}: {failure}; run the command again with --debug to see where"
        if isinstance(failure, KeyboardInterrupt):
            words = "interrupted"
        elif isinstance(failure, LVMOGPError):
            words = str(failure)
        elif isinstance(failure, OSError):
            advice = _ADVICE.get(failure.errno or 0)
            words = f"{failure.filename or 'a file'}: {failure.strerror or failure}" + (f"; {advice}" if advice else "")
        elif isinstance(failure, MemoryError) or "RESOURCE_EXHAUSTED" in str(failure):  # the latter is XLA's
            words = "there is not enough memory; use fewer inducing points, or fewer rows"
        if self.after_failure and not isinstance(failure, LVMOGPError):
            words = f"{words}; {self.after_failure}"
        line = " ".join(words.split())
        self._errors.print(f"[bold red]error:[/] {_shown(line)}")
        self.document({"error": line})
        return INTERRUPTED if isinstance(failure, KeyboardInterrupt) else 1


@contextmanager
def reported(**options: bool) -> Iterator[Screen]:
    """Give the screen of a command; turn warnings into notes, and whatever goes wrong into a line and an exit code."""
    screen = Screen(**options)
    with warnings.catch_warnings():
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
        except (Exception, KeyboardInterrupt) as failure:
            raise typer.Exit(screen.fail(failure)) from None


@contextmanager
def _into_output() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # What is still to be written has no place to go, and Python must not try when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader, such as `head`, has seen enough
            raise typer.Exit from None
        raise OSError(error.errno, error.strerror, "the output") from error


def _shown(value: Any) -> str:
    # Four digits will do, and a day without a time stays a day.
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    if hasattr(value, "isoformat"):
        text = text.removesuffix(" 00:00:00")
    return escape(text.translate(_SHOWN_CONTROLS))


def _simpler(value: Any) -> Any:
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return value.item() if hasattr(value, "item") else str(value)


def counted(count: int, what: str) -> str:
    """Return a count with its noun."""
    return f"{count:,} {what}{'' if count == 1 else 's'}".replace(",", " ")


def missing_words(left_out: Mapping[str, int]) -> str:
    """Return what rows lacked, such as "2 without 'speed'"."""
    return ", ".join(f"{count:,} without {name!r}".replace(",", " ") for name, count in left_out.items())
