"""Processes that live long, have many threads, or have children."""

import functools
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import small_model

import lvmogp.ground.compiling as compiling
from benchmarks.endurance import State as MemoryState
from benchmarks.endurance import endured, growth, same
from lvmogp import LVMOGPRegressor
from lvmogp.fitted.model import trained_model
from lvmogp.inference.optimise import Status
from lvmogp.inference.restarts import Outcome
from lvmogp.tables.observations import Observations
from lvmogp.tables.scaling import Scaling

POINTS = np.random.default_rng(0).uniform(-2, 2, (300, 2))


@functools.cache
def small_estimator():
    """An estimator of four conditions that needed no fit."""
    fitted_posterior = small_model()
    outcome = Outcome(fitted_posterior.parameters, 0.0, Status.CONVERGED, (), 0.0, 0.0, 0.0)
    scaling = Scaling(np.zeros(2), np.ones(2), 0.0, 1.0)
    observed = Observations(POINTS[:4], np.zeros(4), np.arange(4), (0, 1, 2, 3))
    estimator = LVMOGPRegressor(n_latent=1)
    estimator.model_ = trained_model(
        fitted_posterior, outcome, ids=(0, 1, 2, 3), scaling=scaling, observations=observed
    )
    return estimator


def n_alive():
    return len(jax.devices()[0].client.live_executables())


# Memory


def test_every_program_is_counted_once_and_shared_by_all_who_compile_its_function():
    def doubled(values):
        return 2 * values

    before = compiling.programs_made()
    for length in (3, 4, 3, 4, 4):
        compiling.compiled(doubled)(jnp.ones(length))
    assert compiling.programs_made() - before == 2


def test_predictions_of_varying_shapes_keep_few_programs_and_change_no_answer(monkeypatch):
    model = small_estimator()
    at_start = model.predict(POINTS, 1, return_std=True)
    compiling.forget_all_programs()
    monkeypatch.setattr(compiling, "MOST_PROGRAMS", 2)
    alive_before, forgotten_before = n_alive(), compiling.times_forgotten()
    made, alive = [], []
    for n_rows in (1, 5, 10, 20, 40, 80, 160, 300) * 2:
        model.predict(POINTS[:n_rows], 1, return_std=True)
        made.append(compiling.programs_made())
        alive.append(n_alive() - alive_before)
    assert max(made) == 3  # the call that goes beyond the limit ends first
    assert max(alive) <= 3
    assert compiling.times_forgotten() - forgotten_before >= 4
    assert same(list(model.predict(POINTS, 1, return_std=True)), list(at_start))


@pytest.mark.long
def test_fits_of_varying_shapes_keep_few_programs_and_change_no_answer(monkeypatch):
    most, most_of_a_call = 30, 20
    monkeypatch.setattr(compiling, "MOST_PROGRAMS", most)
    compiling.forget_all_programs()
    alive_before, forgotten_before = n_alive(), compiling.times_forgotten()
    states, checks = endured(n_fits=15, n_predictions=45, seed=3)
    assert set(checks.values()) == {True}
    assert states[-1][:2] == (15, 45)
    assert compiling.times_forgotten() - forgotten_before >= 2
    assert max(each.n_programs_made for each in states) <= most + most_of_a_call
    # Single operations outside of compiled functions are programs too, about two for each of these.
    assert n_alive() - alive_before <= 3 * (most + most_of_a_call)


def test_growth_is_that_from_the_second_quarter_to_the_last():
    def at(resident):
        return MemoryState(0, 0, 0.0, resident, 0, 0, 0, 0)

    assert growth([at(each) for each in (10, 50, 100, 100, 120, 130, 150, 150)]) == 1.5


# Threads


def test_eight_threads_predict_as_one_bit_for_bit_even_while_programs_are_forgotten(monkeypatch):
    model = small_estimator()
    rng = np.random.default_rng(0)
    questions = [(POINTS[: int(n)], int(rng.integers(4))) for n in rng.integers(1, 300, 40)]

    def answer(question):
        return list(model.predict(*question, return_std=True))

    serial = [answer(question) for question in questions]
    monkeypatch.setattr(compiling, "MOST_PROGRAMS", 2)
    forgotten_before = compiling.times_forgotten()
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(answer, questions))
    assert compiling.times_forgotten() > forgotten_before
    assert [number for number, each in enumerate(found) if not same(each, serial[number])] == []


# Children

FAMILY = '''
import json, multiprocessing, sys, warnings
import joblib
import numpy as np
from lvmogp import ForkedProcessError, LVMOGPRegressor

POINTS = np.linspace(-2, 2, 14).reshape(7, 2)


class Rows:
    """What the worker of a data loader holds: a model, asked for a row at a time."""

    def __init__(self, model):
        self.model = model

    def __getitem__(self, number):
        return self.model.predict(POINTS[number : number + 1], 1).tobytes()


def from_file(path):
    return LVMOGPRegressor.load(path).predict(POINTS, 1).tobytes()


def in_words(function, *arguments):
    try:
        return function(*arguments)
    except ForkedProcessError as error:
        return str(error)


def inherited(rows, answer):
    answer.put(in_words(rows.__getitem__, 3))


if __name__ == "__main__":
    path = sys.argv[1]
    warnings.filterwarnings("ignore", message="os.fork")  # JAX's own word of warning
    fork, spawn = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")
    found = {}
    with fork.Pool(1) as early:
        found["forked before"] = early.apply_async(from_file, (path,)).get(600)
        model = LVMOGPRegressor.load(path)
        expected = model.predict(POINTS, 1).tobytes()
        found["forked before, asked after"] = early.apply_async(from_file, (path,)).get(600)
    with fork.Pool(1) as late:
        found["forked after"] = late.apply_async(in_words, (model.predict, POINTS, 1)).get(600)
        found["forked after, from a file"] = late.apply_async(in_words, (from_file, path)).get(600)
    answer = fork.Queue()
    worker = fork.Process(target=inherited, args=(Rows(model), answer))
    worker.start()
    found["inherited"] = answer.get(timeout=600)
    worker.join()
    with spawn.Pool(1) as pool:
        found["spawned"] = pool.apply_async(model.predict, (POINTS, 1)).get(600).tobytes()
    (each,) = joblib.Parallel(n_jobs=2, timeout=600)([joblib.delayed(model.predict)(POINTS, 1)])
    found["loky"] = each.tobytes()
    words = {name: text for name, text in found.items() if isinstance(text, str)}
    print(json.dumps([words, [name for name, got in found.items() if got == expected]]))
'''


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    """What children of a process said in words, and which of them answered as it did."""
    folder = tmp_path_factory.mktemp("family")
    small_estimator().save(folder / "model")
    (folder / "family.py").write_text(FAMILY)
    ran = subprocess.run(
        [sys.executable, folder / "family.py", folder / "model"], capture_output=True, text=True, timeout=1800
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def test_spawned_children_and_those_forked_before_the_first_use_answer_the_same(family):
    assert family[1] == ["forked before", "forked before, asked after", "spawned", "loky"]


def test_children_forked_after_the_first_use_say_in_words_what_to_do(family):
    assert list(family[0]) == ["forked after", "forked after, from a file", "inherited"]
    for text in family[0].values():
        assert "forked after its parent had used lvmogp" in text
        assert 'multiprocessing.get_context("spawn")' in text


def test_a_process_that_never_computed_may_fork():
    # One write each: what two processes print may be mixed.
    code = "import os, lvmogp.estimator as e; os.fork() and os.wait(); os.write(1, b'%d\\n' % e.can_compute())"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout.split() == ["1", "1"]
