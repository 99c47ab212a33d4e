"""Tables in users' files, read with words for what is wrong.

Text stays as it is in the file until it is known what a column is for: numbers, dates or ids of conditions.
"""

import difflib
import io
import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lvmogp.cli.files.delimited import Dialect, dialect_of, line_of, not_text
from lvmogp.cli.files.excel import excel_bytes, read_sheet
from lvmogp.errors import DataError, SettingError

_DELIMITED = (".csv", ".tsv", ".tab", ".txt", ".dat")
_EXCEL = (".xlsx", ".xlsm")
_PARQUET = (".parquet", ".pq")
_KINDS_IN_WORDS = "CSV (.csv, .tsv, .txt), Excel (.xlsx) or Parquet (.parquet)"
_LIBRARIES = {**dict.fromkeys(_EXCEL, "openpyxl"), **dict.fromkeys(_PARQUET, "pyarrow")}
# What stands for "no value" in columns of numbers and dates; for ids only an empty field does.
_MISSING = ("", "-", ".", "?", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None", "none")
_SHOWN_COLUMNS = 12


class FileTable(NamedTuple):
    """A table as read, numbered by its rows in the file, and how the file is written."""

    path: Path
    frame: pd.DataFrame
    written: str
    dialect: Dialect | None = None  # of text files

    def column(self, name: str) -> pd.Series:
        """Return a column as read."""
        return pd.Series(self.frame[name])

    def place(self, row: int) -> str:
        """Say in words where in the file a row stands."""
        return f"row {row + 2}" if self.dialect is None else f"line {line_of(self.path, self.dialect, row)}"

    def check_columns(self, names: Iterable[str]) -> None:
        """Refuse a table that lacks one of these columns."""
        columns = list(self.frame.columns)
        for name in names:
            if name in columns:
                continue
            if len(columns) == 1:
                raise DataError(
                    f"{self.path} has no column {name!r}: only one column, {columns[0]!r:.60}, was found; separate "
                    "columns by commas, semicolons or tabs"
                )
            shown = ", ".join(columns[:_SHOWN_COLUMNS]) + (", …" if len(columns) > _SHOWN_COLUMNS else "")
            raise DataError(f"{self.path} has no column {name!r}{_hint(name, columns)}; its columns are: {shown}")


def is_parquet(path: Path) -> bool:
    """Whether a path names a Parquet file or a folder of such files."""
    return path.suffix.lower() in _PARQUET or (path.is_dir() and any(path.glob("*.parquet")))


def read_table(path: Path, *, ids: Sequence[str] = ()) -> FileTable:
    """Read a file by its ending; the columns named in ``ids`` are kept as the text they are."""
    if path.is_dir():
        raise DataError(f"{path} is a folder; give the path of a file")
    if not path.exists():
        neighbours = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"there is no file {path}{_hint(path.name, neighbours)}")
    suffix = path.suffix.lower()
    if suffix not in (*_DELIMITED, *_EXCEL, *_PARQUET):
        raise DataError(f"{path} has an unknown ending; give a table as {_KINDS_IN_WORDS}")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty; it needs a line of column names and then the data")
    try:
        if suffix in _DELIMITED:
            table = _read_delimited(path, ids)
        else:
            table = _read_excel(path) if suffix in _EXCEL else _read_parquet(path)
    except ImportError:
        raise _not_installed(suffix) from None
    except MemoryError:
        raise DataError(
            f"{path} ({path.stat().st_size / 1e6:.0f} MB) does not fit into memory; leave out rows or columns, or "
            "write it as Parquet, which --inference stochastic reads in pieces"
        ) from None
    _check_names(path, table.frame.columns)
    if len(table.frame) == 0:
        raise DataError(f"{path} has column names but no rows of data below them")
    return table


def _read_delimited(path: Path, ids: Sequence[str]) -> FileTable:
    dialect = dialect_of(path)
    _check_names(path, [name for name in dialect.header if name])
    names = _named(dialect.header)
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
        "na_values": {name: [""] if name in ids else list(_MISSING) for name in names},
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(path, **options)
    except UnicodeError:
        raise not_text(path, dialect.encoding) from None
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


def _read_excel(path: Path) -> FileTable:
    cells, sheet, n_sheets = read_sheet(path)
    filled = np.flatnonzero(cells.notna().any(axis=1).to_numpy())
    if len(filled) == 0:
        raise DataError(f"the first sheet of {path} is empty; it needs a row of column names and then the data")
    header = ["" if pd.isna(name) else str(name).strip() for name in cells.iloc[filled[0]]]
    _check_names(path, [name for name in header if name])
    frame = cells.iloc[filled[0] + 1 :].infer_objects()
    frame.index = frame.index - 1  # rows count from below a header in the first row
    frame.columns = pd.Index(_named(header))
    written = "Excel" if n_sheets == 1 else f"Excel, first of {n_sheets} sheets: {sheet}"
    return FileTable(path, _without_empty(frame, header), written)


def _read_parquet(path: Path) -> FileTable:
    import pyarrow.parquet

    try:
        # Whole numbers beside missing ones stay whole: as floats they would lose digits.
        frame = with_text(pyarrow.parquet.ParquetFile(path).read().to_pandas(integer_object_nulls=True))
    except MemoryError:
        raise
    except Exception as error:  # what is wrong inside the file can fail in any way
        raise DataError(f"{path} cannot be read as a Parquet file: {first_line(error)}") from None
    if not isinstance(frame.index, pd.RangeIndex):
        frame = frame.reset_index()
    frame.columns = pd.Index([str(name) for name in frame.columns])
    return FileTable(path, frame, "Parquet")


def with_text(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table once all its text is known to be text; libraries look at it as late as they can."""
    for name in frame.columns:
        if frame[name].dtype.kind == "O":
            frame[name].to_numpy(dtype=object)
    return frame


def first_line(error: BaseException) -> str:
    """Return what an error of another library says, without the details."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _not_installed(suffix: str) -> SettingError:
    return SettingError(
        f'{suffix} files need {_LIBRARIES[suffix]}, which is not installed: pip install "lvmogp[files]"'
    )


def _named(header: Sequence[str]) -> list[str]:
    return [name or f"column {number}" for number, name in enumerate(header, start=1)]


def _without_empty(frame: pd.DataFrame, header: Sequence[str]) -> pd.DataFrame:
    # Blank lines are no rows, and a delimiter at the end of each line is no column.
    empty = [name for name in frame.columns if name not in header and np.all(frame[name].isna())]
    return frame.drop(columns=empty).dropna(how="all")


def _check_names(path: Path, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DataError(f"{path} has two columns called {name!r}; rename one of them")
        seen.add(name)


def _hint(name: str, known: Iterable[str]) -> str:
    by_lower_case = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_lower_case, n=1)
    return f" (did you mean {by_lower_case[close[0]]!r}?)" if close else ""


def missing(values: pd.Series) -> pd.Series:
    """Say which entries stand for no value in a column of numbers or dates."""
    return values.isna() | values.isin(_MISSING) if values.dtype.kind == "O" else values.isna()


def table_bytes(frame: pd.DataFrame, suffix: str) -> bytes:
    """Return a table as the content of a file with this ending."""
    if suffix in _DELIMITED:
        return frame.to_csv(index=False, sep="\t" if suffix in (".tsv", ".tab") else ",").encode()
    if suffix not in _LIBRARIES:
        raise SettingError(f"cannot write a table with the ending {suffix!r}; use {_KINDS_IN_WORDS}")
    try:
        if suffix in _EXCEL:
            return excel_bytes(frame)
        buffer = io.BytesIO()
        frame.to_parquet(buffer, index=False)
        return buffer.getvalue()
    except ImportError:
        raise _not_installed(suffix) from None
