"""Times two checkouts of the library against each other: ``python benchmarks/old_and_new.py --old ../old --new .``.

Each checkout has a process of its own. Question by question the two take turns, so that whatever else happens on the
machine hits both; what counts is the least time of many. Everything is compiled before it is timed. Inner names differ
between checkouts: :data:`HOMES` says where each may live, and what it is called there.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

# Where a thing lives, and under which name: in the flat layout, then on its floor.
HOMES = {
    "GridData": ("lvmogp.data.GridData", "lvmogp.model.layouts.GridData"),
    "Parameters": ("lvmogp.parameters.Parameters", "lvmogp.model.parameters.Parameters"),
    "chain_parameters": ("lvmogp.unknowns.unknowns_at", "lvmogp.inference.nuts.parameters.chain_parameters"),
    "collapsed": ("lvmogp.bounds.collapsed", "lvmogp.model.bounds.collapsed"),
    "compiled": ("lvmogp.compiling.compiled", "lvmogp.ground.compiling.compiled"),
    "join": ("lvmogp.constraints.join", "lvmogp.algebra.constraints.join"),
    "likelihood_data": ("lvmogp.observed.observed", "lvmogp.model.layouts.likelihood_data"),
    "log_likelihood": ("lvmogp.likelihoods.log_likelihood", "lvmogp.inference.nuts.likelihoods.log_likelihood"),
    "long_data": ("lvmogp.data.long_data", "lvmogp.model.layouts.long_data"),
    "plain_kernels": ("lvmogp.model.parameters.plain_kernels",),
    "split": ("lvmogp.constraints.split", "lvmogp.algebra.constraints.split"),
}
Once = Callable[[], Any]


def named(name: str) -> Any:
    """Find a name in the checkout that this process has imported."""
    for home in HOMES[name]:
        module, _, own_name = home.rpartition(".")
        try:
            return getattr(importlib.import_module(module), own_name)
        except (ModuleNotFoundError, AttributeError):
            continue
    raise LookupError(f"there is no {name} in any of {', '.join(HOMES[name])}; say in HOMES where it lives")


# Questions: each prepares what it needs, and returns the call to be timed


def data_and_parameters(n: int, n_conditions: int, m_x: int, m_h: int, *, is_grid: bool) -> tuple[Any, Any]:
    """Noise as data, and parameters of a model under way."""
    import jax.numpy as jnp

    from lvmogp import RBF

    rng = np.random.default_rng(0)
    inputs = rng.uniform(-1.7, 1.7, (n, 1))
    if is_grid:
        data = named("GridData")(jnp.asarray(inputs), jnp.asarray(rng.standard_normal((n, n_conditions))))
    else:
        data = named("long_data")(inputs, rng.standard_normal(n), rng.integers(0, n_conditions, n), n_conditions)
    latents = jnp.asarray(rng.standard_normal((n_conditions, 2)))
    kernels = {
        "input_kernel": RBF(jnp.array([0.3]), jnp.array(1.0)),
        "latent_kernel": RBF(jnp.array([1.2, 1.2]), jnp.array(1.1)),
    }
    with suppress(LookupError):  # older parameters have the two kernels as fields
        kernels = {"kernels": named("plain_kernels")(**kernels)}
    parameters = named("Parameters")(
        **kernels,
        inducing_inputs=jnp.linspace(-1.7, 1.7, m_x)[:, None],
        inducing_latents=jnp.asarray(rng.standard_normal((m_h, 2))),
        latent_mean=latents,
        latent_variance=jnp.full(latents.shape, 0.05),
        noise_variance=jnp.full(1, 0.1),
    )
    return data, parameters


def gradient_of(function: Callable[[Any, Any], Any], tree: Any, data: Any) -> Once:
    """The value of a function of a tree with its gradient in all free parameters, compiled as the library does it."""
    import jax

    vector, fixed, structure = named("split")(tree)
    join = named("join")

    def value_and_gradient(vector: Any, data: Any) -> Any:
        return jax.value_and_grad(lambda vector: function(join(vector, fixed, structure), data))(vector)

    program = named("compiled")(value_and_gradient)
    return lambda: jax.block_until_ready(program(vector, data))


def bound(*sizes: int, is_grid: bool) -> Once:
    data, parameters = data_and_parameters(*sizes, is_grid=is_grid)
    collapsed = named("collapsed")
    return gradient_of(lambda parameters, data: collapsed(parameters, data).total, parameters, data)


def likelihood(*sizes: int, is_grid: bool) -> Once:
    data, parameters = data_and_parameters(*sizes, is_grid=is_grid)
    point = named("chain_parameters")(parameters, parameters.latent_mean)
    return gradient_of(named("log_likelihood"), point, named("likelihood_data")(data, parameters))


def papers_model() -> dict[str, Any]:
    # Settings that an older library knows nothing of mean nothing else there.
    from lvmogp import LVMOGPRegressor

    known = LVMOGPRegressor().get_params()
    papers = {
        "shared_kernel": None,
        "input_kernel": "rbf",
        "own_kernel": None,
        "latent_kernel": "rbf",
        "noise": "shared",
    }
    return {name: value for name, value in papers.items() if name in known}


def fit_of_rows() -> Once:
    from lvmogp import LVMOGPRegressor
    from lvmogp.simulate import braking

    data = braking(np.random.default_rng(1))
    return lambda: LVMOGPRegressor(**papers_model(), n_latent=1).fit(
        data.speed[:, None], data.distance, conditions=data.condition
    )


def fit_of_grid(seed: int = 0) -> Any:
    from lvmogp import LVMOGPRegressor

    return LVMOGPRegressor(**papers_model()).fit(*grid(seed))


def fits_of_grids() -> None:
    # How many evaluations one fit takes changes by a tenth with the last digit of any of them.
    for seed in range(6):
        fit_of_grid(seed)


def grid(seed: int = 0) -> tuple[Any, Any]:
    """30 inputs of 12 sines that differ in height and place."""
    rng = np.random.default_rng(seed)
    inputs = np.linspace(0, 1, 30)[:, None]
    outputs = rng.uniform(0.5, 2, 12) * np.sin(6 * inputs + rng.uniform(0, 3, 12))
    return inputs, outputs + 0.1 * rng.standard_normal(outputs.shape)


@cache
def model() -> Any:
    """A model of the grid with one added condition."""
    inputs, outputs = grid()
    return fit_of_grid().add_condition("added", inputs[:5], outputs[:5, 0])


def rows(count: int) -> tuple[Any, Any]:
    """Inputs of trained conditions."""
    rng = np.random.default_rng(1)
    return rng.uniform(0, 1, (count, 1)), rng.integers(0, 12, count)


def add_condition() -> Once:
    inputs, outputs = grid()
    fitted = model()
    return lambda: fitted.add_condition("one more", inputs[3:8], outputs[3:8, 1]).remove_condition("one more")


QUESTIONS: dict[str, Callable[[], Once]] = {
    "bound with gradient, grid 50 × 40 (10/30)": lambda: bound(50, 40, 10, 30, is_grid=True),
    "bound with gradient, grid 1000 × 100 (50/20)": lambda: bound(1000, 100, 50, 20, is_grid=True),
    "bound with gradient, long 2000 / 40 (10/30)": lambda: bound(2000, 40, 10, 30, is_grid=False),
    "likelihood of chains with gradient, grid 50 × 40": lambda: likelihood(50, 40, 10, 30, is_grid=True),
    "likelihood of chains with gradient, long 500 / 20": lambda: likelihood(500, 20, 10, 20, is_grid=False),
    "fit of 50 braking tests": fit_of_rows,
    "fits of six grids 30 × 12": lambda: fits_of_grids,
    "predict with std, 10 000 rows": lambda: lambda: model().predict(*rows(10_000), return_std=True),
    "predict_interval, 1 000 rows": lambda: lambda: model().predict_interval(*rows(1_000)),
    "predict with cov, 60 rows": lambda: lambda: model().predict(*rows(60), return_cov=True),
    "predict with std, 1 000 rows, added": lambda: lambda: model().predict(rows(1_000)[0], "added", return_std=True),
    "add_condition, 5 points": add_condition,
}


# The two sides


def serve() -> None:
    """Answer on standard output what comes in on standard input, one JSON a line, until there is no more."""
    import jax

    answers, sys.stdout = sys.stdout, sys.stderr
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore")
    prepared = cache(lambda question: QUESTIONS[question]())
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            once = prepared(asked["question"])
            answer = {"seconds": min(seconds_of(once) for _ in range(asked["repetitions"]))}
        except Exception as error:  # the other questions are still to be answered
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def seconds_of(once: Once) -> float:
    began = time.perf_counter()
    once()
    return time.perf_counter() - began


class Worker:
    """A process that has imported one checkout."""

    def __init__(self, checkout: Path) -> None:
        path = {"PYTHONPATH": str(checkout.resolve() / "src"), "TF_CPP_MIN_LOG_LEVEL": "3"}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker"],
            env={**os.environ, **path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def least_seconds(self, question: str, repetitions: int) -> float:
        """The least time of some repetitions; NaN, with a word to standard error, where it cannot be asked."""
        asked = {"question": question, "repetitions": repetitions}
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        line = cast(IO[str], self._process.stdout).readline()
        if not line:
            raise RuntimeError("a worker ended before its time; its messages are above")
        answer = json.loads(line)
        if "error" in answer:
            print(f"{question}: {answer['error']}", file=sys.stderr)
        return answer.get("seconds", float("nan"))

    def end(self) -> None:
        """Let the process go."""
        self._process.communicate()


def compared(workers: list[Worker], question: str, *, rounds: int, turn_seconds: float) -> list[float]:
    """The least time of each worker; the first call, which compiles, is not counted."""
    if any(np.isnan([worker.least_seconds(question, 1) for worker in workers])):
        return [float("nan")] * len(workers)
    least = [worker.least_seconds(question, 1) for worker in workers]
    repetitions = max(round(turn_seconds / max(least)), 1)
    for _ in range(rounds):
        found = [worker.least_seconds(question, repetitions) for worker in workers]
        least = list(map(min, least, found))
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, help="a checkout")
    parser.add_argument("--new", type=Path, default=Path("."), help="another one [the current folder]")
    parser.add_argument("--only", default="", help="questions that hold these words")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each checkout [%(default)s]")
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long a turn takes [%(default)s]")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        serve()
        return
    if options.old is None:
        parser.error("name the checkout to compare with by --old")
    workers = [Worker(options.old), Worker(options.new)]
    print("| least time | old | new | new / old |\n| --- | --- | --- | --- |")
    for question in [question for question in QUESTIONS if options.only in question]:
        old, new = compared(workers, question, rounds=options.rounds, turn_seconds=options.seconds)
        print(f"| {question} | {1e3 * old:.4g} ms | {1e3 * new:.4g} ms | {new / old:.2f} |", flush=True)
    for worker in workers:
        worker.end()


if __name__ == "__main__":
    main()
