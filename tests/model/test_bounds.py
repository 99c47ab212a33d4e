import functools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from small_models import grid_as_long

from lvmogp.algebra.constraints import join, split
from lvmogp.kernels.covariances import RBF, Constant, Linear, Matern52, Periodic
from lvmogp.model.bounds import Bound, collapsed, explicit
from lvmogp.model.layouts import Data, GridData, long_data
from lvmogp.model.parameters import FullInducing, KroneckerInducing, Parameters

N, D, M_X, M_H, Q_X, Q_H = 7, 5, 4, 3, 2, 2
COUNTS = (3, 9, 1, 6, 4)  # observations of each condition in long form

compiled_collapsed = eqx.filter_jit(collapsed)
compiled_explicit = eqx.filter_jit(explicit)


class Case(NamedTuple):
    """The same observations for the library and for the references."""

    data: Data
    observations: references.Observations


@functools.cache
def grid_case() -> Case:
    rng = np.random.default_rng(1)
    inputs, outputs = rng.uniform(-2, 2, (N, Q_X)), rng.normal(size=(N, D))
    data = GridData(jnp.asarray(inputs), jnp.asarray(outputs))
    return Case(data, [(inputs, outputs[:, d]) for d in range(D)])


@functools.cache
def long_case() -> Case:
    rng = np.random.default_rng(2)
    observations = [(rng.uniform(-2, 2, (count, Q_X)), rng.normal(size=count)) for count in COUNTS]
    return Case(as_long(observations), observations)


def rows(observations: references.Observations) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, outputs and condition numbers, one row an observation."""
    inputs = np.concatenate([inputs for inputs, _ in observations])
    outputs = np.concatenate([outputs for _, outputs in observations])
    return inputs, outputs, np.repeat(np.arange(len(observations)), [len(y) for _, y in observations])


def as_long(observations: references.Observations) -> Data:
    return long_data(*rows(observations), len(observations))


CASES = {"grid": grid_case, "long": long_case}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]()


def number(value: float) -> jax.Array:
    return jnp.array(value, float)  # with its type, lest the same program be compiled twice


def plain_kernels() -> dict:
    return {
        "input_kernel": RBF(jnp.array([1.6, 1.3]), number(1.3)),
        "latent_kernel": RBF(jnp.array([0.9, 1.2]), number(0.7)),
    }


def example(seed: int = 3, **changes) -> Parameters:
    """Well-spread inducing points, noise per condition, no q(v)."""
    rng = np.random.default_rng(seed)
    fields = {
        **plain_kernels(),
        "inducing_inputs": jnp.array([[-1.5, -1.0], [1.2, -1.1], [-0.9, 1.3], [1.4, 1.1]]),
        "inducing_latents": jnp.array([[-1.2, 0.2], [0.8, -1.0], [0.9, 1.1]]),
        "latent_mean": jnp.asarray(rng.normal(size=(D, Q_H))),
        "latent_variance": jnp.asarray(rng.uniform(0.05, 0.5, (D, Q_H))),
        "noise_variance": jnp.asarray(rng.uniform(0.1, 0.4, D)),
    }
    return Parameters(**(fields | changes))


SHARED_NOISE = (0.2,)


def with_shared_noise(parameters: Parameters) -> Parameters:
    return replace(parameters, noise_variance=jnp.array(SHARED_NOISE))


def replace(parameters: Parameters, **changes) -> Parameters:
    names = list(changes)
    return eqx.tree_at(
        lambda tree: [getattr(tree, name) for name in names],
        parameters,
        [changes[name] for name in names],
        is_leaf=lambda leaf: leaf is None,
    )


def random_factor(rng: np.random.Generator, size: int) -> jax.Array:
    return jnp.asarray(np.tril(rng.normal(size=(size, size)) / 5, -1) + np.diag(rng.uniform(0.3, 1.2, size)))


def random_full(seed: int = 4) -> FullInducing:
    rng = np.random.default_rng(seed)
    return FullInducing(jnp.asarray(rng.normal(size=(M_X, M_H))), random_factor(rng, M_X * M_H))


def random_kronecker(seed: int = 5) -> KroneckerInducing:
    rng = np.random.default_rng(seed)
    return KroneckerInducing(jnp.asarray(rng.normal(size=(M_X, M_H))), random_factor(rng, M_X), random_factor(rng, M_H))


def optimal_full(parameters: Parameters, observations: references.Observations) -> FullInducing:
    mean, variance = references.optimal_inducing(parameters, observations)
    return FullInducing(jnp.asarray(mean), jnp.asarray(np.linalg.cholesky(variance)))


class Method(NamedTuple):
    """A bound with the q(v) it needs."""

    bound: Callable[[Parameters, Data], Bound]
    inducing: Callable[[], FullInducing | KroneckerInducing | None]


METHODS = {
    "collapsed": Method(collapsed, lambda: None),
    "full": Method(explicit, random_full),
    "kronecker": Method(explicit, random_kronecker),
}


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> Method:
    return METHODS[request.param]


def compiled(method: Method) -> Callable[[Parameters, Data], Bound]:
    return compiled_collapsed if method.bound is collapsed else compiled_explicit


def evaluate(method: Method, parameters: Parameters, data: Data) -> float:
    return float(compiled(method)(parameters, data).total)


def value_and_gradient(
    bound: Callable[[Parameters, Data], Bound], parameters: Parameters, data: Data
) -> tuple[jax.Array, jax.Array]:
    """A bound, and its gradient with respect to the vector in which optimisers move."""
    vector, fixed, structure = split(parameters)

    @eqx.filter_jit
    def compiled(vector: jax.Array, data: Data) -> tuple[jax.Array, jax.Array]:
        return jax.value_and_grad(lambda vector: bound(join(vector, fixed, structure), data).total)(vector)

    return compiled(vector, data)


@eqx.filter_jit
def on_both_forms(
    bound: Callable[[Parameters, Data], Bound], parameters: Parameters, grid: Data, long: Data
) -> tuple[jax.Array, jax.Array]:
    """A bound on grid and on long data: one program, for kernels and types that serve one test only."""
    return bound(parameters, grid).total, bound(parameters, long).total


def close(expected: float, rtol: float = 1e-11):
    return pytest.approx(expected, rel=rtol, abs=0)


# The paper's formulas, un-whitened and with every Kronecker product formed.


@pytest.mark.parametrize("noise", ["shared", "per condition"])
def test_explicit_full_bound_is_the_papers_missing_data_formulation(case: Case, noise: str):
    parameters = example(inducing=random_full())
    parameters = with_shared_noise(parameters) if noise == "shared" else parameters
    expected = references.missing_data_formulation(parameters, case.observations)
    assert float(compiled_explicit(parameters, case.data).total) == close(expected)


@pytest.mark.parametrize("noise", ["shared", "per condition"])
def test_explicit_kronecker_bound_is_the_full_one_with_the_product_formed(case: Case, noise: str):
    parameters = example(inducing=random_kronecker())
    parameters = with_shared_noise(parameters) if noise == "shared" else parameters
    expected = references.missing_data_formulation(parameters, case.observations)
    assert float(compiled_explicit(parameters, case.data).total) == close(expected)


KERNELS = {
    "matern52 inputs": {"input_kernel": lambda: Matern52(jnp.array([1.6, 1.3]), number(1.3))},
    "rbf + periodic inputs": {
        "input_kernel": lambda: (
            RBF(jnp.array([1.6, 1.3]), number(1.3))
            + Periodic(jnp.array([2.5]), jnp.array([1.1]), number(0.6), columns=0)
        )
    },
    "product inputs": {
        "input_kernel": lambda: (
            RBF(jnp.array([1.6]), number(1.3), columns=0)
            * (Matern52(jnp.array([1.3]), number(0.9), columns=1) + Constant(number(0.2)))
        )
    },
    "rbf + linear + constant latents": {
        "latent_kernel": lambda: (
            RBF(jnp.array([0.9, 1.2]), number(0.7)) + Linear(jnp.array([0.4, 0.3])) + Constant(number(0.5))
        )
    },
    "matern52 latents": {"latent_kernel": lambda: Matern52(jnp.array([1.3, 1.6]), number(0.7))},
}
# A Matern kernel has no closed form: the reference takes the library's nodes, and the tests of the
# psi-statistics say how exact those are.
NODES = {"matern52 latents": 16}


@pytest.mark.parametrize("kernels", KERNELS)
def test_other_kernels_agree_with_the_missing_data_formulation(kernels: str):
    chosen = {name: build() for name, build in KERNELS[kernels].items()}
    parameters = example(inducing=random_full(), **chosen)
    cases, n_nodes = (grid_case(), long_case()), NODES.get(kernels, references.NODES)
    values = on_both_forms(explicit, parameters, *(case.data for case in cases))
    for value, case in zip(values, cases, strict=True):
        expected = references.missing_data_formulation(parameters, case.observations, n_nodes)
        assert float(value) == close(expected)


# The collapsed bound and its place between the others.


@pytest.mark.parametrize("noise", ["shared", "per condition"])
def test_collapsed_bound_is_the_dense_one(case: Case, noise: str):
    parameters = with_shared_noise(example()) if noise == "shared" else example()
    expected = references.dense_collapsed(parameters, case.observations)
    assert float(compiled_collapsed(parameters, case.data).total) == close(expected)


def test_explicit_bound_at_the_optimal_q_is_the_collapsed_bound(case: Case):
    parameters = example()
    at_optimum = replace(parameters, inducing=optimal_full(parameters, case.observations))
    reached = float(compiled_explicit(at_optimum, case.data).total)
    assert reached == close(float(compiled_collapsed(parameters, case.data).total))


@pytest.mark.parametrize("random_inducing", [random_full, random_kronecker])
def test_explicit_bound_is_below_the_collapsed_bound(case: Case, random_inducing: Callable):
    parameters = example()
    highest = float(compiled_collapsed(parameters, case.data).total)
    for seed in range(10):
        drawn = replace(parameters, inducing=random_inducing(seed))
        assert float(compiled_explicit(drawn, case.data).total) < highest


def test_steps_away_from_the_optimal_q_lower_the_explicit_bound(case: Case):
    parameters = example()
    optimum = optimal_full(parameters, case.observations)
    highest = float(compiled_collapsed(parameters, case.data).total)
    for seed in range(10):
        rng = np.random.default_rng(seed)
        mean = optimum.mean + 1e-3 * rng.normal(size=optimum.mean.shape)
        factor = optimum.factor + 1e-3 * jnp.tril(rng.normal(size=optimum.factor.shape))
        moved = replace(parameters, inducing=FullInducing(mean, factor))
        loss = highest - float(compiled_explicit(moved, case.data).total)
        assert 0 < loss < 0.1


def pinned(parameters: Parameters) -> Parameters:
    """The latents known to be at their means."""
    return replace(parameters, latent_variance=jnp.full((D, Q_H), 1e-12, float))


def log_likelihood_bound(parameters: Parameters, data: Data) -> float:
    """The collapsed bound with the divergence of the latents added back."""
    return float(compiled_collapsed(parameters, data).total) + references.latent_kl(parameters)


def test_collapsed_bound_with_known_latents_is_below_the_exact_log_likelihood(case: Case):
    for seed in range(5):
        parameters = pinned(example(seed))
        assert log_likelihood_bound(parameters, case.data) < references.exact_log_likelihood(
            parameters, case.observations
        )


def test_collapsed_bound_with_inducing_points_at_the_data_is_the_exact_log_likelihood(case: Case):
    parameters = pinned(example())
    inputs = np.unique(rows(case.observations)[0], axis=0)
    parameters = replace(parameters, inducing_inputs=jnp.asarray(inputs), inducing_latents=parameters.latent_mean)
    gap = references.exact_log_likelihood(parameters, case.observations) - log_likelihood_bound(parameters, case.data)
    # The jitter leaves at most ε·mean(diag K) of each kernel's variance unexplained at each observation.
    variances = float(parameters.input_kernel.variance * parameters.latent_kernel.variance)
    n_observations = len(rows(case.observations)[1])
    unexplained = 2 * references.JITTER * variances * n_observations / float(jnp.min(parameters.noise_variance))
    assert -1e-9 < gap < unexplained


# The two forms of data.


def test_long_form_with_nothing_missing_is_the_grid_form(method: Method):
    grid = grid_case().data
    parameters = example(inducing=method.inducing())
    long = grid_as_long(grid)
    long_value, long_gradient = value_and_gradient(method.bound, parameters, long)
    grid_value, grid_gradient = value_and_gradient(method.bound, parameters, grid)
    assert float(long_value) == close(float(grid_value))
    np.testing.assert_allclose(long_gradient, grid_gradient, rtol=1e-9, atol=1e-9)


def test_conditions_without_observations_contribute_only_their_divergence(method: Method):
    observed, empty = np.array([1, 3]), np.array([0, 2, 4])
    observations = list(long_case().observations)
    for d in empty:
        observations[d] = (np.empty((0, Q_X)), np.empty(0))
    parameters = example(inducing=method.inducing())
    expected = evaluate(method, take_conditions(parameters, observed), as_long([observations[d] for d in observed]))
    expected -= references.latent_kl(take_conditions(parameters, empty))
    assert evaluate(method, parameters, as_long(observations)) == close(expected)


def take_conditions(parameters: Parameters, order: np.ndarray) -> Parameters:
    per_condition = ("latent_mean", "latent_variance", "noise_variance")
    return replace(parameters, **{name: getattr(parameters, name)[order] for name in per_condition})


# Invariances.


def test_order_of_observations_does_not_matter(method: Method):
    parameters = example(inducing=method.inducing())
    inputs, outputs, conditions = rows(long_case().observations)
    order = np.random.default_rng(6).permutation(len(outputs))
    shuffled = long_data(inputs[order], outputs[order], conditions[order], D)
    assert evaluate(method, parameters, shuffled) == close(evaluate(method, parameters, long_case().data))


def test_order_of_grid_inputs_does_not_matter(method: Method):
    parameters, data = example(inducing=method.inducing()), grid_case().data
    order = np.random.default_rng(6).permutation(N)
    shuffled = GridData(data.inputs[order], data.outputs[order])
    assert evaluate(method, parameters, shuffled) == close(evaluate(method, parameters, data))


def test_order_of_conditions_does_not_matter(method: Method, case: Case):
    parameters = example(inducing=method.inducing())
    order = np.array([3, 0, 4, 2, 1])
    if isinstance(case.data, GridData):
        permuted = GridData(case.data.inputs, case.data.outputs[:, order])
    else:
        permuted = as_long([case.observations[d] for d in order])
    reordered = evaluate(method, take_conditions(parameters, order), permuted)
    assert reordered == close(evaluate(method, parameters, case.data))


# Derivatives, compilation, precision.


def central_difference(function: Callable[[float], float], step: float) -> float:
    """Five-point derivative at zero, exact up to step⁴."""
    near = function(step) - function(-step)
    far = function(2 * step) - function(-2 * step)
    return (8 * near - far) / (12 * step)


def test_gradient_is_the_finite_difference(method: Method, case: Case):
    parameters = example(inducing=method.inducing())
    vector, fixed, structure = split(parameters)
    gradient = np.asarray(value_and_gradient(method.bound, parameters, case.data)[1])
    rng = np.random.default_rng(7)
    for _ in range(4):
        direction = rng.normal(size=gradient.shape)

        def along(step: float, direction: np.ndarray = direction) -> float:
            return evaluate(method, join(vector + step * direction, fixed, structure), case.data)

        assert gradient @ direction == close(central_difference(along, 1e-3), 1e-7)


def test_every_free_value_has_a_gradient_that_is_finite_and_not_zero(method: Method, case: Case):
    _, gradient = value_and_gradient(method.bound, example(inducing=method.inducing()), case.data)
    assert np.all(np.isfinite(gradient))
    assert np.all(np.abs(gradient) > 1e-9)


def test_compiled_bound_is_the_eager_one(method: Method, case: Case):
    parameters = example(inducing=method.inducing())
    eager = method.bound(parameters, case.data)
    quick = compiled(method)(parameters, case.data)
    assert float(eager.fit) == close(float(quick.fit), 1e-12)
    assert float(eager.kl_latents) == close(float(quick.kl_latents), 1e-12)


def test_single_precision_agrees_to_its_own_tolerance(method: Method):
    parameters, forms = example(inducing=method.inducing()), (grid_case().data, long_case().data)
    singles = on_both_forms(method.bound, *jax.tree.map(in_single_precision, (parameters, *forms)))
    for single, data in zip(singles, forms, strict=True):
        assert single.dtype == jnp.float32
        assert float(single) == close(evaluate(method, parameters, data), 1e-4)


def in_single_precision(leaf: jax.Array) -> jax.Array:
    return leaf.astype(jnp.float32) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf


def test_terms_are_fit_and_divergence(method: Method, case: Case):
    parameters = example(inducing=method.inducing())
    bound = compiled(method)(parameters, case.data)
    assert float(bound.kl_latents) == close(references.latent_kl(parameters))
    assert float(bound.total) == close(float(bound.fit) - float(bound.kl_latents))


def test_explicit_bound_without_a_q_says_so(case: Case):
    with pytest.raises(TypeError, match=r"explicit bound needs a q\(v\) in parameters\.inducing"):
        explicit(example(), case.data)


# Rounding errors


@pytest.mark.parametrize("form", ["grid", "long"])
def test_rounding_errors_never_look_like_a_gain(form):
    """Where they take over, the bound is no number; it never exceeds log p of data that are explained perfectly."""
    rng = np.random.default_rng(5)
    inputs, outputs = np.linspace(-2, 2, 30)[:, None], rng.normal(size=(30, 20))
    data = GridData(jnp.asarray(inputs), jnp.asarray(outputs))
    if form == "long":
        data = grid_as_long(data)
    n_lost = 0
    for _ in range(150):
        variances, lengthscales = np.exp(rng.uniform(-2, 16, 2)), np.exp(rng.uniform(-2, 16, 2))
        noise = np.exp(rng.uniform(-16, 0))
        parameters = Parameters(
            input_kernel=RBF(jnp.asarray(lengthscales[:1]), jnp.asarray(variances[0])),
            latent_kernel=RBF(jnp.asarray(lengthscales[1:]), jnp.asarray(variances[1])),
            inducing_inputs=jnp.asarray(np.linspace(-2, 2, 15)[:, None]),
            inducing_latents=jnp.asarray(rng.normal(size=(10, 1))),
            latent_mean=jnp.asarray(rng.normal(size=(20, 1))),
            latent_variance=jnp.full((20, 1), 0.05),
            noise_variance=jnp.asarray([noise]),
        )
        found = compiled_collapsed(parameters, data)
        highest = -outputs.size * np.log(2 * np.pi * noise) / 2
        if np.isnan(found.fit):
            n_lost += 1
        else:
            assert found.fit <= highest + 0.01 * outputs.size
    assert 0 < n_lost < 150
