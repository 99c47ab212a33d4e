"""GPy's own LVMOGP, where GPy is installed."""

import contextlib
import importlib.util
import os
import warnings
from typing import Any

import numpy as np

from lvmogp.errors import SettingError
from lvmogp.typing import HostFloat, HostInt
from paper.baselines.coregionalised import Marginals


def is_installed() -> bool:
    """Whether GPy is there to be imported."""
    return importlib.util.find_spec("GPy") is not None


def _gpy() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its own, about NumPy's and SciPy's deprecations
            import GPy
    except ImportError as error:
        raise SettingError(f"GPy cannot be imported ({error}); install it with: pip install GPy") from None
    return GPy


class GPyModel:
    """A fitted model with the numbers that GPy gives its conditions, which must be without gaps."""

    def __init__(self, model: Any, known: HostInt) -> None:
        self.model = model
        self.known = known

    @property
    def bound(self) -> float:
        """Its variational bound."""
        return float(np.sum(self.model.log_likelihood()))

    def noise_of(self, conditions: HostInt) -> HostFloat:
        """Noise variance of each row; the mean of all where it has never seen the condition."""
        noise = np.ravel(np.asarray(self.model.likelihood.variance))  # one, or one per condition that it knows
        if len(noise) == 1:
            return np.full(len(conditions), noise[0])
        by_number = np.full(int(max(conditions.max(), self.known.max())) + 1, noise.mean())
        by_number[self.known] = noise
        return by_number[conditions]

    def predict(self, inputs: HostFloat, conditions: HostInt) -> Marginals:
        """Moments of the function; a condition that it has never seen gets the prior."""
        mean, variance = self.model.predict_noiseless(inputs)
        place = np.minimum(np.searchsorted(self.known, conditions), len(self.known) - 1)
        rows = np.arange(len(inputs))
        seen = self.known[place] == conditions
        prior = float(self.model.kern.variance[0] * self.model.kern_row.variance[0])
        return Marginals(np.where(seen, mean[rows, place], 0.0), np.where(seen, variance[rows, place], prior))


def fit(
    inputs: HostFloat,
    outputs: HostFloat,
    conditions: HostInt,
    *,
    n_conditions: int,
    is_grid: bool,
    n_latent: int,
    n_inducing: tuple[int, int],
    noise_per_condition: bool,
    max_iterations: int,
) -> GPyModel:
    """Fit as its documentation does: its default start, RBF kernels with ARD, all parameters at once."""
    GPy = _gpy()
    known = np.unique(conditions)
    sizes = (min(n_inducing[0], len(inputs)), min(n_inducing[1], len(known)))
    kernels = {
        "kernel": GPy.kern.RBF(inputs.shape[1], ARD=True),
        "kernel_row": GPy.kern.RBF(n_latent, ARD=True, name="kern_row"),
    }
    np.random.seed(0)  # noqa: NPY002 - GPy draws its starts from the global generator
    with warnings.catch_warnings(), open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        warnings.simplefilter("ignore")
        if is_grid:
            grid = outputs.reshape(-1, n_conditions)
            model = GPy.models.GPMultioutRegression(
                inputs[::n_conditions], grid, Xr_dim=n_latent, num_inducing=sizes, **kernels
            )
        else:
            model = GPy.models.GPMultioutRegressionMD(
                inputs,
                outputs[:, None],
                np.searchsorted(known, conditions),
                Xr_dim=n_latent,
                num_inducing=sizes,
                heter_noise=noise_per_condition,
                **kernels,
            )
        model.optimize(max_iters=max_iterations, messages=False)
    return GPyModel(model, known)
