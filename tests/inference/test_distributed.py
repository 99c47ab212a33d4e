"""Several processes that fit one model: the same parameters as one process, each reading its part only."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from command_line import listening_to_ctrl_c
from papers_model import PapersModel
from safetensors.numpy import load_file
from typer.testing import CliRunner

from lvmogp import LVMOGPRegressor
from lvmogp.cli.app import app
from lvmogp.cli.files.parquet import open_parquet
from lvmogp.errors import SettingError
from lvmogp.inference.minibatch.distributed import Rendezvous, gathered, join_processes
from lvmogp.inference.minibatch.fit import fit_minibatches
from lvmogp.inference.minibatch.minibatches import Shards
from lvmogp.inference.options import checked
from lvmogp.tables.ids import Id, numbers_of
from lvmogp.tables.scaling import scaling_from
from lvmogp.typing import Float

pytest.importorskip("pyarrow")
RUN = [sys.executable, "-m", "lvmogp"]
ROLES = {"output": "y", "condition": "id"}
SIZES = {"n_latent": 1, "n_inducing_inputs": 6, "n_inducing_latents": 4, "batch_size": 64, "max_iter": 100}
SETTINGS = {"inference": "stochastic", "random_state": 0, **SIZES}
OPTIONS = (
    "--inference stochastic --latents 1 --inducing-inputs 6 --inducing-latents 4 --batch-size 64 --max-iter 100 "
    "--input-kernel rbf --latent-kernel rbf --noise shared"
)


def write_uneven(folder: Path) -> Path:
    """Two row groups: the first without condition e, the second without condition a, in another order."""
    rng = np.random.default_rng(0)
    latents = rng.normal(size=(6, 2))
    numbers = np.concatenate([rng.integers(0, 4, 350), [5] * 20, rng.integers(1, 6, 230)])
    inputs = rng.uniform(-1.5, 1.5, 600)
    outputs = np.sin(2 * inputs + latents[numbers, 0]) + 0.5 * latents[numbers, 1] + 0.1 * rng.normal(size=600)
    frame = pd.DataFrame({"x": inputs, "y": outputs, "id": np.array(list("abcdef"))[numbers]})
    frame.to_parquet(folder / "data.parquet", row_group_size=370)
    return folder / "data.parquet"


def begun(data: Path, model: Path, *options: str) -> list[subprocess.Popen]:
    """The same command twice, but for the number of the process."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    meeting = ["--distributed", "--coordinator", f"127.0.0.1:{port}", "--processes", "2", "--json"]
    roles = ["--output", "y", "--condition", "id", "--model", str(model)]
    with listening_to_ctrl_c():
        return [
            subprocess.Popen(
                [*RUN, "fit", str(data), *roles, *OPTIONS.split(), *meeting, "--process", str(number), *options],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "JAX_NUM_CPU_DEVICES": "1"},
            )
            for number in range(2)
        ]


def ended(running: list[subprocess.Popen]) -> list[subprocess.CompletedProcess]:
    try:
        spoken = [process.communicate(timeout=600) for process in running]
    finally:
        for process in running:
            process.kill()
    return [
        subprocess.CompletedProcess(process.args, process.returncode, *words)
        for process, words in zip(running, spoken, strict=True)
    ]


def in_one_process(data: Path):
    """The same two shards read by one process, so that its minibatches are those of the two."""
    model = PapersModel(**SETTINGS)
    parts = [open_parquet(data, **ROLES, part=slice(number, None, 2)) for number in range(2)]
    with parts[0] as first, parts[1] as second, jax.default_matmul_precision("highest"):
        stores = first, second
        scaling = scaling_from(first.moments().merged(second.moments()))
        numbers = [numbers_of(store.ids, tuple("abcdef")) for store in stores]
        counts = sum(
            np.bincount(own[store.conditions], minlength=6) for own, store in zip(numbers, stores, strict=True)
        )
        return fit_minibatches(Shards(stores, numbers, counts, scaling, 2, 0), checked(model))


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """A fit by two processes: what both said, and the folder of its data and model."""
    folder = tmp_path_factory.mktemp("together")
    both = ended(begun(write_uneven(folder), folder / "model.lvmogp"))
    assert [each.returncode for each in both] == [0, 0], both[0].stderr + both[1].stderr
    return both, folder


def test_two_processes_find_what_one_finds(together):
    (first, second), folder = together
    alone, outcome = in_one_process(folder / "data.parquet")
    fitted = LVMOGPRegressor.load(folder / "model.lvmogp")
    assert fitted.conditions_ == tuple("abcdef")  # ids spread unevenly are those of one model
    model = fitted.model_
    assert model.fit.outcome.n_iterations == 100
    leaves, expected = jax.tree.leaves(model.posterior.parameters), jax.tree.leaves(alone.parameters)
    assert len(leaves) == len(expected) >= 8
    for leaf, other in zip(leaves, expected, strict=True):
        np.testing.assert_allclose(leaf, other, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(model.posterior.mean, alone.mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(model.fit.outcome.bound, outcome.bound, rtol=1e-8)
    # The first process alone tells what came of it.
    document = json.loads(first.stdout)  # and nothing but JSON
    assert document["model"] == str(folder / "model.lvmogp")
    assert document["data"]["n_rows"] == 600
    assert second.stdout == ""


@pytest.mark.long
def test_two_processes_go_on_from_the_checkpoints_of_the_first(together, tmp_path):
    _, folder = together
    # As if both had been killed after the first window: a fit of one window, with the fingerprint of the whole one.
    script = tmp_path / "killed.py"
    script.write_text(
        "import os\n"
        "from lvmogp.cli.app import main\n"
        "from lvmogp.storage.checkpoints import Checkpoints\n"
        "keep = Checkpoints.save\n"
        "Checkpoints.save = lambda *arguments: (keep(*arguments), os._exit(9))\n"
        "main()\n"
    )
    options = ("--checkpoint", str(tmp_path / "kept"), "--checkpoint-seconds", "0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[__name__], "RUN", [sys.executable, str(script)])
        ended(begun(folder / "data.parquet", tmp_path / "model.lvmogp", *options))
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["steps-000000050.checkpoint"]
    both = ended(begun(folder / "data.parquet", tmp_path / "model.lvmogp", *options, "--resume"))
    assert [each.returncode for each in both] == [0, 0], both[0].stderr + both[1].stderr
    found, wanted = load_file(tmp_path / "model.lvmogp"), load_file(folder / "model.lvmogp")
    assert [name for name in wanted if not np.array_equal(found[name], wanted[name])] == []
    assert list((tmp_path / "kept").iterdir()) == []  # once the model is safe


# Processes that are lost


def disturbed(folder: Path, disturb) -> list[subprocess.CompletedProcess]:
    """A fit that goes on for long, disturbed after its first checkpoint."""
    kept = folder / "kept"
    options = ("--max-iter", "100000", "--checkpoint", str(kept), "--checkpoint-seconds", "0")
    running = begun(write_uneven(folder), folder / "model.lvmogp", *options)
    try:
        until = time.monotonic() + 600
        while not list(kept.glob("steps-*.checkpoint")):
            assert [each.poll() for each in running] == [None, None], "the fit ended before it could be disturbed"
            assert time.monotonic() < until, "no checkpoint within ten minutes"
            time.sleep(0.01)
        disturb(running)
    except BaseException:
        for process in running:
            process.kill()
            process.communicate()
        raise
    return ended(running)


DISTURBANCES = {
    "0 killed": lambda running: running[0].kill(),
    "1 killed": lambda running: running[1].kill(),
    "Ctrl-C in 0": lambda running: running[0].send_signal(signal.SIGINT),
    "Ctrl-C in 1": lambda running: running[1].send_signal(signal.SIGINT),
    "Ctrl-C in both": lambda running: [each.send_signal(signal.SIGINT) for each in running],
}


@pytest.mark.long
@pytest.mark.parametrize("name", DISTURBANCES)
def test_all_processes_end_when_one_is_lost(tmp_path, name):
    """One that was interrupted says so; of another that was lost, JAX may end a process in words of its own."""
    both = disturbed(tmp_path, DISTURBANCES[name])
    way_on = f"the same command with --resume goes on from the last checkpoint in {tmp_path / 'kept'}"
    for number, each in enumerate(both):
        assert each.returncode != 0
        if name == f"{number} killed":
            assert each.returncode == -signal.SIGKILL
        elif name == f"Ctrl-C in {number}":
            assert (each.returncode, json.loads(each.stdout)) == (130, {"error": f"interrupted; {way_on}"})
        elif each.returncode == 1:
            assert "another process of this fit was lost" in json.loads(each.stdout)["error"]
            assert "Traceback" not in each.stderr
    assert not (tmp_path / "model.lvmogp").exists()
    assert len(list((tmp_path / "kept").glob("steps-*.checkpoint"))) > 0


def test_values_of_any_size_come_from_every_process(monkeypatch):
    """Two processes, of which the other has more to say."""
    kind, sent = tuple[tuple[Id, ...], Float[np.ndarray, " _"]] | None, []
    monkeypatch.setattr("jax.process_count", lambda: 2)
    monkeypatch.setattr(
        "jax.experimental.multihost_utils.process_allgather", lambda value: sent.append(value) or value[None]
    )
    other = ("a", 1, 1.5), np.arange(1e3)
    gathered(other, kind)
    theirs = sent[1]

    def with_other(value):
        return np.stack([value, np.asarray(len(theirs)) if value.ndim == 0 else np.resize(theirs, len(value))])

    monkeypatch.setattr("jax.experimental.multihost_utils.process_allgather", with_other)
    nothing, (ids, numbers) = gathered(None, kind)
    assert (nothing, ids) == (None, other[0])
    np.testing.assert_array_equal(numbers, other[1])


# What is refused


def test_a_process_that_cannot_join_says_so(monkeypatch):
    def fail(**_):
        raise ValueError("coordinator_address should be defined.")

    with pytest.raises(SettingError, match="coordinator, the number of processes and the number of this process tog"):
        join_processes(Rendezvous("127.0.0.1:1", 2, None))
    monkeypatch.setattr("jax.distributed.initialize", fail)
    with pytest.raises(SettingError, match=r"could not join the others \(coordinator_address should be defined\.\)"):
        join_processes(Rendezvous())


def refused(*arguments: str) -> str:
    ended = CliRunner().invoke(app, ["fit", *arguments, "--model", "m.lvmogp", "--output", "y", "--condition", "id"])
    assert ended.exit_code == 1
    return ended.stderr


def test_processes_that_cannot_work_together_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_uneven(tmp_path)
    assert "belong to --distributed; add it" in refused("data.parquet", "--process", "0")
    (tmp_path / "data.csv").write_text("x,y,id\n1,2,a\n")
    words = "--distributed fits Parquet files by minibatches; give a .parquet file or a folder of them"
    assert words in refused("data.csv", "--inference", "stochastic", "--distributed")
    assert words in refused("data.parquet", "--distributed")
    words = "--keep-on-interrupt is not for --distributed; keep --checkpoint, and go on with --resume"
    assert words in refused("data.parquet", "--inference", "stochastic", "--distributed", "--keep-on-interrupt")
