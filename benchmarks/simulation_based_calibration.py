"""Whether draws are draws from the posterior: data sets from the prior, and ranks of the truth among the draws.

    python -m benchmarks.simulation_based_calibration               200 data sets with one noise for all conditions
    python -m benchmarks.simulation_based_calibration --own-noise   200 with one for each; some ten minutes on two cores
    python -m benchmarks.simulation_based_calibration --sets 20     fewer, nothing written
    python -m benchmarks.simulation_based_calibration --page        no sampling: figure and table from the file

If data come from the prior, the truth is one more draw from the posterior, so that its rank among the draws is uniform
(Talts et al., 2018). Nothing is standardised, and hyperparameters come from the default priors. Writes
results/sampling/calibration.json, the figure beside it, and the table of docs/fully-bayesian.md.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import chi2

from benchmarks.pages import write_part
from lvmogp.ground.compiling import compiled
from lvmogp.inference.nuts.chains import SamplerSettings
from lvmogp.inference.nuts.parameters import Priors
from lvmogp.inference.nuts.sampling import sample_posterior
from lvmogp.kernels.covariances import RBF, diagonal, gram
from lvmogp.model.draws import Draws
from lvmogp.model.layouts import Data, GridData, likelihood_data, long_data
from lvmogp.model.parameters import Parameters, plain_kernels
from lvmogp.model.process import processes_of_draws
from lvmogp.plots.style import COLOURS, tidy

ROOT = Path(__file__).parents[1]
FILE, PAGE = ROOT / "results" / "sampling" / "calibration.json", ROOT / "docs" / "fully-bayesian.md"
FIGURE = FILE.with_suffix(".png")
BEGIN = "<!-- made by benchmarks/simulation_based_calibration.py, do not edit -->"
END = "<!-- end of what it made -->"
N_SETS, N_INPUTS, N_CONDITIONS, N_RANKED = 200, 7, 5, 19
SETTINGS = SamplerSettings(n_chains=2, n_warmup=300, n_draws=400, seed=0)
PRIORS = Priors().checked()
# Kinds of data sets, with the forms that they have in turn.
ONE_NOISE, OWN_NOISE = "one noise", "noise per condition"
FORMS = {ONE_NOISE: ("grid", "scattered"), OWN_NOISE: ("grid, own noise", "scattered, own noise")}
ALL_FORMS = tuple(form for own in FORMS.values() for form in own)


class Truth(NamedTuple):
    """One draw from the prior, with data and a function value that nobody observed."""

    input_lengthscale: float
    variance: float
    latent_lengthscale: float
    noise_variance: np.ndarray
    latents: np.ndarray
    inputs: np.ndarray
    outputs: np.ndarray
    asked_input: float
    asked_value: float


def truth_from_prior(rng: np.random.Generator, *, own_noise: bool) -> Truth:
    """Hyperparameters, latents of one dimension, and curves of all conditions at the same inputs and one more."""

    def positive(prior: tuple[float, float]) -> float:
        median, spread = prior
        return float(median * np.exp(spread * rng.standard_normal()))

    names = ("input_lengthscale", "variance", "latent_lengthscale", "noise_variance")
    values = {name: positive(getattr(PRIORS, name)) for name in names}
    latents = rng.standard_normal(N_CONDITIONS)
    inputs = np.append(np.linspace(-1.5, 1.5, N_INPUTS), rng.uniform(-1.5, 1.5))
    among_inputs = values["variance"] * _correlations(inputs, values["input_lengthscale"])
    among_conditions = _correlations(latents, values["latent_lengthscale"])
    # F = A Z Bᵀ has covariance (B Bᵀ) ⊗ (A Aᵀ)
    curves = _root(among_inputs) @ rng.standard_normal((len(inputs), N_CONDITIONS)) @ _root(among_conditions).T
    noise_variance = np.full(1, values.pop("noise_variance"))
    if own_noise:  # log σ_d² = log median + spread ε_d
        noise_variance = noise_variance * np.exp(positive(PRIORS.noise_spread) * rng.standard_normal(N_CONDITIONS))
    noise = np.sqrt(noise_variance) * rng.standard_normal((N_INPUTS, N_CONDITIONS))
    return Truth(
        **values,
        noise_variance=noise_variance,
        latents=latents[:, None],
        inputs=inputs[:-1, None],
        outputs=curves[:-1] + noise,
        asked_input=float(inputs[-1]),
        asked_value=float(curves[-1, 0]),
    )


def _correlations(points: np.ndarray, lengthscale: float) -> np.ndarray:
    return np.exp(-(((points[:, None] - points) / lengthscale) ** 2) / 2)


def _root(matrix: np.ndarray) -> np.ndarray:
    values, basis = np.linalg.eigh(matrix)
    return basis * np.sqrt(np.maximum(values, 0))


def data_of(truth: Truth, form: str) -> Data:
    """The observations as a grid, or one by one."""
    if form.startswith("grid"):
        return GridData(jnp.asarray(truth.inputs), jnp.asarray(truth.outputs))
    conditions = np.tile(np.arange(N_CONDITIONS), N_INPUTS)
    return long_data(np.repeat(truth.inputs, N_CONDITIONS, axis=0), truth.outputs.reshape(-1), conditions, N_CONDITIONS)


def start_from_prior(rng: np.random.Generator, *, own_noise: bool) -> Parameters:
    """Where chains start: at the medians, with latents that know nothing of the data."""
    number = partial(jnp.asarray, dtype=float)
    latents = number(rng.standard_normal((N_CONDITIONS, 1)))
    noise = np.full(N_CONDITIONS if own_noise else 1, PRIORS.noise_variance[0])
    return Parameters(
        kernels=plain_kernels(
            RBF(number([PRIORS.input_lengthscale[0]]), number(PRIORS.variance[0])),
            RBF(number([PRIORS.latent_lengthscale[0]]), number(1.0)),
        ),
        inducing_inputs=number(np.linspace(-1.5, 1.5, 4)[:, None]),
        inducing_latents=latents[:4],
        latent_mean=latents,
        latent_variance=jnp.full_like(latents, 0.1),
        noise_variance=number(noise),
    )


@compiled
def _asked_moments(draws: Draws, data: Any, asked: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and variance of the function of the first condition at an input, in each draw."""

    def one(draw: tuple[Any, Draws]) -> tuple[jax.Array, jax.Array]:
        process, own = draw
        inputs, latent = process.inputs(asked), process.latents(own.latents[:1])[0]
        prior = diagonal(own.kernels.of_inputs[0], asked) * diagonal(own.kernels.of_latents[0], own.latents[:1])
        explained = process.explained.at_latent(latent, 0)
        return explained.mean(inputs)[0], (prior - explained.variance(inputs))[0]

    return jax.lax.map(one, (processes_of_draws(draws, data), draws))


def quantities(truth: Truth) -> dict[str, float]:
    """What is ranked, at the truth: nothing that depends on how the latent space is turned."""
    among = _correlations(truth.latents[:, 0], truth.latent_lengthscale)
    return {name: float(values[0]) for name, values in noise_quantities(truth.noise_variance[None]).items()} | {
        "input lengthscale": np.log(truth.input_lengthscale),
        "variance": np.log(truth.variance),
        "latent lengthscale": np.log(truth.latent_lengthscale),
        "similarity of two conditions": float(among[0, 1]),
        "size of the latents": float(np.sum(truth.latents**2)),
        "function": truth.asked_value,
    }


def noise_quantities(variances: np.ndarray) -> dict[str, np.ndarray]:
    """Of the noise in each draw (a row): that of the first condition and, where each has its own, what all are like."""
    logs = np.log(variances)
    first = {"noise": logs[:, 0]}
    if logs.shape[1] == 1:
        return first
    return first | {"mean of the log noise": logs.mean(axis=1), "spread of the log noise": logs.std(axis=1)}


def drawn_quantities(draws: Draws, data: Any, asked: float, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The same in every draw; the function, which draws do not hold, is drawn given each of them."""
    mean, variance = (np.asarray(part) for part in _asked_moments(draws, data, jnp.asarray([[asked]])))
    among = np.asarray(jax.vmap(gram)(draws.kernels.of_latents[0], draws.latents))
    return noise_quantities(np.asarray(draws.noise_variance)) | {
        "input lengthscale": np.log(np.asarray(draws.kernels.of_inputs[0].lengthscale)[:, 0]),
        "variance": np.log(np.asarray(draws.kernels.of_inputs[0].variance)),
        "latent lengthscale": np.log(np.asarray(draws.kernels.of_latents[0].lengthscale)[:, 0]),
        "similarity of two conditions": among[:, 0, 1],
        "size of the latents": np.sum(np.asarray(draws.latents) ** 2, axis=(1, 2)),
        "function": mean + np.sqrt(np.maximum(variance, 0)) * rng.standard_normal(len(mean)),
    }


def ranks(seed: int, form: str, settings: SamplerSettings = SETTINGS) -> dict[str, int]:
    """How many of ``N_RANKED`` draws, far apart from each other, lie below the truth."""
    rng, own_noise = np.random.default_rng([seed, ALL_FORMS.index(form)]), form in FORMS[OWN_NOISE]
    truth = truth_from_prior(rng, own_noise=own_noise)
    with jax.enable_x64(True):
        data, start = data_of(truth, form), start_from_prior(rng, own_noise=own_noise)
        draws, _ = sample_posterior([start], data, PRIORS, settings._replace(seed=seed))
        assert draws is not None  # nobody stopped it
        places = np.linspace(0, draws.n_draws - 1, N_RANKED).round().astype(int)
        some = jax.tree.map(lambda leaf: leaf[places], draws)
        found = drawn_quantities(some, likelihood_data(data, start), truth.asked_input, rng)
    return {name: int(np.sum(found[name] < value)) for name, value in quantities(truth).items()}


def p_values(found: list[dict[str, int]], n_bins: int = 10) -> dict[str, float]:
    """Probability of ranks as uneven as these if they were uniform, by the χ² of their histogram."""
    expected = len(found) / n_bins
    values = {}
    for name in found[0]:
        counts = np.bincount([own[name] * n_bins // (N_RANKED + 1) for own in found], minlength=n_bins)
        values[name] = float(chi2.sf(np.sum((counts - expected) ** 2) / expected, n_bins - 1))
    return values


def measured(kind: str, n_sets: int, tell: Callable[[str], None]) -> dict[str, list[dict[str, int]]]:
    """Ranks of data sets of one kind, in turn as grids and one by one."""
    began, forms = time.perf_counter(), FORMS[kind]
    found: dict[str, list[dict[str, int]]] = {form: [] for form in forms}
    for number in range(n_sets):
        form = forms[number % len(forms)]
        found[form].append(ranks(number, form))
        seconds = time.perf_counter() - began
        if number % 10 == 9:
            left = seconds / (number + 1) * (n_sets - number - 1)
            tell(f"{number + 1} of {n_sets} data sets, {seconds:.0f} s, about {left:.0f} s left")
    return found


def by_kind(found: dict[str, list[dict[str, int]]]) -> dict[str, list[dict[str, int]]]:
    """Ranks of all data sets of each kind that was measured."""
    return {
        kind: [own for form in forms for own in found[form]]
        for kind, forms in FORMS.items()
        if all(form in found for form in forms)
    }


def figure(found: dict[str, list[dict[str, int]]]) -> plt.Figure:
    """Histograms of the ranks, with the band in which 95 % of the bars of uniform ranks lie."""
    kinds, n_bins = by_kind(found), 10
    names = list(dict.fromkeys(name for own in kinds.values() for name in own[0]))
    drawn, axes = plt.subplots(2, 5, figsize=(11.2, 4.4), layout="constrained", sharex=True, sharey=True)
    edges = np.linspace(0, 1, n_bins + 1)
    expected = N_SETS / n_bins
    spread = 1.96 * np.sqrt(expected * (1 - 1 / n_bins))
    for ax, name in zip(axes.flat, names, strict=False):
        ax.axhspan(expected - spread, expected + spread, color="0.9")
        ax.set_title(name, fontsize="medium")
        tidy(ax)
        for colour, (kind, own) in zip(COLOURS, kinds.items(), strict=False):
            if name in own[0]:
                shares = (np.asarray([each[name] for each in own]) + 0.5) / (N_RANKED + 1)
                ax.stairs(np.histogram(shares, edges)[0], edges, color=colour, linewidth=1.6, label=kind)
    for ax in axes.flat[len(names) :]:
        ax.set_visible(False)
    drawn.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False)
    drawn.supxlabel("rank of the truth among the draws, as a share", fontsize="medium")
    drawn.supylabel("data sets", fontsize="medium")
    return drawn


def table(stored: dict[str, Any]) -> str:
    """The p-values, with how many data sets they come from."""
    kinds = by_kind(stored["ranks"])
    values = {kind: p_values(own) for kind, own in kinds.items()}
    counts = " and ".join(f"{len(own)} with {kind}" for kind, own in kinds.items())
    names = list(dict.fromkeys(name for own in values.values() for name in own))
    lines = [f"| p-value of uniform ranks | {' | '.join(values)} |", "| --- |" + " --- |" * len(values)]
    for name in names:
        cells = [f"{own[name]:.2f}" if name in own else "" for own in values.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(
        [
            f"Data sets from the prior ({N_INPUTS} inputs, {N_CONDITIONS} conditions, one latent), {counts}, half of "
            "them as grids, half one by one; `python -m benchmarks.simulation_based_calibration`.",
            "",
            *lines,
            "",
            "![Histograms of the ranks of the truth among the draws](../results/sampling/calibration.png)",
        ]
    )


def write_page(stored: dict[str, Any]) -> None:
    matplotlib.use("agg")
    figure(stored["ranks"]).savefig(FIGURE, dpi=150)
    write_part(PAGE, BEGIN, END, table(stored))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--own-noise", action="store_true", help="data sets with a noise for each condition")
    parser.add_argument("--sets", type=int, default=N_SETS, help="how many data sets; fewer are only printed")
    parser.add_argument("--page", action="store_true", help="figure and table from the file, without sampling")
    arguments = parser.parse_args()
    stored = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {"ranks": {}}
    if arguments.page:
        write_page(stored)
        return
    found = measured(OWN_NOISE if arguments.own_noise else ONE_NOISE, arguments.sets, partial(print, flush=True))
    for name, value in p_values([own for ranked in found.values() for own in ranked]).items():
        print(f"{name}: p = {value:.3f}")
    if arguments.sets == N_SETS:
        FILE.parent.mkdir(parents=True, exist_ok=True)
        stored = {"settings": SETTINGS._asdict(), "n_ranked": N_RANKED, "ranks": stored["ranks"] | found}
        FILE.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
        write_page(stored)


if __name__ == "__main__":
    main()
