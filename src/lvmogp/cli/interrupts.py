"""What Ctrl-C does to a long computation."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def first_interrupt_asks(on_first: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a request to stop; the next one interrupts at once, as usual.

    Yields a function that says whether a stop was asked for.
    """
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        on_first()

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def no_interrupt_is_lost() -> Iterator[Callable[[], bool]]:
    """Ctrl-C interrupts at once, as usual, and at the end once more if that came to nothing.

    Python ignores what is raised while it collects garbage, and would print it: here it is not worth a word. Yields a
    function that says whether Ctrl-C was pressed.
    """
    pressed = False
    print_ignored = sys.unraisablehook

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        raise KeyboardInterrupt

    def ignore(unraisable: "sys.UnraisableHookArgs") -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            print_ignored(unraisable)

    previous = signal.signal(signal.SIGINT, handle)
    sys.unraisablehook = ignore
    try:
        yield lambda: pressed
    finally:
        sys.unraisablehook = print_ignored
        signal.signal(signal.SIGINT, previous)
    if pressed:
        raise KeyboardInterrupt
