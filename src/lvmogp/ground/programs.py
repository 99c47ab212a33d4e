"""Programs that outlive the process, in the folder where JAX keeps what it compiles.

JAX keeps compiled programs but not the way to them: each process traces a function and lowers it anew before it knows
what to look for, which for a bound with its gradient takes longer than many a fit. Kept here is what comes out of that,
as StableHLO. A program is found by all that it follows from: the code of this library, versions, precision, the
function, and the structure and shapes of its arguments. Nothing is kept where the environment has
``LVMOGP_KEEP_PROGRAMS=0``, or where JAX keeps nothing.
"""

import hashlib
import importlib.metadata
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from types import FunctionType
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax import lax
from jax.core import Tracer

from lvmogp.ground.module_texts import PLAIN, make_modules_known
from lvmogp.ground.writing import replace_file
from lvmogp.typing import Array

_FOLDER = "lvmogp-programs"
_MOST_KEPT = 5000  # of some 20 kB each
_DIGEST_SIZE = hashlib.sha256().digest_size
Program = Callable[..., Any]

# Programs of this process by their names; threads that ask for the same one wait for the first.
_programs: dict[str, Program] = {}
_lock = threading.Lock()
# The same by all that a call follows from, and nothing where none is kept.
_found: dict[Any, Program | None] = {}
_CONFIG: Any = jax.config  # its attributes are no matter of types


def kept_program(
    function: Program,
    about: str,
    arguments: Sequence[Any],
    *,
    options: Mapping[str, Any],
    on_new: Callable[[], None],
) -> Program | None:
    """A function of arrays as a compiled program, by way of the folder; ``None`` where nothing is kept.

    Parameters
    ----------
    function
        Of this library, and of arrays alone.
    about
        All that it follows from beside the code of this library and the shapes of its arguments.
    arguments
        Arrays like those that it will be called with.
    options
        For the compiler.
    on_new
        Told of each program that is new to the process.
    """
    folder = _folder()
    if folder is None:
        return None
    name = _name(about, arguments)
    with _lock:
        if name not in _programs:
            exported = _exported(folder / name, function, arguments)
            if exported is None:
                return None
            call = _named(exported.call, function.__name__)
            _programs[name] = jax.jit(call, compiler_options=dict(options))
            on_new()
        return _programs[name]


def _folder() -> Path | None:
    folder = _CONFIG.jax_compilation_cache_dir if _CONFIG.jax_enable_compilation_cache else None
    is_wanted = os.environ.get("LVMOGP_KEEP_PROGRAMS") != "0" and jax.default_backend() == "cpu"
    return Path(folder) / _FOLDER if is_wanted and folder is not None else None


class Keeper:
    """Finds, or makes, kept programs of one function of this library for whatever it is called with."""

    def __init__(self, function: Program, options: Callable[[], Mapping[str, Any]], on_new: Callable[[], None]) -> None:
        self._function, self._options, self._on_new = function, options, on_new

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
        """The call as a program that waits for its word; ``None`` where nothing is kept of such calls."""
        if _folder() is None:
            return None
        arrays, fixed = eqx.partition((args, kwargs), _is_array)
        leaves, structure = jax.tree.flatten(arrays)
        values, fixed_structure = jax.tree.flatten(fixed)
        texts = tuple(map(text_of, values))
        if None in texts or any(isinstance(leaf, Tracer) for leaf in leaves):
            return None
        key = (self._function, structure, fixed_structure, texts, tuple(map(jax.typeof, leaves)), _precision())
        if key not in _found:
            types = types_of((args, kwargs))
            about = f"{text_of(self._function)} {types} {structure} {fixed_structure} {texts}"
            _found[key] = self._made(about, leaves, structure, fixed) if are_own(types) else None
        program = _found[key]
        return None if program is None else partial(program, *leaves)

    def _made(self, about: str, leaves: list[Any], structure: Any, fixed: Any) -> Program | None:
        function = self._function

        def of_leaves(*leaves: Array) -> Any:
            args, kwargs = eqx.combine(jax.tree.unflatten(structure, leaves), fixed)
            return function(*args, **kwargs)

        named = _named(of_leaves, function.__name__)
        return kept_program(named, about, leaves, options=self._options(), on_new=self._on_new)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def forget_programs() -> None:
    """Forget the programs of this process; those in the folder stay."""
    _programs.clear()
    _found.clear()


def is_own(function: Program) -> bool:
    """Whether a function is one of this library's by name, so that its code is known."""
    return function.__module__.startswith("lvmogp.") and "<" not in function.__qualname__


def types_of(tree: Any) -> list[str]:
    """Names of the types of all modules in a tree, of which its structure shows the last part only."""
    if isinstance(tree, eqx.Module):
        own = f"{type(tree).__module__}.{type(tree).__qualname__}"
        return [own, *types_of(list(vars(tree).values()))]
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, tuple | list) else ()
    return [name for part in parts for name in types_of(part)]


def are_own(types: list[str]) -> bool:
    """Whether all modules are this library's, and none a kernel of the user."""
    return all(name.startswith("lvmogp.") for name in types)


def text_of(value: Any) -> str | None:
    """A fixed argument as a text that tells it from any other, where there is one."""
    if isinstance(value, PLAIN):
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
    make_modules_known(export)
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
    jax.jit(lax.linalg.cholesky).lower(jax.ShapeDtypeStruct((1, 1), np.float32))


def _read(path: Path) -> bytes | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, program = content[:_DIGEST_SIZE], content[_DIGEST_SIZE:]
    return program if hashlib.sha256(program).digest() == digest else None


def _write(path: Path, program: bytes) -> None:
    with suppress(OSError):  # a folder that cannot be written to keeps nothing
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_room(path.parent)
        replace_file(path, hashlib.sha256(program).digest() + program)


def _make_room(folder: Path) -> None:
    # Half of the programs go when there are too many, those first that were made first.
    kept = list(folder.iterdir())
    if len(kept) >= _MOST_KEPT:
        for path in sorted(kept, key=lambda each: each.stat().st_mtime)[: _MOST_KEPT // 2]:
            path.unlink(missing_ok=True)
