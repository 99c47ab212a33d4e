"""What is kept in the user's cache folder, to be had sooner the next time."""

import functools
import hashlib
import os
import platform
from pathlib import Path
from typing import Any

# What JAX is told in place of its own defaults. A limit of 500 MB holds thousands of programs; even the smallest takes
# longer to compile than to read.
_WANTED = {
    "jax_compilation_cache_max_size": (-1, 500_000_000),
    "jax_persistent_cache_min_compile_time_secs": (1.0, 0.0),
}


def cache_folder() -> Path:
    """Return the user's cache folder for this package."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lvmogp"


@functools.cache
def keep_compiled_programs() -> None:
    """Have JAX keep compiled programs for the next process, where the user has said nothing of them.

    Each kind of processor has a folder of its own, since a home may be shared by machines that do not understand each
    other's programs. Where the folder cannot be written to, nothing is kept; nor where JAX was imported before this
    package, since XLA would then put a line on the screen for each program that it reads.
    """
    import jax  # not before it is needed: others ask for the folder only

    config: Any = jax.config  # whose attributes are made at run time
    is_told = config.jax_compilation_cache_dir is not None or "JAX_COMPILATION_CACHE_DIR" in os.environ
    if is_told or not config.jax_enable_compilation_cache or not _is_quiet():
        return
    try:
        folder = cache_folder() / "compiled" / _processor()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # the latter where nobody knows the user's home
        return
    if not os.access(folder, os.W_OK):
        return
    for name, (default, wanted) in _WANTED.items():
        if name.upper() not in os.environ and getattr(config, name) == default:
            config.update(name, wanted)
    config.update("jax_compilation_cache_dir", str(folder))


def _is_quiet() -> bool:
    # Of each program that it reads XLA says something harmless, unless it was told not to before JAX was imported.
    return os.environ.get("TF_CPP_MIN_LOG_LEVEL", "") not in ("", "0", "1")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        words = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        words = platform.processor()
    return hashlib.sha256(f"{platform.machine()} {words}".encode()).hexdigest()[:16]
