"""Excel files as cells and back: nothing larger than a sheet can be is unpacked, and text stays text."""

import io
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lvmogp.errors import DataError

# A sheet as full as Excel allows, in twenty columns, takes less than this.
_MOST_BYTES = 1_000_000_000
_MOST_CELLS = 50_000_000


class Sheet(NamedTuple):
    """The cells of the first sheet of a file, its name and how many sheets there are."""

    cells: pd.DataFrame
    name: str
    n_sheets: int


def read_sheet(path: Path) -> Sheet:
    """Read the first sheet; without openpyxl this is an ImportError."""
    import openpyxl

    try:
        # An archive never unpacks to more than it says: what goes beyond is refused by zipfile.
        with zipfile.ZipFile(path) as archive:
            n_bytes = sum(member.file_size for member in archive.infolist())
        if n_bytes > _MOST_BYTES:
            raise DataError(
                f"{path} would take {n_bytes / 1e9:.1f} GB once unpacked; save the table as CSV and give that"
            )
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        try:
            names = book.sheetnames
            return Sheet(_cells(path, book[names[0]]), names[0], len(names))
        finally:
            book.close()
    except (DataError, MemoryError):
        raise
    except Exception as error:  # what is wrong inside an archive of XML can fail in any way
        raise DataError(f"{path} cannot be read as an Excel file ({error}); open it and save it again") from None


def _cells(path: Path, sheet: Any) -> pd.DataFrame:
    sheet.reset_dimensions()  # what a file says of its own size may be wrong
    rows: list[tuple[Any, ...]] = []
    n_rows = width = 0
    for row in sheet.iter_rows(values_only=True):
        filled = next((place for place in range(len(row), 0, -1) if row[place - 1] is not None), 0)
        rows.append(tuple(row[:filled]))
        if filled:
            n_rows, width = len(rows), max(width, filled)
    # One cell in the last corner of a sheet stands for 17 thousand million empty ones.
    if n_rows * width > _MOST_CELLS:
        raise DataError(
            f"the first sheet of {path} reaches to row {n_rows} and column {width}, mostly empty; delete the cells "
            "that stand far from the table"
        )
    padded = [row + (None,) * (width - len(row)) for row in rows[:n_rows]]
    cells = pd.DataFrame(padded, columns=range(width), dtype=object)
    return cells.where(cells.notna() & (cells != ""), np.nan)


def excel_bytes(frame: pd.DataFrame) -> bytes:
    """Return a table as an Excel file; text that begins like a formula is text there too."""
    from openpyxl.utils.exceptions import IllegalCharacterError

    buffer = io.BytesIO()
    try:
        with pd.ExcelWriter(buffer, engine="openpyxl") as writer:
            frame.to_excel(writer, index=False)
            for row in next(iter(writer.sheets.values())).iter_rows():
                for cell in row:
                    if cell.data_type == "f":
                        cell.data_type = "s"
    except IllegalCharacterError:
        raise DataError(
            "a name or value holds a control character, which Excel cannot; write a .csv or .parquet file"
        ) from None
    return buffer.getvalue()
