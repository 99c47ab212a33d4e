"""From observations and options to a trained model: at once, on from there to posterior draws, or by minibatches."""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np

from lvmogp.errors import ConvergenceWarning, DataError, SettingError, warn
from lvmogp.fitted.model import Chains, Fit, FittedModel, fitted_model, origin_here
from lvmogp.fitted.model_file import encode_setting
from lvmogp.ground.compiling import compiled
from lvmogp.ground.precision import in_precision
from lvmogp.inference.minibatch.fit import fit_minibatches, shards_of
from lvmogp.inference.nuts.sampling import sample_posterior
from lvmogp.inference.optimise import Status
from lvmogp.inference.options import AUTO, NUTS, Options, is_stochastic, output_transforms, sampling_settings
from lvmogp.inference.restarts import Outcome, Progress, chosen, search
from lvmogp.model.layouts import Data, standardised
from lvmogp.model.parameters import of_conditions
from lvmogp.model.posterior import Posterior, curve_moments, grid_means, posterior
from lvmogp.storage.checkpoints import Checkpoints, checkpoints, fingerprint
from lvmogp.storage.codec import encode_id
from lvmogp.tables.features import ConditionFeatures, FeatureCoordinates
from lvmogp.tables.ids import Id
from lvmogp.tables.observations import Observations, canonical_order, in_order
from lvmogp.tables.scaling import Scaling, differs_in_last_digits_only, scaling_of
from lvmogp.tables.transforms import TRANSFORMS
from lvmogp.typing import Array, Float

_posterior = compiled(posterior)
# Single precision that costs more is worth knowing of, in standard deviations of the output.
_NOTABLE_ROUNDING = 1e-2
# What a bound must gain for a transform of the output.
_LEAST_GAIN_OF_A_TRANSFORM = 1.0
Report = Callable[[Progress], None] | None


class CheckpointOptions(NamedTuple):
    """Where a fit keeps its checkpoints, if anywhere, how often, and whether it goes on from those that are there."""

    folder: str | os.PathLike[str] | None
    seconds: float
    resume: bool

    def opened(self, options: Options, ids: tuple[Id, ...], arrays: dict[str, np.ndarray]) -> Checkpoints | None:
        """The checkpoints of a fit with these options to these data."""
        if self.folder is None:
            if self.resume:
                raise SettingError("resume=True needs to know the folder of the checkpoints: pass checkpoint= as well")
            return None
        # What an unseen condition is answered with is no matter of the fit.
        settings = {name: encode_setting(value) for name, value in options._asdict().items() if name != "unseen"}
        about = fingerprint({"settings": settings, "ids": [encode_id(each) for each in ids]}, arrays)
        return checkpoints(self.folder, about, resume=self.resume)


def checked_store(
    store: Observations, y: Any, conditions: Any, options: Options, *, beyond: str | None = None
) -> Observations:
    """Check that a store can be fitted as the options say; ``beyond`` as in the options."""
    if beyond is not None:
        raise SettingError(
            f"an ObservationStore is fitted by minibatches, which cannot take {beyond}; load the observations, or "
            "leave that out"
        )
    if y is not None or conditions is not None:
        raise DataError("an ObservationStore holds the outputs and conditions itself; pass nothing beside it")
    if options.inference not in (AUTO, "stochastic"):
        raise SettingError(
            f'an ObservationStore is fitted by minibatches; use inference="stochastic" or "auto", not '
            f"{options.inference!r}"
        )
    return store.as_store()


def warn_of_little_to_learn(given: Observations) -> None:
    """Warn of a single condition, of what differs by rounding only, and of outputs that are all the same."""
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


def warn_unless_converged(outcome: Outcome) -> None:
    """Say what to do about a fit that did not converge."""
    if outcome.converged:
        return
    advice = "let it run" if outcome.status is Status.INTERRUPTED else "raise max_iter"
    warn(
        f"the fit did not converge: {outcome.status.value} ({outcome.n_iterations} iterations in all). "
        f"Predictions can be used, but {advice} for a better fit",
        ConvergenceWarning,
    )


def warn_of_jitter(outcome: Outcome) -> None:
    """Say what had to be added to a diagonal, where that is worth knowing."""
    if outcome.notable_jitter is None:
        return
    warn(
        f"{outcome.notable_jitter:.0e} of the variance had to be added to a diagonal to keep the algebra stable, and "
        "predictions are that much less sharp: inducing points crowd, use fewer of them"
    )


def train(
    given: Observations,
    options: Options,
    on_progress: Report,
    saving: CheckpointOptions,
    condition_features: ConditionFeatures | None = None,
) -> FittedModel:
    """The model of all observations; those of a store are not kept with it, since they were never loaded."""
    # Drawn once: a RandomState would give each part of the fit another seed, and none to write down.
    options = options._replace(random_state=options.seed)
    origin = origin_here(options.seed)
    beyond = "y_std" if given.errors is not None else None if condition_features is None else "condition_features"
    by_minibatches = given.is_streamed or is_stochastic(
        options, given.n_rows, is_complete_grid=given.is_complete_grid, beyond=beyond
    )
    if by_minibatches:
        found = _by_minibatches(given, options, on_progress, saving)
    else:
        found = _at_once(given, options, on_progress, saving, condition_features)
    return found._replace(fit=found.fit._replace(origin=origin))


def _at_once(
    observations: Observations,
    options: Options,
    on_progress: Report,
    saving: CheckpointOptions,
    condition_features: ConditionFeatures | None,
) -> FittedModel:
    coordinates = None if condition_features is None else condition_features.coordinates(len(observations.ids))
    order = canonical_order(observations, coordinates)
    ordered = in_order(observations, order)
    if coordinates is not None:
        coordinates = coordinates._replace(values=coordinates.values[order.conditions])
    checkpoints = saving.opened(options, ordered.ids, _arrays(ordered, coordinates))
    attempts = _attempts(ordered, options, on_progress, checkpoints, coordinates)
    # The first, which is the output itself, unless another is clearly better.
    best = max(attempts, key=lambda each: each.bound)
    if best.bound < attempts[0].bound + _LEAST_GAIN_OF_A_TRANSFORM:
        best = attempts[0]
    scaling, data, outcomes, _ = best
    outcome = chosen(outcomes)
    model = stored_in(_posterior(outcome.parameters, data), options.dtype)
    # With the conditions where the user has them.
    model = eqx.tree_at(lambda tree: tree.parameters, model, of_conditions(model.parameters, order.places))
    starts = [of_conditions(each, order.places) for each in (outcome.parameters, *outcome.runners_up)]
    fit = Fit(
        posterior=model,
        outcome=outcome._replace(parameters=model.parameters, runners_up=()),
        bounds_by_n_latent={each.parameters.latent_mean.shape[1]: each.bound for each in outcomes},
        # A square has an infinite density at zero, of which there is nothing to say.
        bounds_by_transform={each.scaling.transform_name: each.bound for each in attempts if np.isfinite(each.bound)},
    )
    chains = None
    if options.inference == NUTS and outcome.status is not Status.INTERRUPTED:
        settings = sampling_settings(options, data.n_observations)
        draws, account = sample_posterior(starts, standardised(observations, scaling), *settings, on_progress)
        chains = Chains(None if draws is None else in_precision(draws, options.dtype), account)
        if not account.completed:
            fit = fit._replace(outcome=fit.outcome._replace(status=Status.INTERRUPTED))
    return fitted_model(observations, scaling, fit, chains=chains, condition_features=condition_features)


class _Attempt(NamedTuple):
    # Fits of one transform of the output, and their best bound on the log density of outputs in the user's units.
    scaling: Scaling
    data: Data
    outcomes: list[Outcome]
    bound: float


def _attempts(
    observations: Observations,
    options: Options,
    on_progress: Report,
    checkpoints: Checkpoints | None,
    coordinates: FeatureCoordinates | None,
) -> list[_Attempt]:
    # Fits of all transforms that the options leave open.
    attempts: list[_Attempt] = []
    for transform in output_transforms(options, observations.outputs):
        scaling = scaling_of(observations.inputs, observations.outputs, transform=transform)
        data, inputs = standardised(observations, scaling), scaling.inputs(observations.inputs)
        outcomes = search(
            options,
            data,
            inputs,
            scaling.input_scale,
            on_progress,
            checkpoints,
            coordinates=coordinates,
            label=scaling.transform_name or "",
        )
        # log p(y) = log p(z) + Σ log dz/dy
        bound = chosen(outcomes).bound + float(np.sum(scaling.log_slopes(observations.outputs)))
        attempts.append(_Attempt(scaling, data, outcomes, bound))
        if outcomes[-1].status is Status.INTERRUPTED:
            # Whichever is best, the search for it was cut short.
            return [
                each._replace(outcomes=[outcome._replace(status=Status.INTERRUPTED) for outcome in each.outcomes])
                for each in attempts
            ]
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


def _arrays(observations: Observations, coordinates: FeatureCoordinates | None) -> dict[str, np.ndarray]:
    # All that a fit looks at.
    found = {"inputs": observations.inputs, "outputs": observations.outputs, "conditions": observations.conditions}
    if observations.errors is not None:
        found["errors"] = observations.errors
    if coordinates is not None:
        found["coordinates"] = coordinates.values
    return found


def _by_minibatches(
    observations: Observations, options: Options, on_progress: Report, saving: CheckpointOptions
) -> FittedModel:
    if options.output_transform == AUTO:
        raise SettingError(
            'output_transform="auto" compares fits to all observations, and so many are fitted by minibatches; choose '
            'None, "log" or "sqrt"'
        )
    shards, ids = shards_of(observations, transform=TRANSFORMS[options.output_transform])
    scaling = shards.scaling
    columns = {"inputs": (scaling.input_mean, scaling.input_scale), "output": scaling[2:4]}
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    arrays |= {"counts": shards.counts, "n_shards": np.asarray([shards.n_shards])}
    model, outcome = fit_minibatches(
        shards,
        options,
        on_progress=on_progress,
        checkpoints=saving.opened(options, ids, arrays),
        checkpoint_seconds=saving.seconds,
    )
    model = in_precision(model, options.dtype)
    fit = Fit(model, outcome._replace(parameters=model.parameters), {}, {})
    kept = observations.without_rows() if observations.is_streamed else observations
    kept = kept._replace(ids=ids, conditions=shards.numbers[0][kept.conditions])
    return fitted_model(kept, scaling, fit)
