"""Files that are there whole or not at all."""

import contextlib
import glob
import os
import secrets
import time
from pathlib import Path

from lvmogp.errors import SettingError

# Nobody writes one file for so long; an older one under an aside's name was left by a process that was killed.
_SECONDS_ABANDONED = 3600.0


def replace_file(target: Path, payload: bytes) -> None:
    """Write a file to the side and rename it, so that a crash never leaves half of it.

    All files of this package are written here. A link of that name is replaced; what it leads to stays as it is.
    """
    check_replaceable(target)
    # Created like any other file of the user's, so that its permissions are those the user wants.
    aside = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        with aside.open("xb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, target)
    except BaseException as error:
        with contextlib.suppress(OSError):  # not there, or on a disk that has become read-only
            aside.unlink()
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(target)) from error  # the name the user knows
        raise
    # The new name is on disk once its folder is; not all systems let a folder be opened or asked for that.
    with contextlib.suppress(OSError):
        handle = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    for path in target.parent.glob(f".{glob.escape(target.name)}.{'[0-9a-f]' * 16}"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _SECONDS_ABANDONED:
                path.unlink()


def check_replaceable(target: Path) -> None:
    """Refuse to put a file in the place of something else, such as a device."""
    if target.exists() and not target.is_file():
        kind = "a folder" if target.is_dir() else "a device or a pipe"
        raise SettingError(f"{target} is {kind}; give the path of a file to write")
