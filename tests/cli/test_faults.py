"""Full and read-only disks, signals, kills, too little memory: nothing half-written, words, and a way to go on."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import typer
from command_line import listening_to_ctrl_c

import lvmogp
from lvmogp import LVMOGPRegressor
from lvmogp.cli.answers import check_target
from lvmogp.cli.files.parquet import open_parquet
from lvmogp.cli.files.tables import table_bytes
from lvmogp.cli.fitting import save_somewhere
from lvmogp.cli.screen import INTERRUPTED, reported
from lvmogp.errors import DataError, SettingError
from lvmogp.ground.writing import replace_file
from lvmogp.page.report import write_report
from lvmogp.plots.style import save_figure


@pytest.fixture
def full_disk(tmp_path):
    """A folder on a disk of its own in memory, with room for a few kilobytes more."""
    folder = tmp_path / "full"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.name != "posix" or os.getuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("a disk can only be mounted by root, on Linux")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Take the room that is left, but for a page."""
    left = os.statvfs(folder)
    (folder / "filler").write_bytes(bytes((left.f_bavail - 1) * left.f_frsize))


def listed(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture(scope="module")
def model(folder, fitted):
    return LVMOGPRegressor.load(folder / "brakes.lvmogp")


NUMBERS = np.random.default_rng(0).normal(size=(600, 4))


def write_frame(path, model):
    replace_file(path, table_bytes(pd.DataFrame(NUMBERS, columns=list("abcd")), path.suffix))


def write_picture(path, model):
    figure, ax = plt.subplots()
    ax.imshow(NUMBERS.reshape(40, 60))
    save_figure(figure, path)


WRITERS = {
    "model.lvmogp": lambda path, model: model.save(path),
    "page.html": lambda path, model: write_report(model, path),
    "table.csv": write_frame,
    "table.xlsx": write_frame,
    "table.parquet": write_frame,
    "figure.png": write_picture,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_is_replaced_whole_or_not_at_all(full_disk, tmp_path, model, name):
    """On a disk that is full, on one that is read-only, and where there is room."""
    path = full_disk / name
    path.write_bytes(b"what was there before")
    fill(full_disk)
    before = listed(full_disk)
    for number, words in ((errno.ENOSPC, "No space left on device"), (errno.EROFS, "Read-only file system")):
        with pytest.raises(OSError, match=words) as failure:
            WRITERS[name](path, model)
        assert (failure.value.errno, failure.value.filename) == (number, str(path))
        assert path.read_bytes() == b"what was there before"
        assert listed(full_disk) == before
        subprocess.run(["mount", "-o", "remount,ro", str(full_disk)], check=True)
    (tmp_path / name).write_bytes(b"what was there before")
    WRITERS[name](tmp_path / name, model)
    assert (tmp_path / name).stat().st_size > 5000
    assert listed(tmp_path) == sorted([name, "full", *(f"full/{each}" for each in before)])


EXECUTES = (
    r"(?<![.\w])(eval|exec|compile|__import__)\(|load_module|allow_pickle|\b(np|numpy|joblib)\.load\(|read_pickle|"
    r"^ *(import|from) (pickle|cloudpickle|dill|marshal|shelve|runpy|yaml)\b"
)
WRITES = r"^ *(.*(?:write_text|write_bytes|savefig|savez|save_file)\(.*|.*open\(.*[\"'][rb]?[wax+]+b?[\"'].*)$"


def test_there_is_one_place_where_files_are_written_and_nothing_that_is_read_can_be_executed():
    found = []
    for path in sorted(Path(lvmogp.__file__).parent.rglob("*.py")):
        assert not re.search(EXECUTES, path.read_text(), re.MULTILINE), path
        found += [(path.name, line) for line in re.findall(WRITES, path.read_text(), re.MULTILINE)]
    assert sorted(found) == [
        ("fitting.py", 'sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")'),
        ("style.py", "figure.savefig(buffer, format=kind, dpi=_DOTS_PER_INCH)"),
        ("writing.py", 'with aside.open("xb") as file:'),
    ]


def test_a_link_is_replaced_but_nothing_else_that_is_no_file(tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "model").symlink_to(tmp_path / "precious")
    replace_file(tmp_path / "model", b"new")
    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "model").read_bytes() == b"new"
    assert not (tmp_path / "model").is_symlink()
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path / "pipe", "a device or a pipe"), (tmp_path, "a folder")):
        for check in (lambda path: replace_file(path, b"new"), check_target):
            with pytest.raises(SettingError, match=f"is {kind}; give the path of a file to write"):
                check(path)
    assert (tmp_path / "pipe").is_fifo()


def test_what_a_killed_process_left_goes_when_its_file_is_written_again(tmp_path):
    path = tmp_path / "model[1].lvmogp"
    names = (".model[1].lvmogp.0123456789abcdef", ".model[1].lvmogp.fedcba9876543210", ".model1.lvmogp.txt")
    abandoned, recent, other = (tmp_path / name for name in names)
    for each in (abandoned, recent, other):
        each.write_bytes(b"half")
    os.utime(abandoned, (0, 0))
    os.utime(other, (0, 0))
    replace_file(path, b"whole")
    assert set(tmp_path.iterdir()) == {path, recent, other}


def test_a_fitted_model_finds_another_place_on_a_full_disk_if_there_is_one(full_disk, tmp_path, model, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    fill(full_disk)
    with pytest.raises(SettingError, match=r"brakes\.lvmogp cannot be written \(No space left on device\); the fitted"):
        save_somewhere(model, full_disk / "brakes.lvmogp")
    (kept,) = (tmp_path / "here").iterdir()
    assert kept.name.startswith("brakes-")
    assert LVMOGPRegressor.load(kept).conditions_ == model.conditions_
    monkeypatch.chdir(full_disk)
    monkeypatch.setenv("HOME", str(full_disk))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(full_disk))
    with pytest.raises(OSError, match="No space left on device") as failure:
        save_somewhere(model, full_disk / "brakes.lvmogp")
    assert failure.value.filename == str(full_disk / "brakes.lvmogp")
    assert listed(full_disk) == ["filler"]


def test_data_read_in_pieces_take_their_room_before_they_are_read(full_disk, tmp_path):
    """Else a write to memory that the disk cannot back ends the process without a word."""
    pd.DataFrame({"x": np.arange(20_000.0), "y": 1.0, "id": "a"}).to_parquet(tmp_path / "data.parquet")
    roles = {"output": "y", "condition": "id"}
    words = r"the data take 0\.2 MB in .*full while they are fitted, which has not the room"
    with pytest.raises(DataError, match=words), open_parquet(tmp_path / "data.parquet", **roles, folder=full_disk):
        pass
    assert listed(full_disk) == []
    with open_parquet(tmp_path / "data.parquet", **roles, folder=tmp_path) as store:
        np.testing.assert_array_equal(store.inputs[:, 0], np.arange(20_000.0))


def test_names_in_files_give_no_commands_to_the_terminal(capsys):
    with reported() as screen:
        screen.say("a\x1b[2Jb")
        screen.show(pd.DataFrame({"d\x9b1m": ["c\x1b]0;title\x07"]}))
        screen.note("e\x1b[31m[bold]f")
    spoken = capsys.readouterr()
    assert all(words in spoken.out for words in ("a\\x1b[2Jb", "c\\x1b]0;title\\x07", "d\\x9b1m"))
    assert "e\\x1b[31m[bold]f" in spoken.err
    assert not set(spoken.out + spoken.err) & {"\x1b", "\x07", "\x9b"}


def test_values_for_people_and_for_json(capsys):
    days = [pd.Timestamp("2024-01-02"), pd.Timestamp("2024-01-02 06:30")]
    with reported() as screen:
        screen.show(pd.DataFrame({"when": days, "x": [1.23456, 2.0], "n": [10_000, 2], "name": ["1.50", "é"]}))
    shown = capsys.readouterr().out.splitlines()[2:]
    assert [line.split() for line in shown] == [
        ["2024-01-02", "1.235", "10000", "1.50"],
        ["2024-01-02", "06:30:00", "2", "2", "é"],
    ]
    with reported(as_json=True) as screen:
        screen.document({"a": np.float64(np.nan), 1: (np.int64(3), True, None), "c": days[0], "d": {1}, "e": Path("f")})
    expected = {"a": None, "1": [3, True, None], "c": "2024-01-02T00:00:00", "d": "{1}", "e": "f"}
    assert json.loads(capsys.readouterr().out) == expected


@pytest.mark.parametrize(("method", "size"), [("say", 10), ("raw", 10), ("raw", 1_000_000)])
def test_a_full_disk_under_the_output_is_told_of(monkeypatch, capsys, method, size):
    with Path("/dev/full").open("w") as output:  # where nothing is left to be written at the end
        monkeypatch.setattr(sys, "stdout", output)
        with pytest.raises(typer.Exit, match="1"), reported() as screen:
            getattr(screen, method)("x" * size)
    words = "error: the output: No space left on device; free some space on that disk, or write to another one\n"
    assert capsys.readouterr().err == words


WRITES_FOR_EVER = """
import sys, typer
from pathlib import Path
from lvmogp.cli.screen import reported
from lvmogp.ground.writing import replace_file
app = typer.Typer(add_completion=False)
@app.command()
def work():
    with reported() as screen:
        screen.after_failure = "this is how to go on"
        print("ready", flush=True)
        while True:
            for letter in b"ab":
                replace_file(Path(sys.argv[1]), bytes([letter]) * 3_000_000)
app(args=[])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_that_is_ended_while_it_writes_leaves_a_whole_file(tmp_path, number):
    path = tmp_path / "file"
    command = [sys.executable, "-c", WRITES_FOR_EVER, str(path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with listening_to_ctrl_c(), subprocess.Popen(command, **pipes) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            until = time.monotonic() + 60
            while not path.exists():
                assert time.monotonic() < until
            process.send_signal(number)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert path.read_bytes() in (b"a" * 3_000_000, b"b" * 3_000_000)
    if number == signal.SIGINT:
        assert (process.returncode, errors) == (INTERRUPTED, "error: interrupted; this is how to go on\n")
        assert [each.name for each in tmp_path.iterdir()] == ["file"]
    else:
        assert (process.returncode, errors) == (-number, "")


READS_WITH_LITTLE_MEMORY = """
import resource, sys
from pathlib import Path
from lvmogp.cli.files.tables import read_table
from lvmogp.errors import DataError
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 60_000_000, resource.RLIM_INFINITY))
for name in sys.argv[1:]:
    try:
        read_table(Path(name), ids=["id"])
    except DataError as error:
        print(error)
"""


def test_tables_that_do_not_fit_into_memory_are_refused_in_words(tmp_path):
    paths = tmp_path / "data.csv", tmp_path / "data.parquet"
    paths[0].write_bytes(b"x,y,id\n" + b"1.2345,2.3456,abc\n" * 2_000_000)
    pd.DataFrame({"x": np.arange(6_000_000.0), "y": 0.0}).to_parquet(paths[1])
    command = [sys.executable, "-c", READS_WITH_LITTLE_MEMORY, *map(str, paths)]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "".join(
        f"{path} ({path.stat().st_size / 1e6:.0f} MB) does not fit into memory; leave out rows or columns, or write it "
        "as Parquet, which --inference stochastic reads in pieces\n"
        for path in paths
    )
