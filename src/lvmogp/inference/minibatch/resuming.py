"""Fits by minibatches as the content of checkpoints, and back."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load, save

from lvmogp.inference.finished import from_leaves, leaves_of, refused_in_words
from lvmogp.inference.minibatch.bound import Shared
from lvmogp.inference.minibatch.descent import Running, begin
from lvmogp.inference.minibatch.distributed import first_bytes
from lvmogp.inference.minibatch.schedule import Schedule, Window
from lvmogp.inference.minibatch.start import Start
from lvmogp.storage.checkpoints import Checkpoints
from lvmogp.storage.tensor_file import ModelFile, decode_kernel, encode_kernel

_SERIES = "steps"
_KERNELS = ("input_kernel", "latent_kernel")
_ARRAYS = ("inducing_inputs", "inducing_latents", "noise_variance")


def _encode_start(start: Start) -> ModelFile:
    tensors = {name: np.asarray(getattr(start.shared, name), dtype=float) for name in _ARRAYS}
    kernels = {name: encode_kernel(getattr(start.shared, name)) for name in _KERNELS}
    return ModelFile({**tensors, "table": np.asarray(start.table)}, kernels)


def _decode_start(content: ModelFile) -> Start:
    fields: dict[str, Any] = {name: jnp.asarray(content.tensors[name]) for name in _ARRAYS}
    fields |= {name: jax.tree.map(jnp.asarray, decode_kernel(content.document[name])) for name in _KERNELS}
    return Start(Shared(**fields), content.tensors["table"])


def of_first_process(start: Start | None) -> Start:
    """Give all processes the start that the first one has."""
    content = _from_first(None if start is None else _encode_start(start))
    if content is None:
        raise ValueError("the first process has no start")
    return _decode_start(content)


def _from_first(content: ModelFile | None) -> ModelFile | None:
    # What the first process has, for all processes, in one piece of bytes; nothing travels as no bytes at all.
    if jax.process_count() == 1:
        return content
    own = b"" if content is None else save(content.tensors, {"document": json.dumps(content.document)})
    payload = first_bytes(own)
    if not payload:
        return None
    length = int.from_bytes(payload[:8], "little")  # a safetensors file opens with the length of its JSON header
    document = json.loads(json.loads(payload[8 : 8 + length])["__metadata__"]["document"])
    return ModelFile(load(payload), document)


def save_running(checkpoints: Checkpoints, start: Start, running: Running) -> None:
    """Write a run between two windows."""
    tensors, kernels = _encode_start(start)
    content = {f"start.{name}": value for name, value in tensors.items()}
    content |= leaves_of("state", running.state) | leaves_of("average", running.average)
    document = {
        "start": kernels,
        "n_averaged": running.n_averaged,
        "step": running.step,
        "schedule": running.schedule,
        "history": running.history,
    }
    checkpoints.save(_SERIES, running.step, ModelFile(content, document))


def load_running(checkpoints: Checkpoints) -> tuple[Start, Running] | None:
    """Read the newest run that was written and can be read; of several processes the first tells the others."""
    found = checkpoints.latest(_SERIES) if jax.process_index() == 0 else None
    content = _from_first(None if found is None else found[1])
    if content is None:
        return None
    tensors, document = content
    with refused_in_words(checkpoints):
        begun = {name.removeprefix("start."): value for name, value in tensors.items() if name.startswith("start.")}
        start = _decode_start(ModelFile(begun, document["start"]))
        like = begin(start.shared, start.table)
        stage, windows, *others = document["schedule"]
        return start, Running(
            state=from_leaves("state", tensors, like),
            average=from_leaves("average", tensors, like),
            n_averaged=document["n_averaged"],
            step=document["step"],
            schedule=Schedule(stage, tuple(Window(*each) for each in windows), *others),
            history=tuple(Window(*each) for each in document["history"]),
        )
