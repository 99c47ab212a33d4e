# %% [markdown]
# # Sensors with gaps
#
# Eight temperature sensors hang in one building. Some are good, some are noisy, and each has been silent for two
# days in a row: a battery, a cable. What was the temperature there meanwhile, and how sure can we be? The other
# sensors know something about it, but how much they have in common with this one has to be learnt.

# %%
import os
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.gaussian_process import GaussianProcessRegressor, kernels

from lvmogp import RBF, Constant, Linear, LVMOGPRegressor, Periodic
from lvmogp.insight.summary import noise
from lvmogp.plots import plot_curves, plot_latent_space

IMAGES = Path(os.environ.get("LVMOGP_IMAGES", Path(__file__).parent / "images"))
IMAGES.mkdir(parents=True, exist_ok=True)
N_SENSORS, N_DAYS, PER_DAY = 8, 6, 8
rng = np.random.default_rng(2)

# %% [markdown]
# ## The data
#
# A reading every three hours for six days. Every sensor follows the sun (a daily period) and the weather (slow),
# each by its own amount: sunny rooms swing more, draughty ones feel the weather. Noise goes from 0.1 to 0.8
# degrees.

# %%
times = pd.date_range("2024-05-06", periods=N_DAYS * PER_DAY, freq="3h", name="time")
day = np.arange(len(times)) / PER_DAY
sun = np.sin(2 * np.pi * (day - 0.3))
weather = sum(np.sin(2 * np.pi * day / period + rng.uniform(0, 6)) for period in (1.6, 2.7, 4.5))
names = [f"room {number + 1}" for number in range(N_SENSORS)]
noise_sd = np.linspace(0.1, 0.8, N_SENSORS)
truth = pd.DataFrame(
    {name: 20 + rng.uniform(0.5, 3) * sun + rng.uniform(0.3, 1.5) * weather for name in names}, index=times
)
readings = truth + noise_sd * rng.standard_normal(truth.shape)
for number in range(N_SENSORS):
    start = PER_DAY * (number % (N_DAYS - 2)) + PER_DAY // 2
    readings.iloc[start : start + 2 * PER_DAY, number] = np.nan
silent = readings.isna()
print(f"{int((~silent).sum().sum())} readings, {int(silent.sum().sum())} missing")

# %% [markdown]
# ## The fit
#
# The table goes in as it is: rows are times, columns are sensors, NaN is what was not observed. Dates become
# days, so a daily period starts at `Periodic(period=1.0)`. Every sensor feels the same sun and the same weather,
# each by its own amount: effects in proportion, which is what a linear kernel over the latents says.
# `noise="per-condition"` learns a noise for each sensor.

# %%
model = LVMOGPRegressor(
    n_latent=2,
    input_kernel=RBF() + Periodic(period=1.0),
    latent_kernel=Linear() + Constant(),
    noise="per-condition",
    n_inducing_inputs=24,
    n_restarts=1,
)
model.fit(times.to_frame(index=False), readings)
print(model.outcome_)
learnt = noise(model).set_index("condition")["noise_sd"]
print(pd.DataFrame({"true noise": noise_sd, "learnt": learnt.round(2)}))

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained", width_ratios=(1.5, 1))
plot_curves(model, ["room 2", "room 7"], ax=left)
for name, colour in (("room 2", "#0072B2"), ("room 7", "#E69F00")):
    gap = silent[name].to_numpy()
    left.plot(times[gap], truth[name][gap], linestyle="none", marker=".", color=colour, alpha=0.6)
left.set_ylabel("temperature (°C)")
plot_latent_space(model, ax=right)
figure.savefig(IMAGES / "sensors-1.png", dpi=100)

# %% [markdown]
# ![Two sensors with their gaps filled, and all sensors in the latent space](images/sensors-1.png)
#
# *Left: a quiet and a noisy sensor. The dots in the gaps are the truth, which the model did not see. Right: where
# the sensors lie in the latent space; neighbours behave alike.*
#
# ## How well are the gaps filled?
#
# Against it: a Gaussian process for each sensor with the same kernel. It knows the daily period, but not the
# weather of those two days.


# %%
def alone(name):
    """Predictions of a Gaussian process that has seen this sensor only."""
    slow = kernels.ConstantKernel(1.0) * kernels.RBF(1.0, (0.1, 20))
    daily = kernels.ConstantKernel(1.0) * kernels.ExpSineSquared(1.0, 1.0, (0.1, 20), "fixed")
    kernel = slow + daily + kernels.WhiteKernel(0.1)
    gp = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=1, random_state=0)
    seen = ~silent[name].to_numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some hyperparameters end at their limits
        gp.fit(day[seen, None], readings[name][seen])
    return gp.predict(day[:, None])


gaps = silent.to_numpy()
predicted = model.predict(times.to_frame(index=False))
lower, upper = model.predict_interval(times.to_frame(index=False), include_noise=False)
together = float(np.sqrt(np.mean((predicted - truth.to_numpy())[gaps] ** 2)))
apart = np.column_stack([alone(name) for name in names])
apart = float(np.sqrt(np.mean((apart - truth.to_numpy())[gaps] ** 2)))
covered = float(np.mean(((lower <= truth) & (truth <= upper)).to_numpy()[gaps]))
print(f"error in the gaps: {together:.2f} degrees together, {apart:.2f} each sensor alone")
print(f"the 95 % bands hold {100 * covered:.0f} % of the truth in the gaps")

# %% [markdown]
# Learning the sensors together leaves about a quarter of the error in the gaps, and the bands say honestly how
# large it is. The noise of each sensor comes out too: a sensor whose noise stands out is one to look at.
#
# The linear kernel was knowledge that we put in. With the default kernel over latents, which allows any smooth
# change, the error in the gaps is about half as large again: good knowledge is worth more than eight sensors can
# teach.

# %%
assert together < 0.4 * apart
assert covered > 0.85
assert np.corrcoef(learnt, noise_sd)[0, 1] > 0.8
