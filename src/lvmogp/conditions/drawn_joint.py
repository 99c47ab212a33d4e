"""Joint covariances and samples over rows of several conditions under posterior draws.

A scenario is one draw with latents and noise of all conditions asked for. Given it, errors of the predictions are
jointly Gaussian, as in :mod:`lvmogp.conditions.joint`: a condition with observations of its own errs by
e = f(x, h) − W f(X, h) − Wε (docs/mathematics.md, equation 24). Outputs of which a transform is modelled
follow by equation 52.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp

from lvmogp.algebra.linalg import cholesky
from lvmogp.conditions.drawn_condition import MOST_MEMBERS, DrawnCondition, members_of
from lvmogp.conditions.drawn_curves import Few, covariance_with_few, few, given
from lvmogp.conditions.drawn_model import DrawnModel, chunks
from lvmogp.conditions.new_condition import unit_nodes
from lvmogp.conditions.stacking import in_pairs
from lvmogp.conditions.transformed import GivenScenario, RelativeOutput, relative_covariance
from lvmogp.ground.compiling import compiled
from lvmogp.ground.padding import rounded_up, stacked_rows
from lvmogp.kernels.covariances import cross, gram
from lvmogp.model.process import Conditional
from lvmogp.typing import Array, Float, HostFloat, HostInt, Int

# A condition asked for: the number of a trained one, or a new one.
Asked = int | DrawnCondition


class Scenarios(eqx.Module):
    """L scenarios: the draw of each, and latents and noise of C conditions in its coordinates."""

    draw: Int[Array, "*L"]
    latents: Float[Array, "*L C Q_H"]
    noise: Float[Array, "*L C"]


def joint_covariance(model: DrawnModel, conditions: Sequence[Asked], rows: list[HostFloat]) -> list[list[HostFloat]]:
    """Covariance of f between the rows of each pair of conditions, as blocks: that of the mixture over scenarios."""
    mean, second = _summed(model, conditions, rows, _weighted_sums)
    return in_pairs(second - np.outer(mean, mean), rows)


def output_covariance(
    model: DrawnModel, conditions: Sequence[Asked], rows: list[HostFloat], output: RelativeOutput
) -> list[list[HostFloat]]:
    """Covariance of outputs of which a transform is modelled, relative to their means, in blocks as above (eq. 52)."""
    sums = _summed(model, conditions, rows, partial(_relative_sums, output))
    return in_pairs(relative_covariance(*sums), rows)


def _summed(
    model: DrawnModel, conditions: Sequence[Asked], rows: list[HostFloat], sums: Callable[..., tuple[Array, Array]]
) -> tuple[HostFloat, HostFloat]:
    # Weighted sums over all scenarios of the conditions: a vector and a matrix.
    scenarios, weights = _weighted_scenarios(model, conditions)
    seen, padded = _seen(model, conditions), jnp.asarray(stacked_rows(rows))
    size = padded.shape[0] * padded.shape[1]
    vector, matrix = np.zeros(size), np.zeros((size, size))
    for some, conditionals, chosen in _by_chunk(model, scenarios):
        own = np.zeros(len(chosen.draw))  # what is padded has no weight
        own[: len(some)] = weights[some]
        parts = sums(conditionals, chosen, jnp.asarray(own), seen, padded)
        vector, matrix = vector + np.asarray(parts[0]), matrix + np.asarray(parts[1])
    return vector, matrix


def draw_curves(
    model: DrawnModel, conditions: Sequence[Asked], rows: list[HostFloat], *, n_draws: int, rng: np.random.Generator
) -> tuple[list[HostFloat], list[HostFloat]]:
    """Joint draws of f at the rows of several conditions, with the noise variance of each draw.

    Returns, for each condition, draws of shape (n_draws, rows) and noise variances of shape (n_draws,).
    """
    n_new = sum(isinstance(condition, DrawnCondition) for condition in conditions)
    scenarios = _scenarios(model, conditions, rng.random((n_draws, 1 + n_new)))
    seen, padded = _seen(model, conditions), jnp.asarray(stacked_rows(rows))
    normals = rng.standard_normal((n_draws, *padded.shape[:2]))
    values = np.empty(normals.shape)
    for some, conditionals, chosen in _by_chunk(model, scenarios):
        own = jnp.asarray(normals[np.resize(some, len(chosen.draw))])
        values[some] = np.asarray(_sampled(conditionals, chosen, own, seen, padded))[: len(some)]
    noise = np.asarray(scenarios.noise)
    return [values[:, place, : len(points)] for place, points in enumerate(rows)], list(noise.T)


def _weighted_scenarios(model: DrawnModel, conditions: Sequence[Asked]) -> tuple[Scenarios, HostFloat]:
    """Scenarios that stand for all, with weights: those of the marginal predictions where that is possible."""
    new = [condition for condition in conditions if isinstance(condition, DrawnCondition)]
    if not new:
        return _at_draws(model, conditions, np.arange(model.n_draws), []), model.weights
    if len(new) == 1:
        members, weights = members_of(new[0])
        chosen = [(np.asarray(members.latents), np.asarray(members.noise))]
        return _at_draws(model, conditions, np.asarray(members.draw), chosen), weights
    uniforms = unit_nodes(MOST_MEMBERS, 1 + len(new))
    return _scenarios(model, conditions, uniforms), np.full(MOST_MEMBERS, 1 / MOST_MEMBERS)


def _scenarios(model: DrawnModel, conditions: Sequence[Asked], uniforms: HostFloat) -> Scenarios:
    """Scenarios from uniform numbers, for a draw and for a particle of each new condition in it.

    Draws count as much as all new conditions together say: p(draw) Π p(y_new | draw).
    """
    base = np.asarray(model.draws.log_weight, dtype=float)
    new = [condition for condition in conditions if isinstance(condition, DrawnCondition)]
    log_weights = base + sum(logsumexp(np.asarray(item.log_weights, dtype=float), axis=1) - base for item in new)
    draw = _picked(np.exp(log_weights - logsumexp(log_weights))[None], uniforms[:, 0])
    chosen = []
    for place, item in enumerate(new):
        particle = _picked(item.weights[draw], uniforms[:, 1 + place])
        chosen.append((np.asarray(item.latents)[draw, particle], np.asarray(item.noise)[draw, particle]))
    return _at_draws(model, conditions, draw, chosen)


def _picked(weights: HostFloat, uniforms: HostFloat) -> HostInt:
    # The entry of each row of weights at which their cumulated share passes the uniform number.
    ends = np.cumsum(weights, axis=1)
    return np.minimum(np.sum(ends <= uniforms[:, None] * ends[:, -1:], axis=1), weights.shape[1] - 1)


def _at_draws(
    model: DrawnModel, conditions: Sequence[Asked], draw: HostInt, chosen: list[tuple[HostFloat, HostFloat]]
) -> Scenarios:
    latents, noise = np.asarray(model.draws.latents), np.asarray(model.noise)
    of_new = iter(chosen)
    parts = [
        next(of_new) if isinstance(condition, DrawnCondition) else (latents[draw, condition], noise[draw, condition])
        for condition in conditions
    ]
    return Scenarios(
        jnp.asarray(draw),
        jnp.asarray(np.stack([own for own, _ in parts], axis=1)),
        jnp.asarray(np.stack([own for _, own in parts], axis=1)),
    )


def _by_chunk(model: DrawnModel, scenarios: Scenarios) -> Iterator[tuple[HostInt, Conditional, Scenarios]]:
    # Scenarios whose draws are at hand, padded by repeating them; which they are comes first.
    draw = np.asarray(scenarios.draw)
    for numbers, conditionals in chunks(model):
        own = np.flatnonzero((draw >= numbers[0]) & (draw <= numbers[-1]))
        if len(own) == 0:
            continue
        places = np.resize(own, rounded_up(len(own)))
        chosen = Scenarios(scenarios.draw[places] - int(numbers[0]), scenarios.latents[places], scenarios.noise[places])
        yield own, conditionals, chosen


def _seen(model: DrawnModel, conditions: Sequence[Asked]) -> Few | None:
    """Observations of all conditions, stacked; trained ones have none of their own."""
    new = [condition.seen for condition in conditions if isinstance(condition, DrawnCondition)]
    if not any(np.any(np.asarray(seen.present)) for seen in new):
        return None
    size, n_columns = max(len(seen.values) for seen in new), new[0].inputs.shape[1]
    nothing = few(np.empty((0, n_columns)), np.empty(0))
    parts = [condition.seen if isinstance(condition, DrawnCondition) else nothing for condition in conditions]
    return jax.tree.map(lambda *leaves: jnp.stack([_longer(leaf, size) for leaf in leaves]), *parts)


def _longer(leaf: Array, size: int) -> Array:
    return jnp.pad(leaf, ((0, size - leaf.shape[0]), *[(0, 0)] * (leaf.ndim - 1)))


@compiled
def _weighted_sums(
    conditionals: Conditional,
    scenarios: Scenarios,
    weights: Float[Array, " L"],
    seen: Few | None,
    rows: Float[Array, "C n Q_X"],
) -> tuple[Float[Array, " rows"], Float[Array, "rows rows"]]:
    """Σ_l w_l m_l and Σ_l w_l (C_l + m_l m_lᵀ) over scenarios."""

    def add(sums: tuple[Array, Array], scenario: tuple[Array, Array, Array, Array]) -> tuple[tuple[Array, Array], None]:
        draw, latents, noise, weight = scenario
        process = jax.tree.map(lambda leaf: leaf[draw], conditionals)
        mean, covariance = _joint(process, latents, noise, seen, rows)
        return (sums[0] + weight * mean, sums[1] + weight * (covariance + jnp.outer(mean, mean))), None

    size = rows.shape[0] * rows.shape[1]
    begin = (jnp.zeros(size, rows.dtype), jnp.zeros((size, size), rows.dtype))
    return jax.lax.scan(add, begin, (scenarios.draw, scenarios.latents, scenarios.noise, weights))[0]


@compiled
def _relative_sums(
    output: RelativeOutput,
    conditionals: Conditional,
    scenarios: Scenarios,
    weights: Float[Array, " L"],
    seen: Few | None,
    rows: Float[Array, "C n Q_X"],
) -> tuple[Float[Array, " rows"], Float[Array, "rows rows"]]:
    def given_one(scenario: Scenarios) -> GivenScenario:
        process = jax.tree.map(lambda leaf: leaf[scenario.draw], conditionals)
        return GivenScenario(*_joint(process, scenario.latents, scenario.noise, seen, rows), scenario.noise)

    return output.sums(given_one, scenarios, weights)


@compiled
def _sampled(
    conditionals: Conditional,
    scenarios: Scenarios,
    normals: Float[Array, "L C n"],
    seen: Few | None,
    rows: Float[Array, "C n Q_X"],
) -> Float[Array, "L C n"]:
    def one(scenario: tuple[Array, Array, Array, Array]) -> Array:
        draw, latents, noise, own = scenario
        process = jax.tree.map(lambda leaf: leaf[draw], conditionals)
        mean, covariance = _joint(process, latents, noise, seen, rows)
        return (mean + cholesky(covariance) @ own.reshape(-1)).reshape(own.shape)

    return jax.lax.map(one, (scenarios.draw, scenarios.latents, scenarios.noise, normals))


def _joint(
    process: Conditional,
    latents: Float[Array, "C Q_H"],
    noise: Float[Array, " C"],
    seen: Few | None,
    rows: Float[Array, "C n Q_X"],
) -> tuple[Float[Array, " rows"], Float[Array, "rows rows"]]:
    """Mean and covariance of f at the rows of all conditions in one scenario."""
    features = process.latent_features(latents)
    inputs = jax.vmap(process.input_features)(rows)
    mean = jax.vmap(process.mean)(inputs, features)
    between = gram(process.latent_kernel, latents)
    if seen is None:
        return mean.reshape(-1), _as_matrix(_all_pairs(process, between, features, rows, inputs))
    known = jax.vmap(lambda own, latent, variance: given(process, own, latent, variance))(seen, latents, noise)
    to_seen = jax.vmap(lambda own, told, points, a: covariance_with_few(process, own, told, points, a))(
        seen, known, rows, inputs
    )
    solve = jax.vmap(lambda factor, own: jax.scipy.linalg.cho_solve((factor, True), own.T).T)
    gain = solve(known.factor, to_seen)  # W = κ(x, X)(κ(X, X) + σ²I)⁻¹
    mean = mean + jnp.einsum("cnm,cm->cn", to_seen, known.solution)
    everything = jnp.concatenate([rows, seen.inputs], axis=1)
    all_inputs = jnp.concatenate([inputs, known.inputs], axis=1)
    identity = jnp.broadcast_to(jnp.eye(rows.shape[1], dtype=rows.dtype), (*rows.shape[:2], rows.shape[1]))
    errors = jnp.concatenate([identity, -gain * seen.present[:, None, :]], axis=2)  # E = [I, −W]
    blocks = _all_pairs(process, between, features, everything, all_inputs)
    covariance = jnp.einsum("cnz,cdzy,dmy->cdnm", errors, blocks, errors)
    of_each = (noise[:, None] + seen.error_variances) * seen.present
    own_noise = jnp.einsum("cnm,cm,ckm->cnk", gain, of_each, gain)  # W σ² Wᵀ
    conditions = jnp.arange(len(latents))
    return mean.reshape(-1), _as_matrix(covariance.at[conditions, conditions].add(own_noise))


def _all_pairs(
    process: Conditional,
    between: Float[Array, "C C"],
    features: Float[Array, "C k"],
    points: Float[Array, "C n Q_X"],
    inputs: Float[Array, "C n R"],
) -> Float[Array, "C C n n"]:
    """k_H(h, h') k_X(x, x') less what the training data explain, for the points of each pair of conditions."""

    def pair(scale: Array, first: tuple[Array, Array, Array], second: tuple[Array, Array, Array]) -> Array:
        (c, x, a), (other_c, other_x, other_a) = first, second
        return scale * cross(process.input_kernel, x, other_x) - process.explained(a, c, other_a, other_c)

    conditions = (features, points, inputs)
    return jax.vmap(
        lambda scales, first: jax.vmap(lambda scale, second: pair(scale, first, second))(scales, conditions)
    )(between, conditions)


def _as_matrix(blocks: Float[Array, "C C n n"]) -> Float[Array, "rows rows"]:
    n_conditions, _, n_rows, _ = blocks.shape
    return blocks.transpose(0, 2, 1, 3).reshape(n_conditions * n_rows, n_conditions * n_rows)
