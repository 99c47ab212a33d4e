"""Fully Bayesian inference through the estimator, on data small enough to know what to expect."""

import copy
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from command_line import PAPERS, succeeded
from drawn_models import with_draws
from papers_model import PapersModel

from lvmogp import LVMOGPRegressor, Priors, SettingError, StopFit
from lvmogp.conditions.ensemble import aligned
from lvmogp.errors import ConvergenceWarning
from lvmogp.inference.nuts.chains import SamplerSettings
from lvmogp.inference.nuts.sampling import sampling_settings
from lvmogp.inference.options import Options
from lvmogp.insight.summary import summary

N, D = 9, 5
X = np.linspace(0, 3, N)[:, None]
FACTORS = np.linspace(0.5, 2.0, D)
SETTINGS = {"inference": "nuts", "n_chains": 2, "n_warmup": 60, "n_draws": 40, "n_restarts": 2, "random_state": 0}


def outputs():
    rng = np.random.default_rng(3)
    return 10 + np.sin(2 * X) * FACTORS + 0.1 * rng.normal(size=(N, D))


@pytest.fixture(scope="module")
def model():
    return PapersModel(1, **SETTINGS).fit(X, outputs(), conditions=list("abcde"))


@pytest.mark.parametrize(
    ("asked", "n_observations", "expected"),
    [
        ({}, 500, (16, 160, 60)),
        ({}, 501, (4, 300, 250)),
        ({"n_chains": 8}, 100, (8, 300, 250)),
        ({"n_chains": 20}, 10_000, (20, 160, 60)),
        ({"n_warmup": 50}, 100, (16, 50, 60)),
        ({"n_draws": 5}, 10_000, (4, 300, 5)),
    ],
)
def test_few_observations_have_many_short_chains(asked, n_observations, expected):
    _, settings = sampling_settings(Options(inference="nuts", random_state=7, **asked), n_observations)
    assert settings == SamplerSettings(*expected, seed=7)


@pytest.mark.parametrize(("few", "expected"), [(N * D, [1, 3]), (N * D - 1, [])], ids=["few", "many"])
def test_with_few_observations_every_other_chain_is_tempered(monkeypatch, few, expected):
    monkeypatch.setattr("lvmogp.inference.nuts.sampling.FEW_OBSERVATIONS", few)
    asked = []

    def without_chains(target, starts, variances, settings, report=None, *, tempered=()):
        asked.extend(tempered)
        return {}, True

    monkeypatch.setattr("lvmogp.inference.nuts.sampling.run_chains", without_chains)
    with pytest.warns(ConvergenceWarning):
        PapersModel(1, **SETTINGS | {"n_chains": 5, "n_restarts": 1, "max_iter": 5}).fit(X, outputs())
    assert asked == expected


def test_draws_explain_the_data(model):
    draws, account = model.model_.draws, model.sampling_
    assert draws.n_draws == 80
    np.testing.assert_array_equal(draws.chain, np.repeat([0, 1], 40))
    np.testing.assert_allclose(np.exp(draws.log_weight).sum(), 1)
    assert account.completed
    assert set(account.agreement) == {"log posterior", "predictions", "latent kernel matrix", "noise"}
    between = X[:-1] + 0.19
    np.testing.assert_allclose(model.predict(between), 10 + np.sin(2 * between) * FACTORS, atol=0.25)
    # Noise of 0.1, known from 45 observations to about a fifth.
    noise = np.sqrt(np.median(draws.noise_variance)) * model.model_.scaling.output_scale
    assert 0.07 < noise < 0.15
    np.testing.assert_array_equal(draws.kernels.of_latents[0].variance, 1)  # which is redundant
    assert jax.tree.structure(draws.kernels.of_latents[0]) == jax.tree.structure(model.latent_kernel_)
    found = summary(model)
    assert found.n_draws == 80
    assert set(account.remarks) <= set(found.remarks)


def test_the_command_line_draws_from_the_posterior(tmp_path, model):
    table = pd.DataFrame({"x": np.repeat(X[:, 0], D), "y": outputs().ravel(), "tyre": np.tile(list("abcde"), N)})
    table.to_csv(tmp_path / "data.csv", index=False)
    options = ["--inference", "nuts", "--chains", "2", "--warmup", "60", "--draws", "40", "--restarts", "2"]
    arguments = [tmp_path / "data.csv", "--output", "y", "--condition", "tyre", "--latents", "1", *PAPERS]
    arguments += ["--noise", "shared"]
    result = succeeded("fit", *arguments, "--model", tmp_path / "model.lvmogp", *options, "--json")
    assert json.loads(result.stdout)["summary"]["n_draws"] == 80
    loaded = LVMOGPRegressor.load(tmp_path / "model.lvmogp")
    assert loaded.get_params()["n_chains"] == 2
    # Rows of a table are no grid, so these are other draws from the same posterior.
    np.testing.assert_allclose(loaded.predict(pd.DataFrame({"x": X[:, 0]}), "b"), model.predict(X, "b"), atol=0.05)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # ArviZ announces its next version
def test_arviz_reads_the_draws(model):
    pytest.importorskip("arviz")
    data, draws = model.to_arviz(), model.model_.draws
    reference = model.model_.posterior.parameters.latent_mean
    found, statistics, own = data.posterior, data.sample_stats, model.sampling_.statistics
    kernels = {"input_kernel_lengthscale", "input_kernel_variance", "latent_kernel_lengthscale"}
    assert set(found) == kernels | {"noise_variance", "latents"}
    for one, other in (
        (found["latents"].sel(chain=1, draw=3, condition="c"), aligned(draws, reference)[43, 2]),
        (found["input_kernel_lengthscale"].sel(chain=0, column=0), draws.kernels.of_inputs[0].lengthscale[:40, 0]),
        (found["noise_variance"].sel(chain=1), draws.noise_variance[40:, 0]),
        (statistics["energy"].sel(chain=0), own.energy[:40]),
        (statistics["n_steps"].sel(chain=1), own.n_leapfrogs[40:]),
        (statistics["log_weight"].sel(chain=1), draws.log_weight[40:]),
    ):
        np.testing.assert_array_equal(one, other)
    assert np.all(2 ** statistics["tree_depth"] > statistics["n_steps"])


def test_arviz_has_nothing_to_read_without_draws(model, monkeypatch):
    variational = copy.copy(model)
    variational.model_ = with_draws(model.model_, None)
    assert variational.sampling_ is None
    with pytest.raises(SettingError, match="there are no draws to hand to ArviZ"):
        variational.to_arviz()
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(SettingError, match=r'to_arviz needs ArviZ.*pip install "lvmogp\[arviz\]"'):
        model.to_arviz()


@pytest.mark.long
def test_noise_per_condition_and_long_data_and_priors():
    y = outputs()
    noisy = y + np.random.default_rng(0).normal(size=y.shape) * np.array([0, 0, 0, 0, 1.0])
    noisy[2, 1] = np.nan  # no longer a grid
    priors = Priors(noise_spread=(1.0, 0.5))
    settings = {**SETTINGS, "noise": "per-condition", "priors": priors, "dtype": "float32"}
    model = PapersModel(1, **settings).fit(X, noisy)
    draws = model.model_.draws
    assert draws.latents.dtype == jnp.float32
    noise = np.median(np.asarray(draws.noise_variance), axis=0)
    assert noise.shape == (D,)
    assert noise[4] > 5 * noise[:4].max()


@pytest.mark.parametrize("n_reports", [1, 6])
def test_a_stop_keeps_what_is_there(monkeypatch, n_reports):
    monkeypatch.setattr("lvmogp.inference.nuts.chains._PIECE_SECONDS", 1e-9)  # one step a piece
    seen = []

    def stop(progress):
        if progress.recipe == "nuts":
            seen.append(progress)
            if len(seen) == n_reports:
                raise StopFit

    settings = {**SETTINGS, "n_warmup": 1, "n_restarts": 1}
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model = PapersModel(1, **settings).fit(X, outputs(), on_progress=stop)
    assert not model.sampling_.completed
    if n_reports == 1:
        assert model.sampling_.remarks[0].startswith("Sampling was interrupted")
    else:
        assert 4 <= model.model_.draws.n_draws <= 6
    assert (seen[-1].n_restarts, seen[-1].iteration, seen[-1].share) == (2, n_reports, n_reports / (2 * 41))
    assert np.all(np.isfinite(model.predict(X)))
