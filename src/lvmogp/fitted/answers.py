"""What a fitted model answers for rows of conditions, in the user's units."""

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from lvmogp.conditions import closed_form, joint, predictive
from lvmogp.conditions.condition import Condition, mean_noise
from lvmogp.conditions.ensemble import ClosedForm, Ensemble, aligned
from lvmogp.errors import SettingError
from lvmogp.fitted.model import FittedModel, all_features, all_latents, find_condition
from lvmogp.fitted.queries import Query
from lvmogp.ground.compiling import compiled
from lvmogp.kernels.covariances import Kernel, cross, diagonal, leaves, stacked_diagonal
from lvmogp.kernels.psi_statistics import LatentGaussians, expected_cross, psi0
from lvmogp.model.parameters import Kernels
from lvmogp.tables.ids import Id
from lvmogp.typing import Array, Float, HostFloat, HostInt


def _closed_form(model: FittedModel) -> ClosedForm | None:
    # Latents that are Gaussian have closed-form moments, where the output itself is modelled.
    return model.ensemble.fit if model.scaling.transform is None else None


def _conditions(model: FittedModel, rows: Query, but: Collection[Id] = ()) -> Iterator[tuple[HostInt, Condition]]:
    # Rows of each condition but some, with that condition.
    if but and set(but).issuperset(rows.ids.distinct):
        return
    for name, places in rows.ids.rows().items():
        if name not in but:
            yield places, find_condition(model, name, unseen=rows.unseen)


def _parts(model: FittedModel, rows: Query, *, slopes: bool = False) -> Iterator[tuple[HostInt, predictive.Curves]]:
    # Predictive curves of some rows at a time, all of trained conditions or all of one other condition.
    ensemble, points = model.ensemble, model.scaling.inputs(rows.inputs)
    numbers = rows.ids.numbers_in(model.ids)
    order = np.argsort(numbers, kind="stable")
    for some in predictive.pieces(order[numbers[order] >= 0]):
        yield some, predictive.trained_curves(ensemble, points[some], numbers[some], slopes=slopes)
    for places, condition in _conditions(model, rows, but=model.ids):
        for some in predictive.pieces(places):
            yield some, predictive.condition_curves(ensemble, condition, points[some], slopes=slopes)


def _ask(model: FittedModel, rows: Query, *, include_noise: bool) -> predictive.Ask:
    # Statistics of the predictive mixtures of rows.
    def ask(values: HostFloat, statistic: predictive.Statistic) -> HostFloat:
        found = np.empty(values.shape)
        for some, curves in _parts(model, rows):
            found[some] = predictive.statistic_of(curves, values[some], statistic, include_noise=include_noise)
        return found

    return ask


def moments(
    model: FittedModel, rows: Query, *, include_noise: bool, with_variance: bool = True
) -> tuple[HostFloat, HostFloat]:
    """Return mean and variance of the output; without variances, where that is quicker, these are zero.

    Where all conditions are asked about, both are of shape (points, conditions).
    """
    fit, scaling = _closed_form(model), model.scaling
    if fit is None or rows.n_columns is None:
        mean, variance = _row_moments(model, rows, include_noise=include_noise)
        return rows.as_columns(mean), rows.as_columns(variance)
    mean, variance = closed_form.trained_grid_moments(fit, scaling.inputs(rows.points), with_variance=with_variance)
    if with_variance:
        noise = np.asarray(model.ensemble.noise[0], dtype=float)
        variance = scaling.variance(variance + noise * include_noise)
    return scaling.location(mean), variance


def _row_moments(model: FittedModel, rows: Query, *, include_noise: bool) -> tuple[HostFloat, HostFloat]:
    fit, scaling = _closed_form(model), model.scaling
    found, left = np.zeros((2, len(rows.ids))), np.ones(len(rows.ids), dtype=bool)
    if fit is not None:
        points, noise = scaling.inputs(rows.inputs), np.asarray(model.ensemble.noise[0], dtype=float)
        numbers = rows.ids.numbers_in(model.ids)
        left = numbers < 0
        known = ~left if left.any() else slice(None)
        if not left.all():
            found[:, known] = closed_form.trained_row_moments(fit, points[known], numbers[known])
            found[1, known] += noise[numbers[known]] * include_noise
        for name, places in rows.ids.rows().items() if left.any() else ():
            condition = model.added[name].condition if name in model.added else None
            if condition is not None and condition.gaussian is not None:
                found[:, places] = closed_form.gaussian_row_moments(fit, condition.gaussian, points[places])
                found[1, places] += mean_noise(model.ensemble, condition) * include_noise
                left[places] = False
        found = np.stack([scaling.location(found[0]), scaling.variance(found[1])])
    if left.any():
        ask = _ask(model, rows.some(np.flatnonzero(left)), include_noise=include_noise)
        found[:, left] = predictive.moments_in_units(ask, scaling, int(left.sum()))
    return found[0], found[1]


def quantiles(model: FittedModel, rows: Query, levels: Sequence[float], *, include_noise: bool) -> HostFloat:
    """Return quantiles of the output at each row, one column per level."""
    ask = _ask(model, rows, include_noise=include_noise)
    return predictive.quantiles_in_units(ask, model.scaling, np.broadcast_to(levels, (len(rows.ids), len(levels))))


def scores(
    model: FittedModel, rows: Query, outputs: HostFloat, errors: HostFloat, *, include_noise: bool
) -> predictive.Scores:
    """Judge the output of each row, its own error in measuring (a standard deviation) beside the noise."""
    return predictive.scores_in_units(_ask(model, rows, include_noise=include_noise), model.scaling, outputs, errors)


def moments_and_covariance(model: FittedModel, rows: Query, *, include_noise: bool) -> tuple[HostFloat, HostFloat]:
    """Return the mean and the joint covariance of the outputs of all rows, across conditions too.

    The variances are those of each condition alone, also where new conditions change the weights of the processes that
    all rows of a joint answer share.
    """
    inputs, scaling, fit, transform = rows.inputs, model.scaling, _closed_form(model), model.scaling.transform
    # Of an output that is modelled as it is, the noise is added at the end.
    with_noise = include_noise and transform is not None
    mean, variance = _row_moments(model, rows, include_noise=with_noise)
    if len(inputs) == 0:
        return mean, np.empty((0, 0))
    groups, conditions = zip(*_conditions(model, rows), strict=True)
    points = [scaling.inputs(inputs[places]) for places in groups]
    output = None
    if transform is not None:
        means = [mean[places] for places in groups]
        output = joint.relative_output(scaling, means, include_noise=include_noise)
    order, covariance = np.concatenate(groups), np.empty((len(inputs), len(inputs)))
    covariance[np.ix_(order, order)] = joint.joint_covariance(model.ensemble, conditions, points, output)
    if transform is not None:
        return mean, predictive.with_variances(covariance * np.outer(mean, mean), variance)
    covariance = scaling.variance(covariance)
    if fit is None or not fit.posterior.parameters.kernels.is_plain:
        covariance = predictive.with_variances(covariance, variance)
    np.fill_diagonal(covariance, variance)
    for places, condition in zip(groups, conditions, strict=True):
        covariance[places, places] += include_noise * scaling.output_scale**2 * mean_noise(model.ensemble, condition)
    return mean, covariance


def sample(
    model: FittedModel, rows: Query, *, n_draws: int, include_noise: bool, rng: np.random.Generator
) -> HostFloat:
    """Draw the output jointly at all rows, of shape (n_draws, rows)."""
    if len(rows.ids) == 0:
        return np.empty((n_draws, 0))
    groups, conditions = zip(*_conditions(model, rows), strict=True)
    points = [model.scaling.inputs(rows.inputs[places]) for places in groups]
    curves, noises = joint.draw_curves(model.ensemble, conditions, points, n_draws=n_draws, rng=rng)
    draws = np.empty((n_draws, len(rows.ids)))
    for places, values, noise in zip(groups, curves, noises, strict=True):
        extra = np.sqrt(noise)[:, None] * rng.standard_normal(values.shape) if include_noise else 0.0
        draws[:, places] = values + extra
    return model.scaling.quantity(draws)


def moment_gradients(model: FittedModel, rows: Query, *, include_noise: bool) -> tuple[HostFloat, HostFloat]:
    """Return derivatives of the mean and the variance of the output in each input column."""
    fit, scaling, inputs = _closed_form(model), model.scaling, rows.inputs
    found, left = np.empty((2, *inputs.shape)), np.ones(len(inputs), dtype=bool)
    for places, condition in _conditions(model, rows) if fit is not None else ():
        if fit is not None and condition.gaussian is not None:
            slopes = closed_form.gaussian_slopes(fit, condition, scaling.inputs(inputs[places]))
            found[:, places] = scaling.output_scale * slopes[0], scaling.variance(slopes[1])
            left[places] = False
    others, statistic = np.flatnonzero(left), predictive.OutputMoments(scaling.transform)
    for some, curves in _parts(model, rows.some(others), slopes=True):
        factors = predictive.output_factors(scaling, len(some))
        slopes = predictive.statistic_of(curves, factors, statistic, include_noise=include_noise, slopes=True)
        found[:, others[some]] = np.moveaxis(slopes, 1, 0)
    by_input = scaling.input_slopes(inputs)  # dm/dx = dm/dz dz/dx
    return found[0] * by_input, found[1] * by_input


def moments_at_latents(
    model: FittedModel, inputs: HostFloat, latents: HostFloat, *, include_noise: bool
) -> tuple[HostFloat, HostFloat]:
    """Return mean and variance of the output at given aligned latents, one for all rows or one per row."""
    ensemble, scaling = model.ensemble, model.scaling
    distinct, numbers = np.unique(latents, axis=0, return_inverse=True)
    # A point g in aligned coordinates is gRᵀ in those of a process.
    own = jnp.einsum("kq,spq->skp", jnp.asarray(distinct, ensemble.dtype), ensemble.rotations)[:, :, None]
    points, rows = scaling.inputs(inputs), np.broadcast_to(numbers.reshape(-1), len(inputs))
    # The geometric means of all conditions.
    typical = (jnp.exp(jnp.mean(jnp.log(each), axis=1, keepdims=True)) for each in (ensemble.noise, ensemble.own))
    noise, scale = (jnp.broadcast_to(each, own.shape[:2]) for each in typical)
    members = predictive.Members(own, noise[..., None], scale)
    found = np.empty((len(inputs), 2))
    for some in predictive.pieces(np.arange(len(inputs))):
        curves = predictive.curves_of_members(ensemble, members, points[some], rows[some])
        factors, statistic = predictive.output_factors(scaling, len(some)), predictive.OutputMoments(scaling.transform)
        found[some] = predictive.statistic_of(curves, factors, statistic, include_noise=include_noise)
    return found[:, 0], found[:, 1]


# Tables of conditions


def latent_table(model: FittedModel) -> pd.DataFrame:
    """Return a row for each condition: its id, mean and deviation of each latent dimension, whether it was added."""
    latents = all_latents(model)
    means, deviations = np.asarray(latents.mean), np.sqrt(np.asarray(latents.variance))
    columns: dict[str, Any] = {}
    for dimension in range(model.n_latent):
        columns[f"mean_{dimension + 1}"] = means[:, dimension]
        columns[f"sd_{dimension + 1}"] = deviations[:, dimension]
    return _by_condition(model, columns)


def condition_feature_table(model: FittedModel) -> pd.DataFrame | None:
    """Return a row for each condition: its id and known features, whether it was added; ``None`` without features."""
    features = all_features(model)
    return None if features is None else _by_condition(model, features.decoded(features.values[: len(model.all_ids)]))


def _by_condition(model: FittedModel, columns: dict[str, Any]) -> pd.DataFrame:
    ids = pd.Series(list(model.all_ids), dtype=object)
    return pd.DataFrame({"condition": ids, **columns, "added": [name in model.added for name in model.all_ids]})


def similarity_table(model: FittedModel) -> pd.DataFrame:
    """Return the prior correlation of the curves of each pair of conditions, by their ids; one on the diagonal.

    In closed form, ⟨k_H(h, h')⟩/√(ψψ'), where latents are Gaussian; else averaged over processes and particles. Terms
    count by their variances; own curves make conditions less alike.
    """
    names, fit = pd.Index(list(model.all_ids), dtype=object, tupleize_cols=False), model.ensemble.fit
    if fit is None:
        between = _averaged_correlations(model.ensemble, [entry.condition for entry in model.added.values()])
    else:
        kernels = fit.posterior.parameters.kernels
        between = np.array(_expected_correlations(kernels, all_latents(model), model.schema.n_columns))
    np.fill_diagonal(between, 1.0)
    return pd.DataFrame(between, index=names, columns=names)


@compiled
def _expected_correlations(kernels: Kernels, latents: LatentGaussians, n_columns: int) -> Float[Array, "D D"]:
    variances = _term_variances(kernels, n_columns)
    shared, own = jnp.zeros(()), jnp.zeros(len(latents.mean))
    for term, variance in zip(kernels.terms, variances, strict=False):
        if term.latent_kernel is None:
            shared, own = shared + variance, own + variance
        else:
            shared = shared + variance * expected_cross(term.latent_kernel, latents, latents)
            own = own + variance * psi0(term.latent_kernel, latents)
    own = own if kernels.own is None else own + variances[-1]
    return shared / jnp.sqrt(jnp.outer(own, own))


def _term_variances(kernels: Kernels, n_columns: int) -> Float[Array, " kernels"]:
    # Of each input kernel, in the middle of the inputs.
    return stacked_diagonal(kernels.of_inputs, jnp.zeros((1, n_columns)))[:, 0]


def _averaged_correlations(ensemble: Ensemble, added: Sequence[Condition]) -> HostFloat:
    # A pair's processes count as much as what its added conditions have seen says: p(process) Π p(y_new | process).
    assert ensemble.source is not None  # of draws
    kernels, latents = ensemble.source.draws.kernels, ensemble.latents
    correlations = partial(_correlations, kernels, ensemble.n_columns)
    n_trained, base = latents.shape[1], ensemble.weights
    between = np.eye(n_trained + len(added))
    between[:n_trained, :n_trained] = np.tensordot(base, np.asarray(correlations(latents, latents)), axes=1)
    for place, first in enumerate(added, n_trained):
        # Σ_k w_sk k(h_k, h_d)/√… is a sum over processes and particles at once.
        to_trained = correlations(first.latents, latents)
        between[place, :n_trained] = np.einsum("sk,skd->d", first.weights, to_trained)
        for other, second in enumerate(added[: place - n_trained], n_trained):
            pairs = correlations(first.latents, second.latents)
            averages = np.einsum("sk,skl,sl->s", first.weights, pairs, second.weights)
            shared = first.weights.sum(axis=1) * second.weights.sum(axis=1)
            between[place, other] = np.sum(averages / base) / np.sum(shared / base)
        between[:place, place] = between[place, :place]
    return between


@compiled
def _correlations(
    kernels: Kernels, n_columns: int, first: Float[Array, "S n Q_H"], second: Float[Array, "S m Q_H"]
) -> Float[Array, "S n m"]:
    """Return the prior correlation of curves at latents under each process, Σ v k_H(h, h')/√(Σ v k_H(h, h) …)."""

    def one(draw: tuple[Kernels, Array, Array]) -> Array:
        own, here, there = draw
        variances = _term_variances(own, n_columns)
        between, scales = jnp.zeros((len(here), len(there))), [jnp.zeros(len(each)) for each in (here, there)]
        for term, variance in zip(own.terms, variances, strict=False):
            kernel = term.latent_kernel
            between += variance * (1.0 if kernel is None else cross(kernel, here, there))
            parts = (1.0 if kernel is None else diagonal(kernel, each) for each in (here, there))
            scales = [scale + variance * part for scale, part in zip(scales, parts, strict=True)]
        scales = scales if own.own is None else [scale + variances[-1] for scale in scales]
        return between / jnp.sqrt(scales[0][:, None] * scales[1])

    return jax.lax.map(one, (kernels, first, second))


def inference_data(model: FittedModel) -> Any:
    """Draws of a fitted model as ``arviz.InferenceData``: chains × draws, those of all chains cut to the shortest."""
    if model.chains is None or model.chains.draws is None:
        raise SettingError('there are no draws to hand to ArviZ; fit with inference="nuts"')
    try:
        import arviz
    except ImportError:
        raise SettingError('to_arviz needs ArviZ, which is not installed: pip install "lvmogp[arviz]"') from None
    draws, statistics = model.chains.draws, model.chains.diagnostics.statistics
    chain, noise = np.asarray(draws.chain), np.asarray(draws.noise_variance)
    by_chain = [np.flatnonzero(chain == number) for number in np.unique(chain)]
    places = np.stack([numbers[: min(map(len, by_chain))] for numbers in by_chain])  # chains × draws
    columns = list(model.schema.columns or range(model.schema.n_columns))
    latents: list[Any] = list(range(1, model.n_latent + 1))
    if model.condition_features is not None:
        latents += model.condition_features.coordinate_names
    found: dict[str, tuple[HostFloat, list[str]]] = {
        **_hyperparameters_of_terms(draws.kernels, len(columns), len(latents)),
        "noise_variance": (noise[:, 0], []) if noise.shape[1] == 1 else (noise, ["condition"]),
        "latents": (np.asarray(aligned(draws, model.posterior.parameters.latent_mean)), ["condition", "latent"]),
    }
    told = {  # by the names that ArviZ gives them
        "lp": statistics.log_posterior,
        "energy": statistics.energy,
        "n_steps": statistics.n_leapfrogs,
        "tree_depth": np.ceil(np.log2(statistics.n_leapfrogs + 1)).astype(int),
        "acceptance_rate": statistics.acceptance,
        "diverging": statistics.diverging.astype(bool),
        "log_weight": np.asarray(draws.log_weight),
    }
    return arviz.from_dict(
        posterior={name: values[places] for name, (values, _) in found.items()},
        sample_stats={name: values[places] for name, values in told.items()},
        coords={
            "condition": [name if isinstance(name, str | int | float) else str(name) for name in model.ids],
            "column": columns,
            "latent": latents,
        },
        dims={name: own for name, (_, own) in found.items()},
    )


def _hyperparameters_of_terms(
    kernels: Kernels, n_columns: int, n_coordinates: int
) -> dict[str, tuple[HostFloat, list[str]]]:
    # Those of each term by its name; terms with latents are counted where they are several.
    found: dict[str, tuple[HostFloat, list[str]]] = {}
    several = len(kernels.of_latents) > 1
    for number, term in enumerate(kernels.terms, 1):
        if term.latent_kernel is None:
            found |= _hyperparameters("shared", term.input_kernel, "column", n_columns)
        else:
            suffix = f"_{number}" if several else ""
            found |= _hyperparameters(f"input{suffix}", term.input_kernel, "column", n_columns)
            found |= _hyperparameters(f"latent{suffix}", term.latent_kernel, "latent", n_coordinates)
    return found if kernels.own is None else found | _hyperparameters("own", kernels.own, "column", n_columns)


def _hyperparameters(side: str, kernel: Kernel, axis: str, size: int) -> dict[str, tuple[HostFloat, list[str]]]:
    # Values and dimensions of all that vary between draws, by name; terms of a composite kernel are counted.
    found = {}
    terms = leaves(kernel)
    for number, leaf in enumerate(terms, 1):
        prefix = f"{side}_kernel" if len(terms) == 1 else f"{side}_kernel_{number}"
        for field in ("lengthscale", "period", "shape", "variance"):
            values = np.asarray(getattr(leaf, field, ()))
            if values.size and not np.all(values == values[0]):
                found[f"{prefix}_{field}"] = values, [axis] if values.shape[1:] == (size,) else []
    return found
