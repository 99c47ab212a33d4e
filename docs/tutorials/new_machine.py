# %% [markdown]
# # A new machine from three tests
#
# A plant runs twelve pumps of one make. Each has been tested at eight motor speeds. They differ, by wear and by
# how they were built, but nobody has written down how: a pump is known by its number only. Now a thirteenth pump
# arrives. A full test takes a day. How well is its curve known after two or three points?
#
# This page is a script: it simulates the pumps (so that the truth is known), fits the model, and draws the figures.

# %%
import os
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from lvmogp import LVMOGPRegressor
from lvmogp.plots import plot_curves, plot_latent_space, plot_new_condition

IMAGES = Path(os.environ.get("LVMOGP_IMAGES", Path(__file__).parent / "images"))
IMAGES.mkdir(parents=True, exist_ok=True)
NOISE = 0.6  # l/min
rng = np.random.default_rng(4)


def flow(speed, strength, slip):
    """Flow of a pump in l/min at a motor speed in rpm: strong pumps deliver more, worn ones slip at high speed."""
    return strength * speed / 25 / (1 + slip * (speed / 2000) ** 2)


def tests(speeds, strength, slip):
    """Noisy tests of one pump."""
    return flow(speeds, strength, slip) + NOISE * rng.standard_normal(len(speeds))


# %% [markdown]
# ## The data
#
# One row per test: speed, flow, and the number of the pump. Strength and slip of each pump are what the model has
# to find out by itself; it never sees them.

# %%
rows = []
for number in range(1, 13):
    speeds = rng.uniform(300, 2400, 8)
    measured = tests(speeds, rng.uniform(0.8, 1.2), rng.uniform(0.05, 0.6))
    rows.append(pd.DataFrame({"speed (rpm)": speeds, "flow (l/min)": measured, "pump": f"pump {number}"}))
data = pd.concat(rows, ignore_index=True)
print(f"{len(data)} tests of {data['pump'].nunique()} pumps")

# %% [markdown]
# ## The fit
#
# Two latent dimensions are a good start: more cost time, and those not needed are switched off by the fit. The
# curves are smooth, so eight inducing inputs are plenty, and quicker than what the model would choose by itself.

# %%
model = LVMOGPRegressor(n_latent=2, n_inducing_inputs=8, n_restarts=1)
model.fit(data[["speed (rpm)"]], data["flow (l/min)"], conditions=data["pump"])
print(model.outcome_)

figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.4), layout="constrained")
plot_curves(model, ["pump 1", "pump 4", "pump 7", "pump 10"], ax=left)
plot_latent_space(model, ax=right)
figure.savefig(IMAGES / "new_machine-1.png", dpi=100)

# %% [markdown]
# ![Four of the pumps with their tests, and all pumps in the latent space](images/new_machine-1.png)
#
# *Left: tests and curves of four pumps; bands hold the curve with 95 % probability. Right: every pump is a point
# in the latent space, with an ellipse of two standard deviations. Pumps that behave alike lie close together.*
#
# ## The new pump, one test after the other
#
# `add_condition` takes in a new pump without a new fit. `plot_new_condition` shows what it does, on a copy of the
# model.

# %%
strength, slip = 1.15, 0.5
tested = np.array([1500.0, 2300.0, 600.0])
measured = tests(tested, strength, slip)
panels = plot_new_condition(model, tested[:, None], measured)
grid = np.linspace(300, 2400, 100)
for ax in panels[1]:
    ax.plot(grid, flow(grid, strength, slip), color="black", linestyle=":")
panels[0, 0].figure.savefig(IMAGES / "new_machine-2.png", dpi=100)

# %% [markdown]
# ![The latents and the curve of the new pump before and after each of three tests](images/new_machine-2.png)
#
# *Above: what is known of the new pump's latents. Below: its predicted curve, and the truth (dotted). Before any
# test the prediction is that of some pump of this make. One test tells how strong it is, the second how much it
# slips.*

# %%
model.add_condition("pump 13", tested[:, None], measured)
lower, upper = model.predict_interval(grid[:, None], "pump 13", include_noise=False)
covered = np.mean((lower <= flow(grid, strength, slip)) & (flow(grid, strength, slip) <= upper))
print(f"the band of pump 13 holds {100 * covered:.0f} % of its true curve")

# %% [markdown]
# ## Is it better than something simpler?
#
# Six new pumps, three tests each, errors along the whole curve. Against it: a Gaussian process through the three
# tests alone, and one through all tests of all pumps that ignores which pump they belong to.


# %%
def plain_gp(speeds, flows):
    """scikit-learn's Gaussian process with its hyperparameters fitted."""
    kernel = ConstantKernel(4.0, (0.1, 1e3)) * RBF(1000.0, (100, 1e5)) + WhiteKernel(0.01, (1e-4, 1.0))
    gp = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=1, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # three points leave hyperparameters at their limits
        return gp.fit(speeds[:, None], flows)


def rmse(predicted, actual):
    """Root mean squared error."""
    return float(np.sqrt(np.mean((predicted - actual) ** 2)))


ignoring = plain_gp(data["speed (rpm)"].to_numpy(), data["flow (l/min)"].to_numpy())
errors = {"lvmogp": [], "three tests alone": [], "ignoring the pump": []}
for _ in range(6):
    kind = rng.uniform(0.8, 1.2), rng.uniform(0.05, 0.6)
    truth, measured = flow(grid, *kind), tests(tested, *kind)
    model.add_condition("trial", tested[:, None], measured)
    errors["lvmogp"].append(rmse(model.predict(grid[:, None], "trial"), truth))
    errors["three tests alone"].append(rmse(plain_gp(tested, measured).predict(grid[:, None]), truth))
    errors["ignoring the pump"].append(rmse(ignoring.predict(grid[:, None]), truth))
    model.remove_condition("trial")
means = {name: float(np.mean(values)) for name, values in errors.items()}
for name, value in means.items():
    print(f"{name:20} {value:5.2f} l/min")

# %% [markdown]
# The model that has seen other pumps is off by less than the noise of a single test (0.6 l/min), on average over
# six new pumps; three tests alone, or all tests without the pump's number, several times as much.

# %%
assert means["lvmogp"] < NOISE
assert means["lvmogp"] < 0.5 * min(means["three tests alone"], means["ignoring the pump"])
assert covered > 0.7
