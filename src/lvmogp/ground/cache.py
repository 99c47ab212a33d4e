"""What is kept in the user's cache folder, to be had sooner the next time."""

import hashlib
import os
import platform
from pathlib import Path

_LARGEST = 500_000_000
# Even the smallest program takes longer to compile than to read.
_SECONDS_WORTH_KEEPING = 0.0


def cache_folder() -> Path:
    """The user's cache folder for this package."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lvmogp"


def keep_compiled_programs() -> None:
    """Have JAX keep compiled programs, unless the environment says otherwise or the folder cannot be written to.

    To be called before JAX is imported. Each kind of processor has a folder of its own, since a home may be shared by
    machines that do not understand each other's programs.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    folder = cache_folder() / "compiled" / _processor()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if not os.access(folder, os.W_OK):
        return
    wanted = {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_COMPILATION_CACHE_MAX_SIZE": str(_LARGEST),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": str(_SECONDS_WORTH_KEEPING),
        "TF_CPP_MIN_LOG_LEVEL": "3",  # XLA names harmless differences of processor features on each use
    }
    for name, value in wanted.items():
        os.environ.setdefault(name, value)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        words = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        words = platform.processor()
    return hashlib.sha256(f"{platform.machine()} {words}".encode()).hexdigest()[:16]
