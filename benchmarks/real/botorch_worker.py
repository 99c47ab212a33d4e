"""BoTorch's MultiTaskGP with its own priors and optimiser; new conditions take part in its fit."""

import warnings

import numpy as np
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import MultiTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood

from benchmarks.real.serving import Arrays, serve


def _with_task(inputs: np.ndarray, conditions: np.ndarray) -> torch.Tensor:
    return torch.tensor(np.column_stack([inputs, conditions]), dtype=torch.float64)


def predict(task: Arrays) -> Arrays:
    """Fit, and predict observations."""
    torch.manual_seed(0)
    lowest, highest = task["inputs"].min(axis=0), task["inputs"].max(axis=0)
    inputs, asked = ((task[name] - lowest) / (highest - lowest) for name in ("inputs", "test_inputs"))
    model = MultiTaskGP(
        _with_task(inputs, task["conditions"]),
        torch.tensor(task["outputs"], dtype=torch.float64)[:, None],
        task_feature=-1,
        outcome_transform=None,
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    with torch.no_grad():
        posterior = model.posterior(_with_task(asked, task["test_conditions"]), observation_noise=True)
    return {"mean": posterior.mean.numpy().ravel(), "variance": posterior.variance.numpy().ravel()}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    serve(predict)
