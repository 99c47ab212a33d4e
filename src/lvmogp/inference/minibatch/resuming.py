"""What a fit by minibatches keeps in checkpoints, to be taken up again."""

from typing import NamedTuple

import jax

from lvmogp.errors import warn
from lvmogp.inference.finished import is_like
from lvmogp.inference.minibatch.descent import Running, begin
from lvmogp.inference.minibatch.distributed import first_bytes
from lvmogp.inference.minibatch.schedule import STAGES
from lvmogp.inference.minibatch.start import Start
from lvmogp.storage.checkpoints import Checkpoints
from lvmogp.storage.tensor_file import from_bytes, to_bytes

_SERIES = "steps"


class Interrupted(NamedTuple):
    """A run between two windows, and where it started; none, where nothing was kept."""

    start: Start | None = None
    running: Running | None = None


def of_first_process(start: Start | None) -> Start:
    """Give all processes the start that the first one has."""
    own = b"" if start is None else to_bytes(start, Start)
    return from_bytes(first_bytes(own), Start)


def save_running(checkpoints: Checkpoints, start: Start, running: Running) -> None:
    """Write a run between two windows."""
    checkpoints.save(_SERIES, running.step, Interrupted(start, running), Interrupted)


def load_running(checkpoints: Checkpoints) -> tuple[Start, Running] | None:
    """Return the newest run that can be read; of several processes the first has it, and tells the others."""
    found = checkpoints.latest(_SERIES, Interrupted) if jax.process_index() == 0 else None
    kept = Interrupted() if found is None else found[1]
    if jax.process_count() > 1:
        kept = from_bytes(first_bytes(to_bytes(kept, Interrupted)), Interrupted)
    if kept.start is None or kept.running is None:
        return None
    like, running = begin(kept.start.shared, kept.start.table), kept.running
    fits = is_like(running.state, like) and is_like(running.average, like)
    if not fits or running.schedule.stage not in range(len(STAGES) + 1):
        warn(f"the checkpoints in {checkpoints.folder} do not fit where they started; the fit begins anew")
        return None
    return kept.start, running
