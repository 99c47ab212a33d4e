"""Compiled programs: few, whole steps, kept for the next process, forgotten where there are many; threads."""

import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn_models import of_kind
from papers_model import PapersModel

from benchmarks.endurance import endured, same
from lvmogp.ground import compiling
from lvmogp.ground.compiling import cache_folder
from lvmogp.insight.summary import summary

# What is compiled.

_COMPILED = "/jax/core/compile/backend_compile_duration"
# JAX's own, from 0.12 on.
_MOVES_ARRAYS = "stage"
# The programs of a fit, and how often each is compiled at most: some for two kinds of tree, that of the independent GPs
# and that of the model. Single operations outside of compiled functions are programs of their own, each of which takes
# as long to compile or to read from the cache as a large one.
_STEPS = {"evaluate": 2, "join": 2, "independent_curves": 1, "jitters": 1, "posterior": 1, "_ensemble_of_fit": 1}


@pytest.fixture
def programs():
    """Names of the programs compiled, in order."""
    names: list[str] = []
    listening = True
    compiling.compiler_options(one_thread=True)  # which tries once in a process what the compiler knows

    def note(event: str, _duration: float, **details: object) -> None:
        name = str(details.get("fun_name")).removeprefix("jit(").removesuffix(")")
        if listening and event == _COMPILED and name != _MOVES_ARRAYS:
            names.append(name)

    jax.monitoring.register_event_duration_secs_listener(note)
    yield names
    listening = False  # JAX 0.8 has no public way to take a listener away


def long_table(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    conditions = np.repeat(np.arange(5), 6)
    inputs = rng.uniform(0, 10, (30, 1))
    return inputs, np.sin(inputs[:, 0] + conditions / 3) * (3 + seed) + 0.1 * rng.standard_normal(30), conditions


@pytest.mark.filterwarnings("ignore::lvmogp.ConvergenceWarning")
def test_a_fit_and_its_summary_compile_whole_steps_and_a_second_fit_nothing(programs):
    model = PapersModel(n_inducing_inputs=7, n_inducing_latents=4, n_restarts=2, max_iter=25)
    compiling.forget_all_programs()
    model.fit(*long_table(1))
    assert programs
    assert Counter(programs) <= Counter(_STEPS)
    summary(model)
    programs.clear()
    summary(model.fit(*long_table(2)))
    assert programs == []


def test_arrays_are_traced_and_everything_else_is_fixed():
    traced = []

    @compiling.compiled
    def scaled(values, *, by, how, also=None):
        traced.append((by, how))
        return {"found": how(values * by), "also": also}

    assert scaled(np.arange(3.0), by=2, how=jnp.sum) == {"found": 6.0, "also": None}
    assert scaled(jnp.ones(3), by=2, how=jnp.sum)["found"] == 6.0
    assert scaled(np.ones(3), by=jnp.asarray(3), how=jnp.max, also=np.ones(1))["found"] == 3.0
    assert [each[1] for each in traced] == [jnp.sum, jnp.max]


# What the compiler is told.


def test_the_compiler_is_told_what_it_knows_and_the_user_does_not_tell_it(monkeypatch):
    def told(flags: str, *, one_thread: bool = True) -> dict[str, object]:
        monkeypatch.setenv("XLA_FLAGS", flags)
        return compiling.compiler_options(one_thread=one_thread)

    options = told("")
    assert options.items() >= {"xla_backend_optimization_level": 1, "xla_cpu_multi_thread_eigen": False}.items()
    assert jax.jit(lambda values: values * 2, compiler_options=options)(np.ones(2)).tolist() == [2, 2]
    assert "xla_cpu_multi_thread_eigen" not in told("", one_thread=False)
    assert "xla_backend_optimization_level" not in told("--xla_backend_optimization_level=3")
    compiling._has_older_loops.cache_clear()
    monkeypatch.setattr(compiling, "_OLDER_LOOPS", {"xla_cpu_write_loops_by_hand": False})
    assert set(told("")) == {"xla_backend_optimization_level", "xla_cpu_multi_thread_eigen"}
    compiling._has_older_loops.cache_clear()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert told("") == {}


# What is kept for the next process.

FIRST_COMPILATION = """
import json, sys, warnings
{before}
import lvmogp
from lvmogp.ground.compiling import compiled
import jax
events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
value = float(compiled(lambda x: x * 2 + 1)(jax.numpy.asarray(1.0)))
config = jax.config
print(json.dumps({{
    "value": value,
    "folder": config.jax_compilation_cache_dir,
    "limit": config.jax_compilation_cache_max_size,
    "read": "/jax/compilation_cache/cache_hits" in events,
}}))
"""


def first_compilation(cache, before="", **environment):
    """What a new process tells of the cache after it has compiled one function of ours."""
    names = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "TF_CPP_MIN_LOG_LEVEL")
    settings = {name: value for name, value in os.environ.items() if name not in names}
    settings |= {"XDG_CACHE_HOME": str(cache), **environment}
    command = [sys.executable, "-c", FIRST_COMPILATION.format(before=before)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, env=settings)
    assert ran.stderr == ""
    found = json.loads(ran.stdout)
    assert found.pop("value") == 3
    return found


def test_a_second_process_reads_the_programs_of_the_first_without_a_word(tmp_path):
    first, second = first_compilation(tmp_path), first_compilation(tmp_path)
    assert (first["read"], second["read"]) == (False, True)
    assert first["folder"] == second["folder"]
    assert os.path.dirname(first["folder"]) == str(tmp_path / "lvmogp" / "compiled")
    assert first["limit"] == 500_000_000


CONFIGURED = "import jax; jax.config.update('jax_compilation_cache_dir', 'mine')"


@pytest.mark.parametrize(
    ("before", "environment", "folder"),
    [
        ("", {"JAX_COMPILATION_CACHE_DIR": "elsewhere"}, "elsewhere"),
        (CONFIGURED, {"TF_CPP_MIN_LOG_LEVEL": "3"}, "mine"),
        ("", {"JAX_ENABLE_COMPILATION_CACHE": "false"}, None),
        pytest.param("import jax", {}, None, marks=pytest.mark.long),
        ("import pathlib; pathlib.Path('lvmogp').touch()", {}, None),  # where the folder should be
    ],
    ids=["environment", "configuration", "switched off", "JAX imported first", "a folder that cannot be made"],
)
def test_what_the_user_set_stays(tmp_path, monkeypatch, before, environment, folder):
    monkeypatch.chdir(tmp_path)
    found = first_compilation(tmp_path, before, **environment)
    # A limit would not suit a folder that has been filled without one.
    assert found == {"folder": folder, "limit": -1, "read": False}


def test_the_folder_of_the_home_is_taken_without_the_variable(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "lvmogp"


# Processes that live long.

POINTS = np.random.default_rng(0).uniform(-2, 2, (300, 2))


def n_alive():
    return len(jax.devices()[0].client.live_executables())


def test_predictions_of_varying_shapes_keep_few_programs_and_all_of_the_users(monkeypatch):
    traced = []

    @jax.jit
    def of_the_user(values):
        traced.append(values.shape)
        return 3 * values

    of_the_user(np.ones(2))
    model = of_kind("fit on long data")
    at_start = model.predict(POINTS, "b", return_std=True)
    compiling.forget_all_programs()
    monkeypatch.setattr(compiling, "MOST_PROGRAMS", 2)
    alive_before, held, alive = n_alive(), [], []
    for n_rows in (1, 5, 10, 20, 40, 80, 160, 300) * 2:
        model.predict(POINTS[:n_rows], "b", return_std=True)
        held.append(compiling.n_programs())
        alive.append(n_alive() - alive_before)
    assert max(held) == 3  # the call that goes beyond the limit ends first
    assert sum(later < earlier for earlier, later in itertools.pairwise(held)) >= 4
    assert max(alive) <= 3
    assert same(list(model.predict(POINTS, "b", return_std=True)), list(at_start))
    of_the_user(np.ones(2))
    assert traced == [(2,)]


@pytest.mark.long
def test_fits_of_varying_shapes_keep_few_programs_and_change_no_answer(monkeypatch):
    most, most_of_a_call = 30, 20
    monkeypatch.setattr(compiling, "MOST_PROGRAMS", most)
    compiling.forget_all_programs()
    alive_before = n_alive()
    states, checks = endured(n_fits=15, n_predictions=45, seed=3)
    assert set(checks.values()) == {True}
    assert states[-1][:2] == (15, 45)
    assert max(each.n_programs for each in states) <= most + most_of_a_call
    # Single operations outside of compiled functions are programs too, about two for each of these.
    assert n_alive() - alive_before <= 3 * (most + most_of_a_call)


def test_eight_threads_predict_as_one_bit_for_bit_even_while_programs_are_forgotten(monkeypatch):
    model = of_kind("fit on long data")
    rng = np.random.default_rng(0)
    questions = [(POINTS[: int(n)], "abcde"[rng.integers(5)]) for n in rng.integers(1, 300, 16)]

    def answer(question):
        return list(model.predict(*question, return_std=True))

    serial = [answer(question) for question in questions]
    monkeypatch.setattr(compiling, "MOST_PROGRAMS", 2)
    forget, forgotten = compiling.forget_all_programs, []
    monkeypatch.setattr(compiling, "forget_all_programs", lambda: (forgotten.append(1), forget()))
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(answer, questions))
    assert forgotten
    assert [number for number, each in enumerate(found) if not same(each, serial[number])] == []


CHILDREN = """
import multiprocessing, sys
import joblib
import numpy as np
from lvmogp import LVMOGPRegressor

if __name__ == "__main__":
    points = np.linspace(-2, 2, 14).reshape(7, 2)
    model = LVMOGPRegressor.load(sys.argv[1])
    expected = model.predict(points, "b").tobytes()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply_async(model.predict, (points, "b")).get(600).tobytes() == expected
    (found,) = joblib.Parallel(n_jobs=2, timeout=600)([joblib.delayed(model.predict)(points, "b")])
    assert found.tobytes() == expected
"""


@pytest.mark.long
def test_spawned_children_answer_as_their_parent(tmp_path):
    of_kind("fit on long data").save(tmp_path / "model")
    (tmp_path / "children.py").write_text(CHILDREN)
    subprocess.run([sys.executable, tmp_path / "children.py", tmp_path / "model"], check=True, timeout=1800)
