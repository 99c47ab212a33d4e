"""How a delimited text file is written, found from its first lines."""

import codecs
import contextlib
import csv
import io
import re
from pathlib import Path
from typing import NamedTuple

from lvmogp.errors import DataError

# Rarer inside values first: where two fit equally well, the rarer one was meant.
_DELIMITERS = {"\t": "tab", ";": "semicolon", ",": "comma"}
_BYTE_ORDER_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_ENCODINGS_IN_WORDS = {"utf-8-sig": "UTF-8", "utf-8": "UTF-8", "utf-16": "UTF-16", "cp1252": "Windows-1252"}
_SAMPLE_CHARACTERS = 1_000_000
_CHUNK = 1 << 20
_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+(?:[eE][-+]?\d+)?", re.ASCII)
_DECIMAL_POINT = re.compile(r"[-+]?\d*\.\d+(?:[eE][-+]?\d+)?", re.ASCII)
_LIKE_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+", re.ASCII)


class Dialect(NamedTuple):
    """How a file is written, with the names in its header and the line it stands in."""

    encoding: str
    delimiter: str
    decimal: str
    header: tuple[str, ...]
    header_line: int

    @property
    def mark(self) -> str:
        """The decimal mark in words."""
        return {".": "point", ",": "comma"}[self.decimal]

    def __str__(self) -> str:
        """In words, for the user."""
        separated = f"{_DELIMITERS[self.delimiter]}-separated" if len(self.header) > 1 else "one column"
        return f"{separated}, decimal {self.mark}, {_ENCODINGS_IN_WORDS.get(self.encoding, self.encoding)}"


def dialect_of(path: Path) -> Dialect:
    """Find encoding, delimiter, decimal mark and header of a file."""
    encoding = _encoding(path)
    with path.open(encoding=encoding, newline="") as file:
        sample = file.read(_SAMPLE_CHARACTERS)
        cut = bool(file.read(1))
    rows = {delimiter: _rows(sample, delimiter, cut) for delimiter in _DELIMITERS}
    delimiter = max(_DELIMITERS, key=lambda candidate: _fit(rows[candidate]))
    records = rows[delimiter]
    header_at = next((place for place, record in enumerate(records) if any(record)), None)
    if header_at is None:
        raise DataError(f"{path} is empty; it needs a line of column names and then the data")
    header = tuple(name.strip() for name in records[header_at])
    return Dialect(encoding, delimiter, _decimal(records[header_at + 1 :], delimiter), header, header_at)


def line_of(path: Path, dialect: Dialect, row: int) -> int:
    """Return the line of the file, from 1, in which a row of data (from 0) ends; quoted values may span lines."""
    with path.open(encoding=dialect.encoding, newline="") as file:
        reader = csv.reader(file, delimiter=dialect.delimiter)
        # Where the two readers do not agree on what a row is, the line is that of the last row that both know.
        with contextlib.suppress(csv.Error, StopIteration):
            for _ in range(dialect.header_line + 1 + row + 1):
                next(reader)
        return reader.line_num


def _encoding(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(4096)
    marked = [encoding for mark, encoding in _BYTE_ORDER_MARKS.items() if start.startswith(mark)]
    if not marked and b"\0" in start:
        raise DataError(
            f"{path} is not a text file; give Excel and Parquet files their own endings .xlsx and .parquet, or save "
            "the table as CSV"
        )
    for encoding in marked or ("utf-8", "cp1252"):
        with contextlib.suppress(UnicodeError), path.open(encoding=encoding) as file:
            while file.read(_CHUNK):
                pass
            return encoding
    if marked:
        name = _ENCODINGS_IN_WORDS[marked[0]]
        raise DataError(f"{path} begins as {name} text but does not go on so; it is damaged, or save it again as UTF-8")
    return "latin-1"  # which takes anything; cp1252 leaves five bytes undefined


def _rows(sample: str, delimiter: str, cut: bool) -> list[list[str]]:
    rows: list[list[str]] = []
    with contextlib.suppress(csv.Error):  # a quote that is never closed; what was read so far has to do
        rows.extend(csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter, skipinitialspace=True))
    return rows[:-1] if cut and len(rows) > 1 else rows


def _fit(records: list[list[str]]) -> float:
    # Share of lines with as many fields as the header; none where there is nothing to separate.
    counts = [len(record) for record in records if any(record)]
    return counts.count(counts[0]) / len(counts) if counts and counts[0] > 1 else 0.0


def _decimal(records: list[list[str]], delimiter: str) -> str:
    values = [value.strip() for record in records for value in record]
    if any(map(_DECIMAL_POINT.fullmatch, values)):
        return "."
    commas = filter(_DECIMAL_COMMA.fullmatch, values)
    # In quoted values between commas, "1,234" is more likely a thousand.
    return "," if any(delimiter != "," or not _LIKE_THOUSANDS.fullmatch(value) for value in commas) else "."
