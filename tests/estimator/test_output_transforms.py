"""Fits of a transform of the output, from the data to answers in the user's units."""

import copy
import functools
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from test_estimator import FACTORS, X_NEW, D, N, X, regressor

from lvmogp import DataError, LVMOGPRegressor, StopFit
from lvmogp.inference.options import Options
from lvmogp.pipeline import output_transforms
from lvmogp.tables.scaling import Logarithm, SquareRoot

ROOTS = 1.2 + np.sin(X + 0.5 * FACTORS) * (1 + 0.3 * FACTORS)  # some near zero
NOISE = 0.1 * np.random.default_rng(0).normal(size=(N, D))


@pytest.fixture(scope="module")
def fitted():
    model = regressor(output_transform="sqrt").fit(X, (ROOTS + NOISE) ** 2, conditions=list("abcdef"))
    return model.add_condition("new", [[0.5], [4.0]], (1.2 + np.sin([0.95, 4.45]) * 1.27) ** 2)


def test_a_square_root_is_what_is_fitted(fitted):
    plain = regressor().fit(X, np.abs(ROOTS + NOISE), conditions=list("abcdef"))
    assert fitted.outcome_.bound == pytest.approx(plain.outcome_.bound, rel=1e-9)
    mean, std = plain.predict(X_NEW, "a", return_std=True)
    expected = SquareRoot().mean(jnp.asarray(mean), jnp.asarray(std**2))
    assert_allclose(fitted.predict(X_NEW, "a"), expected, rtol=1e-2)  # up to the nodes of its latents
    assert fitted.output_transform_ == "sqrt"
    assert plain.output_transform_ is None


def test_zeros_have_a_root_and_negative_outputs_none(fitted):
    model = copy.copy(fitted)
    model.add_condition("zeros", [[1.0], [2.0]], [0.0, 0.0])
    assert np.all(model.predict([[1.0], [2.0]], "zeros") < 0.3)
    counts = np.random.default_rng(2).poisson(2 * ROOTS**2).astype(float)
    assert np.any(counts == 0)
    of_counts = regressor(output_transform="sqrt").fit(X, counts)
    lower, upper = of_counts.predict_interval(X, 0)
    assert np.all((lower <= counts[:, 0]) & (counts[:, 0] <= upper))  # zeros among them
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        judged = of_counts.calibration(X, counts)
    assert np.isfinite(judged.log_density)
    assert judged.coverage["coverage"].iloc[-1] > 0.9
    with pytest.raises(DataError, match='"sqrt" needs outputs of zero or more'):
        model.add_condition("negative", [[1.0]], [-0.1])
    with pytest.raises(DataError, match='output_transform="sqrt" needs outputs of zero or more, but 1 of 2 are neg'):
        regressor(output_transform="sqrt").fit([[1.0], [2.0]], [1.0, -1.0], ["a", "b"])


# The transform that the bound prefers

# Noise of one size in what was transformed.
OUTPUTS = {None: 10 + ROOTS + 2 * NOISE, "sqrt": (5 + ROOTS + 6 * NOISE) ** 2, "log": np.exp(ROOTS + 6 * NOISE)}


def fit(outputs, transform="auto", **options):
    names = [str(number) for number in range(D)]
    return regressor(output_transform=transform).fit(X, outputs, conditions=names, **options)


@functools.cache
def chosen(transform):
    return fit(OUTPUTS[transform])


@pytest.mark.parametrize("transform", OUTPUTS)
def test_the_bound_chooses(transform, tmp_path):
    model = chosen(transform)
    assert model.output_transform_ == transform
    assert set(model.bounds_by_transform_) == {None, "log", "sqrt"}
    same = fit(OUTPUTS[transform], transform)
    assert_array_equal(model.predict(X_NEW), same.predict(X_NEW))
    assert model.bounds_by_transform_[transform] == same.bounds_by_transform_[transform]
    model.save(tmp_path / "chosen.lvmogp")
    assert LVMOGPRegressor.load(tmp_path / "chosen.lvmogp").bounds_by_transform_ == model.bounds_by_transform_


def test_bounds_of_transforms_are_in_the_units_of_the_output():
    larger = fit(1000 * OUTPUTS["log"]).bounds_by_transform_
    for name, bound in chosen("log").bounds_by_transform_.items():
        assert larger[name] == pytest.approx(bound - N * D * np.log(1000), abs=1e-3)


def test_what_is_tried_depends_on_the_outputs_and_on_who_answers():
    positive, with_zero = np.array([1.0, 2.0]), np.array([0.0, 2.0])
    auto = Options(output_transform="auto")
    assert output_transforms(auto, positive) == [None, Logarithm(), SquareRoot()]
    assert output_transforms(Options(output_transform="auto", inference="nuts"), positive) == [None, SquareRoot()]
    assert output_transforms(auto, with_zero) == [None]
    assert output_transforms(Options(output_transform="sqrt"), with_zero) == [SquareRoot()]


@pytest.mark.filterwarnings("ignore:the fit did not converge")
def test_a_choice_that_is_stopped_keeps_the_best_so_far():
    n_ended = []

    def stop(progress):
        if progress.iteration == 1:
            n_ended.append(progress)
        if len(n_ended) == 2:
            raise StopFit

    model = fit(OUTPUTS["log"], on_progress=stop)
    assert not model.outcome_.converged
    assert set(model.bounds_by_transform_) == {None, "log"}


def test_a_choice_goes_on_from_its_checkpoints(tmp_path):
    fit(OUTPUTS["log"], checkpoint=tmp_path)
    seen = []
    again = fit(OUTPUTS["log"], checkpoint=tmp_path, resume=True, on_progress=seen.append)
    assert not seen
    assert_array_equal(again.predict(X_NEW), chosen("log").predict(X_NEW))
