"""What a fit by minibatches and ended restarts keep in checkpoints, to be taken up again."""

from typing import NamedTuple, TypeVar

import jax
import numpy as np

from lvmogp.errors import warn
from lvmogp.ground.rules import AnyFloat
from lvmogp.inference.minibatch.bound import Shared
from lvmogp.inference.minibatch.descent import Running, begin
from lvmogp.inference.minibatch.distributed import first_bytes
from lvmogp.inference.minibatch.schedule import STAGES
from lvmogp.inference.optimise import Run, Status
from lvmogp.model.parameters import Parameters
from lvmogp.storage.checkpoints import Checkpoints
from lvmogp.storage.tensor_file import from_bytes, to_bytes
from lvmogp.typing import Float

_SERIES = "steps"
_Tree = TypeVar("_Tree")


class Start(NamedTuple):
    """Where stochastic inference starts: what all conditions share, and the table of their latents."""

    shared: Shared
    table: Float[np.ndarray, "D K"]


class Interrupted(NamedTuple):
    """A run between two windows, and where it started; none, where nothing was kept."""

    start: Start | None = None
    running: Running | None = None


class EndedRestart(NamedTuple):
    """A run of the optimiser that is over."""

    parameters: Parameters
    bound: AnyFloat
    status: Status
    history: tuple[AnyFloat, ...]
    n_evaluations: int
    seconds: float


def save_running(checkpoints: Checkpoints, start: Start, running: Running) -> None:
    """Write a run between two windows."""
    checkpoints.save(_SERIES, running.step, Interrupted(start, running), Interrupted)


def load_running(checkpoints: Checkpoints) -> tuple[Start, Running] | None:
    """Return the newest run that can be read; of several processes the first has it, and tells the others."""
    found = checkpoints.latest(_SERIES, Interrupted) if jax.process_index() == 0 else None
    kept = Interrupted() if found is None else found[1]
    start, running = (
        from_bytes(first_bytes(to_bytes(kept, Interrupted)), Interrupted) if jax.process_count() > 1 else kept
    )
    if start is None or running is None:
        return None
    like, stages = begin(start.shared, start.table), range(len(STAGES) + 1)
    if not (_is_like(running.state, like) and _is_like(running.average, like) and running.course.stage in stages):
        warn(f"the checkpoints in {checkpoints.folder} do not fit where they started; the fit begins anew")
        return None
    return start, running


class FinishedRestarts(NamedTuple):
    """Restarts of one fit that have ended, one checkpoint each."""

    checkpoints: Checkpoints
    series: str

    def save(self, number: int, run: Run) -> None:
        """Keep a restart."""
        self.checkpoints.save(self.series, number, EndedRestart(*run), EndedRestart, keep_all=True)

    def load(self, number: int, like: Parameters) -> Run | None:
        """Return a restart that was kept; ``like`` is a tree of its structure, without which it is not taken."""
        found = self.checkpoints.one_of(self.series, number, EndedRestart)
        return Run(*found) if found is not None and _is_like(found.parameters, like) else None


def _is_like(tree: _Tree, like: _Tree) -> bool:
    if jax.tree.structure(tree) != jax.tree.structure(like):
        return False
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(like), strict=True)
    return all(leaf.shape == known.shape and leaf.dtype == known.dtype for leaf, known in pairs)
