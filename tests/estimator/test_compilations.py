"""What is compiled in the course of a fit: whole steps, never single operations, and nothing twice."""

import jax
import numpy as np
import pytest

from lvmogp import LVMOGPRegressor
from lvmogp.ground import compiling
from lvmogp.ground.compiling import compiler_options, forget_all_programs
from lvmogp.insight.summary import summary

_COMPILED = "/jax/core/compile/backend_compile_duration"
# JAX's own, from 0.12 on.
_MOVES_ARRAYS = "stage"
# Single operations outside of compiled functions are programs of their own, each of which takes as long to compile or
# to read from the cache as a large one.
_STEPS = {
    "_negative_value_and_gradient",
    "join",
    "independent_curves",
    "with_explicit_inducing",
    "jitters",
    "posterior",
    "trained_curves",
    "_mean_at",
    "marginals",
    "_statistic_of",
}


@pytest.fixture
def programs():
    """Names of the programs compiled, in order."""
    names: list[str] = []
    listening = True
    compiler_options(one_thread=True)  # which tries once in a process what the compiler knows

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


def model(**changes: object) -> LVMOGPRegressor:
    return LVMOGPRegressor(n_inducing_inputs=7, n_inducing_latents=4, n_restarts=2, max_iter=25, **changes)


@pytest.mark.filterwarnings("ignore::lvmogp.ConvergenceWarning")
@pytest.mark.parametrize("noise", ["shared", "per-condition"])
@pytest.mark.parametrize("inference", ["collapsed", pytest.param("kronecker", marks=pytest.mark.long)])
def test_a_fit_and_its_summary_compile_whole_steps_and_a_second_fit_nothing(programs, inference, noise):
    forget_all_programs()
    summary(model(inference=inference, noise=noise).fit(*long_table(1)))
    assert programs
    assert set(programs) - _STEPS == set()
    assert len(programs) <= 16  # some steps for two kinds of tree: the independent GPs' and the model's
    programs.clear()
    summary(model(inference=inference, noise=noise).fit(*long_table(2)))
    assert programs == []


@pytest.fixture
def told(monkeypatch):
    """What the compiler is told under some flags of the environment."""

    def under(flags: str, *, one_thread: bool = True) -> dict[str, object]:
        monkeypatch.setenv("XLA_FLAGS", flags)
        return compiler_options(one_thread=one_thread)

    return under


def test_the_compiler_is_told_what_the_user_does_not_tell_it(told):
    level, threads = {"xla_backend_optimization_level": 1}, {"xla_cpu_multi_thread_eigen": False}
    assert told("").items() >= (level | threads).items()
    assert "xla_cpu_multi_thread_eigen" not in told("", one_thread=False)
    assert "xla_backend_optimization_level" not in told("--xla_backend_optimization_level=3")


def test_on_accelerators_the_compiler_is_told_nothing(told, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert told("") == {}


def test_an_option_that_the_compiler_does_not_know_is_left_out(told, monkeypatch):
    compiling._has_older_loops.cache_clear()
    monkeypatch.setattr(compiling, "_OLDER_LOOPS", {"xla_cpu_write_loops_by_hand": False})
    found = told("")
    compiling._has_older_loops.cache_clear()
    assert set(found) == {"xla_backend_optimization_level", "xla_cpu_multi_thread_eigen"}


def test_every_option_is_one_that_the_compiler_knows(told):
    options = told("")
    assert jax.jit(lambda values: values * 2, compiler_options=options)(np.ones(2)).tolist() == [2, 2]
