"""BoTorch's and GPyTorch's multi-task models, timed: whole fits with their test errors against time.

Run by the suite in their own environment. Each fit takes the better of one and of all threads, as a few evaluations
show; predictions are made without gradients.
"""

import os
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import gpytorch
import numpy as np
import torch
from linear_operator.operators import DiagLinearOperator
from reporting import Clock, Trace, answer, peak_mb, settings

warnings.simplefilter("ignore")
_PROBES = 3


def quickest_threads(step: Callable[[], Any]) -> int:
    """Leave torch at the number of threads with which a step is quickest."""
    taken = {}
    for n_threads in sorted({1, os.cpu_count() or 1}):
        torch.set_num_threads(n_threads)
        step()
        began = time.perf_counter()
        for _ in range(_PROBES):
            step()
        taken[n_threads] = time.perf_counter() - began
    chosen = min(taken, key=lambda n_threads: taken[n_threads])
    torch.set_num_threads(chosen)
    return chosen


def root_mean_square(errors: Any) -> float:
    return float(np.sqrt(np.mean(np.square(np.asarray(errors)))))


# Exact models: BoTorch's, in double precision as it recommends, trained by its own L-BFGS.


class Rows(NamedTuple):
    """Training and test rows as BoTorch takes them, the task behind the inputs, and the outputs.

    Tasks are numbered without gaps; LCEMGP cannot predict one without rows, which gets the mean of the outputs.
    """

    train: torch.Tensor
    outputs: torch.Tensor
    test: torch.Tensor
    seen: np.ndarray
    test_values: np.ndarray


def rows_of(data: dict[str, Any]) -> Rows:
    known = np.unique(data["conditions"])
    seen = np.isin(data["test_conditions"], known)
    train, test = (
        torch.tensor(np.column_stack([inputs, np.searchsorted(known, conditions)]))
        for inputs, conditions in (
            (data["inputs"], data["conditions"]),
            (data["test_inputs"][seen], data["test_conditions"][seen]),
        )
    )
    return Rows(train, torch.tensor(data["outputs"])[:, None], test, seen, data["test_values"])


def exact_model(rows: Rows, wanted: dict[str, Any]) -> Any:
    from botorch.models import MultiTaskGP
    from botorch.models.contextual_multioutput import LCEMGP

    if wanted["model"] == "LCEMGP":
        # An embedding of as many dimensions as there are latents; its default is one.
        return LCEMGP(rows.train, rows.outputs, task_feature=-1, embs_dim_list=[wanted["n_latent"]])
    return MultiTaskGP(rows.train, rows.outputs, task_feature=-1)


def exact_error(model: Any, rows: Rows) -> float:
    """Test error in the units of the outputs."""
    model.eval()
    with torch.no_grad():
        predicted = np.full(len(rows.seen), rows.outputs.numpy().mean())
        predicted[rows.seen] = model.posterior(rows.test).mean[:, 0].numpy()
    model.train()
    return root_mean_square(predicted - rows.test_values)


def loss_of(likelihood: Any) -> Callable[[], Any]:
    """The loss with its gradients in all that is learnt."""
    from botorch.optim.closures import get_loss_closure_with_grads

    learnt = {name: value for name, value in likelihood.named_parameters() if value.requires_grad}
    return get_loss_closure_with_grads(likelihood, learnt)


def exact(data: dict[str, Any], wanted: dict[str, Any]) -> None:
    """``MultiTaskGP`` or ``LCEMGP`` until converged or out of time."""
    import botorch
    from botorch.fit import fit_gpytorch_mll

    torch.manual_seed(0)
    rows = rows_of(data)
    probe = exact_model(rows, wanted)
    threads = quickest_threads(loss_of(gpytorch.mlls.ExactMarginalLogLikelihood(probe.likelihood, probe)))

    clock = Clock()
    model = exact_model(rows, wanted)
    likelihood = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    trace = Trace(clock, lambda: exact_error(model, rows))
    closure = loss_of(likelihood)
    evaluations = 0

    def observed() -> Any:
        # A callback of BoTorch's would evaluate the loss once more each time.
        nonlocal evaluations
        loss, gradients = closure()
        evaluations += 1
        trace.after(float(loss))
        return loss, gradients

    # The errors noted on the way are not on our clock but are on BoTorch's: it gets a tenth more.
    fit_gpytorch_mll(likelihood, closure=observed, optimizer_kwargs={"timeout_sec": 1.1 * wanted["seconds"]})
    trace.note()
    answer(
        {
            "version": f"BoTorch {botorch.__version__}",
            "trace": trace.points,
            "threads": threads,
            "evaluations": evaluations,
        }
    )


# The linear model of coregionalisation with inducing points and minibatches: GPyTorch's, in single precision.


class Coregionalised(gpytorch.models.ApproximateGP):
    """As GPyTorch's tutorial on multitask variational GPs has it, with natural gradients if asked for."""

    def __init__(self, inducing: torch.Tensor, n_latents: int, n_tasks: int, *, natural: bool) -> None:
        batch = torch.Size([n_latents])
        family = (
            gpytorch.variational.NaturalVariationalDistribution
            if natural
            else gpytorch.variational.CholeskyVariationalDistribution
        )
        strategy = gpytorch.variational.LMCVariationalStrategy(
            gpytorch.variational.VariationalStrategy(
                self,
                inducing.expand(n_latents, *inducing.shape).clone(),
                family(inducing.shape[0], batch_shape=batch),
                learn_inducing_locations=True,
            ),
            num_tasks=n_tasks,
            num_latents=n_latents,
            latent_dim=-1,
        )
        super().__init__(strategy)
        self.mean_module = gpytorch.means.ConstantMean(batch_shape=batch)
        self.covar_module = gpytorch.kernels.ScaleKernel(
            gpytorch.kernels.RBFKernel(batch_shape=batch, ard_num_dims=inducing.shape[1]), batch_shape=batch
        )

    def forward(self, points: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        """The prior of every latent function."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(points), self.covar_module(points))

    def marginals(self, points: torch.Tensor, tasks: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        """Each row by itself: GPyTorch's own call factorises the covariance of a whole batch, many times slower."""
        latent = self.variational_strategy.base_variational_strategy(points, diag=True)
        weights = self.variational_strategy.lmc_coefficients[:, tasks]
        mean, variance = (latent.mean * weights).sum(0), (latent.variance * weights**2).sum(0)
        return gpytorch.distributions.MultivariateNormal(mean, DiagLinearOperator(variance))


class Training:
    """One model in training: inputs and outputs in standard units, batches drawn at random."""

    def __init__(self, data: dict[str, Any], wanted: dict[str, Any]) -> None:
        torch.manual_seed(0)
        self.center, self.scale = data["inputs"].mean(axis=0), data["inputs"].std(axis=0)
        self.shift, self.unit = data["outputs"].mean(), data["outputs"].std()
        self.inputs = self.standard(data["inputs"])
        self.outputs = torch.tensor((data["outputs"] - self.shift) / self.unit, dtype=torch.float32)
        self.tasks = torch.tensor(data["conditions"])
        self.batch_size = wanted["batch_size"]
        self.by_row = wanted["by_row"]
        n_rows = len(self.outputs)
        places = torch.randperm(n_rows)[: wanted["n_inducing"]]
        self.model = Coregionalised(
            self.inputs[places], wanted["n_latents"], int(self.tasks.max()) + 1, natural=wanted["natural"]
        )
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood()
        self.bound = gpytorch.mlls.VariationalELBO(self.likelihood, self.model, num_data=n_rows)
        rest = [*self.model.hyperparameters(), *self.likelihood.parameters()]
        variational = list(self.model.variational_parameters())
        if wanted["natural"]:
            natural = gpytorch.optim.NGD(variational, num_data=n_rows, lr=0.1)
            self.optimisers = [natural, torch.optim.Adam(rest, lr=wanted["rate"])]
        else:
            self.optimisers = [torch.optim.Adam([*variational, *rest], lr=wanted["rate"])]
        self.model.train()
        self.likelihood.train()

    def standard(self, inputs: Any) -> torch.Tensor:
        """Inputs in standard units."""
        return torch.tensor((inputs - self.center) / self.scale, dtype=torch.float32)

    def values(self, points: torch.Tensor, tasks: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        """The function at rows, as GPyTorch documents it or each row by itself."""
        return self.model.marginals(points, tasks) if self.by_row else self.model(points, task_indices=tasks)

    def step(self) -> None:
        """One batch."""
        chosen = torch.randint(len(self.outputs), (self.batch_size,))
        for optimiser in self.optimisers:
            optimiser.zero_grad()
        (-self.bound(self.values(self.inputs[chosen], self.tasks[chosen]), self.outputs[chosen])).backward()
        for optimiser in self.optimisers:
            optimiser.step()

    def error(self, test_inputs: torch.Tensor, test_tasks: torch.Tensor, test_values: Any) -> float:
        """Test error in the units of the outputs."""
        self.model.eval()
        with torch.no_grad():
            means = [
                self.model.marginals(points, tasks).mean
                for points, tasks in zip(
                    test_inputs.split(self.batch_size), test_tasks.split(self.batch_size), strict=True
                )
            ]
        self.model.train()
        return root_mean_square(torch.cat(means).numpy() * self.unit + self.shift - test_values)


def minibatches(data: dict[str, Any], wanted: dict[str, Any]) -> None:
    """LMC-SVGP for a given time: observations a second, and test error against time."""
    before = peak_mb()
    threads = quickest_threads(Training(data, wanted).step)
    clock = Clock()
    training = Training(data, wanted)
    tested = training.standard(data["test_inputs"]), torch.tensor(data["test_conditions"]), data["test_values"]
    trace = Trace(clock, lambda: training.error(*tested))
    n_steps = 0
    while clock.seconds < wanted["seconds"]:
        training.step()
        n_steps += 1
        trace.after(-n_steps)  # minibatches have no best point: the last one counts
    seconds = clock.seconds
    trace.note()
    answer(
        {
            "version": f"GPyTorch {gpytorch.__version__}",
            "trace": trace.points,
            "threads": threads,
            "steps": n_steps,
            "observations_per_second": n_steps * training.batch_size / seconds,
            "before_mb": before,
        }
    )


TASKS = {"exact": exact, "minibatches": minibatches}

if __name__ == "__main__":
    wanted = settings()
    TASKS[wanted["task"]](dict(np.load(wanted["data"])), wanted)
