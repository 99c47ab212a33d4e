"""A fixed set of damaged and edited files, and what becomes of reading them; ``make test-fuzz`` reads many more.

Each kind of file that the package reads is made once, then damaged in many ways. Reading a variant, which follows from
its number, must end in an error of ours, or in what was written. Tables carry no checksum, so that a changed one may be
read as another table; models whose digest was made anew for what was put into them may be other models.
"""

import json
import operator
import os
import resource
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from papers_model import PapersModel
from whole_models import particles, read, whole_model

from lvmogp import LVMOGPRegressor
from lvmogp.cli.files.parquet import open_parquet
from lvmogp.cli.files.roles import Roles, complete_rows, wide_rows
from lvmogp.cli.files.tables import read_table, table_bytes
from lvmogp.errors import LVMOGPError, LVMOGPWarning
from lvmogp.storage.checkpoints import Checkpoints
from lvmogp.storage.codec import Content
from lvmogp.storage.tensor_file import write
from lvmogp.typing import Float
from paper.records import LEVELS, results_in, sealed

pytest.importorskip("pyarrow")
pytest.importorskip("openpyxl")
MANY = int(os.environ.get("LVMOGP_MANY", "0"))
N_VARIANTS = {"model file": 30, "model file with a right digest": 25, "Excel": 40}
REFUSED, RIGHT, OTHER, FOREIGN = "refused in words", "as it was written", "read as another", "not in our words"
# Reading one file may take no longer, and no more memory: absurd sizes fail as they would where memory is short.
SECONDS, SPARE_MEMORY = 60, 4 << 30
# Parted by bars: what a hand writes that knows where it hurts.
EDITS = [
    *b"|0|-1|1e999|-1e-999|NaN|null|true|[]|{}|[[[[|\"|''|\\|,|\n|\r|\0|\xff\xfe|\xef\xbb\xbf|\xe2\x80\xa8".split(b"|"),
    *b"<script>|__proto__|../../etc/passwd|1_000|0x10|=1+1|2024-13-45|31.02.2024".split(b"|"),
    *(b"9" * 40, b"9" * 5000, b"[" * 3000, b"a" * 200_000),
]


class Kind(NamedTuple):
    """A kind of file: how a good one is made, how any is read, and how variants come about."""

    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    vary: Callable[[Path, bytes, np.random.Generator], None]
    may_differ: bool = False
    agrees: Callable[[Any, Any], bool] = operator.eq


# Damage


def _cut(good: bytes, rng: np.random.Generator) -> bytes:
    return good[: rng.integers(len(good))]


def _zeros_at_the_end(good: bytes, rng: np.random.Generator) -> bytes:
    # What some file systems leave after a power failure.
    return _cut(good, rng).ljust(len(good), b"\0")


def _flipped(good: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(good)
    for place in rng.integers(len(good), size=rng.choice([1, 1, 1, 2, 16])):
        changed[place] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def _piece_changed(good: bytes, rng: np.random.Generator) -> bytes:
    # A piece is overwritten, taken out or doubled.
    start = int(rng.integers(len(good) + 1))
    end = min(len(good), start + int(rng.geometric(0.02)))
    piece = good[start:end]
    return good[:start] + (rng.bytes(len(piece)), b"", 2 * piece)[rng.integers(3)] + good[end:]


def _edited(good: bytes, rng: np.random.Generator) -> bytes:
    # A run of digits, letters or neither becomes something else, as by a hand that knows where it hurts.
    start = int(rng.integers(len(good)))
    group = next(test for test in (bytes.isdigit, bytes.isalpha, lambda _: True) if test(good[start : start + 1]))
    end = start + 1
    while end < len(good) and end < start + 20 and group(good[end : end + 1]):
        end += 1
    return good[:start] + EDITS[rng.integers(len(EDITS))] + good[end:]


DAMAGES = (_cut, _zeros_at_the_end, *[_flipped] * 2, *[_piece_changed] * 3, *[_edited] * 3)


def vary_bytes(path: Path, good: bytes, rng: np.random.Generator) -> None:
    path.write_bytes(DAMAGES[rng.integers(len(DAMAGES))](good, rng))


# Model files


def make_model(folder: Path) -> Path:
    model = PapersModel(2, noise="per-condition", output_transform="log")
    model.model_, model.n_features_in_ = whole_model("long", added=particles), 2
    model.save(folder / "model.lvmogp")
    return folder / "model.lvmogp"


def vary_content(path: Path, good: bytes, rng: np.random.Generator) -> None:
    path.write_bytes(good)
    tensors, document = read(path)
    for _ in range(rng.integers(1, 3)):
        if rng.random() < 0.5:
            _change_array(tensors, rng)
        else:
            _change_entry(document, rng)
    path.unlink()
    try:
        write(path, Content(tensors, document))
    except ValueError:  # a NaN or infinity, which the format cannot hold
        path.write_bytes(good)


def _change_array(tensors: dict[str, np.ndarray], rng: np.random.Generator) -> None:
    name = sorted(tensors)[rng.integers(len(tensors))]
    values = tensors[name]
    changes: list[Callable[[], np.ndarray]] = [
        lambda: values[..., :-1] if values.ndim else values[None],
        lambda: np.concatenate([values, values]) if values.ndim else values[None],
        lambda: values.reshape(-1),
        lambda: values[None],
        lambda: values.T,
        lambda: values.astype(np.float32),
        lambda: np.nan_to_num(values).astype(np.int64),
        lambda: values.astype(bool),
        lambda: np.zeros_like(values),
        lambda: -values,
        lambda: values * 1e300,
        lambda: np.full_like(values, np.nan if values.dtype.kind == "f" else -(2**30)),
        lambda: np.zeros((0, *values.shape[1:])),
        lambda: np.zeros((30_000, *values.shape[1:])),
    ]
    with np.errstate(all="ignore"):
        if rng.random() < 0.1:
            del tensors[name]
        else:
            tensors[name] = changes[rng.integers(len(changes))]()


def _change_entry(document: dict[str, Any], rng: np.random.Generator) -> None:
    holder: Any = document
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        if not keys:
            return
        key = keys[rng.integers(len(keys))]
        if not isinstance(holder[key], dict | list) or rng.random() < 0.2:
            break
        holder = holder[key]
    values: list[Any] = [None, True, 0, -1, 10**30, 2.5, "", "rbf", "<script>", "array", "nan", "-inf", [], [1], {}]
    values += ["-0x1.8000000000000p+1", {"rbf": {}}, {"sum": {"terms": []}}, {"str": "rbf"}, {"int": -1}]
    values += [["str", 3], ["int", "x"], ["float", "nan"], ["tuple", []], "\ud800"]
    if rng.random() < 0.1:
        del holder[key]
    else:
        holder[key] = values[rng.integers(len(values))]


def use_model(path: Path) -> Any:
    model = LVMOGPRegressor.load(path)
    columns, dates = model.model_.schema.columns or (), model.model_.schema.date_columns
    days = pd.to_datetime(["2024-01-01"] * 2)
    frame = pd.DataFrame({name: days if name in dates else [0.0, 1.0] for name in columns})
    for name in model.conditions_[:1] + model.conditions_[-1:]:
        model.predict(frame, [name] * 2, return_std=True)
    assert len(model.latents_) == len(model.conditions_)
    return path.read_bytes()


# Checkpoints and results; warnings are errors in the tests


KEPT = tuple[int, Float[np.ndarray, "n 3"]]


def make_checkpoint(folder: Path) -> Path:
    value = 50, np.random.default_rng(0).normal(size=(40, 3))
    Checkpoints(folder, "this fit", resume=True).save("steps", 50, value, KEPT)
    return folder / "steps-000000050.checkpoint"


def read_checkpoint(path: Path) -> Any:
    number, (step, state) = Checkpoints(path.parent, "this fit", resume=True).latest("steps", KEPT)
    return number, step, state.tobytes()


def make_results(folder: Path) -> Path:
    job = {"experiment": "toy", "method": "LVMOGP", "quick": False, "version": "1", "device": "cpu"}
    numbers = {"nlpd": -1.5, "coverage": 0.9375, "seconds": 3.5, "n_test": 50, "calibration": [0.5] * len(LEVELS)}
    results = [sealed({**job, **numbers, "repeat": each, "rmse": 0.25 + each, "status": "good"}) for each in range(3)]
    path = folder / "toy.json"
    path.write_text(json.dumps({"experiment": "toy", "repeats": results}, indent=1))
    return path


def are_among(found: Any, wanted: Any) -> bool:
    return all(each in wanted for each in found)  # one that is missing is run again


# Tables


def make_table(folder: Path, *, suffix: str, utf16: bool = False) -> Path:
    x, y = np.random.default_rng(0).normal(size=(2, 24)).round(3)
    days = pd.date_range("2024-01-01", periods=24).strftime("%Y-%m-%d")
    table = pd.DataFrame({"day": days, "x": x, "id": [f'tyre "{each % 4}", ü' for each in range(24)], "y": y})
    as_text = table.to_csv(sep=";", decimal=",", index=False).encode("utf-16") if utf16 else None
    path = folder / f"table{suffix}"
    path.write_bytes(as_text or table_bytes(table, suffix))
    return path


def read_both_forms(path: Path) -> Any:
    table = read_table(path, ids=["id"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LVMOGPWarning)
        try:
            found = complete_rows(table, Roles(("day", "x"), "id", "y"))
        except LVMOGPError:
            found = wide_rows(table, ["x"])
    return found.X.to_csv(), found.y.to_csv(), found.ids


def read_in_pieces(path: Path) -> Any:
    with open_parquet(path, output="y", condition="id", inputs=["x"]) as store:
        return store.inputs.tobytes(), store.outputs.tobytes(), store.conditions.tobytes(), store.ids


KINDS = {
    "model file": Kind(make_model, use_model, vary_bytes),
    "model file with a right digest": Kind(make_model, use_model, vary_content, may_differ=True),
    "checkpoint": Kind(make_checkpoint, read_checkpoint, vary_bytes),
    "results": Kind(make_results, results_in, vary_bytes, agrees=are_among),
    "CSV": Kind(partial(make_table, suffix=".csv"), read_both_forms, vary_bytes, may_differ=True),
    "CSV in UTF-16": Kind(partial(make_table, suffix=".csv", utf16=True), read_both_forms, vary_bytes, may_differ=True),
    "Excel": Kind(partial(make_table, suffix=".xlsx"), read_both_forms, vary_bytes, may_differ=True),
    "Parquet": Kind(partial(make_table, suffix=".parquet"), read_both_forms, vary_bytes, may_differ=True),
    "Parquet in pieces": Kind(partial(make_table, suffix=".parquet"), read_in_pieces, vary_bytes, may_differ=True),
}


def outcomes(kind: Kind, numbers: range, folder: Path) -> Iterator[tuple[str, str]]:
    """What becomes of the variants of these numbers: one of the four words, and what was said."""
    path = kind.make(folder)
    good, wanted = path.read_bytes(), kind.read(path)
    for number in numbers:
        kind.vary(path, good, np.random.default_rng(number))
        try:
            with _within_limits():
                found = kind.read(path)
        except (LVMOGPError, LVMOGPWarning) as error:
            yield REFUSED, str(error)
        except Exception as error:
            yield FOREIGN, f"{type(error).__name__}: {error}"
        else:
            differs = OTHER if kind.may_differ else FOREIGN
            yield RIGHT if kind.agrees(found, wanted) else differs, "another content than was written"


@contextmanager
def _within_limits() -> Iterator[None]:
    def late(*_: Any) -> None:
        raise TimeoutError(f"still reading after {SECONDS} s")

    statistics, limits = Path("/proc/self/statm"), resource.getrlimit(resource.RLIMIT_AS)
    if statistics.exists():
        used = int(statistics.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + SPARE_MEMORY, limits[1]))
    previous = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize("name", KINDS)
def test_a_variant_is_refused_in_our_words_or_read_as_it_was_written(tmp_path, record_property, name):
    found = list(outcomes(KINDS[name], range(MANY or N_VARIANTS.get(name, 150)), tmp_path))
    counts = Counter(outcome for outcome, _ in found)
    assert [each for each in enumerate(found) if each[1][0] == FOREIGN] == []
    assert counts[REFUSED] >= len(found) / 10
    assert all(words for _, words in found)
    record_property("measured", json.dumps({"kind": name, **counts}))
