# %% [markdown]
# # A growth-curve study with uneven patients
#
# Twenty-four patients with a growing tumour, its volume measured at visits. Some came twelve times, a third of
# them only twice. A curve for each patient alone is hopeless for those; one curve for all is wrong for everybody.
# Here the patients share what growth looks like, and each keeps a curve of their own.

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
from lvmogp.plots import plot_calibration, plot_curves, plot_latent_space

IMAGES = Path(os.environ.get("LVMOGP_IMAGES", Path(__file__).parent / "images"))
IMAGES.mkdir(parents=True, exist_ok=True)
rng = np.random.default_rng(6)


def volume(month, final, pace):
    """Gompertz growth: the volume in ml after so many months."""
    return final * np.exp(-4 * np.exp(-pace * month))


# %% [markdown]
# ## The data
#
# Long form, one row per visit: patient, month, volume. Volumes are positive and errors are a share of the volume
# (10 %), so we model their logarithm: `output_transform="log"`. Four further visits of each patient are held out
# to see how good the predictions are.

# %%
visits, held_out = [], []
for number in range(24):
    final, pace = rng.uniform(20, 90), rng.uniform(0.10, 0.35)
    n_visits = 2 if number % 3 == 0 else int(rng.integers(4, 13))
    for table, count in ((visits, n_visits), (held_out, 4)):
        months = rng.uniform(0, 24, count)
        volumes = volume(months, final, pace) * np.exp(0.1 * rng.standard_normal(count))
        rows = zip(months, volumes, strict=True)
        table += [{"patient": f"P{number + 1:02}", "month": month, "volume (ml)": value} for month, value in rows]
visits, held_out = pd.DataFrame(visits), pd.DataFrame(held_out)
per_patient = visits.groupby("patient").size()
print(f"{len(visits)} visits of {len(per_patient)} patients, from {per_patient.min()} to {per_patient.max()} each")

# %% [markdown]
# ## The fit
#
# A DataFrame may hold the patient itself: name its column once, and `predict`, pipelines and cross-validation
# find it.

# %%
model = LVMOGPRegressor(n_latent=2, condition="patient", output_transform="log", n_inducing_inputs=8, n_restarts=1)
model.fit(visits[["patient", "month"]], visits["volume (ml)"])
print(model.outcome_)

few, many = per_patient.index[per_patient == 2][:2], per_patient.index[per_patient >= 10][:2]
figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.4), layout="constrained")
plot_curves(model, [*few, *many], ax=left)
plot_latent_space(model, ax=right)
figure.savefig(IMAGES / "growth_curves-1.png", dpi=100)

# %% [markdown]
# ![Two patients with two visits and two with many; all patients in the latent space](images/growth_curves-1.png)
#
# *Left: patients with two visits have wide bands, and curves of the right shape all the same. Bands stay
# positive, as volumes do. Right: patients in the latent space; wide ellipses are those with few visits.*
#
# ## Held-out visits
#
# Against it: a Gaussian process for each patient, and one for all that ignores who they are, all on the
# logarithm. The number is the error of the predicted median, as a factor: 1.10 is the measurement error itself.


# %%
def plain_gp(months, volumes):
    """A Gaussian process of log volumes by scikit-learn."""
    kernel = ConstantKernel(1.0, (0.1, 100)) * RBF(10.0, (2, 100)) + WhiteKernel(0.01, (1e-3, 1.0))
    gp = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two visits leave hyperparameters at their limits
        return gp.fit(np.asarray(months)[:, None], np.log(volumes))


def error_factor(log_predicted):
    """Root mean squared error of the logarithm, as a factor."""
    return float(np.exp(np.sqrt(np.mean((log_predicted - np.log(held_out["volume (ml)"])) ** 2))))


median = model.predict_quantiles(held_out[["patient", "month"]], levels=[0.5])[:, 0]
ignoring = plain_gp(visits["month"], visits["volume (ml)"]).predict(held_out[["month"]].to_numpy())
alone = np.empty(len(held_out))
for patient, rows in held_out.groupby("patient"):
    own = visits[visits["patient"] == patient]
    alone[rows.index] = plain_gp(own["month"], own["volume (ml)"]).predict(rows[["month"]].to_numpy())
errors = {
    "lvmogp": error_factor(np.log(median)),
    "each patient alone": error_factor(alone),
    "ignoring the patient": error_factor(ignoring),
}
for name, value in errors.items():
    print(f"{name:22} a factor of {value:.2f}")

# %% [markdown]
# ## Are the bands honest?
#
# Of intervals that should hold 80 % of new observations, how many do? The calibration plot asks for all levels at
# once.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9.4, 4.2), layout="constrained")
plot_calibration(model, held_out[["patient", "month"]], held_out["volume (ml)"], ax=left)
left.set_title("all patients", fontsize="medium")
scarce = held_out[held_out["patient"].isin(per_patient.index[per_patient == 2])]
plot_calibration(model, scarce[["patient", "month"]], scarce["volume (ml)"], ax=right)
right.set_title("patients with two visits", fontsize="medium")
figure.savefig(IMAGES / "growth_curves-2.png", dpi=100)
lower, upper = model.predict_interval(held_out[["patient", "month"]], level=0.8)
covered = float(np.mean((lower <= held_out["volume (ml)"]) & (held_out["volume (ml)"] <= upper)))
print(f"80 % intervals hold {100 * covered:.0f} % of {len(held_out)} held-out visits")

# %% [markdown]
# ![Calibration on held-out visits, of all patients and of those with two visits](images/growth_curves-2.png)
#
# *Share of held-out visits inside their intervals against the level of the intervals. Inside the grey band,
# differences from the diagonal are what chance alone would give.*
#
# The patients learn from each other: the error is close to that of the measurement, where a model of each patient
# alone, and one curve for all, are off by much more.

# %%
assert errors["lvmogp"] < 1.25
assert errors["lvmogp"] - 1 < 0.6 * (min(errors["each patient alone"], errors["ignoring the patient"]) - 1)
assert 0.65 < covered < 0.95
