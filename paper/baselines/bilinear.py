"""The bilinear model of style and content (Tenenbaum & Freeman 2000) on a grid: y_d(x) = a_dᵀb(x).

The singular value decomposition of the grid gives the conditions' styles a_d and the contents b(x_n) of the
training inputs. Contents at other inputs, which the original has no word for, are the predictions of Gaussian
processes through the training contents. The number of contents is chosen on a fifth of the inputs, held out.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lvmogp.typing import HostFloat
from paper.baselines import apart
from paper.baselines.apart import Apart, stacked
from paper.baselines.coregionalised import Marginals

FitContents = Callable[[apart.Stacked], Apart]
_RANKS = (1, 2, 3, 5, 8, 12)
_HELD_OUT = 0.2


class Bilinear(NamedTuple):
    """Styles, sizes of the contents, and what the contents are regressed from."""

    styles: HostFloat
    scales: HostFloat
    parameters: Apart
    contents: apart.Stacked
    noise_variance: float


def fit(inputs: HostFloat, outputs: HostFloat, fit_contents: FitContents) -> Bilinear:
    """Fit with the number of contents that predicts held-out inputs best."""
    order = np.random.default_rng(0).permutation(len(inputs))
    n_held = round(_HELD_OUT * len(inputs))
    held, kept = order[:n_held], order[n_held:]
    errors = {}
    for rank in _RANKS:
        if rank < min(len(kept), outputs.shape[1]):
            model = _fit(inputs[kept], outputs[kept], rank, fit_contents)
            errors[rank] = np.mean((predict(model, inputs[held]).mean - outputs[held]) ** 2)
    return _fit(inputs, outputs, min(errors, key=lambda rank: errors[rank]), fit_contents)


def _fit(inputs: HostFloat, outputs: HostFloat, rank: int, fit_contents: FitContents) -> Bilinear:
    left, singular, right = np.linalg.svd(outputs, full_matrices=False)
    contents = left[:, :rank] * np.sqrt(len(inputs))  # unit variance each
    scales = singular[:rank] / np.sqrt(len(inputs))
    data = stacked(np.tile(inputs, (rank, 1)), contents.T.ravel(), np.repeat(np.arange(rank), len(inputs)), rank)
    residual = outputs - contents * scales @ right[:rank]
    freedom = max(outputs.size - rank * sum(outputs.shape), 1)
    return Bilinear(right[:rank].T, scales, fit_contents(data), data, float(np.sum(residual**2) / freedom))


def predict(model: Bilinear, inputs: HostFloat) -> Marginals:
    """Moments of the function at new inputs under every condition."""
    rank = len(model.scales)
    rows = np.tile(inputs, (rank, 1)), np.repeat(np.arange(rank), len(inputs))
    moments = apart.predict([model.parameters] * rank, model.contents, *rows)
    loadings = model.scales[:, None] * model.styles.T  # (rank, D)
    mean = moments.mean.reshape(rank, -1).T @ loadings
    return Marginals(mean, moments.variance.reshape(rank, -1).T @ loadings**2)
