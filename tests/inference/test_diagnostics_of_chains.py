"""What chains say about themselves, on chains whose truth is known."""

import numpy as np
import pytest
from numpyro.diagnostics import effective_sample_size

from lvmogp.inference.nuts.chains import Chain, SamplerSettings, Statistics
from lvmogp.inference.nuts.diagnostics import agreement, chain_weights, diagnostics

SETTINGS = SamplerSettings(4, 100, 500, 0)


def some_chain(position, log_posterior, *, n_diverging=0):
    n_draws = len(log_posterior)
    seen = (
        log_posterior,
        -log_posterior,
        np.full(n_draws, 15),
        np.full(n_draws, 0.8),
        np.arange(n_draws) < n_diverging,
    )
    return Chain(position, Statistics(*seen), 0.1, 2.0)


def gaussian_chain(rng, *, mass=1.0, spread=1.0, n_draws=500, **options):
    """Draws from a mode of this mass: log p = log mass + log N(x; 0, spread² I) in 20 dimensions."""
    position = spread * rng.normal(size=(n_draws, 20))
    log_density = np.sum(-((position / spread) ** 2) / 2 - np.log(spread) - np.log(2 * np.pi) / 2, axis=1)
    return some_chain(position, np.log(mass) + log_density, **options)


def autoregressive(rng, shape, correlation):
    values = np.empty(shape)
    values[:, 0] = rng.normal(size=(shape[0], *shape[2:]))
    for step in range(1, shape[1]):
        fresh = rng.normal(size=(shape[0], *shape[2:]))
        values[:, step] = correlation * values[:, step - 1] + np.sqrt(1 - correlation**2) * fresh
    return values


def test_effective_draws_are_those_of_an_autoregressive_process(rng):
    values = autoregressive(rng, (4, 4000, 3), 0.8)
    found = agreement({"numbers": values}, np.ones(4))["numbers"]
    assert found.r_hat < 1.02
    expected = 4 * 4000 * (1 - 0.8) / (1 + 0.8)
    assert 0.8 * expected < found.effective_draws < 1.1 * expected
    few = np.random.default_rng(0).normal(size=(2, 4, 1))  # swing to and fro, and are not worth arbitrarily many
    assert effective_sample_size(few)[0] > 8
    assert agreement({"numbers": few}, np.ones(2))["numbers"].effective_draws == 8 * np.log10(8)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # ArviZ announces its next version
def test_r_hat_is_that_of_arviz(rng):
    arviz = pytest.importorskip("arviz")
    values = rng.normal(size=(4, 100, 2)) + np.array([0, 0, 0, 0.7])[:, None, None]
    found = agreement({"numbers": values}, np.ones(4))["numbers"]
    expected = [float(arviz.rhat(values[..., place], method="split")) for place in range(2)]
    np.testing.assert_allclose(found.r_hat, max(expected), rtol=1e-10)
    assert found.r_hat > 1.05
    # Chains that hardly count do not disturb, nor do numbers that never change.
    beside = np.concatenate([values, np.ones((4, 100, 1))], axis=2)
    assert agreement({"numbers": beside}, np.array([1, 1, 1, 1e-9]))["numbers"].r_hat < 1.03
    assert agreement({"numbers": beside}, np.array([1, 1, 1, 0.7]))["numbers"].r_hat == found.r_hat


def test_chains_of_one_mode_count_nearly_alike_a_wider_one_less_and_the_poorest_has_a_logarithm_of_its_weight(rng):
    *chains, lost = (gaussian_chain(rng) for _ in range(17))
    assert chain_weights(chains).min() > 0.85  # log posteriors with standard errors of √10/√500
    lost = some_chain(lost.positions, lost.statistics.log_posterior - 1e5)
    np.testing.assert_allclose(chain_weights([chains[0], lost]), [1, np.exp(-300)])
    # Wider by a quarter in each of 20 directions, and so lower by 20 log 1.25 = 4.46, a standard error of .2.
    chains = [gaussian_chain(rng), gaussian_chain(rng, spread=1.25)]
    np.testing.assert_allclose(chain_weights(chains), [1, np.exp(-np.sqrt(20) * np.log(1.25))], atol=0.05)
    assert told(chains, rng.normal(size=(2, 500, 5))).remarks[0].startswith("2 chains agree")


def test_with_a_few_draws_nothing_is_said_of_chains(rng):
    chains = [gaussian_chain(rng, mass=mass, n_draws=3) for mass in (1, 1e-9)]
    np.testing.assert_array_equal(chain_weights(chains), 1)
    (remark,) = told(chains, rng.normal(size=(2, 3, 5))).remarks
    assert remark == "A chain of 3 draws cannot tell whether it has found what others would find. Raise n_draws."
    none = diagnostics([], {}, SETTINGS, completed=False, seconds=1.0)
    begin = "Sampling was interrupted before the first draw; predictions are those of the variational fit."
    assert (none.remarks, none.n_draws) == ((begin,), 0)


def told(chains, values, *, completed=True):
    found = agreement({"predictions": values}, chain_weights(chains))
    return diagnostics(chains, found, SETTINGS, completed=completed, seconds=3.0)


def test_good_chains_are_praised(rng):
    found = told([gaussian_chain(rng) for _ in range(4)], rng.normal(size=(4, 500, 5)))
    assert found.remarks[0].startswith("4 chains agree: the largest R-hat is 1.0")
    assert found.n_draws == 2000
    assert [chain.tree_depth for chain in found.chains] == [4.0] * 4
    assert str(found).startswith("2000 draws of 4 chains in 3.0 s; 4 chains agree")
    alone = told([gaussian_chain(rng)], rng.normal(size=(1, 500, 5)))
    assert alone.remarks[0].startswith("The chain agrees with itself: the largest R-hat is 1.0")


@pytest.mark.parametrize(
    ("case", "remark"),
    [
        ("shifted", "The chains do not agree yet on the predictions"),
        ("slow", "The draws are worth about"),
        ("diverging", "50 of 2000 draws diverged"),
        ("caught", "Of 4 chains, chain 2 and 4 found a poorer explanation of the data (log posterior"),
        ("interrupted", "Sampling was interrupted after 2000 of 2000 draws."),
    ],
)
def test_poor_chains_are_described(rng, case, remark):
    chains = [gaussian_chain(rng, n_diverging=50 if case == "diverging" and not number else 0) for number in range(4)]
    values = autoregressive(rng, (4, 500, 5), 0.93 if case == "slow" else 0.0)
    if case == "shifted":
        values += np.arange(4)[:, None, None]
    if case == "caught":
        chains[1] = chains[3] = gaussian_chain(rng, mass=1e-20)
    found = told(chains, values, completed=case != "interrupted")
    assert any(text.startswith(remark) for text in found.remarks)


def test_only_a_chain_that_hardly_counts_is_called_poorer(rng):
    for below, opening in ((1.9, "2 chains agree"), (2.1, "Of 2 chains, chain 2 found a poorer explanation")):
        best = gaussian_chain(rng)
        second = some_chain(best.positions, best.statistics.log_posterior - below * np.sqrt(20))
        found = told([best, second], rng.normal(size=(2, 500, 5)))
        np.testing.assert_allclose(found.chains[1].weight, np.exp(-below), rtol=1e-10)
        assert found.remarks[0].startswith(opening)
