"""Files of tensors: arrays with a JSON document, checked when read, never half-written.

A file is a safetensors container. Its metadata hold the format's name and version, the document, and two SHA-256
digests: one of the document with the names, types and sizes of the arrays, and one of the arrays themselves. So damage
is noticed before arrays are read, and sizes are compared before memory is taken. Nothing in a file is executed.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import safetensors
from safetensors.numpy import save

from lvmogp.__about__ import __version__
from lvmogp.errors import ModelFileError
from lvmogp.ground.writing import replace_file
from lvmogp.storage.codec import Content, Sizes

MODEL, CHECKPOINT = "lvmogp-model", "lvmogp-checkpoint"
VERSION = 1
_NAMES = {MODEL: "model", CHECKPOINT: "checkpoint"}
# How safetensors calls the types of numbers that our files hold.
_DTYPES = {"F64": "float64", "F32": "float32", "I64": "int64", "I32": "int32", "BOOL": "bool"}


class OpenFile(NamedTuple):
    """A file whose header is read and undamaged; its arrays are read when asked for."""

    sizes: dict[str, jax.ShapeDtypeStruct]
    document: Any
    tensors: Callable[[], dict[str, np.ndarray]]


def write(path: str | os.PathLike[str], content: Content, form: str = MODEL) -> None:
    """Write a file, whole or not at all."""
    document = json.dumps(content.document, allow_nan=False)
    metadata = {
        "format": form,
        "version": str(VERSION),
        "document": document,
        "header digest": digest_of_header(document, content.tensors),
        "digest": digest_of_arrays(content.tensors),
    }
    tensors = {name: np.asarray(values, order="C") for name, values in content.tensors.items()}
    replace_file(Path(path), save(tensors, metadata))


def read(path: str | os.PathLike[str], form: str = MODEL) -> Content:
    """Read all that a file holds."""
    with opened(path, form) as file:
        return Content(file.tensors(), file.document)


@contextmanager
def opened(path: str | os.PathLike[str], form: str = MODEL) -> Iterator[OpenFile]:
    """Open a file and check its format, its version and the digest of its header."""
    source = Path(path)
    if not source.is_file():
        raise ModelFileError(f"there is no {_NAMES[form]} file at {source}")
    try:
        with safetensors.safe_open(source, framework="numpy") as file:
            yield _checked(source, file, form)
    except (safetensors.SafetensorError, OSError) as error:
        raise ModelFileError(f"{source} is not a {_NAMES[form]} file, or it is damaged: {error}") from error


def _checked(source: Path, file: Any, form: str) -> OpenFile:
    metadata: dict[str, str] = file.metadata() or {}
    damaged = ModelFileError(f"{source} is damaged: its content does not match its digest; restore it from a copy")
    if metadata.get("format") != form:
        raise ModelFileError(f"{source} is a safetensors file, but not a {_NAMES[form]} saved by lvmogp")
    version = metadata.get("version", "")
    if version != str(VERSION):
        raise ModelFileError(
            f"{source} has format version {version:.20}, but this lvmogp {__version__} reads versions up to "
            f"{VERSION}; upgrade lvmogp to read it"
        )
    sizes: dict[str, jax.ShapeDtypeStruct] = {}
    for name in file.keys():  # noqa: SIM118 - not a dictionary
        kind = file.get_slice(name).get_dtype()
        if kind not in _DTYPES:
            raise ModelFileError(f"{source} was changed by hand: it holds an array of {kind}")
        sizes[name] = jax.ShapeDtypeStruct(tuple(file.get_slice(name).get_shape()), np.dtype(_DTYPES[kind]))
    document = metadata.get("document", "")
    if metadata.get("header digest") != digest_of_header(document, sizes):
        raise damaged
    try:
        plain = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{source} was changed by hand: its document is no JSON ({error})") from error

    def tensors() -> dict[str, np.ndarray]:
        found = {name: file.get_tensor(name) for name in sizes}
        if metadata.get("digest") != digest_of_arrays(found):
            raise damaged
        return found

    return OpenFile(sizes, plain, tensors)


def digest_of_header(document: str, arrays: Sizes) -> str:
    """Return a digest of a document and of the names, types and sizes of arrays."""
    parts = [f"|{name}|{arrays[name].dtype.name}|{tuple(arrays[name].shape)}|" for name in sorted(arrays)]
    return hashlib.sha256("".join([document, *parts]).encode()).hexdigest()


def digest_of_arrays(tensors: Mapping[str, np.ndarray]) -> str:
    """Return a digest of the numbers in all arrays."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(np.ascontiguousarray(tensors[name]).data)
    return digest.hexdigest()
