"""The one way in which functions are compiled, and what is kept in the user's cache folder for the next process.

Compiled functions are made once, at module level, and never called from one another.

There is one program for each shape of a function's arguments, and JAX keeps thousands of them. Each holds megabytes and
some fifty of the 65 000 mappings of memory that a process may have, beyond which the compiler crashes. A process that
meets ever new shapes therefore forgets the programs of this library whenever there are many, and no others.
"""

import functools
import hashlib
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import equinox as eqx
import jax

# XLA's thread pool costs more than it gives on small problems, and at the sizes of predictions.
_ONE_THREAD = {"xla_cpu_multi_thread_eigen": False}
# Higher levels of optimisation, and the newer of two ways in which XLA writes loops for a CPU, take a third of the time
# to compile; bounds are no quicker for them.
_LESS_OPTIMISED = {"xla_backend_optimization_level": 1}
_OLDER_LOOPS = {"xla_cpu_use_fusion_emitters": False}
# What JAX is told in place of its own defaults. A limit of 500 MB holds thousands of programs; even the smallest takes
# longer to compile than to read.
_CACHE_OPTIONS = {
    "jax_compilation_cache_max_size": (-1, 500_000_000),
    "jax_persistent_cache_min_compile_time_secs": (1.0, 0.0),
}
# A fit with predictions of all kinds makes fifteen.
MOST_PROGRAMS = 150
_Function = TypeVar("_Function", bound=Callable[..., Any])
_jax: Any = jax  # whose types are partly open
_made: list[Any] = []


def cache_folder() -> Path:
    """Return the user's cache folder for this package."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lvmogp"


@functools.cache
def _keep_programs() -> None:
    # Have JAX keep compiled programs for the next process, where the user has said nothing of them and the folder can
    # be written to. Not so where XLA would say something harmless of each program that it reads, because nobody told it
    # not to before JAX was imported.
    config = _jax.config
    is_told = config.jax_compilation_cache_dir is not None or "JAX_COMPILATION_CACHE_DIR" in os.environ
    is_quiet = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "") not in ("", "0", "1")
    if is_told or not config.jax_enable_compilation_cache or not is_quiet:
        return
    try:
        folder = cache_folder() / "compiled" / _processor()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # the latter where nobody knows the user's home
        return
    if not os.access(folder, os.W_OK):
        return
    for name, (default, wanted) in _CACHE_OPTIONS.items():
        if name.upper() not in os.environ and getattr(config, name) == default:
            config.update(name, wanted)
    config.update("jax_compilation_cache_dir", str(folder))


def _processor() -> str:
    # A home may be shared by machines that do not understand each other's programs.
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        words = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        words = platform.processor()
    return hashlib.sha256(f"{platform.machine()} {words}".encode()).hexdigest()[:16]


def compiler_options(*, one_thread: bool) -> dict[str, Any]:
    """What the compiler is told, but for what the user tells it by ``XLA_FLAGS``; on accelerators nothing."""
    if jax.default_backend() != "cpu":
        return {}
    wanted = {**_LESS_OPTIMISED, **(_OLDER_LOOPS if _has_older_loops() else {}), **(_ONE_THREAD if one_thread else {})}
    flags = os.environ.get("XLA_FLAGS", "")
    return {name: value for name, value in wanted.items() if name not in flags}


@functools.cache
def _has_older_loops() -> bool:
    # Newer versions of XLA have one way only, and refuse an option that they do not know.
    try:
        _jax.jit(lambda: 0, compiler_options=_OLDER_LOOPS).lower().compile()
    except RuntimeError:
        return False
    return True


def jitted(function: _Function, *, static_argnames: Sequence[str] = (), one_thread: bool = True) -> _Function:
    """``jax.jit`` with the compiler's options of this library, among the functions whose programs it may forget."""
    _keep_programs()
    options = compiler_options(one_thread=one_thread)
    made = _jax.jit(function, static_argnames=static_argnames, compiler_options=options)
    _made.append(made)
    return made


def compiled(function: _Function) -> _Function:
    """Compile a function of any arguments, one program for each shape of the arrays and value of the rest."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = _jax.tree.flatten((args, kwargs))
        arrays = [leaf if eqx.is_array(leaf) else None for leaf in leaves]
        fixed = tuple(None if eqx.is_array(leaf) else leaf for leaf in leaves)
        return _of_leaves(function)(arrays, fixed=fixed, structure=structure)

    return cast(_Function, call)


@functools.cache  # one for each function, made when first called: until then nobody need know what it will run on
def _of_leaves(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def of_leaves(arrays: list[Any], *, fixed: tuple[Any, ...], structure: Any) -> Any:
        leaves = [value if array is None else array for array, value in zip(arrays, fixed, strict=True)]
        args, kwargs = _jax.tree.unflatten(structure, leaves)
        return function(*args, **kwargs)

    del of_leaves.__wrapped__  # whose signature is another, and JAX would go by it
    return jitted(of_leaves, static_argnames=("fixed", "structure"))


def n_programs() -> int:
    """Programs of this library that the process holds."""
    return sum(function._cache_size() for function in _made)


def forget_many_programs() -> None:
    """Forget the programs of this library if there are many, before work begins; other threads keep those in use."""
    if n_programs() > MOST_PROGRAMS:
        forget_all_programs()


def forget_all_programs() -> None:
    """Forget the programs of this library; they are compiled anew when next needed."""
    for function in _made:
        function.clear_cache()
