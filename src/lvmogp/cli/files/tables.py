"""Tables in users' files, read with words for what is wrong, and written.

Text stays as it is in the file until it is known what a column is for: numbers, dates or ids of conditions.
"""

import difflib
import io
import re
import warnings
import zipfile
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lvmogp.cli.files.delimited import Dialect, dialect_of, line_of
from lvmogp.errors import DataError, SettingError
from lvmogp.tables.reading import check_column_names

_DELIMITED = (".csv", ".tsv", ".tab", ".txt", ".dat")
_EXCEL = (".xlsx", ".xlsm")
_PARQUET = (".parquet", ".pq")
_KINDS_IN_WORDS = "CSV (.csv, .tsv, .txt), Excel (.xlsx) or Parquet (.parquet)"
# What stands for "no value" in columns of numbers and dates; for ids only an empty field does.
MISSING = ("", "-", ".", "?", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None", "none")
_SHOWN_COLUMNS = 12
# An Excel sheet as full as it may be, in twenty columns, takes less than this.
_MOST_BYTES = 1_000_000_000
_MOST_CELLS = 50_000_000


class FileTable(NamedTuple):
    """A table as read, numbered by its rows in the file, and how the file is written."""

    path: Path
    frame: pd.DataFrame
    written: str
    dialect: Dialect | None = None  # of text files

    def place(self, row: int) -> str:
        """Say in words where in the file a row stands."""
        return f"row {row + 2}" if self.dialect is None else f"line {line_of(self.path, self.dialect, row)}"

    def check_columns(self, names: Sequence[str]) -> None:
        """Refuse a table that lacks one of these columns, and a column that is named for two purposes."""
        columns = list(self.frame.columns)
        for name in names:
            if names.count(name) > 1:
                raise DataError(f"column {name!r} was named twice; each role needs a column of its own")
            if name in columns:
                continue
            if len(columns) == 1:
                raise DataError(
                    f"{self.path} has no column {name!r}: only one column, {columns[0]!r:.60}, was found; separate "
                    "columns by commas, semicolons or tabs"
                )
            shown = ", ".join(columns[:_SHOWN_COLUMNS]) + (", …" if len(columns) > _SHOWN_COLUMNS else "")
            raise DataError(f"{self.path} has no column {name!r}{hint(name, columns)}; its columns are: {shown}")


def is_parquet(path: Path) -> bool:
    """Whether a path names a Parquet file or a folder of such files."""
    return path.suffix.lower() in _PARQUET or (path.is_dir() and any(path.glob("*.parquet")))


def read_table(path: Path, *, ids: Sequence[str] = ()) -> FileTable:
    """Read a file by its ending; the columns named in ``ids`` are kept as the text they are."""
    if path.is_dir():
        raise DataError(f"{path} is a folder; give the path of a file")
    if not path.exists():
        neighbours = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"there is no file {path}{hint(path.name, neighbours)}")
    suffix = path.suffix.lower()
    read = _READERS.get(suffix)
    if read is None:
        raise DataError(f"{path} has an unknown ending; give a table as {_KINDS_IN_WORDS}")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty; it needs a line of column names and then the data")
    try:
        with _installed(suffix):
            table = read(path, ids)
    except MemoryError:
        raise DataError(
            f"{path} ({path.stat().st_size / 1e6:.0f} MB) does not fit into memory; leave out rows or columns, or "
            "write it as Parquet, which --inference stochastic reads in pieces"
        ) from None
    if len(table.frame) == 0:
        raise DataError(f"{path} has column names but no rows of data below them")
    return table


@contextmanager
def _installed(suffix: str) -> Generator[None, None, None]:
    try:
        yield
    except ImportError:
        library = "openpyxl" if suffix in _EXCEL else "pyarrow"
        words = f'{suffix} files need {library}, which is not installed: pip install "lvmogp[files]"'
        raise SettingError(words) from None


def _names(path: Path, header: Iterable[str]) -> list[str]:
    # Those in the header, others where it has none.
    names = [name or f"column {number}" for number, name in enumerate(header, start=1)]
    check_column_names(pd.DataFrame(columns=pd.Index(names)), str(path))
    return names


def _without_empty(frame: pd.DataFrame, header: Sequence[str]) -> pd.DataFrame:
    # Blank lines are no rows, and a delimiter at the end of each line is no column.
    empty = [name for name in frame.columns if name not in header and np.all(frame[name].isna())]
    return frame.drop(columns=empty).dropna(how="all")


def hint(name: str, known: Iterable[str]) -> str:
    """Return the question whether the most similar of the known names was meant, if one is similar."""
    by_lower_case = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_lower_case, n=1)
    return f" (did you mean {by_lower_case[close[0]]!r}?)" if close else ""


def _read_delimited(path: Path, ids: Sequence[str]) -> FileTable:
    dialect = dialect_of(path)
    names = _names(path, dialect.header)
    options: dict[str, Any] = {
        "sep": dialect.delimiter,
        "decimal": dialect.decimal,
        "encoding": dialect.encoding,
        "header": None,
        "names": names,
        "skiprows": dialect.header_line + 1,
        "index_col": False,
        "skip_blank_lines": False,  # so that rows can be counted back to lines
        "skipinitialspace": True,
        "low_memory": False,
        "dtype": {name: str for name in names if name in ids},
        "keep_default_na": False,
        "na_values": {name: [""] if name in ids else list(MISSING) for name in names},
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(path, **options)
    except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
        if "out of memory" in str(error):
            raise MemoryError from None
        found = re.search(r"line (\d+), saw (\d+)", str(error))
        seen = f"line {found[1]} has {found[2]} fields" if found else "some have more fields"
        raise DataError(
            f"{path} has lines that do not match its header: {seen} where the header has {len(names)}; put values that "
            "hold the delimiter in quotes, or write decimals with a point"
        ) from None
    return FileTable(path, _without_empty(frame, dialect.header), str(dialect), dialect)


def _read_excel(path: Path, _: Sequence[str]) -> FileTable:
    import openpyxl

    try:
        # An archive never unpacks to more than it says: what goes beyond is refused by zipfile.
        with zipfile.ZipFile(path) as archive:
            n_bytes = sum(member.file_size for member in archive.infolist())
        if n_bytes > _MOST_BYTES:
            raise DataError(f"{path} would take {n_bytes / 1e9:.1f} GB once unpacked; save the table as CSV")
        with closing(openpyxl.load_workbook(path, read_only=True, data_only=True)) as book:
            sheets = book.sheetnames
            cells = _cells(path, book[sheets[0]])
    except (DataError, MemoryError):
        raise
    except Exception as error:  # what is wrong inside an archive of XML can fail in any way
        raise DataError(f"{path} cannot be read as an Excel file ({error}); open it and save it again") from None
    filled = np.flatnonzero(cells.notna().any(axis=1).to_numpy())
    if len(filled) == 0:
        raise DataError(f"the first sheet of {path} is empty; it needs a row of column names and then the data")
    header = ["" if pd.isna(name) else str(name).strip() for name in cells.iloc[filled[0]]]
    frame = cells.iloc[filled[0] + 1 :].infer_objects()
    frame.index = frame.index - 1  # rows count from below a header in the first row
    frame.columns = pd.Index(_names(path, header))
    written = "Excel" if len(sheets) == 1 else f"Excel, first of {len(sheets)} sheets: {sheets[0]}"
    return FileTable(path, _without_empty(frame, header), written)


def _cells(path: Path, sheet: Any) -> pd.DataFrame:
    sheet.reset_dimensions()  # what a file says of its own size may be wrong
    rows: list[Sequence[Any]] = []
    for row in sheet.iter_rows(values_only=True):
        rows.append(row[: next((place for place in range(len(row), 0, -1) if row[place - 1] is not None), 0)])
    while rows and not rows[-1]:
        rows.pop()
    width = max(map(len, rows), default=0)
    # One cell in the last corner of a sheet stands for 17 thousand million empty ones.
    if len(rows) * width > _MOST_CELLS:
        raise DataError(
            f"the first sheet of {path} reaches to row {len(rows)} and column {width}, mostly empty; delete the cells "
            "that stand far from the table"
        )
    cells = pd.DataFrame(dict(enumerate(zip_longest(*rows))), dtype=object)
    return cells.where(cells.notna() & (cells != ""), np.nan)


def _read_parquet(path: Path, _: Sequence[str]) -> FileTable:
    with opened_parquet(path) as file:
        rows = file.read()
        rows.validate(full=True)  # all text; pandas looks at it as late as it can
        # Whole numbers beside missing ones stay whole: as floats they would lose digits.
        frame = rows.to_pandas(integer_object_nulls=True)
    if not isinstance(frame.index, pd.RangeIndex):
        frame = frame.reset_index()
    frame.columns = pd.Index(_names(path, map(str, frame.columns)))
    return FileTable(path, frame, "Parquet")


@contextmanager
def opened_parquet(path: Path) -> Generator[Any, None, None]:
    """Open a Parquet file, and say so if it cannot be read: what is wrong inside it can fail in any way."""
    with _installed(".parquet"):
        import pyarrow.parquet
    try:
        yield pyarrow.parquet.ParquetFile(path)
    except MemoryError:
        raise
    except Exception as error:
        if "launch worker thread" in str(error):  # there is no room for its stack
            raise MemoryError from None
        raise DataError(f"{path} cannot be read as a Parquet file: {error!s:.200}") from None


_READERS = {
    **dict.fromkeys(_DELIMITED, _read_delimited),
    **dict.fromkeys(_EXCEL, _read_excel),
    **dict.fromkeys(_PARQUET, _read_parquet),
}


def table_bytes(frame: pd.DataFrame, suffix: str) -> bytes:
    """Return a table as the content of a file with this ending."""
    if suffix in _DELIMITED:
        return frame.to_csv(index=False, sep="\t" if suffix in (".tsv", ".tab") else ",").encode()
    if suffix not in _READERS:
        raise SettingError(f"cannot write a table with the ending {suffix!r}; use {_KINDS_IN_WORDS}")
    with _installed(suffix):
        return _excel_bytes(frame) if suffix in _EXCEL else frame.to_parquet(index=False)


def _excel_bytes(frame: pd.DataFrame) -> bytes:
    from openpyxl.utils.exceptions import IllegalCharacterError

    buffer = io.BytesIO()
    try:
        with pd.ExcelWriter(buffer, engine="openpyxl") as writer:
            frame.to_excel(writer, index=False)
            for row in next(iter(writer.sheets.values())).iter_rows():
                for cell in row:
                    if cell.data_type == "f":  # text that begins like a formula is text there too
                        cell.data_type = "s"
    except IllegalCharacterError:
        raise DataError("text holds a control character, which Excel cannot; write .csv or .parquet") from None
    return buffer.getvalue()
