"""Figures as files."""

import io
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from lvmogp.errors import SettingError
from lvmogp.ground.writing import replace_file

_DOTS_PER_INCH = 150


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure in the format that the ending of its file says, whole or not at all, and close it."""
    kind = path.suffix.removeprefix(".").lower()
    known = sorted(figure.canvas.get_supported_filetypes())
    if kind not in known:
        plt.close(figure)
        raise SettingError(f"cannot draw into {path}; give it one of the endings {', '.join(known)}")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=_DOTS_PER_INCH)
    plt.close(figure)
    replace_file(path, buffer.getvalue())
    return path
