"""Joint distributions of f over rows of several conditions.

Errors of predictions for different conditions covary through k_H and through what the conditions have seen: one with
observations of its own errs by e = f(x, h) − J f(X, h) − Jε (docs/mathematics.md, equation 24). Where one process
serves all and the latents of conditions are independent, the covariances of errors are averages in closed form
(equation 25). Else they are averaged over scenarios: one process with latents and noise of all conditions asked for.
Outputs of which a transform is modelled follow by equation 52.
"""

import itertools
from collections.abc import Iterator, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from scipy.special import logsumexp, softmax

from lvmogp.algebra.linalg import cholesky
from lvmogp.conditions.closed_form import covariance_of_errors
from lvmogp.conditions.condition import MOST_PARTICLES, Condition, chosen_particles
from lvmogp.conditions.curves import FewObservations, at_points, picked, stacked
from lvmogp.conditions.ensemble import Ensemble, chunks
from lvmogp.conditions.search import unit_nodes
from lvmogp.ground.compiling import compiled
from lvmogp.ground.padding import repeated, stacked_rows
from lvmogp.ground.precision import in_precision
from lvmogp.model.process import Process
from lvmogp.tables.scaling import Scaling, Transform
from lvmogp.typing import Array, Float, HostFloat, HostInt, Int, Scalar

# Scenarios of the latents of several conditions: the fewer, the larger the covariance that is averaged over them.
_FEWEST_SCENARIOS, _ENTRIES_OF_ALL_SCENARIOS = 64, 2**27
_DRAWS_AT_ONCE = 1_024
# Of one condition in a scenario: rows and observations, features of these, those of its latents, and its number.
_Member = tuple[list[FewObservations], Float[Array, "k R"], Float[Array, " M_C"], Int[Array, ""]]


class Scenarios(eqx.Module):
    """L scenarios: the process of each, and latents, noise σ² and own ρ² of C conditions in its coordinates."""

    process: Int[Array, "*L"]
    latents: Float[Array, "*L C Q_H"]
    noise: Float[Array, "*L C"]
    own: Float[Array, "*L C"]


class Asked(eqx.Module):
    """The rows asked for of C conditions, their numbers, −1 where never trained, and what was seen of these."""

    rows: Float[Array, "C n Q_X"]
    numbers: Int[Array, " C"]
    seen: FewObservations | None


def _asked(conditions: Sequence[Condition], rows: Float[Array, "C n Q_X"]) -> Asked:
    numbers = jnp.stack([condition.number for condition in conditions])
    return Asked(rows, numbers, stacked([condition.seen for condition in conditions]))


class RelativeOutput(eqx.Module):
    """How outputs at the rows of C conditions, divided by their means, follow from f: r = t⁻¹(location + scale · f)."""

    transform: Transform
    location: Float[Array, "C n"]
    scale: Float[Array, "C n"]
    include_noise: bool = eqx.field(static=True)

    def moments(
        self, mean: Float[Array, " rows"], covariance: Float[Array, "rows rows"], noise: Float[Array, " C"]
    ) -> tuple[Float[Array, " rows"], Float[Array, "rows rows"]]:
        """Return ⟨r⟩ − 1 and cov(r, r') in a scenario with these moments of f (equation 52)."""
        location, scale = self.location.reshape(-1), self.scale.reshape(-1)
        of_rows = jnp.repeat(noise * self.include_noise, self.location.shape[1])
        mean, covariance = location + scale * mean, jnp.outer(scale, scale) * (covariance + jnp.diag(of_rows))
        return self.transform.excess(mean, jnp.diag(covariance)), self.transform.covariance(mean, covariance)


def relative_output(scaling: Scaling, means: Sequence[HostFloat], *, include_noise: bool) -> RelativeOutput:
    """Return how outputs at the rows of several conditions, divided by ``means`` of each, follow from f."""
    assert scaling.transform is not None  # the output itself need not be divided
    stacked = stacked_rows([of_rows[:, None] for of_rows in means])[..., 0]
    location, scale = scaling.transform.divided(scaling.output_mean, scaling.output_scale, stacked)
    return RelativeOutput(scaling.transform, jnp.asarray(location), jnp.asarray(scale), include_noise)


def joint_covariance(
    ensemble: Ensemble, conditions: Sequence[Condition], rows: list[HostFloat], output: RelativeOutput | None = None
) -> HostFloat:
    """Return the covariance of f between the rows of all conditions, one condition after the other.

    Of transformed outputs it is that relative to their means (equation 52).
    """
    padded = jnp.asarray(stacked_rows(rows), ensemble.dtype)
    plain = ensemble.fit is not None and ensemble.fit.posterior.parameters.kernels.is_plain
    if ensemble.fit is not None and plain and output is None:
        found = covariance_of_errors(ensemble, ensemble.fit.posterior, conditions, padded)
    else:
        found = _covariance_over_scenarios(ensemble, conditions, padded, output)
    present = np.concatenate([np.arange(padded.shape[1]) < len(points) for points in rows])
    return found[np.ix_(present, present)]


def _covariance_over_scenarios(
    ensemble: Ensemble, conditions: Sequence[Condition], rows: Float[Array, "C n Q_X"], output: RelativeOutput | None
) -> HostFloat:
    size = rows.shape[0] * rows.shape[1]
    scenarios, weights = _weighted_scenarios(ensemble, conditions, n_rows=size)
    asked, output = _asked(conditions, rows), in_precision(output, ensemble.dtype)
    mean, second = np.zeros(size), np.zeros((size, size))
    for some, processes, chosen in _by_chunk(ensemble, scenarios, len(weights)):
        own = np.zeros(len(chosen.process))  # what is padded has no weight
        own[: len(some)] = weights[some]
        parts = _weighted_sums(output, processes, chosen, jnp.asarray(own, ensemble.dtype), asked)
        mean, second = mean + np.asarray(parts[0]), second + np.asarray(parts[1])
    return second - np.outer(mean, mean)


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
    padded = jnp.asarray(stacked_rows(rows), ensemble.dtype)
    asked, values = _asked(conditions, padded), rng.standard_normal((n_draws, *padded.shape[:2]))
    for some, processes, chosen in _by_chunk(ensemble, scenarios, _DRAWS_AT_ONCE):
        own = jnp.asarray(values[repeated(some)], ensemble.dtype)
        values[some] = np.asarray(_sampled(processes, chosen, own, asked))[: len(some)]
    noise = np.asarray(scenarios.noise, dtype=float)
    return [values[:, place, : len(points)] for place, points in enumerate(rows)], list(noise.T)


def _drawn_scenarios(
    ensemble: Ensemble, conditions: Sequence[Condition], n_draws: int, rng: np.random.Generator
) -> Scenarios:
    # A process at random, then latents of each condition: of a Gaussian any, else one of the particles.
    uniforms = (rng.random(n_draws) for _ in itertools.count())
    process, parts = _picked_processes(ensemble, conditions, n_draws, uniforms), []
    for condition in conditions:
        if condition.gaussian is None:
            parts.append(_at_particles(condition, process, _picked_places(condition, process, uniforms)))
        else:
            mean, variance = np.asarray(condition.gaussian.mean[0]), np.asarray(condition.gaussian.variance[0])
            latents = mean + np.sqrt(variance) * rng.standard_normal((n_draws, len(mean)))
            noise, own = np.asarray(condition.noise[0]), float(condition.own[0, 0])
            # The noise is drawn too where it is uncertain.
            places = rng.integers(len(noise), size=n_draws) if np.ptp(noise) > 0 else np.zeros(n_draws, int)
            parts.append((latents, noise[places], np.full(n_draws, own)))
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
        process = _picked_processes(ensemble, conditions, n_scenarios, uniforms)
        weights = np.full(n_scenarios, 1 / n_scenarios)
        places = [_picked_places(each, process, uniforms) for each in conditions]
    pairs = zip(conditions, places, strict=True)
    return _scenarios(process, [_at_particles(each, process, place) for each, place in pairs]), weights


def _picked_processes(
    ensemble: Ensemble, conditions: Sequence[Condition], count: int, uniforms: Iterator[HostFloat]
) -> HostInt:
    # Processes count as much as all conditions together say: p(process) Π p(y_new | process).
    if ensemble.n_processes == 1:
        return np.zeros(count, int)
    base = np.asarray(ensemble.log_weights, dtype=float)
    told = [logsumexp(np.asarray(each.log_weights, dtype=float), axis=1) - base for each in conditions]
    return _passed(softmax(base + sum(told))[None], next(uniforms))


def _picked_places(condition: Condition, process: HostInt, uniforms: Iterator[HostFloat]) -> HostInt:
    # One of the particles that a condition has under each process.
    if condition.noise.shape[1] == 1:
        return np.zeros_like(process)
    return _passed(condition.weights[process], next(uniforms))


def _passed(weights: HostFloat, uniforms: HostFloat) -> HostInt:
    # The entry of each row of weights at which their cumulated share passes the uniform number.
    ends = np.cumsum(weights, axis=1)
    return np.minimum(np.sum(ends <= uniforms[:, None] * ends[:, -1:], axis=1), weights.shape[1] - 1)


def _at_particles(condition: Condition, process: HostInt, place: HostInt) -> tuple[HostFloat, ...]:
    return tuple(np.asarray(each)[process, place] for each in (condition.latents, condition.noise, condition.own))


def _scenarios(process: HostInt, parts: Sequence[tuple[HostFloat, ...]]) -> Scenarios:
    return Scenarios(jnp.asarray(process), *(jnp.asarray(np.stack(each, axis=1)) for each in zip(*parts, strict=True)))


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
    asked: Asked,
) -> tuple[Float[Array, " rows"], Float[Array, "rows rows"]]:
    """Return Σ_l w_l m_l and Σ_l w_l (C_l + m_l m_lᵀ) over scenarios."""

    def add(sums: tuple[Array, Array], given: tuple[Scenarios, Array]) -> tuple[tuple[Array, Array], None]:
        scenario, weight = given
        mean, covariance = given_scenario(_process_at(processes, scenario.process), scenario, asked)
        if output is not None:
            mean, covariance = output.moments(mean, covariance, scenario.noise)
        return (sums[0] + weight * mean, sums[1] + weight * (covariance + jnp.outer(mean, mean))), None

    size, dtype = asked.rows.shape[0] * asked.rows.shape[1], asked.rows.dtype
    begin = (jnp.zeros(size, dtype), jnp.zeros((size, size), dtype))
    return jax.lax.scan(add, begin, (scenarios, weights))[0]


@compiled
def _sampled(
    processes: Process, scenarios: Scenarios, normals: Float[Array, "L C n"], asked: Asked
) -> Float[Array, "L C n"]:
    def one(given: tuple[Scenarios, Array]) -> Array:
        scenario, own = given
        mean, covariance = given_scenario(_process_at(processes, scenario.process), scenario, asked)
        return (mean + cholesky(covariance) @ own.reshape(-1)).reshape(own.shape)

    return jax.lax.map(one, (scenarios, normals))


def _prior(
    process: Process, shared: Float[Array, " terms"], first: FewObservations, second: FewObservations
) -> Float[Array, "m k"]:
    # What multiplies each input kernel times its covariances; between two conditions there is nothing of own curves.
    return jnp.tensordot(shared, first.gram_with(process, second)[: len(shared)], axes=1)


def given_scenario(
    process: Process, scenario: Scenarios, asked: Asked
) -> tuple[Float[Array, " rows"], Float[Array, "rows rows"]]:
    """Return mean and covariance of f at the rows of all conditions in one scenario.

    Prediction errors are joint: with E = [I, −J] over rows and observations, cov(e) = E κ Eᵀ + J diag(σ²) Jᵀ.
    """
    n_rows, seen, numbers = asked.rows.shape[1], asked.seen, jnp.arange(len(asked.rows))
    places = [jax.vmap(at_points)(asked.rows), *([] if seen is None else [seen])]
    features = jnp.concatenate([jax.vmap(lambda own: own.features(process))(each) for each in places], axis=1)
    latents = process.latents(scenario.latents)
    members = (places, features, latents, asked.numbers)

    def of_pair(one: _Member, other: _Member, shared: Float[Array, " terms"]) -> Float[Array, "k l"]:
        # k_H(h, h') k_X less what the training data explain, between all places of two conditions
        blocks = [[_prior(process, shared, first, second) for second in other[0]] for first in one[0]]
        return jnp.block(blocks) - process.explained.covariance(*one[1:3], *other[1:3], (one[3], other[3]))

    def of_one(one: _Member, shared: Float[Array, " kernels"]) -> tuple[Float[Array, " k"], Float[Array, "k k"]]:
        explained = process.explained.at_latent(one[2], one[3])
        blocks = [[_prior(process, shared, first, second) for second in one[0]] for first in one[0]]
        return explained.mean(one[1]), jnp.block(blocks) - explained.covariance(one[1], one[1])

    of_pairs = jax.vmap(jax.vmap(of_pair, in_axes=(None, 0, 0)), in_axes=(0, None, 0))
    between = process.latents.prior(scenario.latents, scenario.latents)  # k_H(h, h') of each term
    joint = of_pairs(members, members, jnp.moveaxis(between, 0, -1))
    mean, own = jax.vmap(of_one)(members, jax.vmap(process.scales)(scenario.latents, scenario.own))
    joint = joint.at[numbers, numbers].set(own)
    covariance = joint[:, :, :n_rows, :n_rows]
    if seen is not None:

        def gain_of(own: FewObservations, among: Float[Array, "k k"], noise: Scalar) -> Float[Array, "n m"]:
            factor = own.factor(among[n_rows:, n_rows:], noise)
            return cho_solve((factor, True), among[n_rows:, :n_rows]).T  # J = κ(x, X)(κ(X, X) + σ²I)⁻¹

        gain = jax.vmap(gain_of)(seen, joint[numbers, numbers], scenario.noise)
        mean = mean[:, :n_rows] + jnp.einsum("cnm,cm->cn", gain, seen.values - mean[:, n_rows:])
        through = jnp.einsum("cdnm,dkm->cdnk", joint[:, :, :n_rows, n_rows:], gain)  # κ(x, X') J'ᵀ
        covariance = covariance - through - through.transpose(1, 0, 3, 2)
        covariance += jnp.einsum("cnm,cdmk,djk->cdnj", gain, joint[:, :, n_rows:, n_rows:], gain)
        noise = (scenario.noise[:, None] + seen.error_variances) * seen.present
        covariance = covariance.at[numbers, numbers].add(jnp.einsum("cnm,cm,ckm->cnk", gain, noise, gain))  # J σ² Jᵀ
    return mean.reshape(-1), covariance.transpose(0, 2, 1, 3).reshape(mean.size, mean.size)
