"""BoTorch's MultiTaskGP with its own priors and optimiser; new conditions take part in its fit.

By default each condition has a mean, a noise and full rank of its own, which is far too much for conditions with few
points: rank one, with one mean and one noise for all, predicts better.
"""

import warnings

import numpy as np
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import MultiTaskGP
from botorch.models.utils.gpytorch_modules import get_gaussian_likelihood_with_lognormal_prior
from gpytorch.means import ConstantMean
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
        rank=1,
        mean_module=ConstantMean(),
        likelihood=get_gaussian_likelihood_with_lognormal_prior(),
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    posterior = model.posterior(_with_task(asked, task["test_conditions"]), observation_noise=True)
    moments = {"mean": posterior.mean, "variance": posterior.variance}
    return {name: value.detach().numpy().ravel() for name, value in moments.items()}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    serve(predict)
