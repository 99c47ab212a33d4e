"""Full and read-only disks, signals, kills, too little memory: nothing half-written, words, and a way to go on."""

import ast
import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fuzzing
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import typer

import lvmogp
from lvmogp import LVMOGPRegressor
from lvmogp.cli.files.parquet import open_parquet
from lvmogp.cli.printing import INTERRUPTED, TERMINATED, Terminated, reported
from lvmogp.cli.table_work import check_target, save_somewhere, write_table
from lvmogp.errors import DataError, LVMOGPError, LVMOGPWarning, SettingError
from lvmogp.ground.writing import replace_file
from lvmogp.page import report
from lvmogp.plots.saving import save_figure
from lvmogp.storage.checkpoints import checkpoints
from lvmogp.typing import Float
from paper import runner
from paper.methods import Family, Fitted, Task
from paper.plan import Entry, Experiment
from paper.problems import Problem, Rows
from paper.runner import Job

SOURCES = sorted(Path(lvmogp.__file__).parent.rglob("*.py"))


@contextlib.contextmanager
def mounted(folder: Path, size: str):
    """A disk of its own in memory."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.name != "posix" or os.getuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("a disk can only be mounted by root, on Linux")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def full_disk(tmp_path):
    """A folder on a disk with room for a few kilobytes more."""
    with mounted(tmp_path / "full", "64k") as folder:
        yield folder


def fill(folder: Path) -> None:
    """Take the room that is left, but for a page."""
    left = os.statvfs(folder)
    (folder / "filler").write_bytes(bytes((left.f_bavail - 1) * left.f_frsize))


@pytest.fixture
def read_only(tmp_path):
    """A folder on a disk that is made read-only by ``freeze``."""
    with mounted(tmp_path / "frozen", "1m") as folder:
        yield folder


def freeze(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


@pytest.fixture(scope="module")
def model():
    return fuzzing.fitted_model()


# Every writer

NUMBERS = np.random.default_rng(0).normal(size=(3000, 4))
Numbers = tuple[Float[np.ndarray, "n 4"]]


def write_model(path, model):
    model.save(path)


def write_page(path, model):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "report_page", lambda _: "x" * 100_000)
        report.write_report(model, path)


def write_frame(path, model):
    write_table(pd.DataFrame(NUMBERS, columns=list("abcd")), path)


def write_picture(path, model):
    figure, ax = plt.subplots()
    ax.imshow(NUMBERS.reshape(100, 120))
    save_figure(figure, path)


def write_result(path, model):
    def method(task):
        return Fitted(lambda inputs, conditions: (np.zeros(6), np.ones(6)), {"long": ["x" * 100] * 1000})

    job = Job("toy", "m", 0, False)
    assert job.path(path.parents[2]) == path
    runner.run_job(job, toy(method), path.parents[2], None)


WRITERS = {
    "model.lvmogp": write_model,
    "page.html": write_page,
    "table.csv": write_frame,
    "table.xlsx": write_frame,
    "table.parquet": write_frame,
    "figure.png": write_picture,
    "repeats/toy/m-00.json": write_result,
}


def toy_problem(repeat, data_dir=None):
    rng = np.random.default_rng(repeat)
    rows = Rows(rng.normal(size=(6, 1)), rng.normal(size=6), np.arange(6) % 2)
    return Problem(train=rows, test=rows, n_conditions=2, observed_test=True)


def toy(method):
    return Experiment("A toy", toy_problem, {"m": Entry(method, Family())}, {}, "all")


def listed(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def earlier_file(folder, name):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"what was there before")
    return path


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_the_earlier_file_and_nothing_else(full_disk, model, name):
    path = earlier_file(full_disk, name)
    fill(full_disk)
    before = listed(full_disk)
    with pytest.raises(OSError, match="No space left on device") as failure:
        WRITERS[name](path, model)
    assert failure.value.errno == errno.ENOSPC
    assert failure.value.filename == str(path)
    assert path.read_bytes() == b"what was there before"
    assert listed(full_disk) == before
    (full_disk / "filler").unlink()


@pytest.mark.parametrize("name", WRITERS)
def test_a_read_only_disk_leaves_the_earlier_file(read_only, model, name):
    path = earlier_file(read_only, name)
    freeze(read_only)
    with pytest.raises(OSError, match="Read-only file system") as failure:
        WRITERS[name](path, model)
    assert failure.value.filename == str(path)
    assert path.read_bytes() == b"what was there before"


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_written_replaces_the_earlier_file(tmp_path, model, name):
    path = earlier_file(tmp_path, name)
    before = listed(tmp_path)
    WRITERS[name](path, model)
    assert path.stat().st_size > 5000
    assert listed(tmp_path) == before


def calls(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def called(node):
    return ast.unparse(node.func).rpartition(".")[2]


def test_there_is_one_place_where_files_are_written():
    found = []
    for path in SOURCES:
        for node in calls(ast.parse(path.read_text())):
            modes = [part.value for part in [*node.args, *(word.value for word in node.keywords)] if is_text(part)]
            opens = called(node) == "open" and any(set(mode) & set("wax+") and len(mode) < 4 for mode in modes)
            if opens or called(node) in ("write_text", "write_bytes", "savefig", "savez", "save_file"):
                found.append((path.name, ast.unparse(node)[:60]))
    assert sorted(found) == [
        ("gpy.py", "open(os.devnull, 'w')"),
        ("parquet.py", "path.open('r+b')"),  # the room for arrays that are read in pieces
        ("saving.py", "figure.savefig(buffer, format=kind, dpi=_DOTS_PER_INCH)"),
        ("writing.py", "aside.open('xb')"),
    ]


def is_text(part):
    return isinstance(part, ast.Constant) and isinstance(part.value, str)


def test_nothing_that_is_read_can_be_executed():
    """No pickle, no evaluation of text, in any module."""
    hostile = {"eval", "exec", "compile", "__import__", "load_module"}
    modules = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "runpy", "yaml"}
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        named = {ast.unparse(node.func) for node in calls(tree)}
        imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert named & hostile == set(), path
        assert imported & modules == set(), path
        assert named & {"np.load", "numpy.load", "joblib.load", "pd.read_pickle"} == set(), path
        assert "allow_pickle" not in path.read_text(), path


def test_a_link_is_replaced_and_what_it_leads_to_left_alone(tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "model").symlink_to(tmp_path / "precious")
    replace_file(tmp_path / "model", b"new")
    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "model").read_bytes() == b"new"
    assert not (tmp_path / "model").is_symlink()


def test_only_a_file_is_replaced_by_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path / "pipe", "a device or a pipe"), (tmp_path, "a folder")):
        with pytest.raises(SettingError, match=f"is {kind}; give the path of a file to write"):
            replace_file(path, b"new")
        with pytest.raises(SettingError, match=f"is {kind}; give the path of a file to write"):
            check_target(path)
    assert (tmp_path / "pipe").is_fifo()


# A way to go on


def test_a_checkpoint_that_finds_no_room_is_no_end_of_the_fit(full_disk):
    store = checkpoints(full_disk, "this fit", resume=True)
    store.save("steps", 1, (NUMBERS[:10],), Numbers)
    fill(full_disk)
    before = listed(full_disk)
    with pytest.warns(LVMOGPWarning, match=r"could not be written \(No space left on device: .*steps-000000002"):
        store.save("steps", 2, (NUMBERS,), Numbers)
    assert listed(full_disk) == before
    (full_disk / "filler").unlink()
    number, (found,) = store.latest("steps", Numbers)
    assert number == 1
    np.testing.assert_array_equal(found, NUMBERS[:10])


def test_a_read_only_folder_is_known_before_the_work(read_only):
    (read_only / "data.csv").write_text("x,y,id\n1,2,a\n")
    freeze(read_only)
    with pytest.raises(
        SettingError, match=r"frozen cannot be written to \(Read-only file system\); choose another one"
    ):
        check_target(read_only / "model.lvmogp", read_only / "data.csv")
    with pytest.raises(
        SettingError, match=r"the folder for checkpoints .*frozen cannot be written to; name another one"
    ):
        checkpoints(read_only, "this fit", resume=False)


def test_a_fitted_model_finds_another_place_when_its_disk_is_full(full_disk, tmp_path, model, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    fill(full_disk)
    with pytest.raises(SettingError, match=r"brakes\.lvmogp cannot be written \(No space left on device\); the fitted"):
        save_somewhere(model, full_disk / "brakes.lvmogp")
    (kept,) = (tmp_path / "here").iterdir()
    assert kept.name.startswith("brakes-")
    assert LVMOGPRegressor.load(kept).conditions_ == model.conditions_
    assert listed(full_disk) == ["filler"]


def test_a_model_that_finds_no_place_at_all_says_so(full_disk, model, monkeypatch):
    fill(full_disk)
    monkeypatch.chdir(full_disk)
    monkeypatch.setenv("HOME", str(full_disk))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(full_disk))
    with pytest.raises(OSError, match="No space left on device") as failure:
        save_somewhere(model, full_disk / "brakes.lvmogp")
    assert failure.value.filename == str(full_disk / "brakes.lvmogp")
    assert listed(full_disk) == ["filler"]
    monkeypatch.undo()


def test_data_read_in_pieces_take_their_room_before_they_are_read(full_disk, tmp_path):
    """Else a write to memory that the disk cannot back ends the process without a word."""
    frame = pd.DataFrame({"x": np.arange(20_000.0), "y": 1.0, "id": "a"})
    frame.to_parquet(tmp_path / "data.parquet")
    roles = {"output": "y", "condition": "id"}
    with (
        pytest.raises(
            DataError, match=r"the data take 0\.2 MB in .*full while they are fitted, which has not the room"
        ),
        open_parquet(tmp_path / "data.parquet", **roles, folder=full_disk),
    ):
        pass
    assert listed(full_disk) == []
    with open_parquet(tmp_path / "data.parquet", **roles, folder=tmp_path) as store:
        np.testing.assert_array_equal(store.inputs[:, 0], np.arange(20_000.0))


def as_command(code: str, *arguments: str) -> list[str]:
    """A program whose work is done as that of the commands is."""
    ending = "import typer; app = typer.Typer(add_completion=False); app.command()(work); app(args=[])"
    return [sys.executable, "-c", f"{code}\n{ending}", *arguments]


# Output that has no place to go

SAYS_MUCH = """
from lvmogp.cli.printing import reported
def work():
    with reported() as screen:
        screen.{method}("x" * {size})
"""


@pytest.mark.parametrize(("method", "size"), [("say", 10), ("raw", 10), ("raw", 1_000_000)])
def test_a_full_disk_under_the_output_is_told_of(method, size):
    with Path("/dev/full").open("w") as output:
        command = as_command(SAYS_MUCH.format(method=method, size=size))
        ended = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True)
    assert ended.stderr == (
        "error: the output: No space left on device; free some space on that disk, or write to another one\n"
    )
    assert ended.returncode == 1


def test_names_in_files_give_no_commands_to_the_terminal(capsys):
    with reported() as screen:
        screen.say("a\x1b[2Jb")
        screen.show([["c\x1b]0;title\x07"]], ["d\x9b1m"])
        screen.note("e\x1b[31m[bold]f")
    spoken = capsys.readouterr()
    assert "a\\x1b[2Jb" in spoken.out
    assert "c\\x1b]0;title\\x07" in spoken.out
    assert "d\\x9b1m" in spoken.out
    assert "e\\x1b[31m[bold]f" in spoken.err
    assert not set(spoken.out + spoken.err) & {"\x1b", "\x07", "\x9b"}


# Signals and kills

WRITES_FOR_EVER = """
import sys
from pathlib import Path
from lvmogp.cli.printing import reported
from lvmogp.ground.writing import replace_file
def work():
    with reported() as screen:
        screen.after_failure = "this is how to go on"
        print("ready", flush=True)
        while True:
            for letter in b"ab":
                replace_file(Path(sys.argv[1]), bytes([letter]) * 3_000_000)
"""


def stopped_while_writing(path, number, moments):
    """A process that writes one file again and again, stopped at each of some moments after it is ready."""
    for seconds in moments:
        process = subprocess.Popen(
            as_command(WRITES_FOR_EVER, str(path)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=path.parent,
        )
        assert process.stdout.readline() == "ready\n"
        until = time.monotonic() + 60
        while not path.exists():
            assert time.monotonic() < until
        time.sleep(seconds)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        yield process.returncode, errors


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (signal.SIGINT, INTERRUPTED, "error: interrupted; this is how to go on\n"),
        (signal.SIGTERM, TERMINATED, "error: terminated; this is how to go on\n"),
        pytest.param(signal.SIGHUP, TERMINATED, "error: terminated; this is how to go on\n", marks=pytest.mark.long),
    ],
    ids=["Ctrl-C", "terminated", "terminal closed"],
)
def test_a_process_that_is_asked_to_end_clears_away_what_it_was_writing(tmp_path, number, code, words):
    path = tmp_path / "file"
    for returned, errors in stopped_while_writing(path, number, (0.013,)):
        assert (returned, errors) == (code, words)
        assert [each.name for each in tmp_path.iterdir()] == ["file"]
        assert path.read_bytes() in (b"a" * 3_000_000, b"b" * 3_000_000)


def test_a_killed_process_leaves_a_whole_file(tmp_path):
    path = tmp_path / "file"
    for returned, _ in stopped_while_writing(path, signal.SIGKILL, (0.007,)):
        assert returned == -signal.SIGKILL
        assert path.read_bytes() in (b"a" * 3_000_000, b"b" * 3_000_000)


def test_what_a_killed_process_left_goes_when_its_file_is_written_again(tmp_path):
    path = tmp_path / "model[1].lvmogp"
    abandoned, recent, other = (
        tmp_path / name
        for name in (".model[1].lvmogp.0123456789abcdef", ".model[1].lvmogp.fedcba9876543210", ".model1.lvmogp.txt")
    )
    for each in (abandoned, recent, other):
        each.write_bytes(b"half")
    os.utime(abandoned, (0, 0))
    os.utime(other, (0, 0))
    replace_file(path, b"whole")
    assert set(tmp_path.iterdir()) == {path, recent, other}


def test_signals_that_were_ignored_stay_so():
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with reported():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            with pytest.raises(Terminated):
                signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, previous)


# One of several processes, with another that waits for it

WORKS_IN_A_CHILD = """
import os, signal, sys, time
from lvmogp.cli import supervision
from lvmogp.cli.printing import reported
supervision._GRACE_SECONDS = 0.5
def work():
    with reported() as screen:
        screen.after_failure = "this is how to go on"
        supervision.work_in_child(screen)
        screen.ends_at_once = True
        print(os.getpid(), flush=True)
        {body}
"""
IGNORES = "signal.signal(signal.SIGINT, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
ENDINGS = {
    "well": ("print('done')", None, 0, ""),
    "with an error": ("raise ValueError('odd')", None, 1, "error: unexpected ValueError: odd; run the command again"),
    "by Ctrl-C": ("time.sleep(60)", signal.SIGINT, 130, "error: interrupted; this is how to go on\n"),
    "by the system": ("time.sleep(60)", signal.SIGTERM, 143, "error: terminated; this is how to go on\n"),
    "deaf to Ctrl-C": (IGNORES, signal.SIGINT, 130, "error: interrupted; this is how to go on\n"),
    "without a word": (
        "os.abort()",
        None,
        1,
        "error: another process of this fit was lost, or cannot be reached; this",
    ),
    "killed": ("os.kill(os.getpid(), 9)", None, 1, "error: this process was ended from outside (SIGKILL), as happens"),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_whatever_ends_the_process_that_works_there_are_words(name):
    body, number, code, words = ENDINGS[name]
    command = as_command(WORKS_IN_A_CHILD.format(body=body))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert int(process.stdout.readline()) != process.pid
    if name == "deaf to Ctrl-C":
        assert process.stdout.readline() == "deaf\n"
    if number is not None:
        process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert errors.startswith(words)
    assert errors.count("error: ") == (code != 0)
    assert "Traceback" not in errors


def test_nothing_works_on_for_a_process_that_was_killed():
    command = as_command(WORKS_IN_A_CHILD.format(body="time.sleep(60)"))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert int(process.stdout.readline()) != process.pid
    process.kill()
    rest, _ = process.communicate(timeout=30)  # which comes once nobody can write any more
    assert rest == ""


# Memory

READS_WITH_LITTLE_MEMORY = """
import resource, sys
from pathlib import Path
from lvmogp.cli.printing import reported
from lvmogp.cli.files.tables import read_table
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 60_000_000, resource.RLIM_INFINITY))
def work():
    with reported():
        print(len(read_table(Path(sys.argv[1]), ids=["id"]).frame))
"""


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_that_does_not_fit_into_memory_is_refused_in_words(tmp_path, suffix):
    path = tmp_path / f"data{suffix}"
    n_rows = 2_000_000
    if suffix == ".csv":
        path.write_bytes(b"x,y,id\n" + b"1.2345,2.3456,abc\n" * n_rows)
    else:
        pd.DataFrame({"x": np.arange(float(3 * n_rows)), "y": 0.0}).to_parquet(path)
    ended = subprocess.run(as_command(READS_WITH_LITTLE_MEMORY, str(path)), capture_output=True, text=True)
    assert ended.returncode == 1, ended.stderr
    size = f"{path.stat().st_size / 1e6:.0f} MB"
    assert ended.stderr == (
        f"error: {path} ({size}) does not fit into memory; leave out rows or columns, or write it as Parquet, which "
        "--inference stochastic reads in pieces\n"
    )


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes")])
def test_too_little_memory_for_a_computation_is_told_with_advice(capsys, error):
    def fail():
        with reported() as screen:
            screen.after_failure = "there are checkpoints"
            raise error

    with pytest.raises(typer.Exit):
        fail()
    expected = "error: there is not enough memory; use fewer inducing points, or fewer rows; there are checkpoints\n"
    assert capsys.readouterr().err == expected


# Workers


class DiesOnce:
    """A method whose process is killed while a file is there, which it takes away before."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __call__(self, task: Task) -> Fitted:
        if self.marker.exists() and task.problem.train.outputs[0] == toy_problem(2).train.outputs[0]:
            self.marker.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return Fitted(lambda inputs, conditions: (np.zeros(len(inputs)), np.ones(len(inputs))), {"bound": -1.0})


def test_a_dying_worker_ends_the_run_in_words_and_loses_nothing(tmp_path):
    marker = tmp_path / "marker"
    marker.touch()
    experiment = toy(DiesOnce(marker))
    everything = runner.jobs("toy", experiment, repeats=3, quick=False)

    def run(n_jobs):
        earlier = runner.stored("toy", tmp_path, quick=False)
        pending = [job for job in everything if job not in earlier]
        runner.run(pending, experiment, tmp_path, data_dir=None, n_jobs=n_jobs, on_result=done.append)
        return pending

    done = []
    with pytest.raises(LVMOGPError, match=r"one of the 2 processes that run repeats was ended from outside.* run the"):
        run(2)
    kept = runner.stored("toy", tmp_path, quick=False)
    assert {each["repeat"] for each in done} <= {job.repeat for job in kept}
    assert 2 not in {job.repeat for job in kept}
    assert set(run(1)) == set(everything) - set(kept)
    assert set(runner.stored("toy", tmp_path, quick=False)) == set(everything)


def test_a_repeat_that_is_changed_by_hand_is_found_anew(tmp_path):
    experiment = toy(DiesOnce(tmp_path / "none"))
    everything = runner.jobs("toy", experiment, repeats=2, quick=False)
    runner.run(everything, experiment, tmp_path, data_dir=None, n_jobs=1, on_result=lambda _: None)
    path = everything[1].path(tmp_path)
    result = json.loads(path.read_text())
    path.write_text(json.dumps(result | {"rmse": 0.5 * result["rmse"]}))
    with pytest.warns(LVMOGPWarning, match="was changed by hand"):
        assert set(runner.stored("toy", tmp_path, quick=False)) == {everything[0]}
