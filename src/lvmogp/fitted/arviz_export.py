"""Draws from the posterior in the form that ArviZ reads."""

import dataclasses
from typing import Any

import numpy as np

from lvmogp.errors import SettingError
from lvmogp.fitted.model import FittedModel
from lvmogp.inference.nuts.diagnostics import SamplingDiagnostics
from lvmogp.kernels.covariances import Kernel, leaves
from lvmogp.model.draws import aligned
from lvmogp.typing import HostFloat


def inference_data(model: FittedModel) -> Any:
    """Draws of a fitted model as ``arviz.InferenceData``: chains × draws, those of all chains cut to the shortest."""
    if model.chains is None or model.chains.draws is None:
        raise SettingError('there are no draws to hand to ArviZ; fit with inference="nuts"')
    try:
        import arviz
    except ImportError:
        raise SettingError('to_arviz needs ArviZ, which is not installed: pip install "lvmogp[arviz]"') from None
    draws = model.chains.draws
    places = _places_by_chain(np.asarray(draws.chain))
    columns = model.schema.columns or tuple(range(model.schema.n_columns))
    latent_names = tuple(range(1, model.n_latent + 1))
    if model.condition_features is not None:
        latent_names = (*latent_names, *model.condition_features.coordinate_names)
    found, dimensions = {}, {}
    for side, kernel in (("input", draws.input_kernel), ("latent", draws.latent_kernel)):
        names = columns if side == "input" else latent_names
        for name, values, own in _hyperparameters(side, kernel, tuple(names)):
            found[name], dimensions[name] = values, own
    found["noise_variance"] = np.asarray(draws.noise_variance)
    dimensions["noise_variance"] = ["condition"]
    if found["noise_variance"].shape[1] == 1:
        found["noise_variance"], dimensions["noise_variance"] = found["noise_variance"][:, 0], []
    found["latents"] = np.asarray(aligned(draws, model.posterior.parameters.latent_mean))
    dimensions["latents"] = ["condition", "latent"]
    statistics = _statistics(model.chains.diagnostics) | {"log_weight": np.asarray(draws.log_weight)}
    return arviz.from_dict(
        posterior={name: values[places] for name, values in found.items()},
        sample_stats={name: values[places] for name, values in statistics.items()},
        coords={
            "condition": [name if isinstance(name, str | int | float) else str(name) for name in model.ids],
            "column": list(columns),
            "latent": list(latent_names),
        },
        dims=dimensions,
    )


def _places_by_chain(chain: np.ndarray) -> np.ndarray:
    # Numbers of the draws, chains × draws.
    by_chain = [np.flatnonzero(chain == number) for number in np.unique(chain)]
    shortest = min(len(places) for places in by_chain)
    return np.stack([places[:shortest] for places in by_chain])


def _hyperparameters(side: str, kernel: Kernel, names: tuple[Any, ...]) -> list[tuple[str, HostFloat, list[str]]]:
    # Name, values and dimensions of all that vary between draws; terms of a composite kernel are counted.
    found = []
    terms = leaves(kernel)
    for number, leaf in enumerate(terms, 1):
        prefix = f"{side}_kernel" if len(terms) == 1 else f"{side}_kernel_{number}"
        own = {field.name: getattr(leaf, field.name) for field in dataclasses.fields(leaf)}
        for field in ("lengthscale", "period", "shape", "variance"):
            values = np.asarray(own[field]) if field in own else np.empty(0)
            if values.size == 0 or np.all(values == values[0]):
                continue
            covers_all = values.shape[1:] == (len(names),)
            axis = "column" if side == "input" else "latent"
            found.append((f"{prefix}_{field}", values, [axis] if covers_all else []))
    return found


def _statistics(account: SamplingDiagnostics) -> dict[str, HostFloat]:
    # By the names that ArviZ gives them.
    statistics = account.statistics
    return {
        "lp": statistics.log_posterior,
        "energy": statistics.energy,
        "n_steps": statistics.n_leapfrogs,
        "tree_depth": np.ceil(np.log2(statistics.n_leapfrogs + 1)).astype(int),
        "acceptance_rate": statistics.acceptance,
        "diverging": statistics.diverging.astype(bool),
    }
