"""Checkpoints: whole or not there at all, the last few kept, damage told of, and fits that go on bit for bit."""

import re
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import numpy as np
import pytest
from papers_model import PapersModel
from test_stochastic import many_conditions
from whole_models import read

from lvmogp import LVMOGPRegressor, StopFit
from lvmogp.errors import ConvergenceWarning, LVMOGPWarning, NumericalError, SettingError
from lvmogp.inference.minibatch.descent import Window
from lvmogp.inference.restarts import MINIBATCHES
from lvmogp.storage.checkpoints import Checkpoints, checkpoints, clear_checkpoints, fingerprint
from lvmogp.storage.tensor_file import CHECKPOINT, write
from lvmogp.typing import Float

SMALL = {"n_latent": 1, "n_inducing_inputs": 6, "n_inducing_latents": 4, "random_state": 0}


class Kept(NamedTuple):
    number: int
    values: Float[np.ndarray, " n"]


class Other(NamedTuple):
    number: int


def saved(folder: Path, *numbers: int) -> Checkpoints:
    """A folder with these checkpoints, opened to resume from them."""
    store = checkpoints(folder, "this fit", resume=True)
    for number in numbers:
        store.save("steps", number, Kept(number, np.arange(50.0) + number), Kept)
    return store


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def newest(folder: Path) -> Path:
    return max(folder.glob("steps-*.checkpoint"))


def truncate(path: Path, left: int = -100) -> None:
    path.write_bytes(path.read_bytes()[:left])


def flip_a_bit(path: Path) -> None:
    payload = bytearray(path.read_bytes())
    payload[-100] ^= 1
    path.write_bytes(payload)


# What is kept


def test_what_was_saved_comes_back(tmp_path):
    store = saved(tmp_path / "a" / "b", 100, 50)
    number, found = store.latest("steps", Kept)
    assert number == found.number == 100
    np.testing.assert_array_equal(found.values, np.arange(50.0) + 100)
    assert store.one_of("steps", 50, Kept).number == 50
    assert store.one_of("steps", 70, Kept) is None
    assert store.latest("other", Kept) is None
    silent = store._replace(resume=False)
    assert silent.latest("steps", Kept) is silent.one_of("steps", 100, Kept) is None


def test_the_last_three_of_a_series_are_kept_or_all_of_it(tmp_path):
    store = saved(tmp_path, 999_950, 1_000_000, 1_000_050, 1_000_100, 1_000_150)
    for number in range(5):
        store.save("others", number, Kept(number, np.arange(50.0) + number), Kept, keep_all=True)
    assert names(tmp_path) == [
        *(f"others-00000000{number}.checkpoint" for number in range(5)),
        *(f"steps-00{number}.checkpoint" for number in (1_000_050, 1_000_100, 1_000_150)),
    ]


# What is damaged


@pytest.mark.parametrize("damage", [truncate, lambda path: truncate(path, 0), flip_a_bit])
def test_a_damaged_checkpoint_is_named_and_the_one_before_taken(tmp_path, damage):
    store = saved(tmp_path, 1, 2, 3)
    damage(newest(tmp_path))
    with pytest.warns(LVMOGPWarning, match=r"damaged checkpoint is passed over.*steps-000000003\.checkpoint"):
        number, found = store.latest("steps", Kept)
    assert number == found.number == 2
    for path in tmp_path.iterdir():
        truncate(path)
    with pytest.warns(LVMOGPWarning) as warned:  # nothing but damaged checkpoints is as none
        assert store.latest("steps", Kept) is store.one_of("steps", 1, Kept) is None
    assert [re.findall(r"steps-00000000(\d)", str(each.message)) for each in warned] == [["3"], ["2"], ["1"], ["1"]]


def test_checkpoints_of_another_kind_or_that_could_not_be_read_again_are_no_end_of_the_fit(tmp_path):
    store = saved(tmp_path, 1)
    with pytest.warns(LVMOGPWarning, match="a damaged checkpoint is passed over.*values is nothing that this version"):
        assert store.latest("steps", Other) is None
    with pytest.warns(LVMOGPWarning, match=r"could not be written \(values holds NaN or infinite values\); the"):
        store.save("steps", 2, Kept(2, np.full(3, np.nan)), Kept)
    assert store.latest("steps", Kept)[0] == 1


@pytest.mark.parametrize("function", ["replace", "fsync"])
def test_a_failure_while_writing_leaves_what_was_there_and_nothing_else(tmp_path, monkeypatch, function):
    def fail(*_):
        raise OSError(28, "No space left on device")

    store = saved(tmp_path, 1)
    before = names(tmp_path)
    monkeypatch.setattr(f"lvmogp.ground.writing.os.{function}", fail)
    words = r"could not be written \(No space left on device: .*steps-000000002\.checkpoint\); the fit goes on"
    with pytest.warns(LVMOGPWarning, match=words):
        store.save("steps", 2, Kept(2, np.arange(50.0)), Kept)
    monkeypatch.undo()
    assert names(tmp_path) == before
    assert store.latest("steps", Kept)[0] == 1


def test_what_a_killed_process_left_half_written_is_cleared(tmp_path):
    saved(tmp_path, 1)
    (tmp_path / ".steps-000000002.checkpoint.0123456789abcdef").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    saved(tmp_path)
    assert names(tmp_path) == ["notes.txt", "steps-000000001.checkpoint"]
    clear_checkpoints(tmp_path)
    assert names(tmp_path) == ["notes.txt"]


# What is refused


def test_checkpoints_of_other_data_and_folders_that_cannot_be_used_are_refused(tmp_path, monkeypatch):
    saved(tmp_path, 1)
    other = checkpoints(tmp_path, "that fit", resume=True)
    with pytest.raises(SettingError, match="belong to other data or settings; resume with those"):
        other.latest("steps", Kept)
    with pytest.raises(SettingError, match="belong to other data or settings"):
        other.one_of("steps", 1, Kept)
    with pytest.raises(SettingError, match="holds checkpoints of an earlier fit; resume that fit, name another"):
        checkpoints(tmp_path, "this fit", resume=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match=r"file/folder cannot be made: Not a directory"):
        checkpoints(tmp_path / "file" / "folder", "this fit", resume=False)
    monkeypatch.setattr("lvmogp.storage.checkpoints.os.access", lambda *_: False)  # root may write anywhere
    with pytest.raises(SettingError, match="cannot be written to; name another one"):
        checkpoints(tmp_path, "this fit", resume=False)


def test_a_fingerprint_tells_settings_and_arrays_apart():
    values = np.arange(6.0)
    others = values.reshape(2, 3), values.astype(np.float32), np.nextafter(values, 9)
    digests = {fingerprint({"a": 1}, {"x": each}) for each in (values, *others)}
    digests |= {fingerprint({"a": 2}, {"x": values}), fingerprint({"a": 1}, {"y": values})}
    assert len(digests) == 6
    assert fingerprint({"a": 1, "b": 2}, {"x": values[::2]}) == fingerprint({"b": 2, "a": 1}, {"x": values[::2].copy()})


# Fits by minibatches


def observations() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return many_conditions(600, 6)[:3]


@pytest.fixture(scope="module")
def short_course():
    """Three stages of two windows of ten steps each, the last of which is averaged."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lvmogp.inference.minibatch.descent.STEPS_PER_WINDOW", 10)
        patch.setattr("lvmogp.inference.minibatch.fit.STEPS_PER_WINDOW", 10)
        patch.setattr("lvmogp.inference.minibatch.descent._FEWEST_WINDOWS", 2)
        patch.setattr("lvmogp.inference.minibatch.descent._SIGNIFICANT", 1e9)
        patch.setattr("lvmogp.inference.minibatch.settings._START_ITERATIONS", 5)
        yield


def by_minibatches(**settings) -> LVMOGPRegressor:
    return PapersModel(inference="stochastic", batch_size=64, **(SMALL | settings))


@pytest.fixture(scope="module")
def undisturbed(short_course) -> LVMOGPRegressor:
    return by_minibatches().fit(*observations())


def stopped_after(n_windows: int, folder: Path) -> LVMOGPRegressor:
    """A fit by minibatches that writes a checkpoint after each window, until it is stopped."""

    def stop(progress):
        if progress.recipe == MINIBATCHES and progress.iteration >= 10 * n_windows:
            raise StopFit

    with pytest.warns(ConvergenceWarning, match="interrupted"):
        return by_minibatches().fit(*observations(), on_progress=stop, checkpoint=folder, checkpoint_seconds=0)


def assert_same(found: LVMOGPRegressor, wanted: LVMOGPRegressor) -> None:
    """Bit for bit."""
    assert eqx.tree_equal(found.model_.posterior, wanted.model_.posterior)
    assert found.outcome_.bound == wanted.outcome_.bound
    assert found.outcome_.status is wanted.outcome_.status
    assert [each.history for each in found.outcome_.restarts] == [each.history for each in wanted.outcome_.restarts]


def test_a_fit_by_minibatches_goes_on_bit_for_bit_from_the_checkpoint_before_a_damaged_one(tmp_path, undisturbed):
    """After five of six windows, of which the last two are averaged."""
    stopped = stopped_after(5, tmp_path)
    assert stopped.n_iter_ == 50
    assert np.all(np.isfinite(stopped.predict([[0.5]], 3)))
    assert len(names(tmp_path)) == 3
    seen = []
    resumed = by_minibatches().fit(*observations(), on_progress=seen.append, checkpoint=tmp_path, resume=True)
    assert [progress.iteration for progress in seen] == [60]
    assert resumed.outcome_.converged
    assert_same(resumed, undisturbed)
    seen.clear()
    truncate(newest(tmp_path))
    truncate(tmp_path / "steps-000000050.checkpoint")
    with pytest.warns(LVMOGPWarning, match=r"passed over.*steps-0000000[56]0\.checkpoint"):
        resumed = by_minibatches().fit(*observations(), on_progress=seen.append, checkpoint=tmp_path, resume=True)
    assert [progress.iteration for progress in seen] == [50, 60]
    assert_same(resumed, undisturbed)


def test_resuming_from_an_empty_folder_begins_anew_and_from_the_end_repeats_nothing(tmp_path, undisturbed):
    keeping = {"checkpoint": tmp_path, "resume": True}
    assert_same(by_minibatches().fit(*observations(), **keeping, checkpoint_seconds=1e9), undisturbed)
    assert names(tmp_path) == ["steps-000000060.checkpoint"]  # the end is written whatever the interval
    seen = []
    assert_same(by_minibatches().fit(*observations(), **keeping, on_progress=seen.append), undisturbed)
    assert seen == []


@pytest.mark.usefixtures("short_course")
def test_a_fit_to_other_data_or_with_other_settings_is_not_taken_up(tmp_path):
    stopped_after(1, tmp_path)
    inputs, outputs, conditions = observations()
    for model, data in (
        (by_minibatches(n_inducing_inputs=7), (inputs, outputs, conditions)),
        (by_minibatches(), (inputs + 1, outputs, conditions)),
        (by_minibatches(), (inputs, outputs, conditions + 1)),
        (by_minibatches(), (inputs, 2 * outputs, conditions)),
    ):
        with pytest.raises(SettingError, match="belong to other data or settings"):
            model.fit(*data, checkpoint=tmp_path, resume=True)
    with pytest.raises(SettingError, match="holds checkpoints of an earlier fit"):
        by_minibatches().fit(*observations(), checkpoint=tmp_path)
    for model in (by_minibatches(), PapersModel(**SMALL)):
        with pytest.raises(SettingError, match="resume=True needs to know the folder"):
            model.fit(*observations(), resume=True)


def test_checkpoints_that_another_program_changed_are_not_taken_up(tmp_path, undisturbed):
    """Their digests are right, and still they do not fit."""
    stopped_after(2, tmp_path)
    changed = ("state.vector", "average.vector"), ("state.mean",)
    for path, parts in zip(sorted(tmp_path.iterdir()), changed, strict=True):
        content = read(path, CHECKPOINT)
        for name in parts:
            content.tensors[name] = content.tensors[name][:-1]
        write(path, content, CHECKPOINT)
    with pytest.warns(LVMOGPWarning) as warned:
        resumed = by_minibatches().fit(*observations(), checkpoint=tmp_path, resume=True)
    assert ["state.mean has the shape" in str(each.message) for each in warned] == [True, False]
    assert "do not fit where they started; the fit begins anew" in str(warned[1].message)
    assert_same(resumed, undisturbed)


@pytest.mark.usefixtures("short_course")
def test_bounds_that_are_never_finite_are_reported_in_words(monkeypatch):
    monkeypatch.setattr("lvmogp.inference.minibatch.descent.window", lambda estimates: Window(np.nan, np.nan))
    with pytest.raises(NumericalError, match="not finite however small the steps"):
        by_minibatches().fit(*observations())


# Fits with restarts


def with_restarts(**options) -> LVMOGPRegressor:
    few = (values[:60] for values in observations())
    return PapersModel(n_restarts=3, max_iter=12, **SMALL).fit(*few, **options)


@pytest.mark.filterwarnings("ignore::lvmogp.errors.ConvergenceWarning")
def test_a_fit_with_restarts_goes_on_at_the_last_that_ended_and_repeats_a_damaged_one(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # one start after the other

    def stop(progress):
        if progress.restart == 2 and progress.iteration == 3:
            raise StopFit

    keeping, seen = {"checkpoint": tmp_path, "resume": True}, []
    whole = with_restarts()
    with_restarts(on_progress=stop, checkpoint=tmp_path)
    assert names(tmp_path) == ["latents1kernel0-000000000.checkpoint"]
    resumed = with_restarts(on_progress=seen.append, **keeping)
    assert [(progress.restart, progress.iteration) for progress in seen[:2]] == [(2, 1), (2, 2)]
    assert {progress.restart for progress in seen} == {2, 3}
    assert_same(resumed, whole)
    assert [each.bound for each in resumed.outcome_.restarts] == [each.bound for each in whole.outcome_.restarts]
    assert resumed.outcome_.n_evaluations == whole.outcome_.n_evaluations
    seen.clear()
    flip_a_bit(tmp_path / "latents1kernel0-000000001.checkpoint")
    with pytest.warns(LVMOGPWarning, match="latents1kernel0-000000001"):
        assert_same(with_restarts(on_progress=seen.append, **keeping), whole)
    assert {progress.restart for progress in seen} == {2}
