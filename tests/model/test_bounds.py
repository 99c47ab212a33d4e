"""Bounds against the paper's formulas with every Kronecker product formed, dense Gaussians, limits and differences."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from numpy.testing import assert_allclose
from small_models import (
    MISSING,
    PER_CONDITION,
    Q_X,
    Case,
    D,
    as_long,
    described_parameters,
    full_inducing,
    grid_as_long,
    grid_case,
    kronecker_inducing,
    long_case,
    number,
    rbf,
    replace,
    small_parameters,
)

from lvmogp.algebra.constraints import join, split
from lvmogp.ground.compiling import compiled
from lvmogp.ground.precision import in_precision
from lvmogp.inference.starts import IndependentParameters, independent_bound
from lvmogp.kernels.covariances import RBF, Constant, Linear, Matern52, Periodic
from lvmogp.model import expected_likelihood
from lvmogp.model.bounds import Bound, collapsed, collapsed_objective, explicit, explicit_objective
from lvmogp.model.expected_likelihood import ConstantTerm, condition_sums, quadratic
from lvmogp.model.features import basis
from lvmogp.model.layouts import Data, GridData, long_data
from lvmogp.model.parameters import FullInducing, Parameters, of_conditions, plain_kernels

compiled_collapsed, compiled_explicit, compiled_independent, compiled_quadratic = map(
    compiled, (collapsed, explicit, independent_bound, quadratic)
)
CASES = {"grid": grid_case, "long": long_case}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]()


def example(inducing: Callable | None = None, *, noise=PER_CONDITION, seed: int = 0, **changes) -> Parameters:
    parameters = dataclasses.replace(small_parameters(2, noise=noise, seed=seed), **changes)
    return parameters if inducing is None else replace(parameters, inducing=inducing())


class Method(NamedTuple):
    """A bound with the q(v) it needs."""

    bound: Callable[[Parameters, Data], Bound]
    compiled: Callable[[Parameters, Data], Bound]
    inducing: Callable | None


METHODS = {
    "collapsed": Method(collapsed, compiled_collapsed, None),
    "full": Method(explicit, compiled_explicit, full_inducing),
    "kronecker": Method(explicit, compiled_explicit, kronecker_inducing),
}


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> Method:
    return METHODS[request.param]


def described() -> Parameters:
    """One latent and two coordinates from features, some of them missing; noise per condition."""
    return replace(described_parameters(), noise_variance=jnp.asarray(PER_CONDITION))


def close(expected: float, rtol: float = 1e-11):
    return pytest.approx(float(expected), rel=rtol, abs=0)


# The paper's formulas


def test_bounds_are_the_papers_formulations(method: Method, case: Case):
    parameters = example(method.inducing)
    reference = references.dense_collapsed if method.inducing is None else references.missing_data_formulation
    bound = method.compiled(parameters, case.data)
    assert float(bound.total) == close(reference(parameters, case.observations))
    assert float(bound.kl_latents) == close(references.latent_kl(parameters))
    assert float(bound.total) == close(bound.fit - bound.kl_latents)
    noise = np.repeat(PER_CONDITION, [len(outputs) for _, outputs in case.observations])
    prior = float(parameters.kernels.of_inputs[0].variance * parameters.kernels.of_latents[0].variance)
    assert float(bound.signal) == close(np.sum(prior / noise))
    assert float(bound.penalised) == close(bound.total - 1e-6 * bound.signal / 2, 1e-14)


@pytest.mark.parametrize(("method", "objective"), [("collapsed", collapsed_objective), ("full", explicit_objective)])
def test_what_is_searched_by_is_the_penalised_bound(method: str, objective: Callable):
    parameters, data = example(METHODS[method].inducing), grid_case().data
    assert float(compiled(objective)(parameters, data)) == close(METHODS[method].compiled(parameters, data).penalised)


INPUT_KERNEL = RBF(jnp.array([1.6]), number(1.3), columns=0) * (
    Matern52(jnp.array([1.3]), number(0.9), columns=1) + Constant(number(0.2))
) + Periodic(jnp.array([2.5]), jnp.array([1.1]), number(0.6), columns=0)
# A Matern kernel has no closed form: the reference takes the library's nodes, and the tests of the psi-statistics say
# how exact those are.
LATENT_KERNELS = {
    "closed form": (rbf([0.9, 1.2], 0.7) + Linear(jnp.array([0.4, 0.3])) + Constant(number(0.5)), references.NODES),
    "quadrature": (Matern52(jnp.array([1.3, 1.6]), number(0.7)), 16),
}


@pytest.mark.parametrize(("form", "latents"), [("grid", "closed form"), ("long", "quadrature")])
def test_other_kernels_agree_with_the_missing_data_formulation(form: str, latents: str):
    case, (latent_kernel, n_nodes) = CASES[form](), LATENT_KERNELS[latents]
    parameters = example(full_inducing, kernels=plain_kernels(INPUT_KERNEL, latent_kernel))
    expected = references.missing_data_formulation(parameters, case.observations, n_nodes)
    assert float(compiled_explicit(parameters, case.data).total) == close(expected)


def test_explicit_bound_without_a_q_says_so():
    with pytest.raises(TypeError, match=r"explicit bound needs a q\(v\) in parameters\.inducing"):
        explicit(example(), grid_case().data)


# The collapsed bound's place between the others


def test_explicit_bounds_are_below_the_collapsed_bound_and_reach_it_at_the_optimal_q(case: Case):
    parameters = example()
    highest = float(compiled_collapsed(parameters, case.data).total)

    def reached(inducing) -> float:
        return float(compiled_explicit(replace(parameters, inducing=inducing), case.data).total)

    mean, variance = references.optimal_inducing(parameters, case.observations)
    optimum = FullInducing(jnp.asarray(mean), jnp.asarray(np.linalg.cholesky(variance)))
    assert reached(optimum) == close(highest)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        assert max(reached(full_inducing(seed=seed)), reached(kronecker_inducing(seed))) < highest
        step = 1e-3 * jnp.tril(rng.normal(size=optimum.factor.shape))
        assert 0 < highest - reached(FullInducing(optimum.mean, optimum.factor + step)) < 0.1


def test_collapsed_bound_with_known_latents_is_below_the_exact_log_likelihood_and_reaches_it(case: Case):
    def gap(parameters: Parameters) -> float:
        bound = float(compiled_collapsed(parameters, case.data).total) + references.latent_kl(parameters)
        return references.exact_log_likelihood(parameters, case.observations) - bound

    for seed in range(3):
        pinned = replace(example(seed=seed), latent_variance=jnp.full((D, 2), 1e-12, float))
        assert gap(pinned) > 0
    inputs = np.unique(np.concatenate([inputs for inputs, _ in case.observations]), axis=0)
    at_data = replace(pinned, inducing_inputs=jnp.asarray(inputs), inducing_latents=pinned.latent_mean)
    # The jitter leaves at most ε·mean(diag K) of each kernel's variance unexplained at each observation.
    prior = float(pinned.kernels.of_inputs[0].variance * pinned.kernels.of_latents[0].variance)
    n_observations = sum(len(outputs) for _, outputs in case.observations)
    assert -1e-9 < gap(at_data) < 2 * references.JITTER * prior * n_observations / min(PER_CONDITION)


# The forms of data


def test_care_changes_nothing_but_digits(case: Case):
    # More inducing latents than inputs, where other tests have fewer.
    points = jnp.asarray(np.random.default_rng(9).normal(size=(5, 3)))
    parameters = replace(described(), inducing_latents=points)
    plain, careful = (compiled_quadratic(parameters, case.data, careful=careful) for careful in (False, True))
    assert_allclose(careful.constant.residual, plain.constant.residual, rtol=1e-8)
    assert_allclose(careful.linear, plain.linear, rtol=1e-8, atol=1e-8)
    assert_allclose(careful.dense_gram(), plain.dense_gram(), rtol=1e-8, atol=1e-8)


def test_conditions_without_observations_contribute_only_their_divergence():
    observed, empty = np.array([1, 3]), np.array([0, 2])
    observations = list(long_case().observations)
    for d in empty:
        observations[d] = (np.empty((0, Q_X)), np.empty(0))
    parameters = example()
    some = of_conditions(parameters, observed), as_long([observations[d] for d in observed])
    expected = compiled_collapsed(*some).total - references.latent_kl(of_conditions(parameters, empty))
    assert float(compiled_collapsed(parameters, as_long(observations)).total) == close(expected)


def test_order_of_observations_inputs_and_conditions_does_not_matter(case: Case):
    rng, order, parameters = np.random.default_rng(6), np.array([2, 0, 3, 1]), described()
    observations = []
    for d in order:
        inputs, outputs = case.observations[d]
        rows = np.arange(len(inputs))[::-1] if isinstance(case.data, GridData) else rng.permutation(len(inputs))
        observations.append((inputs[rows], outputs[rows]))
    moved = as_long(observations)
    if isinstance(case.data, GridData):
        moved = GridData(case.data.inputs[::-1], case.data.outputs[::-1, order])
    before = compiled_collapsed(parameters, case.data).total
    assert float(compiled_collapsed(of_conditions(parameters, order), moved).total) == close(before)
    assert abs(compiled_collapsed(parameters, moved).total - before) > 1e-3


def test_sums_of_long_data_in_slices_are_those_at_once_with_the_same_gradient(monkeypatch):
    rng, counts = np.random.default_rng(10), (40, 2, 24, 100)
    inputs, outputs, errors = rng.uniform(-2, 2, (166, Q_X)), rng.normal(size=166), rng.uniform(0.1, 0.5, 166)
    data = long_data(inputs, outputs, np.repeat(np.arange(4), counts), 4, error_variances=errors)
    parameters = example()

    def total(kernel, points, noise) -> jax.Array:
        sums = condition_sums(basis((kernel,), points), data, noise)
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(sums))

    given = parameters.kernels.of_inputs[0], parameters.inducing_inputs, parameters.noise_variance

    def found() -> tuple[str, tuple]:
        fresh = jax.value_and_grad(lambda *given: total(*given), (0, 1, 2))
        return str(jax.make_jaxpr(fresh)(*given)), jax.jit(fresh)(*given)

    program, at_once = found()
    assert "scan[" not in program
    monkeypatch.setattr(expected_likelihood, "_ELEMENTS_ON_CPU", 1)
    program, in_slices = found()
    assert "scan[" in program
    jax.tree.map(lambda one, other: assert_allclose(one, other, rtol=1e-9, atol=1e-11), in_slices, at_once)


# Known errors of measurements


def test_with_errors_the_bound_is_exact_with_enough_inducing_points_and_latents_that_are_known():
    rng, counts = np.random.default_rng(50), (3, 2, 4)
    inputs = np.linspace(-4, 4, 9)[:, None] + 0.1 * rng.uniform(-1, 1, (9, 1))  # apart: no jitter to speak of
    latents, conditions = jnp.array([[-1.2], [0.1], [1.3]]), np.repeat(np.arange(3), counts)
    values, errors = rng.normal(size=9), rng.uniform(0, 0.6, 9) ** 2
    errors[4] = 0.0
    parameters = Parameters(
        kernels=plain_kernels(rbf([1.1], 1.2), rbf([1.3], 0.9)),
        inducing_inputs=jnp.asarray(inputs),
        inducing_latents=latents,
        latent_mean=latents,
        latent_variance=jnp.full((3, 1), 1e-12, float),
        noise_variance=jnp.array([0.02, 0.05, 0.2]),
    )
    data = long_data(inputs, values, conditions, 3, error_variances=errors)
    parts = [np.split(rows, np.cumsum(counts)[:-1]) for rows in (inputs, values)]
    expected = references.exact_log_likelihood(parameters, list(zip(*parts, strict=True)), errors)
    assert_allclose(compiled_collapsed(parameters, data).fit, expected, atol=2e-5)
    shared = IndependentParameters(parameters.kernels.of_inputs[0], parameters.inducing_inputs, number(0.07))
    apart = np.equal.outer(conditions, conditions) * references.covariance(
        parameters.kernels.of_inputs[0], inputs, inputs
    )
    expected = references.log_normal(values, apart + np.diag(0.07 + errors))
    assert_allclose(compiled_independent(shared, data), expected, atol=2e-5)


def test_equal_errors_keep_a_grid_and_add_to_its_noise():
    parameters, grid = example(), grid_case().data
    uncertain = GridData(grid.inputs, grid.outputs, number(0.3))
    noisier = replace(parameters, noise_variance=parameters.noise_variance + 0.3)
    expected = compiled_collapsed(noisier, grid).total
    assert_allclose(compiled_collapsed(parameters, uncertain).total, expected, rtol=1e-12)
    assert_allclose(compiled_collapsed(parameters, grid_as_long(uncertain)).total, expected, rtol=1e-10)


# Known features of conditions


def test_known_coordinates_are_latents_of_no_variance_and_no_cost(case: Case):
    parameters = described()
    known = parameters.known
    mean = np.hstack([parameters.latent_mean, known.values])
    variance = np.hstack([parameters.latent_variance, np.zeros(known.values.shape)])
    for place, (condition, coordinate) in enumerate(zip(*MISSING, strict=True)):
        mean[condition, 1 + coordinate] = known.missing_mean[place]
        variance[condition, 1 + coordinate] = known.missing_variance[place]
    plain = dataclasses.replace(
        parameters,
        latent_mean=jnp.asarray(mean),
        latent_variance=jnp.asarray(np.maximum(variance, 1e-13)),
        known=None,
    )
    found, expected = compiled_collapsed(parameters, case.data), compiled_collapsed(plain, case.data)
    assert_allclose(found.fit, expected.fit, rtol=1e-10)
    unknown = variance > 0
    divergences = (mean**2 + variance - np.log(np.where(unknown, variance, 1.0)) - 1) / 2
    assert_allclose(found.kl_latents, divergences[unknown].sum(), rtol=1e-12)
    # Known values, and the places of missing ones, are not free.
    n_numbers = sum(np.size(leaf) for leaf in jax.tree.leaves(parameters))
    assert len(split(parameters)[0]) == n_numbers - known.values.size - 2 * len(MISSING[0])


# Derivatives and precision


@pytest.mark.parametrize("name", ["collapsed", "kronecker"])
def test_gradient_is_the_finite_difference(case: Case, name: str):
    method = METHODS[name]
    parameters = described() if method.inducing is None else example(method.inducing)
    vector, fixed, structure = split(parameters)

    def total(vector: jax.Array, data: Data) -> jax.Array:
        return method.bound(join(vector, fixed, structure), data).total

    gradient = np.asarray(jax.jit(jax.grad(total))(vector, case.data))
    rng = np.random.default_rng(7)
    for _ in range(3):
        direction = rng.normal(size=gradient.shape)

        def along(step: float, direction: np.ndarray = direction) -> float:
            return float(method.compiled(join(vector + step * direction, fixed, structure), case.data).total)

        near, far = (along(step) - along(-step) for step in (1e-3, 2e-3))
        assert gradient @ direction == close((8 * near - far) / 0.012, 1e-7)  # exact up to step⁴


def test_single_precision_agrees_to_its_own_tolerance():
    parameters, data = example(), long_case().data
    single = compiled_collapsed(*in_precision((parameters, data), "float32"))
    assert single.total.dtype == jnp.float32
    assert float(single.total) == close(compiled_collapsed(parameters, data).total, 1e-4)


# Rounding errors


def test_a_sum_that_must_not_be_negative_may_be_so_by_a_hundredth_for_each_observation():
    def is_lost(residual: float, misfit: float) -> bool:
        constant = ConstantTerm(*map(number, (200.0, 1.0, misfit + 5.0, 1.0, residual)))
        return bool(jnp.isnan(constant.log_likelihood(number(5.0))))

    assert not is_lost(-1.99, 3.0)
    assert is_lost(-2.01, 3.0)
    assert is_lost(3.0, -2.01)


def test_rounding_errors_never_look_like_a_gain(case: Case):
    """Where they take over, the bound is no number; it never exceeds log p of data that are explained perfectly."""
    rng = np.random.default_rng(5)
    outputs = rng.normal(size=(16, 8))
    data = GridData(jnp.asarray(np.linspace(-2, 2, 16)[:, None]), jnp.asarray(outputs))
    data = data if isinstance(case.data, GridData) else grid_as_long(data)
    n_lost = 0
    for _ in range(100):
        variances, lengthscales = np.exp(rng.uniform(-2, 16, 2)), np.exp(rng.uniform(-2, 16, 2))
        noise = np.exp(rng.uniform(-16, 0))
        parameters = Parameters(
            kernels=plain_kernels(rbf(lengthscales[:1], variances[0]), rbf(lengthscales[1:], variances[1])),
            inducing_inputs=jnp.asarray(np.linspace(-2, 2, 8)[:, None]),
            inducing_latents=jnp.asarray(rng.normal(size=(5, 1))),
            latent_mean=jnp.asarray(rng.normal(size=(8, 1))),
            latent_variance=jnp.full((8, 1), 0.05),
            noise_variance=jnp.asarray([noise]),
        )
        found = compiled_collapsed(parameters, data)
        if np.isnan(found.fit):
            n_lost += 1
        else:
            assert found.fit <= -outputs.size * np.log(2 * np.pi * noise) / 2 + 0.01 * outputs.size
    assert 0 < n_lost < 100
