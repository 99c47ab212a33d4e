"""Encode trees of frozen containers as named arrays and a JSON document, and decode them, led by types.

The annotations of a container's fields say what a file holds: arrays by jaxtyping, with their dtypes and axes;
containers, tuples, mappings and unions of these; texts, numbers, enums, condition ids, kernels, transforms. Decoding
goes through a document twice. :func:`planned` checks it, and the sizes of all arrays against each other, before any
array is read. What it returns checks the values (:mod:`lvmogp.ground.rules`) and builds the tree. Axes of one name have
one length throughout a file; an axis that only entries of a tuple or mapping name is each entry's own.
"""

import contextlib
import dataclasses
import datetime
import enum
import types
from collections import ChainMap
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Union, cast, get_args, get_origin, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import AbstractArray

from lvmogp.errors import LVMOGPError, ModelFileError, SettingError
from lvmogp.ground.precision import in_double_precision
from lvmogp.ground.rules import FINITE, NOT_KEPT, RULE, Along, Below, Rule
from lvmogp.kernels.covariances import COMPOSITES, KERNELS, Kernel
from lvmogp.tables.ids import check_kinds, plain_id
from lvmogp.tables.scaling import TRANSFORMS, Transform

_UNIONS = (Union, types.UnionType)
# What stands in the document for an array, which is among the tensors under the name of its place.
_ARRAY = "array"
_DTYPES = ("float64", "float32", "int64", "int32", "bool")
# No tree of ours is half as deep; what is much deeper ends Python's own recursion.
_MOST_LEVELS = 60
# How each type of condition id is read; written again it must be the same.
_ID_READERS: dict[str, Callable[[Any], Any]] = {
    "str": str,
    "int": int,
    "bool": bool,
    "float": float.fromhex,
    "date": datetime.date.fromisoformat,
    "datetime": datetime.datetime.fromisoformat,
}
Tensors = Mapping[str, np.ndarray]
Sizes = Mapping[str, jax.ShapeDtypeStruct | np.ndarray]


class Content(NamedTuple):
    """What a file holds: named arrays and a JSON document."""

    tensors: dict[str, np.ndarray]
    document: Any


class _File(NamedTuple):
    # What is known while a file is read: sizes of its arrays, names of those that have a place, lengths of axes, and
    # the second time the arrays themselves.
    arrays: Sizes
    placed: set[str]
    sizes: ChainMap[str, Any]
    tensors: Tensors | None = None

    def agrees(self, axis: str, size: Any) -> bool:
        """Whether an axis has this length; one that was not named before has it from now on."""
        return self.sizes.setdefault(axis, size) == size


def encode(value: Any, kind: Any) -> Content:
    """Return a value of this type as arrays and a document."""
    tensors: dict[str, np.ndarray] = {}
    return Content(tensors, _encoded(value, kind, "", tensors))


def decode(tensors: Tensors, document: Any, kind: Any) -> Any:
    """Return the value of this type that arrays and a document hold; if they do not, raise ``ModelFileError``."""
    return planned(tensors, document, kind)(tensors)


def planned(arrays: Sizes, document: Any, kind: Any) -> Callable[[Tensors], Any]:
    """Check everything but values, and return what builds the tree once the arrays are read."""
    file = _File(arrays, set(), ChainMap())
    _decoded(document, kind, "", file)
    for unknown in sorted(arrays.keys() - file.placed):
        raise ModelFileError(f"{unknown} is an array that this version does not know")
    return in_double_precision(lambda tensors: _decoded(document, kind, "", file._replace(tensors=tensors)))


# Types


@cache
def _bare(kind: Any, rules: tuple[Any, ...] = ()) -> tuple[Any, tuple[Any, ...], bool]:
    """A type without its notes, the rules among these, and whether the value may be None instead."""
    if get_origin(kind) is Annotated:
        base, *notes = get_args(kind)
        own = (note for note in notes if isinstance(note, Rule | Below | Along))
        # What is anything to others is in a file what the first note says, or None.
        return _bare(notes[0] | None if base is Any else base, (*rules, *own))
    if get_origin(kind) in _UNIONS and types.NoneType in get_args(kind):
        others = tuple(each for each in get_args(kind) if each is not types.NoneType)
        return *_bare(Union[others], rules)[:2], True  # noqa: UP007 - how many there are is known here only
    return kind, rules, False


@cache
def _alternatives(kind: Any) -> dict[str, Any]:
    """The types that a type stands for, by the names under which files have them; none where it is a single one."""
    if kind is Kernel:
        return {**KERNELS, **COMPOSITES}
    if kind == Transform:
        return {name: type(each) for name, each in TRANSFORMS.items() if name is not None}
    return {each.__name__: each for each in get_args(kind)} if get_origin(kind) in _UNIONS else {}


@cache
def _names(kind: Any) -> dict[str, Any]:
    """The values of an enum or a literal by name."""
    return {each: each for each in get_args(kind)} if get_origin(kind) is Literal else dict(kind.__members__)


@cache
def _fields(kind: Any) -> dict[str, Any]:
    """Type of each field of a container that files hold, with its rules as notes."""
    hints = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
        if RULE in field.metadata:
            hints[field.name] = Annotated[hints[field.name], field.metadata[RULE]]
    kept = {name: each for name, each in hints.items() if get_origin(each) is not ClassVar}
    return {name: each for name, each in kept.items() if NOT_KEPT not in get_args(each)}


def _element_kinds(kind: Any, length: int) -> tuple[Any, ...]:
    parts = get_args(kind)
    return parts[:1] * length if parts[1:] == (...,) else parts


def _below(place: str, name: object) -> str:
    if place.count(".") >= _MOST_LEVELS:
        raise ModelFileError(f"{place:.60}… has more than {_MOST_LEVELS} levels")
    return f"{place}.{name}" if place else str(name)


# Writing


def _encoded(value: Any, kind: Any, place: str, tensors: dict[str, np.ndarray]) -> Any:
    kind, rules, optional = _bare(kind)
    alternatives, origin = _alternatives(kind), get_origin(kind)
    if optional and value is None:
        return None
    if alternatives:
        for name, each in alternatives.items():
            base = get_origin(each) or each
            if type(value) is base or (base in (Kernel, Mapping) and isinstance(value, base)):
                return {name: _encoded(value, each, place, tensors)}
        if isinstance(value, Kernel):
            raise SettingError(f"{type(value).__name__} is a kernel of your own, which a model file cannot hold")
        raise TypeError(f"{place} should be one of {list(alternatives)}, not {value!r}")
    if origin is tuple:
        entries = enumerate(zip(_element_kinds(kind, len(value)), value, strict=True))
        return [_encoded(each, element, _below(place, number), tensors) for number, (element, each) in entries]
    if origin is Mapping:
        return _encoded(tuple(value.items()), tuple[tuple[get_args(kind)], ...], place, tensors)
    if origin is Literal or issubclass(kind, enum.Enum):
        return next(name for name, each in _names(kind).items() if each == value)
    if issubclass(kind, AbstractArray):
        dtype = np.asarray(value).dtype.name
        if dtype not in kind.dtypes or dtype not in _DTYPES:
            raise TypeError(f"{place} should be {kind.__name__}, not of {dtype}")
        tensors[place] = np.asarray(value, dtype=dtype, order="C")
        _check(tensors[place], rules or (FINITE,), place)
        return _ARRAY
    if kind is Hashable:
        return encode_id(value)
    if kind is float:
        _check(value, rules or (FINITE,), place)
        return float(value).hex()  # every bit, and a word for what JSON has no number for
    if type(value) is not kind:
        raise TypeError(f"{place} should be {kind.__name__}, not {value!r}")
    if kind in (str, bool, int):
        return value
    return {
        name: _encoded(getattr(value, name), each, _below(place, name), tensors) for name, each in _fields(kind).items()
    }


def encode_id(value: Any) -> Any:
    """Return a condition id as JSON, a type and a value, so that 1, 1.0, True and "1" come back as what they are."""
    if isinstance(value, tuple):
        return ["tuple", [encode_id(part) for part in value]]
    if isinstance(value, datetime.date):
        return [type(value).__name__, value.isoformat()]
    return [type(value).__name__, value.hex() if isinstance(value, float) else value]


# Reading


def _decoded(entry: Any, kind: Any, place: str, file: _File) -> Any:
    kind, rules, optional = _bare(kind)
    alternatives, origin = _alternatives(kind), get_origin(kind)
    if optional and entry is None:
        return None
    if alternatives:
        if not isinstance(entry, dict) or len(cast(dict[str, Any], entry)) != 1:
            raise ModelFileError(f"{place} holds {entry!r:.60} instead of one of {list(alternatives)}")
        ((name, inner),) = cast(dict[str, Any], entry).items()
        if name not in alternatives:
            raise ModelFileError(f"{place} is of unknown kind {name!r:.60}, none of {list(alternatives)}")
        return _decoded(inner, alternatives[name], place, file)
    if origin is tuple:
        return _decoded_tuple(entry, kind, place, file, rules)
    if origin is Mapping:
        pairs = _decoded_tuple(entry, tuple[tuple[get_args(kind)], ...], place, file, ())
        _check_distinct([key for key, _ in pairs], place)
        return dict(pairs)
    if origin is Literal or issubclass(kind, enum.Enum):
        if not isinstance(entry, str) or entry not in _names(kind):
            raise ModelFileError(f"{place} holds {entry!r:.60}, none of {list(_names(kind))}")
        return _names(kind)[entry]
    if issubclass(kind, AbstractArray):
        return _decoded_array(entry, kind, place, file, rules)
    if kind is Hashable:
        return decode_id(entry, place)
    if kind in (str, bool, int, float):
        return _decoded_scalar(entry, kind, place, file, rules)
    return _decoded_container(entry, kind, place, file)


def _decoded_array(entry: Any, kind: Any, place: str, file: _File, rules: tuple[Any, ...]) -> Any:
    if entry != _ARRAY or place not in file.arrays:
        raise ModelFileError(f"{place} is not there, or is no array")
    dtype, shape = file.arrays[place].dtype.name, tuple(file.arrays[place].shape)
    if dtype not in kind.dtypes or dtype not in _DTYPES:
        raise ModelFileError(f"{place} holds {dtype}")
    axes = kind.dim_str.split()
    if not _fit(axes, shape, file):
        known = [file.sizes.get(axis.removeprefix("*"), axis) for axis in axes]
        expected = tuple(size for each in known for size in (each if isinstance(each, tuple) else (each,)))
        raise ModelFileError(f"{place} has the shape {shape}, where {expected} fits the rest")
    file.placed.add(place)
    if file.tensors is None:
        return None
    _check(file.tensors[place], rules or (FINITE,), place, file)
    return jnp.asarray(file.tensors[place]) if kind.array_type is jax.Array else file.tensors[place]


def _fit(axes: list[str], shape: tuple[int, ...], file: _File) -> bool:
    # One of the axes may stand for any number of them: "..." or "*S". Others are "D", "3", or "_" of any length.
    sizes: list[Any] = list(shape)
    for place, axis in enumerate(axes):
        if axis.startswith(("*", "...")):
            rest = slice(place, len(shape) - (len(axes) - place - 1))
            sizes[rest] = [shape[rest]]
    return len(sizes) == len(axes) and all(
        axis in ("_", "...") or (int(axis) == size if axis.isdecimal() else file.agrees(axis.removeprefix("*"), size))
        for axis, size in zip(axes, sizes, strict=True)
    )


def _check(value: Any, rules: tuple[Any, ...], place: str, file: _File | None = None) -> None:
    # Numbers that are written or read, or a length.
    for rule in rules:
        if isinstance(rule, Rule) and not rule.is_met(np.asarray(value)):
            raise ModelFileError(f"{place} holds {rule.fault}")
        size = 0 if file is None or isinstance(rule, Rule) else file.sizes.get(rule.axis, 0)
        if isinstance(rule, Below) and file is not None and np.any((value < 0) | (value >= size)):
            raise ModelFileError(f"{place} counts beyond the {size} there are")
        if isinstance(rule, Along) and file is not None and not file.agrees(rule.axis, value):
            raise ModelFileError(f"{place} has the length {value}, where {size} fits the rest")


def _decoded_tuple(entry: Any, kind: Any, place: str, file: _File, rules: tuple[Any, ...]) -> tuple[Any, ...]:
    if not isinstance(entry, list):
        raise ModelFileError(f"{place} is no list")
    entries = cast(list[Any], entry)
    kinds = _element_kinds(kind, len(entries))
    if len(kinds) != len(entries):
        raise ModelFileError(f"{place} has {len(entries)} entries instead of {len(kinds)}")
    _check(len(entries), rules, place, file)
    values = [  # each has axes of its own
        _decoded(each, own, _below(place, number), file._replace(sizes=file.sizes.new_child()))
        for number, (own, each) in enumerate(zip(kinds, entries, strict=True))
    ]
    if kinds[:1] == (Hashable,) and get_args(kind)[1:] == (...,):
        _check_distinct(values, place)
    return tuple(values)


def _check_distinct(names: list[Hashable], place: str) -> None:
    try:
        check_kinds(names)
    except LVMOGPError as error:
        raise ModelFileError(f"{place}: {error}") from error
    if len(set(names)) < len(names):
        raise ModelFileError(f"{place} names something twice")


def _decoded_scalar(entry: Any, kind: Any, place: str, file: _File, rules: tuple[Any, ...]) -> Any:
    value = entry
    if kind is float:
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            value = float.fromhex(entry)
    if type(value) is not kind or (kind is float and value.hex() != entry):
        raise ModelFileError(f"{place} holds {entry!r:.60}, which is no {kind.__name__}")
    _check(value, rules or ((FINITE,) if kind is float else ()), place, file)
    return value


def _decoded_container(entry: Any, kind: Any, place: str, file: _File) -> Any:
    fields = _fields(kind)
    if not isinstance(entry, dict):
        raise ModelFileError(f"{place or 'the document'} is no table of names and values")
    entries = cast(dict[str, Any], entry)
    for name in sorted(entries.keys() ^ fields.keys()):
        fault = "is not there" if name in fields else "is nothing that this version knows"
        raise ModelFileError(f"{_below(place, name):.200} {fault}")
    values = {name: _decoded(entries[name], each, _below(place, name), file) for name, each in fields.items()}
    try:
        return None if file.tensors is None else kind(**dict.fromkeys(kind.__match_args__) | values)
    except (TypeError, ValueError) as error:
        raise ModelFileError(f"{place}: {error}") from error


def decode_id(encoded: Any, place: str = "an id") -> Any:
    """Inverse of :func:`encode_id`."""
    kind, value = cast(list[Any], encoded) if isinstance(encoded, list) and len(encoded) == 2 else (None, None)
    if kind == "tuple" and isinstance(value, list):
        return tuple(decode_id(part, _below(place, number)) for number, part in enumerate(cast(list[Any], value)))
    if not isinstance(kind, str) or kind not in _ID_READERS:
        raise ModelFileError(f"{place} is a condition id of unknown type {kind!r:.60}")
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        found = plain_id(_ID_READERS[kind](value))
        again = encode_id(found)[1]
        if again == value and type(again) is type(value):
            return found
    raise ModelFileError(f"{place} is a condition id {value!r:.60} that is no {kind}")
