"""Modules as text, so that a program that returns them can be kept: their fixed fields, as JSON."""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import equinox as eqx
import jax

# What a fixed value may be, so that its text tells it from any other.
PLAIN = (str, bool, int, float, type(None))


class _Empty(eqx.Module):
    pass


_known_modules: set[type] = set()


@cache
def _absent() -> Any:
    # What Equinox writes for a field that is not there; nothing is kept where it writes something else.
    fields = jax.tree.structure(_Empty()).node_data()[1]
    return fields[0] if isinstance(fields, tuple) and fields else object()


def make_modules_known(export: Any) -> None:
    """Tell JAX's module for keeping programs how to write and read the modules of this library."""
    for module in _own_modules(eqx.Module):
        if module not in _known_modules:
            export.register_pytree_node_serialization(
                module,
                serialized_name=f"{module.__module__}.{module.__qualname__}",
                serialize_auxdata=_fields_as_text,
                deserialize_auxdata=_fields_of_text,
            )
            _known_modules.add(module)


def _own_modules(base: type) -> Iterator[type]:
    for module in base.__subclasses__():
        yield from _own_modules(module)
        if module.__module__.startswith("lvmogp.") and "<" not in module.__qualname__:
            yield module


def _fields_as_text(fields: tuple[Any, ...]) -> bytes:
    def plain(value: Any) -> Any:
        if value is _absent():
            return {"absent": True}
        if isinstance(value, tuple):
            return {"tuple": [plain(each) for each in value]}
        if not isinstance(value, PLAIN):
            raise ValueError(f"a fixed field of a module cannot be kept: {value!r}")
        return value

    return json.dumps(plain(fields)).encode()


def _fields_of_text(text: bytes) -> tuple[Any, ...]:
    def value(found: Any) -> Any:
        if isinstance(found, dict):
            return _absent() if "absent" in found else tuple(value(each) for each in found["tuple"])
        return found

    return value(json.loads(bytes(text)))
