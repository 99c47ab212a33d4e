"""Programs that outlive the process, in the folder where JAX keeps what it compiles.

JAX keeps compiled programs but not the way to them: each process traces a function and lowers it anew before it knows
what to look for, which for a bound with its gradient takes longer than many a fit. Kept here is what comes out of that,
as StableHLO. A program is found by all that it follows from: the code of this library, versions, precision, the
function, and the structure and shapes of its arguments.
"""

import functools
import hashlib
import importlib.metadata
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from lvmogp.compiling import ONE_THREAD, count_program
from lvmogp.typing import Array

_FOLDER = "lvmogp-programs"
_MOST_KEPT = 500
_DIGEST_SIZE = hashlib.sha256().digest_size
Program = Callable[..., Any]


# Programs of this process by their names; threads that ask for the same one wait for the first.
_programs: dict[str, Program] = {}
_lock = threading.Lock()


def kept_program(function: Program, about: str, arguments: Sequence[Array]) -> Program | None:
    """A function of arrays, compiled for one thread, by way of the folder; ``None`` where nothing is kept.

    Parameters
    ----------
    function
        Of arrays alone, to as many arrays or tuples of them. Its code must be that of this library.
    about
        All that the function follows from beside that code and its arguments.
    arguments
        Arrays like those that it will be called with.
    """
    folder = jax.config.jax_compilation_cache_dir
    if folder is None or jax.default_backend() != "cpu":
        return None
    name = _name(about, arguments)
    with _lock:
        if name not in _programs:
            exported = _exported(Path(folder) / _FOLDER / name, function, arguments)
            if exported is None:
                return None
            if len(_programs) > _MOST_KEPT:
                _programs.clear()
            _programs[name] = jax.jit(_named(exported.call, function.__name__), compiler_options=ONE_THREAD)
            count_program()
        return _programs[name]


def is_own(function: Program) -> bool:
    """Whether a function is one of this library's by name, so that its code is known."""
    return function.__module__.startswith("lvmogp.") and "<" not in function.__qualname__


def consists_of_own(tree: Any) -> bool:
    """Whether all modules of a tree are this library's, and not kernels of the user."""
    if not isinstance(tree, eqx.Module):
        return not isinstance(tree, tuple | list) or all(map(consists_of_own, tree))
    return type(tree).__module__.startswith("lvmogp.") and all(map(consists_of_own, vars(tree).values()))


def _name(about: str, arguments: Sequence[Array]) -> str:
    shapes = [str(jax.typeof(argument)) for argument in arguments]
    precision = (jax.config.jax_enable_x64, jax.config.jax_default_matmul_precision)
    return hashlib.sha256(repr((_surroundings(), precision, about, shapes)).encode()).hexdigest()


@functools.cache
def _surroundings() -> tuple[str, ...]:
    # The code of this library and the versions of all that it is compiled with.
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return (digest.hexdigest(), *map(importlib.metadata.version, ("jax", "jaxlib", "equinox", "numpy")))


def _exported(path: Path, function: Program, arguments: Sequence[Array]) -> Any:
    try:
        import flatbuffers  # noqa: F401 - without it JAX can neither read nor write programs
        from jax import export
    except ImportError:
        return None
    _make_lapack_ready()
    known = _read(path)
    if known is not None:
        return export.deserialize(bytearray(known))
    try:
        found = export.export(jax.jit(function))(*arguments)
        _write(path, bytes(found.serialize()))
    except (NotImplementedError, ValueError):  # what calls back into Python cannot be kept
        return None
    return found


def _named(call: Program, name: str) -> Program:
    # For profiles and logs, where all would be called the same.
    def run(*arguments: Array) -> Any:
        return call(*arguments)

    run.__name__ = name
    return run


@functools.cache
def _make_lapack_ready() -> None:
    # JAX looks LAPACK's functions up when it first lowers one of them, which a program that is read never does.
    jax.jit(jnp.linalg.cholesky).lower(jnp.eye(1))


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
