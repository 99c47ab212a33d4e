"""Draws from the posterior in the form that ArviZ reads."""

from typing import Any

import numpy as np

from lvmogp.errors import SettingError
from lvmogp.fitted.model import FittedModel
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
    draws, statistics = model.chains.draws, model.chains.diagnostics.statistics
    chain, noise = np.asarray(draws.chain), np.asarray(draws.noise_variance)
    by_chain = [np.flatnonzero(chain == number) for number in np.unique(chain)]
    places = np.stack([numbers[: min(map(len, by_chain))] for numbers in by_chain])  # chains × draws
    columns = list(model.schema.columns or range(model.schema.n_columns))
    latents: list[Any] = list(range(1, model.n_latent + 1))
    if model.condition_features is not None:
        latents += model.condition_features.coordinate_names
    found: dict[str, tuple[HostFloat, list[str]]] = {
        **_hyperparameters("input", draws.input_kernel, "column", len(columns)),
        **_hyperparameters("latent", draws.latent_kernel, "latent", len(latents)),
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
