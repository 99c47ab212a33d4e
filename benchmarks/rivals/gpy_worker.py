"""GPy's LVMOGP, timed: bound with gradient, whole fits, predictions.

Run by the suite in GPy's own environment, with one thread: two make it 2.5 to 6 times slower at these sizes.
"""

import contextlib
import os
import warnings
from typing import Any

import numpy as np
from reporting import Clock, Trace, answer, peak_mb, repeated, settings, take_turns

warnings.simplefilter("ignore")  # GPy's own, about NumPy's and SciPy's deprecations
import GPy  # noqa: E402


@contextlib.contextmanager
def quietly():
    """GPy's constructors print."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def model_of(data: Any, wanted: dict[str, Any], **more: Any) -> Any:
    """Its model of a grid, or of rows where conditions are given."""
    np.random.seed(0)  # noqa: NPY002 - GPy draws from the global generator
    inputs, outputs = data["inputs"], data["outputs"]
    options = {
        "Xr_dim": wanted["n_latent"],
        "kernel": GPy.kern.RBF(inputs.shape[1], ARD=True),
        "kernel_row": GPy.kern.RBF(wanted["n_latent"], ARD=True, name="kern_row"),
        "num_inducing": tuple(wanted["n_inducing"]),
        **more,
    }
    with quietly():
        if outputs.ndim == 2:
            return GPy.models.GPMultioutRegression(inputs, outputs, **options)
        return GPy.models.GPMultioutRegressionMD(inputs, outputs[:, None], data["conditions"], **options)


def untrained(data: Any, wanted: dict[str, Any]) -> Any:
    """A model at a start of our own: its constructor's own start trains two other models."""
    rng = np.random.default_rng(0)
    n_conditions = data["outputs"].shape[1] if data["outputs"].ndim == 2 else int(data["conditions"].max()) + 1
    latents = rng.standard_normal((n_conditions, wanted["n_latent"]))
    n_inputs, n_latents = wanted["n_inducing"]
    model = model_of(
        data,
        wanted,
        init="rand",
        X_row=latents,
        Xvariance_row=np.full(latents.shape, 0.05),
        Z=data["inputs"][rng.permutation(len(data["inputs"]))[:n_inputs]].copy(),
        Z_row=latents[:n_latents].copy(),
    )
    model.likelihood.variance[:] = 0.2
    return model


def bound_in_turns(data: Any, wanted: dict[str, Any]) -> None:
    """Bound with its gradient as GPy's optimiser asks for it, at another point each time: GPy caches."""
    model = untrained(data, wanted)
    start = model.optimizer_array.copy()
    rng = np.random.default_rng(1)

    def evaluate() -> None:
        model._objective_grads(start + 1e-4 * rng.standard_normal(start.shape))

    take_turns(evaluate, version=GPy.__version__, before_mb=peak_mb())


def fit(data: Any, wanted: dict[str, Any]) -> None:
    """Its documented way: its own start, then ``optimize_auto``."""
    if "conditions" in data:
        # It wants conditions without gaps; one without rows gets the mean of the outputs.
        known = np.unique(data["conditions"])
        data = {**data, "conditions": np.searchsorted(known, data["conditions"])}
        seen = np.isin(data["test_conditions"], known)
        places = np.searchsorted(known, data["test_conditions"][seen])
    clock = Clock()
    model = model_of(data, wanted)

    def predicted() -> Any:
        mean, _ = model.predict_noiseless(data["test_inputs"])
        if "conditions" not in data:
            return mean
        values = np.full(len(seen), data["outputs"].mean())
        values[seen] = mean[seen, places]
        return values

    def error() -> float:
        return np.sqrt(np.mean((predicted() - data["test_values"]) ** 2))

    trace = Trace(clock, error)
    # After all of GPy's own observers, the one that computes the posterior among them.
    model.add_observer(trace, lambda *_, **__: trace.after(-np.sum(model.log_likelihood())), priority=-1000)
    trace.note()
    with quietly():
        model.optimize_auto(max_iters=wanted["max_iterations"], verbose=False)
    trace.note()
    answer(
        {
            "version": GPy.__version__,
            "trace": trace.points,
            "bound": float(np.sum(model.log_likelihood())),
            "evaluations": sum(int(run.funct_eval) for run in model.optimization_runs),
            "messages": [str(run.status) for run in model.optimization_runs],
        }
    )


def predict(data: Any, wanted: dict[str, Any]) -> None:
    """Mean and variance at all conditions; its time does not depend on the values of the parameters."""
    model = untrained(data, wanted)
    points = data["test_inputs"]
    answer({"version": GPy.__version__, "seconds": repeated(lambda: model.predict(points), wanted["n_repeats"])})


def peak(data: Any, wanted: dict[str, Any]) -> None:
    """Memory of one evaluation."""
    before = peak_mb()
    model = untrained(data, wanted)
    model._objective_grads(model.optimizer_array + 1e-4)
    answer({"version": GPy.__version__, "before_mb": before})


TASKS = {"bound": bound_in_turns, "fit": fit, "predict": predict, "peak": peak}

if __name__ == "__main__":
    wanted = settings()
    TASKS[wanted["task"]](dict(np.load(wanted["data"])), wanted)
