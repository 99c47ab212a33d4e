"""Where the variance is: how much of it conditions share, latents tell, is a condition's own, or noise."""

import numpy as np
import pandas as pd

from lvmogp.conditions.parts import parts_in
from lvmogp.estimator import LVMOGPRegressor, fitted_model
from lvmogp.fitted.parts import variances_of_parts
from lvmogp.ground.precision import in_double_precision
from lvmogp.typing import HostFloat

_LEVELS = (0.025, 0.975)


@in_double_precision
def variance_shares(model: LVMOGPRegressor) -> pd.DataFrame:
    """Return how much of the variance is shared, latent, own and noise, over all conditions and for each.

    The size of a part is the mean, over observations, of its squared distance from its own mean over all observations:
    a curve that all conditions share counts by how much it varies along the inputs, what latents tell and what is a
    condition's own also by how much conditions differ. The size of the noise is its variance. A share is a size divided
    by the sum of all, so that shares add up to one. Those of a condition are over its own observations, and those of
    all conditions over all observations.

    The parts are those of the model. What latents tell may be much the same for all conditions: it is all there is
    without a shared curve (the paper's model), and beside one a smooth kernel over latents can take over what
    conditions have in common.

    All parts are drawn together from the posterior. ``share`` is the mean over draws, and ``lower`` and ``upper`` hold
    95 % of them: parts that the data cannot tell apart have wide intervals. They are of the output, or of its transform
    where that is modelled. Known errors of measurements are no part of them.

    Returns
    -------
    DataFrame
        Columns ``condition`` (``None`` for all of them, which come first), ``part`` (``"shared"``, ``"latent"``,
        ``"own"``, ``"noise"``; only those that the model has), ``share``, ``lower``, ``upper``. Conditions without an
        observation are left out.
    """
    trained = fitted_model(model)
    found = variances_of_parts(trained)
    parts = [*parts_in(trained.posterior.parameters.kernels), "noise"]
    observed = np.flatnonzero(found.counts)
    sizes = np.concatenate([(found.squares @ found.counts / found.counts.sum())[:, :, None], found.squares], axis=2)
    shares = sizes / np.sum(sizes, axis=1, keepdims=True)
    columns, names = np.append(0, 1 + observed), [None, *(trained.ids[number] for number in observed)]
    lower, upper = (_quantile(shares, found.weights, level) for level in _LEVELS)
    mean = np.tensordot(found.weights, shares, axes=1)
    table = {"share": mean, "lower": lower, "upper": upper}
    return pd.DataFrame(
        {
            "condition": pd.Series(np.repeat(np.array([*names, ""], dtype=object)[:-1], len(parts)), dtype=object),
            "part": parts * len(names),
            **{name: values[:, columns].T.reshape(-1) for name, values in table.items()},
        }
    )


def _quantile(values: HostFloat, weights: HostFloat, level: float) -> HostFloat:
    # Of weighted draws along the first axis.
    order = np.argsort(values, axis=0)
    cumulated = np.cumsum(weights[order], axis=0)
    place = np.argmax(cumulated >= level * cumulated[-1:], axis=0)
    return np.take_along_axis(np.take_along_axis(values, order, axis=0), place[None], axis=0)[0]


def in_words(shares: pd.DataFrame) -> str:
    """Return the shares over all conditions in a line, as in "61 % shared, 20 % latent, 9 % own, 10 % noise"."""
    overall = shares[[name is None for name in shares["condition"]]]
    return ", ".join(
        f"{100 * share:.0f} % {part}" for part, share in zip(overall["part"], overall["share"], strict=True)
    )
