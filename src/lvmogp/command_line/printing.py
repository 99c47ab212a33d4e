"""What the commands print: words and tables for people, JSON for machines."""

import json
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lvmogp.errors import LVMOGPError, LVMOGPWarning

INTERRUPTED = 130


class Screen:
    """Where a command's words go: standard output for results, standard error for notes and errors."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False, debug: bool = False) -> None:
        self.as_json, self.quiet, self.debug = as_json, quiet, debug
        self.notes: list[str] = []
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
            self._out.print(text, highlight=False, soft_wrap=True)

    def show(self, rows: Sequence[Sequence[str]], columns: Sequence[str], *, left: Sequence[str] = ()) -> None:
        """Print a table for people; columns are flush right but those named in ``left``."""
        if not self.for_people:
            return
        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for name in columns:
            table.add_column(escape(name), justify="left" if name in left else "right", overflow="fold")
        for row in rows:
            table.add_row(*map(escape, row))
        self._out.print(table, highlight=False)

    def note(self, text: str) -> None:
        """Tell about something that the user should know; the work goes on."""
        self.notes.append(text)
        if not self.quiet:
            self._errors.print(f"[yellow]note:[/] {escape(text)}", highlight=False, soft_wrap=True)

    def error(self, text: str) -> None:
        """Tell what went wrong, in one line."""
        line = " ".join(text.split())
        self._errors.print(f"[bold red]error:[/] {escape(line)}", highlight=False, soft_wrap=True)
        if self.as_json:
            self.document({"error": line})

    def document(self, content: Mapping[str, Any]) -> None:
        """Print JSON, for machines only."""
        if self.as_json:
            # JSON knows no NaN and no infinity.
            sys.stdout.write(json.dumps(plain(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n")

    def raw(self, text: str) -> None:
        """Write text for other programs, as it is."""
        sys.stdout.write(text)


@contextmanager
def reported(*, as_json: bool = False, quiet: bool = False, debug: bool = False) -> Iterator[Screen]:
    """Turn warnings into notes, and whatever goes wrong into one line and an exit code."""
    screen = Screen(as_json=as_json, quiet=quiet, debug=debug)
    with warnings.catch_warnings():
        if not screen.debug:
            warnings.simplefilter("ignore")
        warnings.simplefilter("always", LVMOGPWarning)
        warnings.showwarning = lambda message, *_, **__: screen.note(str(message))
        try:
            yield screen
        except typer.Exit:
            raise
        except BrokenPipeError:
            # The reader, such as `head`, has seen enough; Python must not try to write the rest when it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit from None
        except KeyboardInterrupt:
            screen.error("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            _give_up(screen, error)


def _give_up(screen: Screen, error: Exception) -> NoReturn:
    if screen.debug:
        traceback.print_exc()
    screen.error(_in_words(error))
    raise typer.Exit(1) from None


def _in_words(error: Exception) -> str:
    if isinstance(error, LVMOGPError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename or 'a file'}: {error.strerror or error}"
    if isinstance(error, MemoryError):
        return "there is not enough memory; use fewer inducing points, or fewer rows"
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
