"""Many devices and many machines, by JAX's own means: one process a machine or device, arrays spread over a mesh."""

import json
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lvmogp.errors import SettingError
from lvmogp.tables.observations import Observations
from lvmogp.tables.scaling import ColumnMoments

AXIS = "shards"


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


def gathered_rows(rows: Observations) -> Observations:
    """Return the rows of all processes, one after the other."""
    inputs, outputs, conditions = (np.concatenate(_gathered(np.asarray(column))) for column in rows[:3])
    return rows._replace(inputs=inputs, outputs=outputs, conditions=conditions)


def merged_moments(moments: ColumnMoments) -> ColumnMoments:
    """Return the moments of the rows of all processes together."""
    columns = [np.stack(_gathered(np.atleast_1d(np.asarray(part, dtype=float)))) for part in moments]
    total, *others = [ColumnMoments(float(count[0]), *rest) for count, *rest in zip(*columns, strict=True)]
    for other in others:
        total = total.merged(other)
    return total


def gathered_documents(document: Any) -> list[Any]:
    """Return a document of plain values from each process."""
    payload = np.frombuffer(json.dumps(document).encode(), dtype=np.uint8)
    return [json.loads(part.tobytes().decode()) for part in _gathered(payload)]


def of_first(payload: bytes) -> bytes:
    """Return what the first process has, for all processes."""
    return _gathered(np.frombuffer(payload, dtype=np.uint8))[0].tobytes()


def summed(values: np.ndarray) -> np.ndarray:
    """Sum over the processes."""
    return np.sum(_gathered(values), axis=0)


def _gathered(values: np.ndarray) -> list[np.ndarray]:
    # The arrays of all processes; those of different lengths travel padded to the longest.
    if jax.process_count() == 1:
        return [values]
    lengths = multihost_utils.process_allgather(np.asarray(len(values)))
    padded = np.zeros((int(lengths.max()), *values.shape[1:]), dtype=values.dtype)
    padded[: len(values)] = values
    everyone = multihost_utils.process_allgather(padded)
    return [np.asarray(part[:length]) for part, length in zip(everyone, lengths, strict=True)]
