"""What a fitted model says about itself: relevances, noise, errors on points left out, remarks in words."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lvmogp.estimator import LVMOGPRegressor, fitted_model
from lvmogp.fitted.calibration import Calibration
from lvmogp.fitted.model import noise_variances
from lvmogp.inference.restarts import Outcome
from lvmogp.insight.leave_out import LEVEL, LeaveOut, leave_out, leave_out_calibration
from lvmogp.insight.relevance import feature_relevance, input_names, input_relevance, latent_relevance, relevances
from lvmogp.tables.ids import Id, listed
from lvmogp.tables.observations import Observations

__all__ = [
    "Calibration",
    "LeaveOut",
    "Summary",
    "feature_relevance",
    "input_names",
    "input_relevance",
    "latent_relevance",
    "leave_out",
    "leave_out_calibration",
    "noise",
    "remarks",
    "summary",
]
_IRRELEVANT = 0.005
_NEARLY_NO_NOISE = 1e-3
_NEARLY_ALL_NOISE = 0.95
_NOTABLE_NATS = 2.0


class Summary(NamedTuple):
    """All there is to say about a fitted model in one place."""

    n_observations: int | None
    n_conditions: int
    conditions_added: list[Id]
    inputs: list[str]
    output: str | None
    n_latent: int
    bound: float
    status: str
    n_starts: int
    seconds: float
    noise_sd: float
    noise: pd.DataFrame
    input_relevance: pd.DataFrame
    latent_relevance: pd.DataFrame
    feature_relevance: pd.DataFrame
    leave_out: LeaveOut | None
    remarks: list[str]
    n_draws: int = 0
    output_transform: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold; ids that it cannot hold become text."""
        found = self._asdict()
        for name in ("noise", "input_relevance", "latent_relevance", "feature_relevance"):
            found[name] = [{key: _plain(value) for key, value in row.items()} for row in found[name].to_dict("records")]
        found["conditions_added"] = [_plain(name) for name in self.conditions_added]
        found["leave_out"] = None if self.leave_out is None else self.leave_out._asdict()
        return found


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | None) else str(value)


def summary(model: LVMOGPRegressor) -> Summary:
    """Return all there is to say about a fitted model, each thing computed once."""
    trained = fitted_model(model)
    outcome, own_noise, relevance = trained.fit.outcome, noise(model), relevances(model)
    found = Summary(
        n_observations=None if trained.observations is None else len(trained.observations.outputs),
        n_conditions=len(trained.ids),
        conditions_added=list(trained.added),
        inputs=input_names(model),
        output=trained.schema.output_name,
        n_latent=model.n_latent_,
        bound=outcome.bound,
        status=outcome.status.value,
        n_starts=len(outcome.restarts),
        seconds=outcome.seconds,
        noise_sd=float(np.sqrt(np.mean(own_noise["noise_sd"] ** 2))),
        noise=own_noise,
        input_relevance=relevance.inputs,
        latent_relevance=relevance.latents,
        feature_relevance=relevance.features,
        leave_out=leave_out(model),
        remarks=[],
        n_draws=0 if trained.draws is None else trained.draws.n_draws,
        output_transform=trained.scaling.transform_name,
    )
    return found._replace(
        remarks=[
            *_about_the_fit(outcome),
            *([] if trained.chains is None else trained.chains.diagnostics.remarks),
            *_about_relevance(found),
            *_about_noise(found.noise, trained.scaling.output_scale),
            *([] if found.leave_out is None else _about_left_out(found.leave_out)),
            *([] if trained.observations is None else _about_conditions(trained.observations)),
        ]
    )


def remarks(model: LVMOGPRegressor) -> list[str]:
    """Return what a careful reader should know before using the model, each in a sentence or two."""
    return summary(model).remarks


def noise(model: LVMOGPRegressor) -> pd.DataFrame:
    """Return the standard deviation of each trained condition's noise, in units of the output or of its transform."""
    trained = fitted_model(model)
    deviations = np.sqrt(trained.scaling.variance(noise_variances(trained)))
    return pd.DataFrame({"condition": pd.Series(list(trained.ids), dtype=object), "noise_sd": deviations})


def _about_the_fit(outcome: Outcome) -> Iterator[str]:
    if not outcome.converged:
        yield f"The fit did not converge ({outcome.status.value}); raise max_iter for a better one."
    if outcome.notable_jitter is not None:
        yield (
            f"A jitter of {outcome.notable_jitter:.0e} of the variance was needed to keep the algebra stable; use "
            "fewer inducing points."
        )
    bounds = sorted((restart.bound for restart in outcome.restarts if np.isfinite(restart.bound)), reverse=True)
    if len(bounds) > 1 and bounds[0] - bounds[1] > _NOTABLE_NATS:
        yield (
            f"Only one of {len(bounds)} starts reached the best bound ({bounds[0]:.1f}; the next {bounds[1]:.1f}); "
            "more starts (n_restarts) may find a better fit."
        )


def _about_relevance(found: Summary) -> Iterator[str]:
    for kind, table in (("Input", found.input_relevance), ("Feature", found.feature_relevance)):
        for name, relevance in table[table["relevance"] < _IRRELEVANT].itertuples(index=False):
            yield f"{kind} {name!r} hardly matters (relevance {relevance:.3f})."
    unused = found.latent_relevance.loc[found.latent_relevance["relevance"] < _IRRELEVANT, "dimension"]
    if found.n_conditions == 1 or len(unused) == 0:
        return
    if len(unused) < found.n_latent:
        numbers, n_used = ", ".join(map(str, unused)), found.n_latent - len(unused)
        yield f"Latent dimension {numbers} is hardly used; n_latent={n_used} would do."
    elif len(found.feature_relevance):
        yield "The features tell all about the conditions: no latent dimension is used."
    else:
        yield "The conditions hardly differ: no latent dimension is used."


def _about_noise(noises: pd.DataFrame, scale: float) -> Iterator[str]:
    share = float(np.mean(noises["noise_sd"] ** 2)) / scale**2
    quiet = noises.loc[noises["noise_sd"] < _NEARLY_NO_NOISE * scale, "condition"]
    if share > _NEARLY_ALL_NOISE:
        yield (
            f"The noise is {100 * share:.0f} % of the variance of the output: the inputs and conditions explain little."
        )
    elif len(quiet) == len(noises):
        yield "The noise is nearly zero. With exact data that is right; otherwise the model follows the noise."
    elif len(quiet):
        yield f"The noise of {listed(list(quiet))} is nearly zero; the model may follow the noise there."


def _about_left_out(left_out: LeaveOut) -> Iterator[str]:
    if left_out.rmse > _NEARLY_ALL_NOISE * left_out.spread:
        yield "Observations left out are predicted no better than by their mean."
    # Three standard errors of a share of this many observations.
    tolerance = 3 * np.sqrt(LEVEL * (1 - LEVEL) / left_out.n_observations)
    if left_out.coverage < LEVEL - tolerance:
        yield (
            f"95 % intervals hold only {100 * left_out.coverage:.0f} % of the observations left out: they are too "
            "narrow. Try noise='per-condition', another kernel or more inducing points."
        )


def _about_conditions(observations: Observations) -> Iterator[str]:
    counts = np.bincount(observations.conditions, minlength=len(observations.ids))
    if np.any(counts == 0):
        empty = [observations.ids[number] for number in np.flatnonzero(counts == 0)]
        yield f"{listed(empty)} had no observation; only the prior speaks for that."
    if np.any(counts == 1):
        yield f"{np.sum(counts == 1)} of {len(counts)} conditions had a single observation."
