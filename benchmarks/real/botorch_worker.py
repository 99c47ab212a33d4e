"""Fit BoTorch's MultiTaskGP to the rows of one file and write its predictions to another."""

import sys
import warnings

import numpy as np
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import MultiTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood

warnings.simplefilter("ignore")
torch.set_num_threads(1)
task = np.load(sys.argv[1])


def with_task(inputs: np.ndarray, conditions: np.ndarray) -> torch.Tensor:
    return torch.tensor(np.column_stack([inputs, conditions]), dtype=torch.float64)


model = MultiTaskGP(
    with_task(task["inputs"], task["conditions"]),
    torch.tensor(task["outputs"], dtype=torch.float64)[:, None],
    task_feature=-1,
    output_tasks=None,
)
fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
with torch.no_grad():
    means, variances = [], []
    for number in np.unique(task["test_conditions"]):
        asked = task["test_conditions"] == number
        posterior = model.posterior(
            with_task(task["test_inputs"][asked], task["test_conditions"][asked]), observation_noise=True
        )
        means.append((asked, posterior.mean.numpy().ravel()))
        variances.append((asked, posterior.variance.numpy().ravel()))
mean, variance = np.empty(len(task["test_conditions"])), np.empty(len(task["test_conditions"]))
for (asked, some), (_, spread) in zip(means, variances, strict=True):
    mean[asked], variance[asked] = some, spread
np.savez(sys.argv[2], mean=mean, variance=variance)
