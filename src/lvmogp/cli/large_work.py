"""Fits that take long or many machines: checkpoints, Parquet files read in pieces, several processes."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from lvmogp.cli.files.parquet import Part, open_parquet
from lvmogp.cli.files.tables import first_line, is_parquet
from lvmogp.cli.printing import Screen
from lvmogp.cli.supervision import work_in_child
from lvmogp.errors import LVMOGPError, SettingError
from lvmogp.inference.minibatch.distributed import Rendezvous, join_processes, summed
from lvmogp.progress import job_progress
from lvmogp.storage.checkpoints import clear_checkpoints
from lvmogp.tables.observations import ObservationStore


class Keeping(NamedTuple):
    """Where checkpoints of a fit go, if anywhere."""

    folder: Path | None
    seconds: float
    resume: bool

    def arguments(self) -> dict[str, Any]:
        """The same for ``LVMOGPRegressor.fit``."""
        return {"checkpoint": self.folder, "checkpoint_seconds": self.seconds, "resume": self.resume}

    @property
    def way_on(self) -> str:
        """What to do once the fit has been stopped."""
        if self.folder is None:
            return "no model was written"
        return f"the same command with --resume goes on from the last checkpoint in {self.folder}"

    def done(self) -> None:
        """Forget the checkpoints, once the model is saved."""
        if self.folder is not None:
            clear_checkpoints(self.folder)


class Processes(NamedTuple):
    """Whether this is one of several processes that fit one model together, and where they meet."""

    several: bool
    rendezvous: Rendezvous

    def join(self, screen: Screen, data: Path, settings: dict[str, Any]) -> None:
        """Connect to the others, before anything else is computed; from here on in a process of its own."""
        if not self.several:
            if any(value is not None for value in self.rendezvous):
                raise SettingError("--coordinator, --processes and --process belong to --distributed; add it")
            return
        if not is_parquet(data) or settings["inference"] != "stochastic":
            raise SettingError(
                "--distributed fits Parquet files by minibatches; give a .parquet file or a folder of them, and "
                "--inference stochastic"
            )
        work_in_child(screen)
        screen.ends_at_once = True
        _keep_output_for_results()
        join_processes(self.rendezvous)

    @property
    def is_first(self) -> bool:
        """Whether this process writes and tells what came of it."""
        return not self.several or jax.process_index() == 0

    @contextmanager
    def together(self) -> Iterator[None]:
        """Put into words that another process was lost."""
        try:
            yield
        except jax.errors.JaxRuntimeError as error:
            if not self.several or "RESOURCE_EXHAUSTED" in str(error):
                raise
            raise LVMOGPError(
                f"another process of this fit was lost, or cannot be reached ({first_line(error):.200}); start all of "
                "them again, with --resume where there are checkpoints"
            ) from error

    def total(self, number: int) -> int:
        """Sum of what each process has; all of them must ask."""
        return int(summed(np.asarray([number]))[0]) if self.several else number


def _keep_output_for_results() -> None:
    # The library through which processes talk on CPUs prints to the standard output, around Python. What it says goes
    # to the standard error instead, so that the output holds the result and nothing else.
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(kept, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)


def is_streamed(data: Path, settings: dict[str, Any]) -> bool:
    """Whether a file is read in pieces rather than as a table."""
    return is_parquet(data) and (settings["inference"] == "stochastic" or data.is_dir())


@contextmanager
def streamed(
    screen: Screen, data: Path, *, output: str, condition: str, inputs: Sequence[str], processes: Processes
) -> Iterator[ObservationStore]:
    """The part of the observations in Parquet files that falls to this process, while the context lasts."""
    part = Part(jax.process_index(), jax.process_count()) if processes.several else Part()
    with ExitStack() as kept:
        with job_progress("rows read", shown=screen.for_people and processes.is_first) as report:
            store = kept.enter_context(
                open_parquet(data, output=output, condition=condition, inputs=inputs, part=part, on_progress=report)
            )
        yield store
