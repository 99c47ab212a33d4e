"""What Ctrl-C does to a long computation."""

import signal
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

    Python ignores what is raised while it collects garbage. Yields a function that says whether Ctrl-C was pressed.
    """
    pressed = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, previous)
    if pressed:
        raise KeyboardInterrupt
