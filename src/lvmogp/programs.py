"""Programs that outlive the process, in the folder where JAX keeps what it compiles.

JAX keeps compiled programs but not the way to them: each process traces a function and lowers it anew before it knows
what to look for, which for a bound with its gradient takes longer than many a fit. Kept here is what comes out of that,
as StableHLO. A program is found by all that it follows from: the code of this library, versions, precision, the
function, and the structure and shapes of its arguments.
"""

import hashlib
import importlib.metadata
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import FunctionType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from lvmogp.typing import Array

_FOLDER = "lvmogp-programs"
_MOST_KEPT = 500
_DIGEST_SIZE = hashlib.sha256().digest_size
# What a fixed argument may be, so that its text tells it from any other.
_PLAIN = (str, bool, int, float, type(None))
Program = Callable[..., Any]

# Programs of this process by their names; threads that ask for the same one wait for the first.
_programs: dict[str, Program] = {}
_lock = threading.Lock()
# The same by all that a call follows from, and nothing where none is kept.
_found: dict[Any, Program | None] = {}
_CONFIG: Any = jax.config  # its attributes are no matter of types


class Maker:
    """Makes kept programs of one function of arrays, and tells ``on_new`` of each that is new to the process."""

    def __init__(self, function: Program, options: Mapping[str, Any], on_new: Callable[[], None]) -> None:
        self._function, self._options, self._on_new = function, options, on_new

    def program(self, about: str, arguments: Sequence[Any]) -> Program | None:
        """The function of these arrays, by way of the folder; ``None`` where nothing is kept.

        ``about`` says all that the function follows from beside the code of this library and its arguments.
        """
        folder = _CONFIG.jax_compilation_cache_dir
        if folder is None or jax.default_backend() != "cpu":
            return None
        name = _name(about, arguments)
        with _lock:
            if name not in _programs:
                exported = _exported(Path(folder) / _FOLDER / name, self._function, arguments)
                if exported is None:
                    return None
                call = _named(exported.call, self._function.__name__)
                _programs[name] = jax.jit(call, compiler_options=dict(self._options))
                self._on_new()
            return _programs[name]


class Keeper:
    """Finds, or makes, kept programs of one function of this library for whatever it is called with."""

    def __init__(self, function: Program, options: Mapping[str, Any], on_new: Callable[[], None]) -> None:
        self._function, self._options, self._on_new = function, options, on_new

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
        """The call as a program that waits for its word; ``None`` where nothing is kept of such calls."""
        arrays, fixed = eqx.partition((args, kwargs), _is_array)
        leaves, structure = jax.tree.flatten(arrays)
        values, fixed_structure = jax.tree.flatten(fixed)
        texts = tuple(map(text_of, values))
        if None in texts or any(isinstance(leaf, Tracer) for leaf in leaves):
            return None
        key = (self._function, structure, fixed_structure, texts, tuple(map(jax.typeof, leaves)), _precision())
        if key not in _found:
            about = f"{text_of(self._function)} {structure} {fixed_structure} {texts}"
            _found[key] = self._made(about, leaves, structure, fixed) if consists_of_own((args, kwargs)) else None
        program = _found[key]
        return None if program is None else partial(program, *leaves)

    def _made(self, about: str, leaves: list[Any], structure: Any, fixed: Any) -> Program | None:
        function = self._function

        def of_leaves(*leaves: Array) -> Any:
            args, kwargs = eqx.combine(jax.tree.unflatten(structure, leaves), fixed)
            return function(*args, **kwargs)

        return Maker(_named(of_leaves, function.__name__), self._options, self._on_new).program(about, leaves)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def forget_programs() -> None:
    """Forget the programs of this process; those in the folder stay."""
    _programs.clear()
    _found.clear()


def is_own(function: Program) -> bool:
    """Whether a function is one of this library's by name, so that its code is known."""
    return function.__module__.startswith("lvmogp.") and "<" not in function.__qualname__


def consists_of_own(tree: Any) -> bool:
    """Whether all modules of a tree are this library's, and not kernels of the user."""
    if isinstance(tree, eqx.Module):
        return type(tree).__module__.startswith("lvmogp.") and all(map(consists_of_own, vars(tree).values()))
    if isinstance(tree, dict):
        return all(map(consists_of_own, tree.values()))
    return not isinstance(tree, tuple | list) or all(map(consists_of_own, tree))


def text_of(value: Any) -> str | None:
    """A fixed argument as a text that tells it from any other, where there is one."""
    if isinstance(value, _PLAIN):
        return repr(value)
    is_function = isinstance(value, FunctionType) and is_own(value)
    return f"{value.__module__}.{value.__qualname__}" if is_function else None


def _name(about: str, arguments: Sequence[Any]) -> str:
    shapes = [str(jax.typeof(argument)) for argument in arguments]
    return hashlib.sha256(repr((_surroundings(), _precision(), about, shapes)).encode()).hexdigest()


def _precision() -> tuple[Any, ...]:
    # What JAX does to numbers beside what a function says.
    return _CONFIG.jax_enable_x64, _CONFIG.jax_default_matmul_precision


@cache
def _surroundings() -> tuple[str, ...]:
    # The code of this library and the versions of all that it is compiled with.
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return (digest.hexdigest(), *map(importlib.metadata.version, ("jax", "jaxlib", "equinox", "numpy")))


def _exported(path: Path, function: Program, arguments: Sequence[Any]) -> Any:
    try:
        import flatbuffers  # noqa: F401 - without it JAX can neither read nor write programs
        from jax import export
    except ImportError:
        return None
    _make_lapack_ready()
    _make_modules_known(export)
    known = _read(path)
    if known is not None:
        return export.deserialize(bytearray(known)) if known else None
    try:
        found = export.export(jax.jit(function))(*arguments)
        _write(path, bytes(found.serialize()))
    except (NotImplementedError, ValueError):
        _write(path, b"")  # what calls back into Python cannot be kept; the next process need not try
        return None
    return found


def _named(call: Program, name: str) -> Program:
    # For profiles and logs, where all would be called the same.
    def run(*arguments: Array) -> Any:
        return call(*arguments)

    run.__name__ = name
    return run


@cache
def _make_lapack_ready() -> None:
    # JAX looks LAPACK's functions up when it first lowers one of them, which a program that is read never does.
    jax.jit(jnp.linalg.cholesky).lower(jnp.eye(1))


# What a program returns may be made of modules, whose fixed fields are kept as text.


class _Empty(eqx.Module):
    pass


_known_modules: set[type] = set()


@cache
def _absent() -> Any:
    # What Equinox writes for a field that is not there; nothing is kept where it writes something else.
    fields = jax.tree.structure(_Empty()).node_data()[1]
    return fields[0] if isinstance(fields, tuple) and fields else object()


def _make_modules_known(export: Any) -> None:
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
        if not isinstance(value, _PLAIN):
            raise ValueError(f"a fixed field of a module cannot be kept: {value!r}")
        return value

    return json.dumps(plain(fields)).encode()


def _fields_of_text(text: bytes) -> tuple[Any, ...]:
    def value(found: Any) -> Any:
        if isinstance(found, dict):
            return _absent() if "absent" in found else tuple(value(each) for each in found["tuple"])
        return found

    return value(json.loads(bytes(text)))


def _read(path: Path) -> bytes | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, program = content[:_DIGEST_SIZE], content[_DIGEST_SIZE:]
    return program if hashlib.sha256(program).digest() == digest else None


def _write(path: Path, program: bytes) -> None:
    # At once or not at all; a folder that cannot be written to keeps nothing.
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_room(path.parent)
        descriptor, unfinished = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(hashlib.sha256(program).digest() + program)
        Path(unfinished).replace(path)
    except OSError:
        return


def _make_room(folder: Path) -> None:
    # Half of the programs go when there are too many, those first that were made first.
    kept = list(folder.iterdir())
    if len(kept) >= _MOST_KEPT:
        for path in sorted(kept, key=lambda each: each.stat().st_mtime)[: _MOST_KEPT // 2]:
            path.unlink(missing_ok=True)
