"""Our side of the benchmarks, one task a process."""

import os
import time
import warnings
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.rivals.reporting import Clock, answer, peak_mb, repeated, settings, take_turns
from benchmarks.suite import stochastic
from lvmogp import PAPERS_MODEL, LVMOGPRegressor
from lvmogp.algebra.constraints import join, split
from lvmogp.ground.compiling import compiler_options
from lvmogp.inference.optimise import StopFit
from lvmogp.inference.restarts import Progress
from lvmogp.inference.starts import IndependentParameters, independent_bound, with_explicit_inducing
from lvmogp.kernels.covariances import RBF
from lvmogp.metrics import rmse
from lvmogp.model.bounds import collapsed_objective, explicit_objective
from lvmogp.model.layouts import Data, GridData, long_data
from lvmogp.model.parameters import Parameters, plain_kernels

_OBJECTIVES = {"collapsed": collapsed_objective, "explicit": explicit_objective, "independent": independent_bound}
_PROBES = 5
_FEW_POINTS = 5


# Bound with gradient


def data_of(arrays: dict[str, Any]) -> Data:
    """The library's own form of the arrays."""
    if arrays["outputs"].ndim == 2:
        return GridData(jnp.asarray(arrays["inputs"]), jnp.asarray(arrays["outputs"]))
    n_conditions = int(arrays["conditions"].max()) + 1
    return long_data(arrays["inputs"], arrays["outputs"], arrays["conditions"], n_conditions)


def parameters_of(arrays: dict[str, Any], data: Data, wanted: dict[str, Any]) -> Any:
    """Parameters of the wanted sizes, all of them free."""
    rng = np.random.default_rng(0)
    n_inputs, n_latents = wanted["n_inducing"]
    places = rng.permutation(len(arrays["inputs"]))[:n_inputs]
    inducing = jnp.asarray(arrays["inputs"][places])
    kernel = RBF(jnp.ones(inducing.shape[1]), jnp.array(1.0))
    if wanted["bound"] == "independent":
        return IndependentParameters(kernel, inducing, jnp.array(0.2), fixed=())
    latents = jnp.asarray(rng.standard_normal((data.n_conditions, wanted["n_latent"])))
    parameters = Parameters(
        kernels=plain_kernels(kernel, RBF(jnp.ones(wanted["n_latent"]), jnp.array(1.0))),
        inducing_inputs=inducing,
        inducing_latents=latents[:n_latents],
        latent_mean=latents,
        latent_variance=jnp.full(latents.shape, 0.05),
        noise_variance=jnp.full(1, 0.2),
    )
    return with_explicit_inducing(parameters, data, "kronecker") if wanted["bound"] == "explicit" else parameters


def evaluation(arrays: dict[str, Any], wanted: dict[str, Any]) -> tuple[Callable[[], Any], int]:
    """Bound with its gradient as the optimiser asks for it, and the number of threads with which that is quicker."""
    data = data_of(arrays)
    vector, fixed, structure = split(parameters_of(arrays, data, wanted))
    objective = _OBJECTIVES[wanted["bound"]]
    first = np.asarray(vector)
    rng = np.random.default_rng(1)

    def value_and_gradient(free: Any, data: Data) -> Any:
        return jax.value_and_grad(lambda free: objective(join(free, fixed, structure), data))(free)

    def evaluate(compiled: Callable[..., Any]) -> None:
        value, gradient = compiled(jnp.asarray(first + 1e-4 * rng.standard_normal(first.shape)), data)
        if not (np.isfinite(float(value)) and np.all(np.isfinite(np.asarray(gradient)))):
            raise RuntimeError("the bound is not finite; its cost says nothing")

    programs = {1: jax.jit(value_and_gradient, compiler_options=compiler_options(one_thread=True))}
    if not wanted["one_thread"]:
        programs[os.cpu_count() or 1] = jax.jit(value_and_gradient, compiler_options=compiler_options(one_thread=False))
    taken = {}
    for threads, program in programs.items():
        with threadpool_limits(threads):  # LAPACK has threads of its own, which a fit limits in the same way
            taken[threads] = median(repeated(partial(evaluate, program), _PROBES))
    threads = min(taken, key=lambda threads: taken[threads])
    threadpool_limits(threads)  # from here on
    return partial(evaluate, programs[threads]), threads


def bound_in_turns(arrays: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Bound with gradient, taking turns with others."""
    before = peak_mb()
    evaluate, threads = evaluation(arrays, wanted)
    take_turns(evaluate, threads=threads, before_mb=before)


def peak(arrays: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Memory of one evaluation; what the process has before is imports, JAX's start and the data."""
    jnp.zeros(1).block_until_ready()
    before = peak_mb()
    evaluation(arrays, wanted)
    answer({"before_mb": before})


# Whole fits


def regressor(wanted: dict[str, Any]) -> LVMOGPRegressor:
    """The paper's model with the estimator's defaults but for what is wanted."""
    return LVMOGPRegressor(**{**PAPERS_MODEL, **wanted.get("estimator", {})})


def fitted(arrays: dict[str, Any], model: LVMOGPRegressor, **more: Any) -> LVMOGPRegressor:
    """Fit a grid or rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit stopped on purpose has not converged
        return model.fit(arrays["inputs"], arrays["outputs"], arrays.get("conditions"), **more)


def test_error(arrays: dict[str, Any], model: LVMOGPRegressor) -> float:
    """Against noise-free values."""
    return rmse(model.predict(arrays["test_inputs"], arrays.get("test_conditions")), arrays["test_values"])


def fit(arrays: dict[str, Any], wanted: dict[str, Any]) -> None:
    """A whole fit, or one that is stopped after some seconds; then the same again in the same process."""
    results = []
    for _ in range(wanted.get("n_fits", 1)):
        clock = Clock()

        def stop_in_time(progress: Progress, clock: Clock = clock) -> None:
            if clock.seconds > wanted["seconds"]:
                raise StopFit

        stopping = {} if wanted.get("seconds") is None else {"on_progress": stop_in_time}
        model = fitted(arrays, regressor(wanted), **stopping)
        seconds = clock.seconds
        outcome = model.outcome_
        results.append(
            {
                "seconds": seconds,
                "rmse": test_error(arrays, model),
                "bound": outcome.bound,
                "evaluations": outcome.n_evaluations,
                "status": outcome.status.value,
            }
        )
    answer({"fits": results})


# A trained model in use


def predict(arrays: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Mean and standard deviation at all conditions of a grid."""
    model = fitted(arrays, regressor(wanted))
    points = arrays["test_inputs"]
    answer({"seconds": repeated(lambda: model.predict(points, return_std=True), wanted["n_repeats"])})


def add(arrays: dict[str, Any], wanted: dict[str, Any]) -> None:
    """New conditions of five points each, drawn from the first trained ones; the first add compiles."""
    model = fitted(arrays, regressor(wanted))
    rng = np.random.default_rng(0)
    n_trained = arrays["outputs"].shape[1]
    seconds = []
    for number in range(wanted["n_repeats"]):
        places = rng.permutation(len(arrays["inputs"]))[:_FEW_POINTS]
        few = arrays["inputs"][places], arrays["outputs"][places, number % n_trained]
        began = time.perf_counter()
        model.add_condition(n_trained + number, *few)
        seconds.append(time.perf_counter() - began)
    answer({"first": seconds[0], "seconds": seconds[1:]})


TASKS = {"bound": bound_in_turns, "peak": peak, "fit": fit, "predict": predict, "add": add, **stochastic.TASKS}

if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    wanted = settings()
    TASKS[wanted["task"]](dict(np.load(wanted["data"])), wanted)
