"""What is compiled in the course of a fit: whole steps, never single operations, and nothing twice."""

import jax
import numpy as np
import pytest

from lvmogp import LVMOGPRegressor
from lvmogp.compiling import forget_all_programs
from lvmogp.diagnostics import summary

_COMPILED = "/jax/core/compile/backend_compile_duration"
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

    def note(event: str, _duration: float, **details: object) -> None:
        if listening and event == _COMPILED:
            names.append(str(details["fun_name"]).removeprefix("jit(").removesuffix(")"))

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
