"""From observations and options to a trained model: at once, on from there to posterior draws, or by minibatches."""

import itertools
import os
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from lvmogp.errors import ConvergenceWarning, DataError, SettingError, warn
from lvmogp.fitted.model import Chains, Fit, FittedModel, fitted_model, origin_here
from lvmogp.fitted.model_file import encode_setting
from lvmogp.ground.compiling import compiled
from lvmogp.ground.precision import in_precision
from lvmogp.inference.minibatch.fit import fit_minibatches, shards_of
from lvmogp.inference.minibatch.settings import beyond_the_paper, is_stochastic, without_open_curves
from lvmogp.inference.nuts.sampling import sample_posterior, sampling_settings
from lvmogp.inference.optimise import Status
from lvmogp.inference.options import (
    AUTO,
    NUTS,
    Options,
    checked,
)
from lvmogp.inference.restarts import Outcome, Report, chosen, search
from lvmogp.model.layouts import Data, standardised
from lvmogp.model.parameters import of_conditions
from lvmogp.model.posterior import Posterior, curve_moments, grid_means, posterior, reordered
from lvmogp.storage.checkpoints import Checkpoints, checkpoints, fingerprint
from lvmogp.storage.codec import encode_id
from lvmogp.tables.features import ConditionFeatures, FeatureCoordinates, read_features
from lvmogp.tables.ids import Id
from lvmogp.tables.observations import Observations, ObservationStore, canonical_order, in_order
from lvmogp.tables.reading import read_training
from lvmogp.tables.scaling import (
    TRANSFORMS,
    Logarithm,
    Scaling,
    Transform,
    check_positive,
    differs_in_last_digits_only,
    scaling_of,
    spans_a_magnitude,
)
from lvmogp.typing import Array, Float, HostFloat

_posterior = compiled(posterior)
# Single precision that costs more is worth knowing of, in standard deviations of the output.
_NOTABLE_ROUNDING = 1e-2
# What a bound must gain for a transform of the output or of an input.
_LEAST_GAIN_OF_A_TRANSFORM = 1.0
# What a fit does not depend on, so that it can be resumed with other values.
_BESIDE_THE_FIT = ("condition", "unseen", "verbose")
_Key = TypeVar("_Key", bound=Hashable)
_Opened = Callable[[tuple[Id, ...], dict[str, np.ndarray]], Checkpoints | None]


def train(
    options: Options,
    X: Any,
    y: Any,
    conditions: Any,
    *,
    condition_features: Any,
    y_std: Any,
    on_progress: Report,
    checkpoint: str | os.PathLike[str] | None,
    checkpoint_seconds: float,
    resume: bool,
) -> FittedModel:
    """Return the model of all observations; those of a store are not kept with it, since they were never loaded."""
    options = checked(options, described=condition_features is not None)
    if isinstance(X, ObservationStore):
        if y is not None or conditions is not None:
            raise DataError("an ObservationStore holds the outputs and conditions itself; pass nothing beside it")
        given = X.as_store()
    else:
        given = read_training(X, y, conditions, condition=options.condition, y_std=y_std)
    _warn_of_little_to_learn(given)
    beyond = "condition_features" if condition_features is not None else None if y_std is None else "y_std"
    beyond = beyond or beyond_the_paper(options)
    by_minibatches = is_stochastic(options, given, beyond=beyond)
    if by_minibatches or len(given.ids) == 1:
        options = without_open_curves(options)
    if checkpoint is None and resume:
        raise SettingError("resume=True needs to know the folder of the checkpoints: pass checkpoint= as well")

    def opened(ids: tuple[Id, ...], arrays: dict[str, np.ndarray]) -> Checkpoints | None:
        # The checkpoints of a fit with these options to these data.
        if checkpoint is None:
            return None
        settings = {name: encode_setting(value) for name, value in vars(options).items() if name not in _BESIDE_THE_FIT}
        about = fingerprint({"settings": settings, "ids": [encode_id(each) for each in ids]}, arrays)
        return checkpoints(checkpoint, about, resume=resume)

    if by_minibatches:
        return _by_minibatches(given, options, on_progress, opened, checkpoint_seconds)
    known = None if condition_features is None else read_features(condition_features, given.ids, options.condition)
    return _at_once(given, options, on_progress, opened, known)


def _warn_of_little_to_learn(given: Observations) -> None:
    # A single condition, what differs by rounding only, and outputs that are all the same.
    if len(given.ids) == 1:
        warn("there is one condition only, so nothing can be shared between conditions; this is a plain sparse GP")
    if given.is_streamed:
        return  # a store is not read through for a warning
    if np.any(differs_in_last_digits_only(np.column_stack([given.inputs, given.outputs]))):
        warn(
            "an input or the output differs in its last digits only and counts as constant; subtract what all rows "
            "have in common, before it is rounded"
        )
    if np.ptp(given.outputs) == 0 and given.n_rows > 1:
        warn(f"all {given.n_rows} outputs equal {given.outputs[0]:g}; there is nothing to learn")


def warn_of_outcome(outcome: Outcome) -> None:
    """Say what to do about a fit that did not converge, or that needed a jitter worth knowing of."""
    if not outcome.converged:
        advice = "let it run" if outcome.status is Status.INTERRUPTED else "raise max_iter"
        warn(
            f"the fit did not converge: {outcome.status.value} ({outcome.n_iterations} iterations in all). "
            f"Predictions can be used, but {advice} for a better fit",
            ConvergenceWarning,
        )
    if outcome.notable_jitter is not None:
        warn(
            f"{outcome.notable_jitter:.0e} of the variance had to be added to a diagonal to keep the algebra stable, "
            "and predictions are that much less sharp: inducing points crowd, use fewer of them"
        )


def _at_once(
    observations: Observations, options: Options, on_progress: Report, opened: _Opened, known: ConditionFeatures | None
) -> FittedModel:
    coordinates = None if known is None else known.coordinates(len(observations.ids))
    order = canonical_order(observations, None if coordinates is None else coordinates.values)
    ordered = in_order(observations, order)
    arrays = {"inputs": ordered.inputs, "outputs": ordered.outputs, "conditions": ordered.conditions}
    if ordered.errors is not None:
        arrays["errors"] = ordered.errors
    if coordinates is not None:
        coordinates = coordinates._replace(values=coordinates.values[order.conditions])
        arrays["coordinates"] = coordinates.values
    attempts = _attempts(ordered, options, on_progress, opened(ordered.ids, arrays), coordinates)
    scaling, data, outcomes, _ = _best(attempts)
    outcome = chosen(outcomes)
    if attempts[-1].was_interrupted:  # whichever is best, the search for it was cut short
        outcome = outcome._replace(status=Status.INTERRUPTED)
    model = stored_in(_posterior(outcome.parameters, data), options.dtype)
    # With the conditions where the user has them.
    model = reordered(model, order.places)
    starts = [of_conditions(each, order.places) for each in (outcome.parameters, *outcome.runners_up)]
    fit = Fit(
        posterior=model,
        outcome=outcome._replace(parameters=model.parameters, runners_up=()),
        bounds_by_n_latent={each.parameters.latent_mean.shape[1]: each.bound for each in outcomes},
        bounds_by_transform=_best_bounds((each.scaling.transform_name, each.bound) for each in attempts),
        bounds_by_log_columns=_best_bounds((each.scaling.log_columns, each.bound) for each in attempts),
        origin=origin_here(options.random_state),
    )
    chains = None
    if options.inference == NUTS and outcome.status is not Status.INTERRUPTED:
        settings = sampling_settings(options, data.n_observations)
        draws, account = sample_posterior(starts, standardised(observations, scaling), *settings, on_progress)
        chains = Chains(None if draws is None else in_precision(draws, options.dtype), account)
        if not account.completed:
            fit = fit._replace(outcome=fit.outcome._replace(status=Status.INTERRUPTED))
    return fitted_model(observations, scaling, fit, chains=chains, condition_features=known)


class _Attempt(NamedTuple):
    # Fits with one choice of transforms, and their best bound on the log density of outputs in the user's units.
    scaling: Scaling
    data: Data
    outcomes: list[Outcome]
    bound: float

    @property
    def n_transforms(self) -> int:
        return len(self.scaling.log_columns) + (self.scaling.transform is not None)

    @property
    def was_interrupted(self) -> bool:
        return self.outcomes[-1].status is Status.INTERRUPTED


def _best(attempts: list[_Attempt]) -> _Attempt:
    # The best bound with the fewest transforms, each of which must gain something worth having.
    highest = max(each.bound for each in attempts)
    good = (each for each in attempts if not each.bound < highest - _LEAST_GAIN_OF_A_TRANSFORM)
    return min(good, key=lambda each: (each.n_transforms, -each.bound))


def _best_bounds(found: Iterable[tuple[_Key, float]]) -> dict[_Key, float]:
    # The best bound for each key. A square has an infinite density at zero, of which there is nothing to say.
    best: dict[_Key, float] = {}
    for key, bound in found:
        if np.isfinite(bound):
            best[key] = max(bound, best.get(key, -np.inf))
    return best


def _attempts(
    observations: Observations,
    options: Options,
    report: Report,
    checkpoints: Checkpoints | None,
    coordinates: FeatureCoordinates | None,
) -> list[_Attempt]:
    # Fits of transforms that the options leave open: each of the output with none and with all logarithms of inputs,
    # then, from the best of these, with and without the logarithm of one input after the other.
    def attempt(transform: Transform | None, columns: tuple[int, ...]) -> _Attempt:
        scaling = scaling_of(observations.inputs, observations.outputs, transform=transform, log_columns=columns)
        data, inputs = standardised(observations, scaling), scaling.inputs(observations.inputs)
        label = "".join([scaling.transform_name or "", *(f"input{column}" for column in columns)])
        outcomes = search(
            options, data, inputs, scaling.input_scale, report, checkpoints, coordinates=coordinates, label=label
        )
        # log p(y) = log p(z) + Σ log dz/dy
        bound = chosen(outcomes).bound + float(np.sum(scaling.log_slopes(observations.outputs)))
        return _Attempt(scaling, data, outcomes, bound)

    attempts: list[_Attempt] = []
    transforms, choices = output_transforms(options, observations.outputs), log_columns(options, observations)
    for transform, columns in itertools.product(transforms, choices):
        attempts.append(attempt(transform, columns))
        if attempts[-1].was_interrupted:
            return attempts
    for column in choices[-1] if len(choices) > 1 else ():
        best = _best(attempts).scaling
        columns = tuple(sorted({column} ^ set(best.log_columns)))
        if all(each.scaling[4:] != (best.transform, columns) for each in attempts):
            attempts.append(attempt(best.transform, columns))
            if attempts[-1].was_interrupted:
                break
    return attempts


def stored_in(model: Posterior, dtype: str) -> Posterior:
    """The model in the precision that was asked for, with a warning where that does not do."""
    stored = in_precision(model, dtype)
    if dtype == "float32":
        exact, rounded = (np.asarray(_trained_means(each), dtype=float) for each in (model, stored))
        lost = float(np.max(np.abs(rounded - exact)))
        if not lost < _NOTABLE_ROUNDING:
            warn(
                f"single precision moves predictions by up to {lost:.2g} standard deviations of the output, since "
                'there is hardly any noise; use dtype="float64"'
            )
    return stored


@compiled
def _trained_means(model: Posterior) -> Float[Array, "M_X D"]:
    # Curves of all conditions at the inducing inputs.
    curves = curve_moments(model, model.parameters.latents)
    return grid_means(model.input_basis, curves, model.input_basis.points)


def output_transforms(options: Options, outputs: HostFloat) -> list[Transform | None]:
    """Return transforms of the output to try: with ``"auto"`` all of them where outputs are positive.

    Not the logarithm where draws answer: under an uncertain variance of the logarithm an output has no mean.
    """
    if options.output_transform != AUTO:
        return [TRANSFORMS[options.output_transform]]
    if not np.all(outputs > 0):
        return [None]
    left_out = Logarithm() if options.inference == NUTS else None
    return [transform for transform in TRANSFORMS.values() if transform is None or transform != left_out]


def log_columns(options: Options, given: Observations) -> list[tuple[int, ...]]:
    """Return sets of input columns whose logarithms to try, a single one unless the options leave it open.

    With ``"auto"`` these are none, and all that are positive and span an order of magnitude.
    """
    keys, asked = given.column_keys, options.input_transform
    if not isinstance(asked, Mapping):
        apt = [
            column
            for column, key in enumerate(keys)
            if asked == AUTO and key not in given.date_columns and spans_a_magnitude(given.inputs[:, column])
        ]
        return [(), tuple(apt)] if apt else [()]
    columns = set[int]()
    for name, value in asked.items():
        key = name if given.columns is None else str(name)
        if isinstance(name, bool) or key not in keys:
            raise SettingError(
                f"input_transform names a column {name!r}, which is none of the inputs; name some of {list(keys)}"
            )
        if value is not None and key in given.date_columns:
            raise SettingError(
                f"column {name!r} of X holds dates or durations, which have no logarithm; leave it out of "
                "input_transform"
            )
        if value is not None:
            columns.add(keys.index(key))
    found = tuple(sorted(columns))
    if not given.is_streamed:  # a store is read through later
        check_positive(given.inputs, found, keys, "; leave the column out of input_transform, or shift it")
    return [found]


def _by_minibatches(
    observations: Observations, options: Options, on_progress: Report, opened: _Opened, checkpoint_seconds: float
) -> FittedModel:
    if options.output_transform == AUTO:
        raise SettingError(
            'output_transform="auto" compares fits to all observations, and so many are fitted by minibatches; choose '
            'None, "log" or "sqrt"'
        )
    if options.input_transform == AUTO:
        raise SettingError(
            'input_transform="auto" compares fits to all observations, and so many are fitted by minibatches; name the '
            'columns whose logarithms to take, as in {"substrate": "log"}, or leave it out'
        )
    (columns,) = log_columns(options, observations)
    shards, ids = shards_of(observations, transform=TRANSFORMS[options.output_transform], log_columns=columns)
    scaling = shards.scaling
    units = {"inputs": (scaling.input_mean, scaling.input_scale), "output": scaling[2:4]}
    arrays = {name: np.asarray(values) for name, values in units.items()}
    arrays |= {"counts": shards.counts, "n_shards": np.asarray([shards.n_shards])}
    model, outcome = fit_minibatches(
        shards, options, on_progress=on_progress, checkpoints=opened(ids, arrays), checkpoint_seconds=checkpoint_seconds
    )
    model = in_precision(model, options.dtype)
    fit = Fit(model, outcome._replace(parameters=model.parameters), {}, {}, {}, origin_here(options.random_state))
    kept = observations.without_rows() if observations.is_streamed else observations
    kept = kept._replace(ids=ids, conditions=shards.numbers[0][kept.conditions])
    return fitted_model(kept, scaling, fit)
