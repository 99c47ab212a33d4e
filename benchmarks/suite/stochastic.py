"""Our minibatches on very many rows: observations a second, test error against time, memory."""

import time
import warnings
from typing import Any

import jax.numpy as jnp

from benchmarks.rivals.reporting import Clock, answer, peak_mb
from lvmogp import PAPERS_MODEL, LVMOGPRegressor
from lvmogp.errors import SettingError
from lvmogp.inference.optimise import StopFit
from lvmogp.inference.restarts import MINIBATCHES, Progress
from lvmogp.metrics import rmse


def regressor(wanted: dict[str, Any]) -> LVMOGPRegressor:
    """The estimator at the sizes of the comparison."""
    n_inputs, n_latents = wanted["n_inducing"]
    return LVMOGPRegressor(
        **PAPERS_MODEL,
        n_latent=2,
        n_inducing_inputs=n_inputs,
        n_inducing_latents=n_latents,
        inference="stochastic",
        batch_size=wanted["batch_size"],
        n_restarts=1,
    )


def minibatches(arrays: dict[str, Any], wanted: dict[str, Any]) -> None:
    """A fit that is stopped after some seconds."""
    jnp.zeros(1).block_until_ready()
    before = peak_mb()
    clock = Clock()
    steps: list[tuple[int, float]] = []  # which minibatch, when; the pilot before them is not counted

    def stop_in_time(progress: Progress) -> None:
        if progress.recipe == MINIBATCHES:
            steps.append((progress.iteration, clock.seconds))
        if clock.seconds > wanted["seconds"]:
            raise StopFit

    try:
        model = regressor(wanted)
    except TypeError as error:  # a version without minibatches does not know their settings
        answer({"refused": str(error)})
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a fit stopped on purpose has not converged
            model.fit(arrays["inputs"], arrays["outputs"], arrays["conditions"], on_progress=stop_in_time)
    except SettingError as error:
        answer({"refused": str(error)})
        return
    seconds = clock.seconds
    peak = peak_mb()
    began = time.perf_counter()
    error = rmse(model.predict(arrays["test_inputs"], arrays["test_conditions"]), arrays["test_values"])
    answer(
        {
            "seconds": seconds,
            "rmse": error,
            "steps": steps,
            "before_mb": before,
            "fit_peak_mb": peak,
            "predict_seconds": time.perf_counter() - began,
        }
    )


TASKS = {"minibatches": minibatches}
