"""Splits and scores against loops over rows."""

import itertools

import numpy as np
import pytest

from lvmogp import DataError
from lvmogp.insight.validation import (
    Forecast,
    Tallies,
    log_relative_error,
    new_conditions,
    rows_removed,
    scores,
    tallied,
)

# Names in no order, of conditions with one to six rows.
SIZES = {"q": 6, "b": 1, "z": 5, "a": 2, "m": 6, "c": 3, "k": 4, "d": 1}
IDS = np.random.default_rng(0).permutation([name for name, size in SIZES.items() for _ in range(size)])


@pytest.mark.parametrize(("seed", "n_points"), list(itertools.product(range(5), [1, 3, 5])))
def test_new_conditions_have_their_points_and_leave_at_least_one_to_predict(seed, n_points):
    split = new_conditions(IDS, np.random.default_rng(seed), n_points=n_points)
    assert sorted(np.concatenate(split)) == list(range(len(IDS)))
    new = set(IDS[split.test])
    assert len(new) == 2
    assert new.isdisjoint(IDS[split.train])
    for name in new:
        n_rows = SIZES[name]
        assert list(IDS[split.few]).count(name) == min(n_points, n_rows - 1)
        assert list(IDS[split.test]).count(name) == max(n_rows - n_points, 1)


def test_every_condition_and_every_row_has_its_turn():
    rngs = [np.random.default_rng(seed) for seed in range(400)]
    splits = [new_conditions(IDS, rng, n_points=1) for rng in rngs]
    held_back = [name for split in splits for name in set(IDS[split.test])]
    shares = {name: held_back.count(name) / len(splits) for name in SIZES}
    assert shares == pytest.approx(dict.fromkeys(SIZES, 2 / 8), abs=0.08)
    few = np.concatenate([split.few for split in splits])
    of_one = [np.sum(few == place) for place in np.flatnonzero(IDS == "q")]
    np.testing.assert_allclose(of_one, np.sum(of_one) / 6, rtol=0.6)


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_rows_are_removed_but_never_the_last_of_a_condition(share):
    removed = np.zeros(len(IDS))
    for seed in range(300):
        split = rows_removed(IDS, np.random.default_rng(seed), share=share)
        assert sorted(np.concatenate([split.train, split.test])) == list(range(len(IDS)))
        assert len(split.few) == 0
        assert set(IDS[split.train]) == set(SIZES)
        assert len(split.test) == min(round(share * len(IDS)), len(IDS) - len(SIZES))
        removed[split.test] += 1 / 300
    for name in SIZES:
        own = removed[name == IDS]
        np.testing.assert_allclose(own, own.mean(), atol=0.12)


def test_new_conditions_need_others_to_learn_from():
    with pytest.raises(DataError, match="the data have 1"):
        new_conditions(["a", "a"], np.random.default_rng(0), n_points=1)
    split = new_conditions(["a", "b"], np.random.default_rng(0), n_points=1, share=0.9)
    assert len(split.train) == 1


def forecast_and_outputs(seed=1):
    rng = np.random.default_rng(seed)
    mean, outputs = rng.standard_normal((2, len(IDS)))
    half = rng.uniform(0.5, 2, (2, len(IDS)))
    return Forecast(mean, mean - half[0], mean + half[1], rng.standard_normal(len(IDS))), outputs


def test_tallies_and_scores_are_those_of_loops():
    forecast, outputs = forecast_and_outputs()
    names, found = tallied(forecast, outputs, IDS)
    assert names == list(dict.fromkeys(IDS))
    wanted = {name: [0.0] * 5 for name in names}
    for name, mean, lower, upper, density, output in zip(IDS, *forecast, outputs, strict=True):
        of_row = (1, (mean - output) ** 2, density, lower <= output <= upper, upper - lower)
        wanted[name] = [total + value for total, value in zip(wanted[name], of_row, strict=True)]
    np.testing.assert_allclose(np.transpose(found), [wanted[name] for name in names], rtol=1e-12)
    pooled = scores(found)
    assert pooled.rmse.value == pytest.approx(np.sqrt(np.mean((forecast.mean - outputs) ** 2)), rel=1e-12)
    assert pooled.log_density.value == pytest.approx(np.mean(forecast.log_density), rel=1e-12)
    n_inside = sum(forecast.lower[i] <= outputs[i] <= forecast.upper[i] for i in range(len(IDS)))
    assert pooled.coverage.value == pytest.approx(n_inside / len(IDS), rel=1e-12)
    assert pooled.width.value == pytest.approx(np.mean(forecast.upper - forecast.lower), rel=1e-12)


def drawn_tallies(rng, n_groups):
    """Sums over groups that differ in their rows and in how hard they are, the same for two methods."""
    n_rows = rng.integers(3, 9, n_groups).astype(float)
    hard = rng.gamma(3.0, 1.0, n_groups)
    own, other = (n_rows * hard * rng.gamma(8.0, level, n_groups) for level in (1.0, 1.4))
    rest = n_rows * rng.normal(-1, 0.5, (2, n_groups))
    inside = rng.binomial(n_rows.astype(int), 0.9).astype(float)
    return Tallies(n_rows, own, rest[0], inside, rest[1]), Tallies(n_rows, other, rest[1], inside, rest[0])


def test_standard_errors_are_the_deviations_over_many_draws():
    rng = np.random.default_rng(2)
    pairs = [drawn_tallies(rng, 60) for _ in range(3000)]
    pooled = [scores(own) for own, _ in pairs]
    for part in zip(*pooled, strict=True):
        values, errors = np.transpose(part)
        assert np.mean(errors) == pytest.approx(np.std(values), rel=0.06)
    values, errors = np.transpose([log_relative_error(*pair) for pair in pairs])
    assert np.mean(values) == pytest.approx(-np.log(1.4) / 2, abs=0.01)
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.06)


def test_one_group_has_no_standard_error():
    own, other = drawn_tallies(np.random.default_rng(3), 1)
    assert np.isnan([figure.standard_error for figure in scores(own)]).all()
    found = log_relative_error(own, other)
    assert np.exp(found.value) == pytest.approx(scores(own).rmse.value / scores(other).rmse.value)
    assert np.isnan(found.standard_error)
