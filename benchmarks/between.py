"""What closes the gap between the variational fit and long Markov chains, and at which cost.

    python -m benchmarks.between             synthetic sets 0 to 9, some twenty minutes on two cores
    python -m benchmarks.between --sets 2    fewer, nothing written
    python -m benchmarks.between --page      no fits: the table from the file

Every way starts from the same variational fit and ends in draws of latents and hyperparameters, given which predictions
are exact. Writes results/sampling/between.json and the table of docs/fully-bayesian.md.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

from benchmarks.pages import write_part
from lvmogp import PAPERS_MODEL, LVMOGPRegressor
from lvmogp.algebra.constraints import FreeStructure, join, split
from lvmogp.conditions.ensemble import ensemble_of_draws
from lvmogp.conditions.search import normal_nodes
from lvmogp.errors import LVMOGPWarning
from lvmogp.fitted.model import FittedModel
from lvmogp.inference.nuts.chains import SamplerSettings, Target, log_posterior
from lvmogp.inference.nuts.parameters import ChainParameters, Priors, chain_parameters
from lvmogp.inference.nuts.sampling import as_draws, sample_posterior
from lvmogp.metrics import rmse, share_in_central_intervals
from lvmogp.model.bounds import collapsed
from lvmogp.model.draws import Draws
from lvmogp.model.layouts import Data, likelihood_data, standardised
from lvmogp.model.parameters import Parameters
from paper.problems import PaperProblem, synthetic

ROOT = Path(__file__).parents[1]
FILE, PAGE = ROOT / "results" / "sampling" / "between.json", ROOT / "docs" / "fully-bayesian.md"
BEGIN, END = "<!-- made by benchmarks/between.py, do not edit -->", "<!-- end of what between.py made -->"
N_SETS, N_DRAWS = 10, 256
PRIORS = Priors().checked()
# Curvatures below that of the prior, or of a quarter of its spread, are not believed.
_LEAST_CURVATURE, _STIFF = 1e-2, 4.0


class Start(NamedTuple):
    """A variational fit with its data in standardised units."""

    parameters: Parameters
    data: Data


def equally_weighted(points: ChainParameters, start: Start) -> Draws:
    n_draws = len(points.latents)
    return as_draws(
        points,
        start.parameters,
        chain=jnp.zeros(n_draws, int),
        log_weight=jnp.full(n_draws, -np.log(n_draws)),
    )


def mean_field(start: Start) -> Draws:
    """Latents from q(H), hyperparameters as fitted; only what is made of them is exact."""
    mean, variance = start.parameters.latent_mean, start.parameters.latent_variance
    nodes = jnp.asarray(normal_nodes(N_DRAWS, mean.size)).reshape(N_DRAWS, *mean.shape)
    points = jax.vmap(lambda own: chain_parameters(start.parameters, mean + jnp.sqrt(variance) * own))(nodes)
    return equally_weighted(points, start)


def _free_names(parameters: Parameters, structure: FreeStructure) -> np.ndarray:
    # The name of the field of each entry of the free vector.
    found = []
    for (path, leaf), (_, fixed) in zip(
        jax.tree_util.tree_flatten_with_path(parameters)[0], structure.declarations, strict=True
    ):
        if not fixed:
            found += [path[0].name] * leaf.size
    return np.asarray(found)


def _hessian(function: Callable[[jax.Array], jax.Array], at: jax.Array) -> np.ndarray:
    # Row by row, backwards twice: the bound has reverse rules of its own.
    @jax.jit
    def rows(vector: jax.Array) -> jax.Array:
        _, pull_back = jax.vjp(jax.grad(function), vector)
        return jax.lax.map(lambda direction: pull_back(direction)[0], jnp.eye(len(vector)))

    found = np.asarray(rows(at))
    return (found + found.T) / 2


def linear_response(start: Start) -> Draws:
    """Means of q(H) and hyperparameters together, with the covariance by which they answer to small forces.

    That is the inverse curvature of the bound over everything that is optimised (Giordano et al., 2018), the priors of
    the hyperparameters added.
    """
    vector, fixed_leaves, structure = split(start.parameters)
    names = _free_names(start.parameters, structure)
    curvature = _hessian(lambda own: -collapsed(join(own, fixed_leaves, structure), start.data).total, vector)
    hyperparameters = np.isin(names, ["kernels", "noise_variance"])
    values, basis = np.linalg.eigh(curvature + np.diag(hyperparameters.astype(float)))
    covariance = (basis / np.maximum(values, _LEAST_CURVATURE)) @ basis.T
    moved = np.flatnonzero(hyperparameters | (names == "latent_mean"))
    variances, directions = np.linalg.eigh(covariance[np.ix_(moved, moved)])
    steps = (normal_nodes(N_DRAWS, len(moved)) * np.sqrt(np.clip(variances, 0, 1))) @ directions.T
    vectors = np.tile(np.asarray(vector), (N_DRAWS, 1))
    vectors[:, moved] += steps

    def point(own: jax.Array) -> ChainParameters:
        parameters = join(own, fixed_leaves, structure)
        return chain_parameters(parameters, parameters.latent_mean)

    return equally_weighted(jax.vmap(point)(jnp.asarray(vectors)), start)


def laplace(start: Start) -> Draws:
    """A Gaussian around the most probable latents and hyperparameters under the exact likelihood."""
    parameters = start.parameters
    vector, fixed_leaves, structure = split(chain_parameters(parameters, parameters.latent_mean))
    target = Target(likelihood_data(start.data, parameters), fixed_leaves, structure, PRIORS)
    downhill = jax.jit(jax.value_and_grad(lambda own: -log_posterior(target, own)))
    mode = scipy.optimize.minimize(
        lambda own: [np.asarray(part, float) for part in downhill(own)],
        np.asarray(vector),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 2000, "maxcor": 50},
    ).x
    values, basis = np.linalg.eigh(_hessian(lambda own: -log_posterior(target, own), jnp.asarray(mode)))
    steps = (normal_nodes(N_DRAWS, len(mode)) / np.sqrt(np.maximum(values, _STIFF))) @ basis.T
    return equally_weighted(jax.vmap(target.parameters)(jnp.asarray(mode + steps)), start)


def chains(start: Start, *, settings: SamplerSettings) -> Draws:
    found, _ = sample_posterior([start.parameters], start.data, PRIORS, settings)
    assert found is not None  # nobody stopped it
    return found


FIT = "variational fit"
LONG = "four chains, 300 + 250 steps"
WAYS: dict[str, Callable[[Start], Draws]] = {
    "q(H) with exact predictions": mean_field,
    "linear response of the bound": linear_response,
    "Laplace, exact likelihood": laplace,
    "one chain, 60 + 40 steps": partial(chains, settings=SamplerSettings(1, 60, 40, 0)),
    "two chains, 100 + 50 steps": partial(chains, settings=SamplerSettings(2, 100, 50, 0)),
    LONG: partial(chains, settings=SamplerSettings(4, 300, 250, 0)),
}


def scores(model: FittedModel, problem: PaperProblem, seconds: float) -> dict[str, float]:
    asked = LVMOGPRegressor()
    asked.model_ = model
    test = problem.test
    below = asked.predictive_cdf(test.inputs, test.outputs, test.conditions, include_noise=False)
    densities = asked.log_predictive_density(test.inputs, test.outputs, test.conditions, include_noise=False)
    return {
        "rmse": rmse(asked.predict(test.inputs, test.conditions), test.outputs),
        "coverage": share_in_central_intervals(below, [0.95])[0],
        "nlpd": -float(np.mean(densities)),
        "seconds": seconds,
    }


def measured(seed: int) -> dict[str, dict[str, float]]:
    """Scores of the fit and of every way to go on from it; seconds are those beyond the fit."""
    problem = synthetic(seed, None)
    train, began = problem.train, time.perf_counter()
    inputs, outputs = train.inputs[:: problem.n_conditions], train.outputs.reshape(-1, problem.n_conditions)
    fitted = LVMOGPRegressor(**PAPERS_MODEL).fit(inputs, outputs).model_
    found = {FIT: scores(fitted, problem, time.perf_counter() - began)}
    assert fitted.observations is not None  # fitted in memory
    with jax.enable_x64(True):
        start = Start(fitted.fit.outcome.parameters, standardised(fitted.observations, fitted.scaling))
        for name, way in WAYS.items():
            began = time.perf_counter()
            drawn = fitted._replace(ensemble=ensemble_of_draws(way(start), start.data, start.parameters))
            found[name] = scores(drawn, problem, time.perf_counter() - began)
    return found


def table(stored: list[dict[str, dict[str, float]]]) -> str:
    """Means over data sets, with the share of the gap in coverage that each way closes."""

    def mean(name: str, figure: str) -> float:
        return float(np.mean([own[name][figure] for own in stored]))

    gap = mean(LONG, "coverage") - mean(FIT, "coverage")
    lines = [
        "| | RMSE | 95 % intervals hold | log density | of the gap in coverage | seconds, with the fit |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in (FIT, *WAYS):
        closed = (mean(name, "coverage") - mean(FIT, "coverage")) / gap
        # The first set pays for compilation, which later fits in the same session do not.
        seconds = np.median([own[name]["seconds"] + (name != FIT) * own[FIT]["seconds"] for own in stored])
        lines.append(
            f"| {name} | {mean(name, 'rmse'):.3f} | {mean(name, 'coverage'):.1%} | {-mean(name, 'nlpd'):.2f} | "
            f"{closed:.0%} | {seconds:.0f} |"
        )
    told = f"Means over {len(stored)} synthetic data sets; seconds are the median. `python -m benchmarks.between`."
    return "\n".join([*lines, "", told])


def write_page(stored: list[dict[str, dict[str, float]]]) -> None:
    write_part(PAGE, BEGIN, END, table(stored))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=N_SETS, help="how many data sets; fewer are only printed")
    parser.add_argument("--page", action="store_true", help="the table from the file, without fits")
    arguments = parser.parse_args()
    if arguments.page:
        write_page(json.loads(FILE.read_text(encoding="utf-8")))
        return
    warnings.simplefilter("ignore", LVMOGPWarning)  # short chains say that they are short
    began, found = time.perf_counter(), []
    for seed in range(arguments.sets):
        found.append(measured(seed))
        seconds = time.perf_counter() - began
        left = seconds / (seed + 1) * (arguments.sets - seed - 1)
        print(f"{seed + 1} of {arguments.sets} data sets, {seconds:.0f} s, about {left:.0f} s left", flush=True)
    print(table(found))
    if arguments.sets == N_SETS:
        FILE.parent.mkdir(parents=True, exist_ok=True)
        FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        write_page(found)


if __name__ == "__main__":
    main()
