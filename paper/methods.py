"""Every method under one roof: fitted to a problem, it predicts any rows in the problem's units."""

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.estimator import LVMOGPRegressor
from lvmogp.inference.optimise import Objective, Run, maximise
from lvmogp.inference.options import PAPERS_MODEL
from lvmogp.kernels.covariances import RBF, Kernel, complete
from lvmogp.model.layouts import GridData
from lvmogp.tables.scaling import Scaling, scaling_of
from lvmogp.typing import HostFloat, HostInt
from paper.baselines import apart, bilinear, coregionalised, gpy
from paper.baselines.coregionalised import (
    Coregionalised,
    FullRank,
    LowRank,
    Marginals,
    Observed,
    OneHot,
    Relation,
    Together,
)
from paper.problems import LabelledRows, PaperProblem

Predict = Callable[[HostFloat, HostInt], tuple[HostFloat, HostFloat]]
Distribution = Callable[[HostFloat, HostInt, HostFloat], tuple[HostFloat, HostFloat]]
# Lengthscales that the fits of baselines start from, in standard deviations of the inputs.
_START_LENGTHSCALES = (0.02, 0.1, 0.5)
_START_NOISE = 0.1
_START_CORRELATIONS = (0.5, 0.9)
_RANKS = (1, 2, 4, 8, 12)
_TOLERANCE = 0.02
_QUICK_ITERATIONS = 60
_FULL_ITERATIONS = 1000


class Family(NamedTuple):
    """What all methods of an experiment share: the kernel over inputs and the noise option."""

    kernel: Callable[[], Kernel] = RBF
    noise_per_condition: bool = False


class FittedMethod(NamedTuple):
    """Predictions (mean and standard deviation of what is tested), and what is worth reporting of the fit.

    ``distribution`` gives the probability of less than each actual value and its log density, where predictions are
    not taken as normal.
    """

    predict: Predict
    report: dict[str, Any]
    distribution: Distribution | None = None


class Task(NamedTuple):
    """A problem with the family of its experiment."""

    problem: PaperProblem
    family: Family
    quick: bool

    @property
    def max_iterations(self) -> int:
        """Most iterations of a baseline's fit."""
        return _QUICK_ITERATIONS if self.quick else _FULL_ITERATIONS


Method = Callable[[Task], FittedMethod]


# LVMOGP


def lvmogp(task: Task, **settings: Any) -> FittedMethod:
    """Our own; conditions that come later are added to the fitted model."""
    problem, family = task.problem, task.family
    model = LVMOGPRegressor(
        **{
            **PAPERS_MODEL,
            "input_kernel": family.kernel(),
            "noise": "per-condition" if family.noise_per_condition else "shared",
            "unseen": "prior",
            **settings,
            **(_quick_settings(settings, is_grid=problem.is_grid) if task.quick else {}),
        }
    )
    train = problem.train
    if problem.is_grid:
        model.fit(train.inputs[:: problem.n_conditions], train.outputs.reshape(-1, problem.n_conditions))
    else:
        model.fit(train.inputs, train.outputs, conditions=train.conditions)
    if problem.added is not None:
        model.add_conditions(problem.added.inputs, problem.added.outputs, conditions=problem.added.conditions)

    noisy = {"include_noise": problem.observed_test}

    def predict(inputs: HostFloat, conditions: HostInt) -> tuple[HostFloat, HostFloat]:
        return model.predict(inputs, conditions, return_std=True, **noisy)

    def distribution(inputs: HostFloat, conditions: HostInt, actual: HostFloat) -> tuple[HostFloat, HostFloat]:
        asked = inputs, actual, conditions
        return model.predictive_cdf(*asked, **noisy), model.log_predictive_density(*asked, **noisy)

    outcome = model.outcome_
    report: dict[str, Any] = {"bound": outcome.bound, "status": outcome.status.value}
    if model.output_transform_ is not None:
        report["output_transform"] = model.output_transform_
    if problem.truth is not None:
        latents = model.latents_
        trained = latents.loc[~latents["added"], "mean_1"].to_numpy()
        report["r_squared"] = float(np.corrcoef(trained, problem.truth)[0, 1] ** 2)
    # A mixture of draws is far from normal where chains differ.
    return FittedMethod(predict, report, distribution if model.sampling_ is not None else None)


def _quick_settings(settings: dict[str, Any], *, is_grid: bool) -> dict[str, Any]:
    short = {"n_restarts": 1, "max_iter": 150}
    if is_grid:
        return short  # inducing points cost little there
    most = {"n_inducing_inputs": 20, "n_inducing_latents": 10}
    return short | {name: min(settings.get(name, size), size) for name, size in most.items()}


# Baselines


class Standardised(NamedTuple):
    """A task with all its observations in standardised units."""

    task: Task
    rows: LabelledRows
    scaling: Scaling

    @property
    def n_conditions(self) -> int:
        """D."""
        return self.task.problem.n_conditions

    @property
    def has_grid_form(self) -> bool:
        """Whether evidence is cheap: a grid with one noise for all."""
        return self.task.problem.is_grid and not self.task.family.noise_per_condition

    @property
    def grid(self) -> tuple[HostFloat, HostFloat]:
        """Inputs and outputs of a grid, one column of outputs per condition."""
        return self.rows.inputs[:: self.n_conditions], self.rows.outputs.reshape(-1, self.n_conditions)

    @property
    def by_condition(self) -> apart.Stacked:
        """The rows of each condition."""
        return apart.stacked(*self.rows, self.n_conditions)

    def kernels(self) -> list[Kernel]:
        """Kernels that fits start from."""
        lengthscales = _START_LENGTHSCALES[-1:] if self.task.quick else _START_LENGTHSCALES
        return [complete(self.task.family.kernel(), self.scaling.input_scale, value) for value in lengthscales]

    def noise(self) -> jax.Array:
        """Noise variances that fits start from, one or one per condition."""
        return jnp.full(self.n_conditions if self.task.family.noise_per_condition else 1, _START_NOISE)

    def best(self, objective: Objective, starts: list[Any], data: Any) -> Run:
        """The fit with the greatest evidence."""
        stopping = {"max_iterations": self.task.max_iterations, "tolerance": _TOLERANCE}
        return max((maximise(objective, start, data, **stopping) for start in starts), key=lambda run: run.bound)


class Baseline(NamedTuple):
    """A fitted baseline in standardised units: moments of the function and noise variances at rows, and its report."""

    marginals: Callable[[HostFloat, HostInt], Marginals]
    noise: Callable[[HostInt], HostFloat]
    report: dict[str, Any]


def _in_units(fit: Callable[..., Baseline]) -> Callable[..., FittedMethod]:
    # The baseline for a problem in its own units.
    @functools.wraps(fit)
    def fitted(task: Task, **settings: Any) -> FittedMethod:
        rows = task.problem.all_observations
        scaling = scaling_of(rows.inputs, rows.outputs)
        standardised = LabelledRows(scaling.inputs(rows.inputs), scaling.outputs(rows.outputs), rows.conditions)
        baseline = fit(Standardised(task, standardised, scaling), **settings)

        def predict(inputs: HostFloat, conditions: HostInt) -> tuple[HostFloat, HostFloat]:
            mean, variance = baseline.marginals(scaling.inputs(inputs), conditions)
            if task.problem.observed_test:
                variance = variance + baseline.noise(conditions)
            return scaling.location(mean), np.sqrt(scaling.variance(variance))

        return FittedMethod(predict, baseline.report)

    return fitted


def _report(run: Run) -> dict[str, Any]:
    return {"bound": run.bound, "status": run.status.value}


def _noise_at(noise: HostFloat, conditions: HostInt) -> HostFloat:
    return np.broadcast_to(noise, max(len(noise), conditions.max() + 1))[conditions]


def _dense(own: Standardised, relations: Sequence[Relation], kernels: list[Kernel] | None = None) -> Baseline:
    # An exact GP over all rows, from every start.
    data = Observed(*map(jnp.asarray, own.rows))
    starts = [
        Coregionalised(kernel, relation, own.noise()) for kernel in kernels or own.kernels() for relation in relations
    ]
    run = own.best(coregionalised.log_evidence, starts, data)
    noise = np.asarray(run.tree.noise_variance)
    return Baseline(partial(coregionalised.predict, run.tree, data), partial(_noise_at, noise), _report(run))


@_in_units
def ignoring(own: Standardised) -> Baseline:
    """GP-WO: one GP through all rows, whatever their condition."""
    relation = Together(own.n_conditions)
    return _on_grid(own, [[relation]]) if own.has_grid_form else _dense(own, [relation])


@_in_units
def one_hot(own: Standardised) -> Baseline:
    """GP-OH: the condition as a one-hot input with its own lengthscales."""
    return _dense(own, [OneHot(jnp.arange(own.n_conditions)[:, None], jnp.ones(own.n_conditions))])


@_in_units
def one_hot_factors(own: Standardised) -> Baseline:
    """GP-OH with each known factor of the conditions coded by itself."""
    factors = own.task.problem.factors
    assert factors is not None
    sizes = factors.max(axis=0) + 1
    levels = factors + np.cumsum([0, *sizes[:-1]])
    return _dense(own, [OneHot(jnp.asarray(levels), jnp.ones(int(sizes.sum())))])


@_in_units
def apart_shared(own: Standardised) -> Baseline:
    """GP-ind: a GP for each condition, hyperparameters shared."""
    run = _apart_run(own)
    noise = np.broadcast_to(np.asarray(run.tree.noise_variance), own.n_conditions)
    return _apart(own, [apart.Apart(run.tree.kernel, jnp.full(1, each)) for each in noise], _report(run))


def _apart_run(own: Standardised) -> Run:
    starts = [apart.Apart(kernel, own.noise()) for kernel in own.kernels()]
    return own.best(apart.log_evidence, starts, own.by_condition)


@_in_units
def apart_own(own: Standardised) -> Baseline:
    """GP-ind: a GP for each condition with hyperparameters of its own."""
    data = own.by_condition
    starts = _one_noise_starts(own)
    counts = np.bincount(own.rows.conditions, minlength=own.n_conditions)
    parameters, bound = [], 0.0
    for number in range(own.n_conditions):
        if counts[number] == 0:
            parameters.append(starts[-1])  # nothing to learn from
            continue
        run = own.best(apart.log_evidence, starts, data.condition(number))
        parameters.append(run.tree)
        bound += run.bound
    return _apart(own, parameters, {"bound": bound})


def _one_noise_starts(own: Standardised) -> list[apart.Apart]:
    return [apart.Apart(kernel, jnp.full(1, _START_NOISE)) for kernel in own.kernels()]


def _apart(own: Standardised, parameters: list[apart.Apart], report: dict[str, Any]) -> Baseline:
    noise = np.asarray([float(each.noise_variance[0]) for each in parameters])
    return Baseline(partial(apart.predict, parameters, own.by_condition), partial(_noise_at, noise), report)


@_in_units
def coregionalisation(own: Standardised) -> Baseline:
    """LMC: one kernel with a coregionalisation matrix of full rank, started from the independent GPs' kernel."""
    one = np.eye(own.n_conditions)
    correlations = _START_CORRELATIONS[:1] if own.task.quick else _START_CORRELATIONS
    starts = [FullRank(jnp.asarray(np.linalg.cholesky((1 - value) * one + value))) for value in correlations]
    return _on_grid(own, [starts]) if own.has_grid_form else _dense(own, starts, [_apart_run(own).tree.kernel])


@_in_units
def kronecker_icm(own: Standardised) -> Baseline:
    """The exact Kronecker ICM of Stegle et al. 2011: B = WWᵀ + diag(κ), the rank chosen by the BIC."""
    size, rng = own.n_conditions, np.random.default_rng(0)
    ranks = _RANKS[1:2] if own.task.quick else _RANKS
    loadings = [rng.normal(size=(size, rank)) / np.sqrt(rank) for rank in ranks]
    return _on_grid(own, [[LowRank(jnp.asarray(each), jnp.full(size, 0.3))] for each in loadings])


def _on_grid(own: Standardised, candidates: Sequence[Sequence[Relation]]) -> Baseline:
    # Each candidate from its starts; the best by the BIC, ½ log n for each free number.
    data = GridData(*map(jnp.asarray, own.grid))
    kernel = _apart_run(own).tree.kernel
    scored = []
    for relations in candidates:
        starts = [Coregionalised(kernel, relation, jnp.full(1, _START_NOISE)) for relation in relations]
        run = own.best(coregionalised.grid_log_evidence, starts, data)
        n_free = sum(leaf.size for leaf in jax.tree.leaves(relations[0]))
        scored.append((run.bound - n_free * np.log(data.n_observations) / 2, run))
    run = max(scored, key=lambda pair: pair[0])[1]
    noise = np.asarray(run.tree.noise_variance)

    def at_points(points: HostFloat) -> tuple[jax.Array, jax.Array]:
        return coregionalised.grid_predict(run.tree, data, jnp.asarray(points))

    return Baseline(partial(_at_rows, at_points), partial(_noise_at, noise), _report(run))


def _at_rows(at_points: Callable[[HostFloat], Any], inputs: HostFloat, conditions: HostInt) -> Marginals:
    # Rows out of moments at points under every condition.
    points, place = np.unique(inputs, axis=0, return_inverse=True)
    return Marginals(*(np.asarray(moments)[place, conditions] for moments in at_points(points)))


@_in_units
def style_and_content(own: Standardised) -> Baseline:
    """The bilinear model of Tenenbaum & Freeman 2000, its contents regressed by GPs."""
    starts = _one_noise_starts(own)
    model = bilinear.fit(*own.grid, lambda contents: own.best(apart.log_evidence, starts, contents).tree)
    noise = np.asarray([model.noise_variance])
    at_points = partial(bilinear.predict, model)
    return Baseline(partial(_at_rows, at_points), partial(_noise_at, noise), {"rank": len(model.scales)})


@_in_units
def gpy_lvmogp(own: Standardised, *, n_latent: int, n_inducing: tuple[int, int], max_iterations: int) -> Baseline:
    """GPy's LVMOGP, which knows plain RBF kernels only and is trained with conditions that come later."""
    model = gpy.fit(
        *own.rows,
        n_conditions=own.n_conditions,
        is_grid=own.task.problem.is_grid,
        n_latent=n_latent,
        n_inducing=n_inducing,
        noise_per_condition=own.task.family.noise_per_condition,
        max_iterations=max_iterations,
    )
    return Baseline(model.predict, model.noise_of, {"bound": model.bound})
