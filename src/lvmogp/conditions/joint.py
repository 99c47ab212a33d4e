"""Joint distributions of f over rows of several conditions, scenario by scenario.

A scenario is one process with latents and noise of all conditions asked for. Given it, errors of the predictions are
jointly Gaussian: a condition with observations of its own errs by e = f(x, h) − W f(X, h) − Wε (docs/mathematics.md,
equation 24). Outputs of which a transform is modelled follow by equation 52.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp

from lvmogp.algebra.linalg import cholesky
from lvmogp.conditions.condition import MOST_PARTICLES, Condition, chosen_particles
from lvmogp.conditions.curves import covariance_with_seen, curve_given, picked
from lvmogp.conditions.ensemble import Ensemble, chunks
from lvmogp.conditions.few_observations import FewObservations, at_points, stacked
from lvmogp.conditions.search import unit_nodes
from lvmogp.ground.compiling import compiled
from lvmogp.ground.padding import repeated, stacked_rows
from lvmogp.ground.precision import in_precision
from lvmogp.kernels.covariances import cross, gram
from lvmogp.model.process import Process
from lvmogp.tables.scaling import Scaling
from lvmogp.tables.transforms import Transform
from lvmogp.typing import Array, Float, HostFloat, HostInt, Int, Scalar

# Scenarios of the latents of several conditions: the fewer, the larger the covariance that is averaged over them.
_FEWEST_SCENARIOS, _ENTRIES_OF_ALL_SCENARIOS = 64, 2**27
_DRAWS_AT_ONCE = 1_024


class Scenarios(eqx.Module):
    """L scenarios: the process of each, and latents and noise of C conditions in its coordinates."""

    process: Int[Array, "*L"]
    latents: Float[Array, "*L C Q_H"]
    noise: Float[Array, "*L C"]


class RelativeOutput(eqx.Module):
    """How outputs at the rows of C conditions, divided by their means, follow from f: r = t⁻¹(location + scale · f).

    ``with_noise`` is one if outputs are observations, zero without their noise.
    """

    transform: Transform
    location: Float[Array, "C n"]
    scale: Float[Array, "C n"]
    with_noise: Scalar

    def moments(
        self, mean: Float[Array, " rows"], covariance: Float[Array, "rows rows"], noise: Float[Array, " C"]
    ) -> tuple[Float[Array, " rows"], Float[Array, "rows rows"]]:
        """Return ⟨r⟩ − 1 and cov(r, r') in a scenario with these moments of f (equation 52)."""
        location, scale = self.location.reshape(-1), self.scale.reshape(-1)
        of_rows = jnp.repeat(noise * self.with_noise, self.location.shape[1])
        mean, covariance = location + scale * mean, jnp.outer(scale, scale) * (covariance + jnp.diag(of_rows))
        return self.transform.excess(mean, jnp.diag(covariance)), self.transform.covariance(mean, covariance)


def relative_output(scaling: Scaling, means: Sequence[HostFloat], *, include_noise: bool) -> RelativeOutput:
    """Return how outputs at the rows of several conditions, divided by ``means`` of each, follow from f."""
    assert scaling.transform is not None  # the output itself need not be divided
    stacked = stacked_rows([of_rows[:, None] for of_rows in means])[..., 0]
    of_rows = scaling.transform.divided(scaling.output_mean, scaling.output_scale, stacked)
    arrays = (jnp.asarray(part) for part in (*of_rows, np.asarray(include_noise, float)))
    return RelativeOutput(scaling.transform, *arrays)


def joint_covariance(
    ensemble: Ensemble, conditions: Sequence[Condition], rows: list[HostFloat], output: RelativeOutput | None = None
) -> list[list[HostFloat]]:
    """Return the covariance between the rows of each pair of conditions: that of the mixture over scenarios.

    It is that of f, or of transformed outputs relative to their means (equation 52).
    """
    padded = jnp.asarray(stacked_rows(rows), ensemble.dtype)
    size = padded.shape[0] * padded.shape[1]
    scenarios, weights = _weighted_scenarios(ensemble, conditions, n_rows=size)
    seen = stacked([condition.seen for condition in conditions])
    output = in_precision(output, ensemble.dtype)
    mean, second = np.zeros(size), np.zeros((size, size))
    for some, processes, chosen in _by_chunk(ensemble, scenarios, len(weights)):
        own = np.zeros(len(chosen.process))  # what is padded has no weight
        own[: len(some)] = weights[some]
        parts = _weighted_sums(output, processes, chosen, jnp.asarray(own, ensemble.dtype), seen, padded)
        mean, second = mean + np.asarray(parts[0]), second + np.asarray(parts[1])
    return _in_pairs(second - np.outer(mean, mean), rows)


def _in_pairs(joint: HostFloat, rows: Sequence[HostFloat]) -> list[list[HostFloat]]:
    # A matrix between stacked rows as blocks, one for each pair of conditions, without what was padded.
    size = len(joint) // len(rows)
    apart = joint.reshape(len(rows), size, len(rows), size)
    return [[apart[i, : len(first), j, : len(second)] for j, second in enumerate(rows)] for i, first in enumerate(rows)]


def draw_curves(
    ensemble: Ensemble,
    conditions: Sequence[Condition],
    rows: list[HostFloat],
    *,
    n_draws: int,
    rng: np.random.Generator,
) -> tuple[list[HostFloat], list[HostFloat]]:
    """Draw f jointly at the rows of several conditions, with the noise variance of each draw.

    Returns, for each condition, draws of shape (n_draws, rows) and noise variances of shape (n_draws,).
    """
    scenarios = _drawn_scenarios(ensemble, conditions, n_draws, rng)
    seen = stacked([condition.seen for condition in conditions])
    padded = jnp.asarray(stacked_rows(rows), ensemble.dtype)
    values = rng.standard_normal((n_draws, *padded.shape[:2]))
    for some, processes, chosen in _by_chunk(ensemble, scenarios, _DRAWS_AT_ONCE):
        own = jnp.asarray(values[repeated(some)], ensemble.dtype)
        values[some] = np.asarray(_sampled(processes, chosen, own, seen, padded))[: len(some)]
    noise = np.asarray(scenarios.noise, dtype=float)
    return [values[:, place, : len(points)] for place, points in enumerate(rows)], list(noise.T)


def _drawn_scenarios(
    ensemble: Ensemble, conditions: Sequence[Condition], n_draws: int, rng: np.random.Generator
) -> Scenarios:
    # A process at random, then latents of each condition: of a Gaussian any, else one of the particles.
    process = np.zeros(n_draws, int)
    if ensemble.n_processes > 1:
        process = _picked_places(_process_weights(ensemble, conditions)[None], rng.random(n_draws))
    parts: list[tuple[HostFloat, HostFloat]] = []
    for condition in conditions:
        if condition.gaussian is not None:
            mean, variance = np.asarray(condition.gaussian.mean[0]), np.asarray(condition.gaussian.variance[0])
            latents = mean + np.sqrt(variance) * rng.standard_normal((n_draws, len(mean)))
            parts.append((latents, np.full(n_draws, float(condition.noise[0, 0]))))
        else:
            uniforms = rng.random(n_draws) if condition.noise.shape[1] > 1 else np.zeros(n_draws)
            parts.append(_at_particles(condition, process, _picked_places(condition.weights[process], uniforms)))
    return _scenarios(process, parts)


def _weighted_scenarios(
    ensemble: Ensemble, conditions: Sequence[Condition], *, n_rows: int
) -> tuple[Scenarios, HostFloat]:
    """Return scenarios that stand for all, with weights: those of the marginal predictions where that is possible."""
    uncertain = [condition for condition in conditions if condition.noise.shape[1] > 1]
    if not uncertain:
        process, weights = np.arange(ensemble.n_processes), ensemble.weights
        places = [np.zeros_like(process)] * len(conditions)
    elif len(uncertain) == 1 and (ensemble.n_processes > 1 or len(conditions) == 1):
        process, place, weights = chosen_particles(ensemble, uncertain[0])
        places = [place if each is uncertain[0] else np.zeros_like(place) for each in conditions]
    else:
        n_scenarios = int(np.clip(_ENTRIES_OF_ALL_SCENARIOS // n_rows**2, _FEWEST_SCENARIOS, MOST_PARTICLES))
        n_scenarios = 1 << (n_scenarios.bit_length() - 1)
        uniforms = iter(unit_nodes(n_scenarios, (ensemble.n_processes > 1) + len(uncertain)).T)
        process, weights = np.zeros(n_scenarios, int), np.full(n_scenarios, 1 / n_scenarios)
        if ensemble.n_processes > 1:
            process = _picked_places(_process_weights(ensemble, conditions)[None], next(uniforms))
        own = (next(uniforms) if each.noise.shape[1] > 1 else np.zeros(n_scenarios) for each in conditions)
        places = [_picked_places(each.weights[process], of_it) for each, of_it in zip(conditions, own, strict=True)]
    pairs = zip(conditions, places, strict=True)
    return _scenarios(process, [_at_particles(each, process, place) for each, place in pairs]), weights


def _process_weights(ensemble: Ensemble, conditions: Sequence[Condition]) -> HostFloat:
    # Processes count as much as all conditions together say: p(process) Π p(y_new | process).
    base = np.asarray(ensemble.log_weights, dtype=float)
    told = [logsumexp(np.asarray(each.log_weights, dtype=float), axis=1) - base for each in conditions]
    log_weights = base + sum(told)
    return np.exp(log_weights - logsumexp(log_weights))


def _picked_places(weights: HostFloat, uniforms: HostFloat) -> HostInt:
    # The entry of each row of weights at which their cumulated share passes the uniform number.
    ends = np.cumsum(weights, axis=1)
    return np.minimum(np.sum(ends <= uniforms[:, None] * ends[:, -1:], axis=1), weights.shape[1] - 1)


def _at_particles(condition: Condition, process: HostInt, place: HostInt) -> tuple[HostFloat, HostFloat]:
    return np.asarray(condition.latents)[process, place], np.asarray(condition.noise)[process, place]


def _scenarios(process: HostInt, parts: Sequence[tuple[HostFloat, HostFloat]]) -> Scenarios:
    latents, noise = (np.stack(values, axis=1) for values in zip(*parts, strict=True))
    return Scenarios(jnp.asarray(process), jnp.asarray(latents), jnp.asarray(noise))


def _by_chunk(ensemble: Ensemble, scenarios: Scenarios, most: int) -> Iterator[tuple[HostInt, Process, Scenarios]]:
    # At most so many scenarios whose processes are at hand, padded by repeating them; which they are comes first.
    process = np.asarray(scenarios.process)
    for numbers, processes in chunks(ensemble):
        own = np.flatnonzero((process >= numbers[0]) & (process <= numbers[-1]))
        for start in range(0, len(own), most):
            some = own[start : start + most]
            places = repeated(some)
            chosen = jax.tree.map(lambda leaf, places=places: leaf[places], scenarios)
            moved = eqx.tree_at(lambda tree: tree.process, chosen, chosen.process - int(numbers[0]))
            yield some, processes, in_precision(moved, ensemble.dtype)


def _process_at(processes: Process, number: Int[Array, ""]) -> Process:
    # One process serves all scenarios without being copied for each.
    return picked(processes, 0 if jax.tree.leaves(processes)[0].shape[0] == 1 else number)


@compiled
def _weighted_sums(
    output: RelativeOutput | None,
    processes: Process,
    scenarios: Scenarios,
    weights: Float[Array, " L"],
    seen: FewObservations | None,
    rows: Float[Array, "C n Q_X"],
) -> tuple[Float[Array, " rows"], Float[Array, "rows rows"]]:
    """Return Σ_l w_l m_l and Σ_l w_l (C_l + m_l m_lᵀ) over scenarios."""

    def add(sums: tuple[Array, Array], given: tuple[Scenarios, Array]) -> tuple[tuple[Array, Array], None]:
        scenario, weight = given
        mean, covariance = given_scenario(_process_at(processes, scenario.process), scenario, seen, rows)
        if output is not None:
            mean, covariance = output.moments(mean, covariance, scenario.noise)
        return (sums[0] + weight * mean, sums[1] + weight * (covariance + jnp.outer(mean, mean))), None

    size = rows.shape[0] * rows.shape[1]
    begin = (jnp.zeros(size, rows.dtype), jnp.zeros((size, size), rows.dtype))
    return jax.lax.scan(add, begin, (scenarios, weights))[0]


@compiled
def _sampled(
    processes: Process,
    scenarios: Scenarios,
    normals: Float[Array, "L C n"],
    seen: FewObservations | None,
    rows: Float[Array, "C n Q_X"],
) -> Float[Array, "L C n"]:
    def one(given: tuple[Scenarios, Array]) -> Array:
        scenario, own = given
        mean, covariance = given_scenario(_process_at(processes, scenario.process), scenario, seen, rows)
        return (mean + cholesky(covariance) @ own.reshape(-1)).reshape(own.shape)

    return jax.lax.map(one, (scenarios, normals))


def given_scenario(
    process: Process, scenario: Scenarios, seen: FewObservations | None, rows: Float[Array, "C n Q_X"]
) -> tuple[Float[Array, " rows"], Float[Array, "rows rows"]]:
    """Return mean and covariance of f at the rows of all conditions in one scenario.

    Prediction errors are joint: with E = [I, −W] over rows and observations, cov(e) = E κ Eᵀ + W diag(σ²) Wᵀ.
    """
    latents = process.latents(scenario.latents)
    inputs = jax.vmap(process.inputs)(rows)
    mean = jax.vmap(process.explained.mean)(inputs, latents)
    pairs = _Pairs(process, latents, gram(process.latents.kernel, scenario.latents))
    kernel = process.inputs.kernel
    covariance = pairs.covariance(_each_pair(lambda x, other: cross(kernel, x, other), rows, rows), inputs, inputs)
    if seen is None:
        return mean.reshape(-1), _as_matrix(covariance)
    curves = jax.vmap(lambda own, latent, noise: curve_given(process, own, latent, noise))(
        seen, scenario.latents, scenario.noise
    )
    to_own = jax.vmap(lambda own, curve, points: covariance_with_seen(process, curve, own, points))(seen, curves, rows)
    solve = jax.vmap(lambda factor, own: jax.scipy.linalg.cho_solve((factor, True), own.T).T)
    gain = solve(curves.factor, to_own)  # W = κ(x, X)(κ(X, X) + σ²I)⁻¹
    mean = mean + jnp.einsum("cnm,cm->cn", to_own, curves.solution)
    observed = jax.vmap(lambda own: own.features(process))(seen)
    prior = _each_pair(lambda points, other: at_points(points).gram_with(process, other), rows, seen)
    through = jnp.einsum("cdnm,dkm->cdnk", pairs.covariance(prior, inputs, observed), gain)  # κ(x, X') W'ᵀ
    prior = _each_pair(lambda own, other: own.gram_with(process, other), seen, seen)
    covariance = covariance - through - through.transpose(1, 0, 3, 2)
    covariance += jnp.einsum("cnm,cdmk,djk->cdnj", gain, pairs.covariance(prior, observed, observed), gain)
    noise = (scenario.noise[:, None] + seen.error_variances) * seen.present
    conditions = jnp.arange(len(latents))
    own_noise = jnp.einsum("cnm,cm,ckm->cnk", gain, noise, gain)  # W σ² Wᵀ
    return mean.reshape(-1), _as_matrix(covariance.at[conditions, conditions].add(own_noise))


class _Pairs(eqx.Module):
    # Pairs of conditions in one scenario: features of their latents, and k_H(h, h').
    process: Process
    latents: Float[Array, "C k"]
    between: Float[Array, "C C"]

    def covariance(
        self, prior: Float[Array, "C C n m"], first: Float[Array, "C n R"], second: Float[Array, "C m R"]
    ) -> Float[Array, "C C n m"]:
        """Return k_H(h, h') k_X less what the training data explain, for the points of each pair of conditions."""
        explained = _each_pair(
            lambda one, other: self.process.explained.covariance(*one, *other),
            (first, self.latents),
            (second, self.latents),
        )
        return self.between[:, :, None, None] * prior - explained


def _each_pair(function: Callable[[Any, Any], Array], first: Any, second: Any) -> Float[Array, "C C n m"]:
    return jax.vmap(lambda one: jax.vmap(lambda other: function(one, other))(second))(first)


def _as_matrix(blocks: Float[Array, "C C n n"]) -> Float[Array, "rows rows"]:
    n_conditions, _, n_rows, _ = blocks.shape
    return blocks.transpose(0, 2, 1, 3).reshape(n_conditions * n_rows, n_conditions * n_rows)
