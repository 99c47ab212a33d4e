"""Restarts that have ended, kept in checkpoints, so that an interrupted fit need not repeat them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.errors import ModelFileError
from lvmogp.inference.optimise import Run, Status
from lvmogp.storage.checkpoints import Checkpoints
from lvmogp.storage.tensor_file import ModelFile


class FinishedRestarts(NamedTuple):
    """Restarts of one fit that have ended, one checkpoint each."""

    checkpoints: Checkpoints
    series: str

    def save(self, number: int, run: Run) -> None:
        """Keep a restart."""
        document = {
            "bound": run.bound if np.isfinite(run.bound) else None,
            "status": run.status.name,
            "history": run.history,
            "n_evaluations": run.n_evaluations,
            "seconds": run.seconds,
        }
        self.checkpoints.save(self.series, number, ModelFile(leaves_of("tree", run.tree), document), keep_all=True)

    def load(self, number: int, like: Any) -> Run | None:
        """Return a restart that was kept, if any; ``like`` is a tree of its structure."""
        content = self.checkpoints.one_of(self.series, number)
        if content is None:
            return None
        tensors, document = content
        with refused_in_words(self.checkpoints):
            return Run(
                tree=from_leaves("tree", tensors, like),
                bound=-np.inf if document["bound"] is None else document["bound"],
                status=Status[document["status"]],
                history=tuple(document["history"]),
                n_evaluations=document["n_evaluations"],
                seconds=document["seconds"],
            )


@contextmanager
def refused_in_words(checkpoints: Checkpoints) -> Iterator[None]:
    """Say which checkpoints hold what they must not, and what to do."""
    # Digest and fingerprint are right, so whatever is wrong was put there by another program.
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ModelFileError(
            f"a checkpoint in {checkpoints.folder} does not hold what it must ({error!r}); delete the folder and begin "
            "anew"
        ) from error


def leaves_of(prefix: str, tree: Any) -> dict[str, np.ndarray]:
    """Name the arrays of a tree by where they are in it."""
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {f"{prefix}{jax.tree_util.keystr(path)}": np.asarray(leaf) for path, leaf in paths}


def from_leaves(prefix: str, tensors: dict[str, np.ndarray], like: Any) -> Any:
    """Put named arrays into a tree of the structure and shapes of ``like``."""
    paths, structure = jax.tree_util.tree_flatten_with_path(like)
    leaves = []
    for path, known in paths:
        name = f"{prefix}{jax.tree_util.keystr(path)}"
        if tensors[name].shape != np.shape(known):
            raise ValueError(f"{name} has the shape {tensors[name].shape} instead of {np.shape(known)}")
        leaves.append(jnp.asarray(tensors[name]))
    return jax.tree_util.tree_unflatten(structure, leaves)
