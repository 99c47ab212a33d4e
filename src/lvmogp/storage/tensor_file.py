"""Model files: tensors with JSON metadata, checked when read, never half-written.

A file is a safetensors container. Its metadata hold the format's name and version, a JSON document, and a
SHA-256 digest of document and tensors, so that a damaged or edited file is noticed. Nothing in it is executed.
"""

import dataclasses
import datetime
import hashlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
from safetensors.numpy import save

from lvmogp.__about__ import __version__
from lvmogp.errors import ModelFileError, SettingError
from lvmogp.ground.writing import replace_file
from lvmogp.kernels.covariances import KERNELS as SIMPLE_KERNELS
from lvmogp.kernels.covariances import Composite, Kernel, Product, Sum

MODEL, CHECKPOINT = "lvmogp-model", "lvmogp-checkpoint"
VERSION = 1
_KINDS = {MODEL: "model", CHECKPOINT: "checkpoint"}
_COMPOSITES: dict[str, type[Composite]] = {"sum": Sum, "product": Product}


class ModelFile(NamedTuple):
    """What a model file holds: named arrays and a document of plain values."""

    tensors: dict[str, np.ndarray]
    document: dict[str, Any]


def write(path: str | os.PathLike[str], content: ModelFile, kind: str = MODEL) -> None:
    """Write a model file or checkpoint, whole or not at all."""
    tensors = {name: np.asarray(value, order="C") for name, value in content.tensors.items()}
    document = json.dumps(content.document, sort_keys=True, allow_nan=False)
    metadata = {
        "format": kind,
        "version": str(VERSION),
        "document": document,
        "digest": _digest(tensors, document),
    }
    replace_file(Path(path), save(tensors, metadata))


def read(path: str | os.PathLike[str], kind: str = MODEL) -> ModelFile:
    """Read a model file or checkpoint and check its format, version and digest."""
    source = Path(path)
    if not source.is_file():
        raise ModelFileError(f"there is no {_KINDS[kind]} file at {source}")
    try:
        with safetensors.safe_open(source, framework="numpy") as file:
            metadata = file.metadata() or {}
            _check_format(source, metadata, kind)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
    except ModelFileError:
        raise
    # The last two: a type of numbers that NumPy does not have.
    except (safetensors.SafetensorError, OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise ModelFileError(f"{source} is not a {_KINDS[kind]} file, or it is damaged: {error}") from error
    text = metadata.get("document", "")
    if metadata.get("digest") != _digest(tensors, text):
        raise ModelFileError(f"{source} is damaged: its content does not match its digest; restore it from a copy")
    return ModelFile(tensors, _document(source, text))


def _document(source: Path, text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{source} was changed by hand: its document is no JSON ({error})") from error
    if not isinstance(document, dict):
        raise ModelFileError(f"{source} was changed by hand: its document is no table of names and values")
    return document


def _check_format(source: Path, metadata: dict[str, str], kind: str) -> None:
    if metadata.get("format") != kind:
        raise ModelFileError(f"{source} is a safetensors file, but not a {_KINDS[kind]} saved by lvmogp")
    version = metadata.get("version", "")
    if not version.isdigit() or int(version) > VERSION:
        raise ModelFileError(
            f"{source} has format version {version}, but this lvmogp {__version__} reads versions up to "
            f"{VERSION}; upgrade lvmogp to read it"
        )


def _digest(tensors: dict[str, np.ndarray], document: str) -> str:
    digest = hashlib.sha256(document.encode())
    for name in sorted(tensors):
        digest.update(f"|{name}|{tensors[name].dtype.str}|{tensors[name].shape}|".encode())
        digest.update(tensors[name].tobytes())
    return digest.hexdigest()


def encode_id(value: Any) -> Any:
    """A condition id as JSON: a type and a value."""
    if isinstance(value, tuple):
        return ["tuple", [encode_id(part) for part in value]]
    if isinstance(value, datetime.datetime):
        return ["datetime", value.isoformat()]
    if isinstance(value, datetime.date):
        return ["date", value.isoformat()]
    if isinstance(value, float):
        return ["float", value.hex()]
    return [type(value).__name__, value]


def decode_id(encoded: Any) -> Any:
    """Inverse of :func:`encode_id`."""
    kind, value = encoded
    if kind == "tuple":
        return tuple(decode_id(part) for part in value)
    readers = {
        "datetime": datetime.datetime.fromisoformat,
        "date": datetime.date.fromisoformat,
        "float": float.fromhex,
        "str": str,
        "int": int,
        "bool": bool,
    }
    if kind not in readers:
        raise ModelFileError(f"the file holds a condition id of unknown type {kind!r}")
    return readers[kind](value)


def encode_kernel(kernel: str | Kernel) -> Any:
    """A kernel as JSON: its kind, hyperparameters (``None`` where left open), columns and fixed names."""
    if isinstance(kernel, str):
        return kernel
    if isinstance(kernel, Composite):
        kind = next(name for name, composite in _COMPOSITES.items() if type(kernel) is composite)
        return {"kind": kind, "terms": [encode_kernel(term) for term in kernel.terms]}
    kind = next((name for name, simple in SIMPLE_KERNELS.items() if type(kernel) is simple), None)
    if kind is None:
        raise SettingError(f"{type(kernel).__name__} is a kernel of your own, which a model file cannot hold")
    values = {field.name: getattr(kernel, field.name) for field in dataclasses.fields(kernel)}
    return {"kind": kind, **{name: _plain(value) for name, value in values.items()}}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, tuple):
        return value
    return np.asarray(value, dtype=float).tolist()


def decode_kernel(encoded: Any) -> Any:
    """Inverse of :func:`encode_kernel`; hyperparameters come back as NumPy arrays."""
    if isinstance(encoded, str):
        return encoded
    kind = encoded.get("kind")
    if kind in _COMPOSITES:
        return _COMPOSITES[kind](tuple(decode_kernel(term) for term in encoded["terms"]))
    if kind not in SIMPLE_KERNELS:
        raise ModelFileError(f"the file holds a kernel of unknown kind {kind!r}")
    return SIMPLE_KERNELS[kind](**{name: value for name, value in encoded.items() if name != "kind"})
