"""Parquet files of any size as memory-mapped arrays, copied a piece at a time and never loaded whole."""

import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lvmogp.cli.files.roles import id_texts, ids_of_texts
from lvmogp.cli.files.tables import FileTable, opened_parquet
from lvmogp.errors import DataError
from lvmogp.tables.ids import Id
from lvmogp.tables.observations import ObservationStore
from lvmogp.tables.reading import numeric_table
from lvmogp.typing import HostInt

_ROWS_AT_ONCE = 500_000
_Group = tuple[Path, int, int]  # file, number in it, rows


class _Schema(NamedTuple):
    inputs: tuple[str, ...]
    output: str
    condition: str
    dates: tuple[str, ...]
    whole_ids: bool


@contextmanager
def open_parquet(
    paths: str | Path | Sequence[str | Path],
    *,
    output: str,
    condition: str,
    inputs: Sequence[str] = (),
    folder: str | Path | None = None,
    part: slice = slice(None),
    on_progress: Callable[[int, int], None] | None = None,
) -> Generator[ObservationStore, None, None]:
    """Observations in Parquet files, for ``LVMOGPRegressor.fit``, while the context lasts.

    Parameters
    ----------
    paths
        A file, a folder of files, or several files.
    output, condition
        Columns with the output and with the id of the condition.
    inputs
        Columns with the inputs; by default all others with numbers or dates.
    folder
        Where the arrays are put meanwhile; by default the system's folder for temporary files.
    part
        Which of the row groups to read, where several processes share the work: ``slice(first, None, n_processes)``.
    on_progress
        Called with the number of rows read and the number of all.
    """
    files = _files([paths] if isinstance(paths, str | Path) else paths)
    groups: list[_Group] = []
    schema: _Schema | None = None
    for file in files:
        with opened_parquet(file) as opened:
            arrow, about = opened.schema_arrow, opened.metadata
        groups += [(file, number, about.row_group(number).num_rows) for number in range(about.num_row_groups)]
        own = _schema(file, arrow, output, condition, inputs if schema is None else schema.inputs)
        schema = schema or own
        if own != schema:
            raise DataError(
                f"the columns of {file} hold other kinds of values than those of {files[0]}: numbers, dates or ids "
                "differ; write all files in the same way"
            )
    chosen = groups[part]
    if schema is None or (groups and not chosen):
        raise DataError(
            f"there are {len(groups)} row groups for {part.step} processes, so this one has nothing to read; start "
            "fewer processes, or write the files in more row groups"
        )
    yield _copied(chosen, schema, Path(folder or tempfile.gettempdir()), on_progress)


def _files(paths: Sequence[str | Path]) -> list[Path]:
    found = [
        file for path in map(Path, paths) for file in (sorted(path.glob("*.parquet")) if path.is_dir() else [path])
    ]
    for file in found:
        if not file.is_file():
            raise DataError(f"there is no file {file}")
    if not found:
        raise DataError(f"there are no Parquet files (*.parquet) in {', '.join(map(str, paths))}")
    return found


def _schema(file: Path, schema: Any, output: str, condition: str, inputs: Sequence[str]) -> _Schema:
    import pyarrow.types as types

    kinds = dict(zip(schema.names, schema.types, strict=True))
    FileTable(file, pd.DataFrame(columns=schema.names), "Parquet").check_columns([output, condition, *inputs])
    of_numbers = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
    numbers = [name for name, kind in kinds.items() if any(is_one(kind) for is_one in of_numbers)]
    dates = [name for name, kind in kinds.items() if types.is_date(kind) or types.is_timestamp(kind)]
    for name, usable in ((output, numbers), *((name, numbers + dates) for name in inputs)):
        if name not in usable:
            words = "numbers" if name == output else "numbers or dates"
            raise DataError(f"column {name!r} of {file} must hold {words}, it holds {kinds[name]}")
    others = [name for name in kinds if name in numbers + dates and name not in (output, condition)]
    chosen = tuple(inputs or others)
    if not chosen:
        raise DataError(f"{file} has no column of numbers or dates left to be an input beside {output} and {condition}")
    ids = kinds[condition]
    whole_ids = types.is_integer(ids.value_type if types.is_dictionary(ids) else ids)
    return _Schema(chosen, output, condition, tuple(name for name in chosen if name in dates), whole_ids)


def _copied(
    groups: Sequence[_Group], schema: _Schema, folder: Path, on_progress: Callable[[int, int], None] | None
) -> ObservationStore:
    columns = [*schema.inputs, schema.output, schema.condition]
    total = sum(n_rows for _, _, n_rows in groups)
    inputs = _reserved(folder, np.dtype(np.float64), (total, len(schema.inputs)))
    outputs = _reserved(folder, np.dtype(np.float64), (total,))
    conditions = _reserved(folder, np.dtype(np.int32), (total,))
    numbers: dict[Id, int] = {}
    n_read = n_kept = 0
    for frame in _frames(groups, columns):
        n_read += len(frame)
        values, _, _ = numeric_table(frame.drop(columns=schema.condition))
        finite = np.flatnonzero(np.isfinite(values).all(axis=1))
        of_rows = _numbered(frame[schema.condition].iloc[finite], numbers, whole=schema.whole_ids)
        complete, known = values[finite[of_rows >= 0]], of_rows[of_rows >= 0]
        there = slice(n_kept, n_kept + len(known))
        inputs[there], outputs[there], conditions[there] = complete[:, :-1], complete[:, -1], known
        n_kept = there.stop
        if on_progress is not None:
            on_progress(n_read, total)
    if n_kept == 0:
        raise DataError(f"no row of the files has all of {', '.join(columns)}")
    kept = (inputs[:n_kept], outputs[:n_kept], conditions[:n_kept])
    return ObservationStore(*kept, tuple(numbers), schema.inputs, schema.output, schema.dates)


def _frames(groups: Sequence[_Group], columns: list[str]) -> Iterator[pd.DataFrame]:
    for file, number, _ in groups:
        with opened_parquet(file) as opened:
            for piece in opened.iter_batches(_ROWS_AT_ONCE, row_groups=[number], columns=columns):
                piece.validate(full=True)
                yield piece.to_pandas(date_as_object=False, integer_object_nulls=True, ignore_metadata=True)


def _numbered(ids: pd.Series, numbers: dict[Id, int], *, whole: bool) -> HostInt:
    # Number of each row's id, −1 where there is none; ids that are new get the next numbers.
    codes, distinct = pd.factorize(ids)
    texts = id_texts(pd.Series(list(distinct), dtype=object))
    of_distinct = np.full(len(texts) + 1, -1, np.int32)  # the last for rows whose code is −1
    names = ids_of_texts(texts.dropna().tolist(), whole=whole)
    of_distinct[np.flatnonzero(texts.notna())] = [numbers.setdefault(name, len(numbers)) for name in names]
    return of_distinct[codes]


def _reserved(folder: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    # An array in a file without a name, which goes with the array, also where the process is killed. Its room is taken
    # at once: a disk that is full later would end the process without a word.
    n_bytes = int(dtype.itemsize * np.prod(shape, dtype=float))
    try:
        if n_bytes > shutil.disk_usage(folder).free:
            raise OSError
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):  # not on a Mac
                os.posix_fallocate(file.fileno(), 0, max(n_bytes, 1))
            return np.memmap(file, dtype, "w+", shape=shape) if n_bytes else np.empty(shape, dtype)
    except OSError:
        raise DataError(
            f"the data take {n_bytes / 1e6:.1f} MB in {folder} while they are fitted, which has not the room; name "
            "another folder with folder=, or with the environment variable TMPDIR"
        ) from None
