"""Measurements to make next under posterior draws, against dense matrices draw by draw."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from drawn_models import N_DRAWS, dense_draws, fitted, forgetting

import lvmogp.conditions.drawn_model as drawn_model
from lvmogp import LVMOGPRegressor
from lvmogp.fitted.suggestions import _curves

FIRST = np.array([[0.2], [0.9], [1.7]])
SECOND = np.array([[0.5], [1.2], [0.9], [1.9]])
SEEN_X, SEEN_Y = np.array([[0.4], [1.5]]), np.array([0.7, -0.5])
FORMS = [("grid", "shared"), ("grid", "per-condition"), ("long", "shared"), ("long", "per-condition")]


def with_new_condition(form: str, noise: str = "shared") -> LVMOGPRegressor:
    model = forgetting(fitted(form, noise=noise))
    model.unseen = "prior"
    return model.add_condition("new", SEEN_X, SEEN_Y)


@pytest.mark.parametrize(("form", "noise"), FORMS)
def test_curves_of_particles_are_those_of_dense_matrices(form, noise):
    model = with_new_condition(form, noise)
    curves = _curves(model.model_, "new")
    scaling, draws = model.model_.scaling, dense_draws(model)
    x, other = scaling.inputs(FIRST), scaling.inputs(SECOND)
    x_seen, y_seen = scaling.inputs(SEEN_X), scaling.outputs(SEEN_Y)
    means, variances = (np.asarray(part) for part in curves.moments(jnp.asarray(x)))
    covariance = np.asarray(curves.covariance(jnp.asarray(x), jnp.asarray(other)))
    number = np.asarray(curves.members.draw)
    assert set(number) == set(range(N_DRAWS))
    for place in range(0, len(number), 7):
        latent, variance = np.asarray(curves.members.latents[place]), float(curves.noise[place])
        found = draws[number[place]].given(np.vstack([x, other]), latent, x_seen, y_seen, variance)
        np.testing.assert_allclose(means[place], found.mean[:3], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(variances[place], np.diag(found.covariance)[:3], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(covariance[place], found.covariance[:3, 3:], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["new", "b", "never seen"])
@pytest.mark.parametrize("form", ["grid", "long"])
def test_sd_before_is_that_of_the_predictions(form, name):
    model = with_new_condition(form)
    found = model.suggest(name, SECOND, n=2)
    _, std = model.predict(SECOND, name, return_std=True, include_noise=False)
    assert found.sd_before == pytest.approx(np.sqrt(np.mean(std**2)), rel=1e-6)
    assert np.all(np.diff([found.sd_before, *found.sd_after]) < 0)


@pytest.mark.parametrize("form", ["grid", "long"])
def test_what_a_measurement_of_a_trained_condition_leaves(form):
    """By the trapezoidal rule over its outcomes, of the mixture of dense draws that each would leave."""
    model, number = fitted(form), 1
    scaling, draws = model.model_.scaling, dense_draws(model)
    points, n = scaling.inputs(np.vstack([SECOND, FIRST])), len(SECOND)
    joints = [draw.at(points, np.tile(draw.latents[number], (len(points), 1))) for draw in draws]
    means, covariances = np.stack([joint.mean for joint in joints]), np.stack([joint.covariance for joint in joints])
    weights, noise = np.array([draw.weight for draw in draws]), np.array([draw.noise[number] for draw in draws])
    expected = []
    for candidate in range(n):
        centre, deviation = means[:, candidate], np.sqrt(covariances[:, candidate, candidate] + noise)
        outcomes = np.linspace((centre - 7 * deviation).min(), (centre + 7 * deviation).max(), 2_000)
        density = weights * scipy.stats.norm(centre, deviation).pdf(outcomes[:, None])
        total = density.sum(axis=1)
        after = density / total[:, None]
        gain = covariances[:, candidate, n:] / deviation[:, None] ** 2
        left = np.diagonal(covariances[:, n:, n:], axis1=1, axis2=2) - gain**2 * deviation[:, None] ** 2
        moved = means[:, n:] + gain * (outcomes[:, None, None] - centre[:, None])
        between = np.einsum("op,opt->ot", after, (moved - np.einsum("op,opt->ot", after, moved)[:, None]) ** 2)
        cell = outcomes[1] - outcomes[0]
        assert total.sum() * cell == pytest.approx(1, abs=1e-6)
        expected.append(np.mean(total @ (after @ left + between)) * cell)
    found = model.suggest("b", SECOND, region=FIRST)
    np.testing.assert_allclose(found.candidate_sd, scaling.output_scale * np.sqrt(expected), rtol=0.02)
    assert found.inputs[0] == SECOND[np.argmin(expected)]


def test_draws_matter():
    """Draws differ in their kernels, so that more is uncertain than under the fit alone."""
    model = forgetting(fitted("grid"))
    alone = forgetting(model)
    alone.model_ = alone.model_._replace(draws=None, drawn=None)
    assert model.suggest("b", SECOND).sd_before != pytest.approx(alone.suggest("b", SECOND).sd_before, rel=1e-3)


def test_latents_are_learnt_about_in_aligned_coordinates():
    model = with_new_condition("long")
    told = model.latents_.set_index("condition")
    for name, sd in (("never seen", 1.0), ("new", told.loc["new", "sd_1"]), ("b", told.loc["b", "sd_1"])):
        found = model.suggest(name, SECOND, goal="latents")
        assert found.sd_before == pytest.approx(float(sd), rel=0.02)
        assert found.sd_after[0] < found.sd_before


def test_draws_that_are_too_many_to_keep_are_made_anew(monkeypatch):
    model = with_new_condition("long")
    kept = model.suggest("new", SECOND, n=2)
    few_kept = forgetting(model)
    few_kept.model_ = model.model_._replace(drawn=dataclasses.replace(model.model_.drawn, kept=None))
    again = few_kept.suggest("new", SECOND, n=2)
    np.testing.assert_allclose(again.candidate_sd, kept.candidate_sd, rtol=1e-9)
    monkeypatch.setattr(drawn_model, "_MOST_KEPT_ELEMENTS", 64 * drawn_model._elements(model.model_.drawn.data))
    fewer = few_kept.suggest("new", SECOND, n=2)
    assert fewer.sd_before == pytest.approx(kept.sd_before, rel=0.05)
    assert fewer.sd_before != kept.sd_before
