"""Runs as the content of checkpoints, and back."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load, save

from lvmogp.errors import ModelFileError
from lvmogp.inference.minibatch.bound import Shared
from lvmogp.inference.minibatch.descent import Running, begin
from lvmogp.inference.minibatch.distributed import first_bytes
from lvmogp.inference.minibatch.schedule import Course, Window
from lvmogp.inference.optimise import Run, Status
from lvmogp.storage.checkpoints import Checkpoints
from lvmogp.storage.tensor_file import ModelFile, decode_kernel, encode_kernel
from lvmogp.typing import HostFloat

_SERIES = "steps"
_NOTHING = b"nothing"


class Start(NamedTuple):
    """Where stochastic inference starts: what all conditions share, and the table of their latents."""

    shared: Shared
    table: HostFloat


def start_content(start: Start) -> ModelFile:
    """A start as arrays and a document."""
    shared = start.shared
    tensors = {
        "table": start.table,
        "inducing_inputs": shared.inducing_inputs,
        "inducing_latents": shared.inducing_latents,
        "noise_variance": shared.noise_variance,
    }
    kernels = {name: encode_kernel(getattr(shared, name)) for name in ("input_kernel", "latent_kernel")}
    return ModelFile({name: np.asarray(value, dtype=float) for name, value in tensors.items()}, kernels)


def start_from(content: ModelFile) -> Start:
    """Inverse of :func:`start_content`."""
    tensors, document = content
    arrays: dict[str, Any] = {
        name: jnp.asarray(tensors[name]) for name in ("inducing_inputs", "inducing_latents", "noise_variance")
    }
    for name in ("input_kernel", "latent_kernel"):
        arrays[name] = jax.tree.map(jnp.asarray, decode_kernel(document[name]))
    return Start(Shared(**arrays), tensors["table"])


def start_bytes(start: Start) -> bytes:
    """A start as it travels between processes."""
    return _content_bytes(start_content(start))


def start_from_bytes(payload: bytes) -> Start:
    """Inverse of :func:`start_bytes`."""
    return start_from(_content_from_bytes(payload))


def _content_bytes(content: ModelFile) -> bytes:
    return save(content.tensors, {"document": json.dumps(content.document)})


def _content_from_bytes(payload: bytes) -> ModelFile:
    length = int.from_bytes(payload[:8], "little")  # a safetensors file opens with the length of its JSON header
    document = json.loads(json.loads(payload[8 : 8 + length])["__metadata__"]["document"])
    return ModelFile(load(payload), document)


def save_running(checkpoints: Checkpoints, start: Start, running: Running) -> None:
    """Write a run between two windows."""
    tensors, kernels = start_content(start)
    content = {f"start.{name}": value for name, value in tensors.items()}
    content |= _leaves("state", running.state) | _leaves("average", running.average)
    document = {
        "start": kernels,
        "n_averaged": running.n_averaged,
        "step": running.step,
        "course": running.course,
        "history": running.history,
    }
    checkpoints.save(_SERIES, running.step, ModelFile(content, document))


def load_running(checkpoints: Checkpoints) -> tuple[Start, Running] | None:
    """The newest run that was written and can be read; of several processes the first has it, and tells the others."""
    content = _newest(checkpoints)
    if content is None:
        return None
    tensors, document = content
    with _refused_in_words(checkpoints):
        begun = {name.removeprefix("start."): value for name, value in tensors.items() if name.startswith("start.")}
        start = start_from(ModelFile(begun, document["start"]))
        like = begin(start.shared, start.table)
        stage, windows, *others = document["course"]
        return start, Running(
            state=_from_leaves("state", tensors, like),
            average=_from_leaves("average", tensors, like),
            n_averaged=document["n_averaged"],
            step=document["step"],
            course=Course(stage, tuple(Window(*each) for each in windows), *others),
            history=tuple(Window(*each) for each in document["history"]),
        )


@contextmanager
def _refused_in_words(checkpoints: Checkpoints) -> Iterator[None]:
    # Digest and fingerprint are right, so whatever is wrong was put there by another program.
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ModelFileError(
            f"a checkpoint in {checkpoints.folder} does not hold what it must ({error!r}); delete the folder and begin "
            "anew"
        ) from error


def _newest(checkpoints: Checkpoints) -> ModelFile | None:
    found = checkpoints.latest(_SERIES) if jax.process_index() == 0 else None
    if jax.process_count() == 1:
        return None if found is None else found[1]
    payload = first_bytes(_NOTHING if found is None else _content_bytes(found[1]))
    return None if payload == _NOTHING else _content_from_bytes(payload)


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
        self.checkpoints.save(self.series, number, ModelFile(_leaves("tree", run.tree), document), keep_all=True)

    def load(self, number: int, like: Any) -> Run | None:
        """A restart that was kept; ``like`` is a tree of its structure."""
        content = self.checkpoints.one_of(self.series, number)
        if content is None:
            return None
        tensors, document = content
        with _refused_in_words(self.checkpoints):
            return Run(
                tree=_from_leaves("tree", tensors, like),
                bound=-np.inf if document["bound"] is None else document["bound"],
                status=Status[document["status"]],
                history=tuple(document["history"]),
                n_evaluations=document["n_evaluations"],
                seconds=document["seconds"],
            )


def _leaves(prefix: str, tree: Any) -> dict[str, np.ndarray]:
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {f"{prefix}{jax.tree_util.keystr(path)}": np.asarray(leaf) for path, leaf in paths}


def _from_leaves(prefix: str, tensors: dict[str, np.ndarray], like: Any) -> Any:
    paths, structure = jax.tree_util.tree_flatten_with_path(like)
    leaves = []
    for path, known in paths:
        name = f"{prefix}{jax.tree_util.keystr(path)}"
        if tensors[name].shape != np.shape(known):
            raise ValueError(f"{name} has the shape {tensors[name].shape} instead of {np.shape(known)}")
        leaves.append(jnp.asarray(tensors[name]))
    return jax.tree_util.tree_unflatten(structure, leaves)
