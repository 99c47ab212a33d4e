"""What a fitted model knows of its conditions, as tables."""

from typing import Any

import numpy as np
import pandas as pd

from lvmogp.fitted.model import FittedModel, all_latents, features_of
from lvmogp.fitted.similarity import similarities
from lvmogp.tables.features import feature_table


def latent_table(model: FittedModel) -> pd.DataFrame:
    """One row a condition: its id, mean and standard deviation of each latent dimension, whether it was added."""
    latents = all_latents(model)
    means, deviations = np.asarray(latents.mean), np.sqrt(np.asarray(latents.variance))
    columns: dict[str, Any] = {}
    for dimension in range(model.n_latent):
        columns[f"mean_{dimension + 1}"] = means[:, dimension]
        columns[f"sd_{dimension + 1}"] = deviations[:, dimension]
    return _by_condition(model, columns)


def condition_feature_table(model: FittedModel) -> pd.DataFrame | None:
    """One row a condition: its id and known features, whether it was added; ``None`` without features."""
    if model.descriptions is None:
        return None
    nothing = np.full(model.descriptions.n_coordinates, np.nan)
    rows = [features_of(model, name) for name in model.all_ids]
    values = np.stack([nothing if row is None else row for row in rows])
    return _by_condition(model, feature_table(model.descriptions, values))


def _by_condition(model: FittedModel, columns: dict[str, Any]) -> pd.DataFrame:
    ids = pd.Series(list(model.all_ids), dtype=object)
    return pd.DataFrame({"condition": ids, **columns, "added": [name in model.added for name in model.all_ids]})


def similarity_table(model: FittedModel) -> pd.DataFrame:
    """How alike the curves of each pair of conditions are expected to be, by their ids."""
    names = pd.Index(list(model.all_ids), dtype=object, tupleize_cols=False)
    added = [entry.condition for entry in model.added.values()]
    return pd.DataFrame(similarities(model.ensemble, all_latents(model), added), index=names, columns=names)
