"""Many devices and many machines, by JAX's own means: one process a machine or device, arrays spread over a mesh."""

import json
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from safetensors.numpy import load, save

from lvmogp.errors import SettingError
from lvmogp.storage.codec import decode, encode

AXIS = "shards"
# Beside the arrays of a value that travels; no field is called so.
_DOCUMENT = "document of all"


class Rendezvous(NamedTuple):
    """Where the processes meet and which one this is; what is ``None`` is found out from the scheduler."""

    coordinator: str | None = None
    n_processes: int | None = None
    process: int | None = None


def join_processes(rendezvous: Rendezvous) -> None:
    """Connect this process to the others; before anything else is computed."""
    given = [value is not None for value in rendezvous]
    if any(given) and not all(given):
        raise SettingError(
            "a distributed fit needs the coordinator, the number of processes and the number of this process together, "
            "or none of them under SLURM, Open MPI or Kubernetes"
        )
    try:
        jax.distributed.initialize(
            coordinator_address=rendezvous.coordinator,
            num_processes=rendezvous.n_processes,
            process_id=rendezvous.process,
        )
    except (ValueError, RuntimeError) as error:
        raise SettingError(
            f"this process could not join the others ({error}); give --coordinator HOST:PORT, --processes and --process"
        ) from error


def mesh() -> Mesh:
    """All devices of all processes along one axis."""
    return Mesh(np.asarray(jax.devices()), (AXIS,))


def on_devices(tree: Any, over: Mesh, *, spread: bool = False) -> Any:
    """Put arrays whole on every device, or spread them over all, of which this process gives its part."""
    sharding = NamedSharding(over, PartitionSpec(AXIS) if spread else PartitionSpec())
    if jax.process_count() == 1:
        return jax.device_put(tree, sharding)
    return jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(sharding, np.asarray(leaf)), tree)


def gathered(value: Any, kind: Any) -> list[Any]:
    """Return the values of this type that all processes have, which travel as files hold them."""
    if jax.process_count() == 1:
        return [value]
    tensors, document = encode(value, kind)
    payload = np.frombuffer(
        save(tensors | {_DOCUMENT: np.frombuffer(json.dumps(document).encode(), np.uint8)}), np.uint8
    )
    lengths = multihost_utils.process_allgather(np.asarray(len(payload)))
    # Those of different lengths travel padded to the longest.
    everyone = multihost_utils.process_allgather(np.resize(payload, int(lengths.max())))
    received = [load(part[:length].tobytes()) for part, length in zip(everyone, lengths, strict=True)]
    return [decode(tensors, json.loads(tensors.pop(_DOCUMENT).tobytes()), kind) for tensors in received]
