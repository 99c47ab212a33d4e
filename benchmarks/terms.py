"""Time bounds with shared and own curves beside the paper's model, taking turns in one run.

python benchmarks/terms.py
"""

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.algebra.constraints import split
from lvmogp.ground.precision import double_precision
from lvmogp.inference.optimise import value_and_gradient
from lvmogp.kernels.covariances import RBF
from lvmogp.model.bounds import collapsed_objective
from lvmogp.model.layouts import Data, GridData, long_data
from lvmogp.model.parameters import Kernels, Parameters, Term, plain_kernels

_N_INPUTS, _N_LATENTS, _ROUNDS = 50, 20, 9


def kernel(lengthscales: list[float], variance: float) -> RBF:
    return RBF(jnp.asarray(lengthscales), jnp.asarray(variance))


def parameters(kernels: Kernels, n_conditions: int, *, own_noise: bool) -> Parameters:
    rng = np.random.default_rng(0)
    return Parameters(
        kernels,
        inducing_inputs=jnp.linspace(-1.7, 1.7, _N_INPUTS)[:, None],
        inducing_latents=jnp.asarray(rng.normal(size=(_N_LATENTS, 2))),
        latent_mean=jnp.asarray(rng.normal(size=(n_conditions, 2))),
        latent_variance=jnp.full((n_conditions, 2), 0.05),
        noise_variance=jnp.full(n_conditions if own_noise else 1, 0.1),
    )


def milliseconds(data: Data, *, own_noise: bool, one_thread: bool) -> list[float]:
    """Return the median time of a bound with its gradient, of the paper's model and of one with all curves."""
    plain = plain_kernels(kernel([0.5], 1.0), kernel([1.0, 1.0], 1.0))
    whole = Kernels((*plain.terms, Term(kernel([0.7], 0.5))), kernel([0.4], 0.3))
    evaluated = []
    for kernels in (plain, whole):
        vector, fixed, structure = split(parameters(kernels, data.n_conditions, own_noise=own_noise))
        program = partial(value_and_gradient(one_thread=one_thread), objective=collapsed_objective, structure=structure)
        evaluated.append(partial(program, np.asarray(vector), fixed, data))
    times: list[list[float]] = [[], []]
    for number in range(_ROUNDS + 1):
        for own, evaluate in zip(times, evaluated, strict=True):
            began = time.perf_counter()
            jax.block_until_ready(evaluate())
            if number:  # the first compiles
                own.append(1e3 * (time.perf_counter() - began))
    return [float(np.median(own)) for own in times]


def main() -> None:
    rng = np.random.default_rng(0)
    for size in (200, 1_000):
        inputs = np.sort(rng.uniform(-1.7, 1.7, (size, 1)), axis=0)
        data = GridData(jnp.asarray(inputs), jnp.asarray(rng.normal(size=(size, size))))
        for own_noise in (False, True):
            plain, whole = milliseconds(data, own_noise=own_noise, one_thread=True)
            noise = "noise per condition" if own_noise else "one noise"
            print(f"grid {size} × {size}, {noise}: {plain:.1f} and {whole:.1f} ms, {whole / plain:.2f} ×", flush=True)
    rows = rng.uniform(-1.7, 1.7, (20_000, 1)), rng.normal(size=20_000), rng.integers(0, 100, 20_000)
    plain, whole = milliseconds(long_data(*rows, 100), own_noise=False, one_thread=False)
    print(f"long data, 20 000 rows of 100 conditions: {plain:.0f} and {whole:.0f} ms, {whole / plain:.2f} ×")


if __name__ == "__main__":
    with double_precision():
        main()
