"""Restarts that have ended, kept in checkpoints, so that an interrupted fit need not repeat them."""

from typing import Any, NamedTuple

import jax

from lvmogp.ground.rules import AnyFloat
from lvmogp.inference.optimise import Run, Status
from lvmogp.model.parameters import Parameters
from lvmogp.storage.checkpoints import Checkpoints


class EndedRestart(NamedTuple):
    """A run of the optimiser that is over."""

    parameters: Parameters
    bound: AnyFloat
    status: Status
    history: tuple[AnyFloat, ...]
    n_evaluations: int
    seconds: float


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
        return Run(*found) if found is not None and is_like(found.parameters, like) else None


def is_like(tree: Any, like: Any) -> bool:
    """Return whether two trees have the same structure, shapes and precisions."""
    if jax.tree.structure(tree) != jax.tree.structure(like):
        return False
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(like), strict=True)
    return all(leaf.shape == known.shape and leaf.dtype == known.dtype for leaf, known in pairs)
