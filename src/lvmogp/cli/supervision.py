"""A process that waits for the one that works, and tells of an end about which that one could say nothing.

The libraries through which several processes fit one model end a process at once when another one is lost, and do not
listen to Ctrl-C while they wait for others.
"""

import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import NamedTuple

from lvmogp.cli.printing import INTERRUPTED, TERMINATED, Screen, and_then

# How long a process that was asked to end may take to say so itself.
_GRACE_SECONDS = 10.0
_SECONDS_BETWEEN_LOOKS = 0.05
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class _Asked(NamedTuple):
    number: int
    moment: float


def work_in_child(screen: Screen) -> None:
    """Return in a child process; this one stays to pass on signals, and ends when the child has ended."""
    if not hasattr(os, "fork"):
        return
    sys.stdout.flush()
    parent, child = os.getpid(), os.fork()
    if child:
        os._exit(_watched(screen, child))
    os.setpgid(0, 0)  # what a terminal sends to all comes once, from the parent
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    # A parent that was killed can pass on nothing any more.
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)


def _watched(screen: Screen, child: int) -> int:
    # Exit code for this process, once the child has ended.
    asked: list[_Asked] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        asked.append(_Asked(number, time.monotonic()))
        os.kill(child, number)

    for number in _SIGNALS:
        signal.signal(number, pass_on)
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if asked and time.monotonic() - asked[0].moment > _GRACE_SECONDS:
            os.kill(child, signal.SIGKILL)
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code
    interrupted = bool(asked) and asked[0].number == signal.SIGINT
    screen.error(and_then(_words(-code, asked, interrupted=interrupted), screen.after_failure))
    sys.stdout.flush()
    return 1 if not asked else INTERRUPTED if interrupted else TERMINATED


def _words(number: int, asked: list[_Asked], *, interrupted: bool) -> str:
    if asked:
        return "interrupted" if interrupted else "terminated"
    if number == signal.SIGABRT:
        return "another process of this fit was lost, or cannot be reached"
    name = signal.Signals(number).name
    return f"this process was ended from outside ({name}), as happens when memory is short"
