"""Every method under one roof: fitted to a problem, it predicts any rows in the problem's units."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.estimator import LVMOGPRegressor
from lvmogp.inference.optimise import Objective, Run, maximise
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


class _Prepared(NamedTuple):
    # Standardised rows with the way back.
    rows: LabelledRows
    scaling: Scaling
    n_conditions: int
    observed_test: bool

    def back(self, moments: Marginals, noise: HostFloat | float) -> tuple[HostFloat, HostFloat]:
        variance = moments.variance + (noise if self.observed_test else 0.0)
        return self.scaling.location(moments.mean), np.sqrt(self.scaling.variance(variance))


def _prepared(problem: PaperProblem) -> _Prepared:
    rows = problem.all_observations
    scaling = scaling_of(rows.inputs, rows.outputs)
    standardised = LabelledRows(scaling.inputs(rows.inputs), scaling.outputs(rows.outputs), rows.conditions)
    return _Prepared(standardised, scaling, problem.n_conditions, problem.observed_test)


def _start_kernels(task: Task, prepared: _Prepared) -> list[Kernel]:
    lengthscales = _START_LENGTHSCALES[-1:] if task.quick else _START_LENGTHSCALES
    return [complete(task.family.kernel(), prepared.scaling.input_scale, value) for value in lengthscales]


def _start_noise(task: Task, prepared: _Prepared) -> jax.Array:
    return jnp.full(prepared.n_conditions if task.family.noise_per_condition else 1, _START_NOISE)


def _best(objective: Objective, starts: list[Any], data: Any, task: Task) -> Run:
    runs = [
        maximise(objective, start, data, max_iterations=task.max_iterations, tolerance=_TOLERANCE) for start in starts
    ]
    return max(runs, key=lambda run: run.bound)


def _report(run: Run) -> dict[str, Any]:
    return {"bound": run.bound, "status": run.status.value}


def _noise_at(noise: jax.Array, conditions: HostInt) -> HostFloat:
    return np.asarray(coregionalised.noise_of(noise, jnp.asarray(conditions)))


def _dense(task: Task, relations: list[Relation], start_kernels: list[Kernel] | None = None) -> FittedMethod:
    # An exact GP over all rows, from every start.
    prepared = _prepared(task.problem)
    rows = prepared.rows
    data = Observed(jnp.asarray(rows.inputs), jnp.asarray(rows.outputs), jnp.asarray(rows.conditions))
    noise = _start_noise(task, prepared)
    kernels = start_kernels or _start_kernels(task, prepared)
    starts = [Coregionalised(kernel, relation, noise) for kernel in kernels for relation in relations]
    run = _best(coregionalised.log_evidence, starts, data, task)

    def predict(inputs: HostFloat, conditions: HostInt) -> tuple[HostFloat, HostFloat]:
        moments = coregionalised.predict(run.tree, data, prepared.scaling.inputs(inputs), conditions)
        return prepared.back(moments, _noise_at(run.tree.noise_variance, conditions))

    return FittedMethod(predict, _report(run))


def ignoring(task: Task) -> FittedMethod:
    """GP-WO: one GP through all rows, whatever their condition."""
    relation = Together(task.problem.n_conditions)
    return _on_grid(task, [[relation]]) if _has_grid_form(task) else _dense(task, [relation])


def one_hot(task: Task) -> FittedMethod:
    """GP-OH: the condition as a one-hot input with its own lengthscales."""
    levels = jnp.arange(task.problem.n_conditions)[:, None]
    return _dense(task, [OneHot(levels, jnp.ones(task.problem.n_conditions))])


def one_hot_factors(task: Task) -> FittedMethod:
    """GP-OH with each known factor of the conditions coded by itself."""
    factors = task.problem.factors
    assert factors is not None
    sizes = factors.max(axis=0) + 1
    levels = factors + np.cumsum([0, *sizes[:-1]])
    return _dense(task, [OneHot(jnp.asarray(levels), jnp.ones(int(sizes.sum())))])


def apart_shared(task: Task) -> FittedMethod:
    """GP-ind: a GP for each condition, hyperparameters shared."""
    prepared = _prepared(task.problem)
    data = apart.stacked(*prepared.rows, prepared.n_conditions)
    run = _apart_run(task, prepared, data)
    noise = run.tree.noise_variance
    parameters = [
        apart.Apart(run.tree.kernel, noise if len(noise) == 1 else noise[number : number + 1])
        for number in range(prepared.n_conditions)
    ]
    return FittedMethod(_apart_predict(prepared, data, parameters), _report(run))


def _apart_run(task: Task, prepared: _Prepared, data: apart.Stacked) -> Run:
    starts = [apart.Apart(kernel, _start_noise(task, prepared)) for kernel in _start_kernels(task, prepared)]
    return _best(apart.log_evidence, starts, data, task)


def apart_own(task: Task) -> FittedMethod:
    """GP-ind: a GP for each condition with hyperparameters of its own."""
    prepared = _prepared(task.problem)
    data = apart.stacked(*prepared.rows, prepared.n_conditions)
    starts = [apart.Apart(kernel, jnp.full(1, _START_NOISE)) for kernel in _start_kernels(task, prepared)]
    counts = np.bincount(prepared.rows.conditions, minlength=prepared.n_conditions)
    parameters, bound = [], 0.0
    for number in range(prepared.n_conditions):
        if counts[number] == 0:
            parameters.append(starts[-1])  # nothing to learn from
            continue
        run = _best(apart.log_evidence, starts, data.condition(number), task)
        parameters.append(run.tree)
        bound += run.bound
    return FittedMethod(_apart_predict(prepared, data, parameters), {"bound": bound})


def _apart_predict(prepared: _Prepared, data: apart.Stacked, parameters: list[apart.Apart]) -> Predict:
    def predict(inputs: HostFloat, conditions: HostInt) -> tuple[HostFloat, HostFloat]:
        moments = apart.predict(parameters, data, prepared.scaling.inputs(inputs), conditions)
        noise = np.asarray([float(own.noise_variance[0]) for own in parameters])
        return prepared.back(moments, noise[conditions])

    return predict


def coregionalisation(task: Task) -> FittedMethod:
    """LMC: one kernel with a coregionalisation matrix of full rank, started from the independent GPs' kernel."""
    prepared = _prepared(task.problem)
    relations = _correlated_starts(task, prepared.n_conditions)
    if _has_grid_form(task):
        return _on_grid(task, [relations])
    kernel = _apart_run(task, prepared, apart.stacked(*prepared.rows, prepared.n_conditions)).tree.kernel
    return _dense(task, relations, [kernel])


def _correlated_starts(task: Task, size: int) -> list[Relation]:
    correlations = _START_CORRELATIONS[:1] if task.quick else _START_CORRELATIONS
    return [FullRank(jnp.asarray(np.linalg.cholesky((1 - value) * np.eye(size) + value))) for value in correlations]


def kronecker_icm(task: Task) -> FittedMethod:
    """The exact Kronecker ICM of Stegle et al. 2011: B = WWᵀ + diag(κ), the rank chosen by the BIC."""
    size = task.problem.n_conditions
    rng = np.random.default_rng(0)
    ranks = _RANKS[1:2] if task.quick else _RANKS
    return _on_grid(
        task,
        [[LowRank(jnp.asarray(rng.normal(size=(size, rank)) / np.sqrt(rank)), jnp.full(size, 0.3))] for rank in ranks],
    )


def _has_grid_form(task: Task) -> bool:
    return task.problem.is_grid and not task.family.noise_per_condition


def _on_grid(task: Task, candidates: list[list[Relation]]) -> FittedMethod:
    # Each candidate from its starts; the best by the BIC, ½ log n for each free number.
    prepared = _prepared(task.problem)
    size = prepared.n_conditions
    inputs = prepared.rows.inputs[::size]
    data = GridData(jnp.asarray(inputs), jnp.asarray(prepared.rows.outputs.reshape(-1, size)))
    kernel = _apart_run(task, prepared, apart.stacked(*prepared.rows, size)).tree.kernel
    scored = []
    for relations in candidates:
        starts = [Coregionalised(kernel, relation, jnp.full(1, _START_NOISE)) for relation in relations]
        run = _best(coregionalised.grid_log_evidence, starts, data, task)
        n_free = sum(leaf.size for leaf in jax.tree.leaves(relations[0]))
        scored.append((run.bound - n_free * np.log(data.n_observations) / 2, run))
    run = max(scored, key=lambda pair: pair[0])[1]

    def predict(inputs: HostFloat, conditions: HostInt) -> tuple[HostFloat, HostFloat]:
        points, place = np.unique(inputs, axis=0, return_inverse=True)
        mean, variance = coregionalised.grid_predict(run.tree, data, jnp.asarray(prepared.scaling.inputs(points)))
        moments = Marginals(np.asarray(mean)[place, conditions], np.asarray(variance)[place, conditions])
        return prepared.back(moments, float(run.tree.noise_variance[0]))

    return FittedMethod(predict, _report(run))


def style_and_content(task: Task) -> FittedMethod:
    """The bilinear model of Tenenbaum & Freeman 2000, its contents regressed by GPs."""
    prepared = _prepared(task.problem)
    size = prepared.n_conditions
    starts = [apart.Apart(kernel, jnp.full(1, _START_NOISE)) for kernel in _start_kernels(task, prepared)]
    model = bilinear.fit(
        prepared.rows.inputs[::size],
        prepared.rows.outputs.reshape(-1, size),
        lambda contents: _best(apart.log_evidence, starts, contents, task).tree,
    )

    def predict(inputs: HostFloat, conditions: HostInt) -> tuple[HostFloat, HostFloat]:
        points, place = np.unique(inputs, axis=0, return_inverse=True)
        moments = bilinear.predict(model, prepared.scaling.inputs(points))
        chosen = Marginals(moments.mean[place, conditions], moments.variance[place, conditions])
        return prepared.back(chosen, model.noise_variance)

    return FittedMethod(predict, {"rank": len(model.scales)})


def gpy_lvmogp(task: Task, *, n_latent: int, n_inducing: tuple[int, int], max_iterations: int) -> FittedMethod:
    """GPy's LVMOGP, which knows plain RBF kernels only and is trained with conditions that come later."""
    prepared = _prepared(task.problem)
    model = gpy.fit(
        *prepared.rows,
        n_conditions=prepared.n_conditions,
        is_grid=task.problem.is_grid,
        n_latent=n_latent,
        n_inducing=n_inducing,
        noise_per_condition=task.family.noise_per_condition,
        max_iterations=max_iterations,
    )

    def predict(inputs: HostFloat, conditions: HostInt) -> tuple[HostFloat, HostFloat]:
        moments = model.predict(prepared.scaling.inputs(inputs), conditions)
        return prepared.back(moments, model.noise_of(conditions))

    return FittedMethod(predict, {"bound": model.bound})
