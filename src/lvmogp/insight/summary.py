"""What a fitted model says about itself: relevances, noise, errors on points left out, remarks in words."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lvmogp.estimator import LVMOGPRegressor, fitted_model
from lvmogp.fitted.calibration import Calibration
from lvmogp.fitted.model import FittedModel, noise_variances
from lvmogp.insight.leave_out import LEVEL, LeaveOut, leave_out, leave_out_calibration
from lvmogp.insight.relevance import (
    Relevances,
    feature_relevance,
    input_names,
    input_relevance,
    latent_relevance,
    relevances,
)
from lvmogp.tables.ids import Id, listed

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
    outcome = trained.fit.outcome
    own_noise, relevance, left_out = noise(model), relevances(model), leave_out(model)
    return Summary(
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
        leave_out=left_out,
        remarks=_remarks(trained, own_noise, relevance, left_out),
        n_draws=0 if trained.draws is None else trained.draws.n_draws,
        output_transform=trained.scaling.transform_name,
    )


def remarks(model: LVMOGPRegressor) -> list[str]:
    """Return what a careful reader should know before using the model, each in a sentence or two."""
    return summary(model).remarks


def noise(model: LVMOGPRegressor) -> pd.DataFrame:
    """Return the standard deviation of each trained condition's noise, in units of the output or of its transform."""
    trained = fitted_model(model)
    deviations = np.sqrt(trained.scaling.variance(noise_variances(trained)))
    return pd.DataFrame({"condition": pd.Series(list(trained.ids), dtype=object), "noise_sd": deviations})


# Remarks


def _remarks(trained: FittedModel, noises: pd.DataFrame, relevance: Relevances, left_out: LeaveOut | None) -> list[str]:
    return [
        *_about_the_fit(trained),
        *([] if trained.chains is None else trained.chains.diagnostics.remarks),
        *_about_relevance(*relevance, n_conditions=len(trained.ids)),
        *_about_noise(trained, noises),
        *_about_left_out(left_out),
        *_about_conditions(trained),
    ]


def _about_the_fit(trained: FittedModel) -> list[str]:
    outcome = trained.fit.outcome
    found: list[str] = []
    if not outcome.converged:
        found.append(f"The fit did not converge ({outcome.status.value}); raise max_iter for a better one.")
    if outcome.notable_jitter is not None:
        found.append(
            f"A jitter of {outcome.notable_jitter:.0e} of the variance was needed to keep the algebra stable; use "
            "fewer inducing points."
        )
    bounds = sorted((restart.bound for restart in outcome.restarts if np.isfinite(restart.bound)), reverse=True)
    if len(bounds) > 1 and bounds[0] - bounds[1] > _NOTABLE_NATS:
        found.append(
            f"Only one of {len(bounds)} starts reached the best bound ({bounds[0]:.1f}; the next {bounds[1]:.1f}); "
            "more starts (n_restarts) may find a better fit."
        )
    return found


def _about_relevance(
    inputs: pd.DataFrame, latents: pd.DataFrame, features: pd.DataFrame, *, n_conditions: int
) -> list[str]:
    found = [
        f"{kind} {name!r} hardly matters (relevance {relevance:.3f})."
        for kind, table in (("Input", inputs), ("Feature", features))
        for name, relevance in table.itertuples(index=False)
        if relevance < _IRRELEVANT
    ]
    unused = [int(dimension) for dimension, relevance in latents.itertuples(index=False) if relevance < _IRRELEVANT]
    if n_conditions == 1 or not unused:
        return found
    if len(unused) == len(latents):
        alike = "The conditions hardly differ: no latent dimension is used."
        told = "The features tell all about the conditions: no latent dimension is used."
        found.append(told if len(features) else alike)
    else:
        found.append(
            f"Latent dimension {', '.join(map(str, unused))} is hardly used; n_latent={len(latents) - len(unused)} "
            "would do."
        )
    return found


def _about_noise(trained: FittedModel, noises: pd.DataFrame) -> list[str]:
    scale = trained.scaling.output_scale
    share = float(np.mean(noises["noise_sd"] ** 2)) / scale**2
    if share > _NEARLY_ALL_NOISE:
        return [
            f"The noise is {100 * share:.0f} % of the variance of the output: the inputs and conditions explain little."
        ]
    quiet = noises.loc[noises["noise_sd"] < _NEARLY_NO_NOISE * scale, "condition"]
    if len(quiet) == len(noises):
        return ["The noise is nearly zero. With exact data that is right; otherwise the model follows the noise."]
    if len(quiet):
        return [f"The noise of {listed(list(quiet))} is nearly zero; the model may follow the noise there."]
    return []


def _about_left_out(left_out: LeaveOut | None) -> list[str]:
    if left_out is None:
        return []
    found: list[str] = []
    if left_out.rmse > _NEARLY_ALL_NOISE * left_out.spread:
        found.append("Observations left out are predicted no better than by their mean.")
    # Three standard errors of a share of this many observations.
    tolerance = 3 * np.sqrt(LEVEL * (1 - LEVEL) / left_out.n_observations)
    if left_out.coverage < LEVEL - tolerance:
        found.append(
            f"95 % intervals hold only {100 * left_out.coverage:.0f} % of the observations left out: they are too "
            "narrow. Try noise='per-condition', another kernel or more inducing points."
        )
    return found


def _about_conditions(trained: FittedModel) -> list[str]:
    if trained.observations is None:
        return []
    counts = np.bincount(trained.observations.conditions, minlength=len(trained.ids))
    empty = [trained.ids[number] for number in np.flatnonzero(counts == 0)]
    found = [f"{listed(empty)} had no observation; only the prior speaks for that."] if empty else []
    single = int(np.sum(counts == 1))
    if single:
        found.append(f"{single} of {len(counts)} conditions had a single observation.")
    return found
