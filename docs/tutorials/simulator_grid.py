# %% [markdown]
# # A grid from a simulator
#
# A simulator computes the temperature along a cooling fin over time, for one design after the other: fourteen
# designs so far, all on the same grid of positions and times. It is slow, and a fifteenth design is wanted. Can a
# few of its points give the whole field?
#
# The data are a complete table, one row per point of the grid and one column per design. That is the form in which
# the model is quickest: its cost grows with rows plus columns, not with their product.

# %%
import os
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from lvmogp import ConvergenceWarning, LVMOGPRegressor
from lvmogp.plots import plot_convergence, plot_latent_space, plot_surface

IMAGES = Path(os.environ.get("LVMOGP_IMAGES", Path(__file__).parent / "images"))
IMAGES.mkdir(parents=True, exist_ok=True)
rng = np.random.default_rng(3)


def simulate(points, loss, delay):
    """Temperature in °C at positions (cm) and times (s): heated at one end, losing heat on the way."""
    position, time = points["position (cm)"].to_numpy(), points["time (s)"].to_numpy()
    return 20 + 80 * np.exp(-loss * position) * (1 - np.exp(-time / (delay * (1 + position / 10))))


# %% [markdown]
# ## The data
#
# `fit(X, Y)` takes the grid as it is: `X` the points, `Y` one column per design. What makes a design (its losses
# and delays here) stays hidden from the model; it sees names.

# %%
positions, times = np.meshgrid(np.linspace(0, 10, 8), np.linspace(0, 60, 9))
grid = pd.DataFrame({"position (cm)": positions.ravel(), "time (s)": times.ravel()})
designs = {f"design {number + 1}": (rng.uniform(0.05, 0.25), rng.uniform(5, 20)) for number in range(14)}
runs = pd.DataFrame({name: simulate(grid, *kind) for name, kind in designs.items()})
print(f"{len(grid)} points of {len(designs)} designs, nothing missing")

# %%
model = LVMOGPRegressor(n_latent=2, n_inducing_inputs=30, n_restarts=2, max_iter=100)
with warnings.catch_warnings():
    # Without noise the bound climbs for a long time after predictions have settled.
    warnings.simplefilter("ignore", ConvergenceWarning)
    model.fit(grid, runs)
print(model.outcome_)

figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.4), layout="constrained")
plot_latent_space(model, ax=left)
plot_convergence(model, ax=right)
figure.savefig(IMAGES / "simulator_grid-1.png", dpi=100)

# %% [markdown]
# ![The designs in the latent space, and how the fit went](images/simulator_grid-1.png)
#
# *Left: fourteen designs in the latent space; their ellipses are too small to be seen. Right: the bound of each
# start of the fit. Both are still climbing slowly when the limit of iterations stops them, which matters little:
# see the errors below.*
#
# ## All designs between the points of the grid
#
# Without `conditions`, a model of a grid predicts all its designs at once: one column each, in the order of the
# table.

# %%
finer = pd.DataFrame({"position (cm)": rng.uniform(0, 10, 100), "time (s)": rng.uniform(0, 60, 100)})
everywhere = model.predict(finer)
truth = np.column_stack([simulate(finer, *kind) for kind in designs.values()])
between = float(np.sqrt(np.mean((everywhere - truth) ** 2)))
print(f"{everywhere.shape[0]} new points of {everywhere.shape[1]} designs: error {between:.2f} °C")

# %% [markdown]
# ## A new design from four points
#
# Four points of the new design, spread over the grid, and the trained model fixed.

# %%
new = (0.2, 8.0)
few = pd.DataFrame({"position (cm)": [1.0, 3.0, 6.0, 9.0], "time (s)": [10.0, 50.0, 20.0, 60.0]})
model.add_condition("new design", few, simulate(few, *new))

figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.2), layout="constrained")
plot_surface(model, "new design", colour_bar=False, ax=left)
figure.colorbar(left.collections[0], ax=left, label="temperature (°C)")
across, up = np.meshgrid(np.linspace(0, 10, 60), np.linspace(0, 60, 60))
dense = pd.DataFrame({"position (cm)": across.ravel(), "time (s)": up.ravel()})
error = model.predict(dense, "new design") - simulate(dense, *new)
shown = right.contourf(across, up, error.reshape(across.shape), levels=11, cmap="cividis")
right.plot(few["position (cm)"], few["time (s)"], "o", color="white", markeredgecolor="black", clip_on=False)
right.set(xlabel="position (cm)", ylabel="time (s)", title="predicted minus true (°C)")
right.title.set_fontsize("medium")
figure.colorbar(shown, ax=right)
figure.savefig(IMAGES / "simulator_grid-2.png", dpi=100)

# %% [markdown]
# ![The predicted field of the new design, and its error](images/simulator_grid-2.png)
#
# *Left: the field of the new design as predicted from the four points, with lines of the standard deviation.
# Right: how far it is from the truth. The largest error, at the hot end in the first seconds, is where the field
# jumps: no smooth kernel follows a jump, and the standard deviation there is too small. A finer grid
# there, or a rougher kernel, may help.*
#
# ## Is it better than something simpler?
#
# Against it: a Gaussian process through the four points alone, and the mean of all designs.

# %%
kernel = ConstantKernel(1.0, (0.1, 1e3)) * RBF([5.0, 30.0], (1.0, 1e3))
gp = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=2, random_state=0)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # four points leave hyperparameters at their limits
    gp.fit(few.to_numpy(), simulate(few, *new))
truth = simulate(finer, *new)
errors = {
    "lvmogp": model.predict(finer, "new design") - truth,
    "four points alone": gp.predict(finer.to_numpy()) - truth,
    "mean of all designs": everywhere.mean(axis=1) - truth,
}
errors = {name: float(np.sqrt(np.mean(values**2))) for name, values in errors.items()}
for name, value in errors.items():
    print(f"{name:20} {value:5.2f} °C")

# %% [markdown]
# From four points the whole field is known to a fraction of a degree. If your design parameters are numbers that
# you know, an ordinary Gaussian process over parameters, position and time is the simpler tool; this model is for
# designs that differ in ways you cannot write down.

# %%
assert between < 0.3
assert errors["lvmogp"] < 0.5
assert errors["lvmogp"] < 0.2 * min(errors["four points alone"], errors["mean of all designs"])
