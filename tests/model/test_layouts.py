"""Both layouts hold every observation once, whatever the conditions' sizes."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from small_models import grid_as_long, replace, small_parameters

from lvmogp.ground.padding import block_layout
from lvmogp.model import layouts
from lvmogp.model.layouts import GridData, LongData, ScatteredData, SparseData, likelihood_data, long_data, scattered
from lvmogp.tables.observations import Observations
from lvmogp.tables.scaling import Logarithm, scaling_of

# From conditions without rows to one that dwarfs all others.
row_counts = st.lists(st.one_of(st.just(0), st.integers(1, 5), st.integers(1, 2000)), min_size=1, max_size=40).filter(
    any
)


def shuffled_conditions(counts, seed=0):
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))


@given(counts=row_counts)
@example(counts=[0, 0, 1])
@example(counts=[1] * 40)
@example(counts=[100_000, 0, 1, 1, 3])
@settings(deadline=None, max_examples=60, derandomize=True)
def test_blocks_hold_every_row_once_and_are_padded_least(counts):
    conditions = shuffled_conditions(counts)
    for block_cost in (8, 16):
        layout = block_layout(conditions, len(counts), block_cost=block_cost)
        present = layout.present == 1
        assert_array_equal(np.sort(layout.row[present]), np.arange(len(conditions)))
        assert_array_equal(layout.present[~present], 0)
        condition_of_place = np.broadcast_to(layout.block_condition[:, None], layout.row.shape)
        assert_array_equal(conditions[layout.row[present]], condition_of_place[present])
        order = np.argsort(conditions, kind="stable")  # rows of a condition keep their order
        assert_array_equal(layout.row[present], order)
        costs = []
        for size in (4, 8, 16, 32, 64, 128, 256):
            blocks = sum(-(-count // size) for count in counts)
            digits = max(len(f"{blocks:b}") - 3, 0)
            while blocks % 2**digits:  # three significant binary digits
                blocks += 1
            costs.append(blocks * (size + block_cost))
        n_blocks, size = layout.row.shape
        assert n_blocks * (size + block_cost) == min(costs)


def rows_of(data: LongData) -> list:
    """Sorted (condition, input, output, error variance) of all observations."""
    present = np.asarray(data.present) == 1
    conditions = np.broadcast_to(np.asarray(data.block_condition)[:, None], present.shape)
    errors = np.zeros(present.shape) if data.error_variances is None else np.asarray(data.error_variances)
    columns = conditions, np.asarray(data.inputs), np.asarray(data.outputs), errors
    rows = zip(*(column[present].tolist() for column in columns), strict=True)
    return sorted((number, tuple(x), y, error) for number, x, y, error in rows)


@pytest.mark.parametrize(("dtype", "with_errors"), [("float64", True), ("float32", False)])
def test_long_and_scattered_data_hold_the_rows_as_given(rng, dtype, with_errors):
    counts = [3, 0, 17, 1]
    conditions = shuffled_conditions(counts)
    inputs, outputs, errors = (rng.normal(size=shape).astype(dtype) for shape in ((21, 2), 21, 21))
    data = long_data(inputs, outputs, conditions, 4, dtype, error_variances=errors if with_errors else None)
    errors = errors if with_errors else np.zeros(21)
    expected = sorted(
        zip(conditions.tolist(), map(tuple, inputs.tolist()), outputs.tolist(), errors.tolist(), strict=True)
    )
    assert rows_of(data) == expected
    assert_array_equal(np.asarray(data.outputs)[np.asarray(data.present) == 0], 0)
    assert_array_equal(data.counts, counts)
    assert (data.n_observations, data.n_conditions) == (21, 4)
    assert {data.inputs.dtype, data.outputs.dtype, data.present.dtype, data.counts.dtype} == {jnp.dtype(dtype)}
    noise = np.arange(1.0, 5.0)
    of_places = np.broadcast_to(data.noise(jnp.asarray(noise)), data.present.shape)[np.asarray(data.present) == 1]
    assert_allclose(np.sort(of_places), np.sort(noise[conditions] + errors), rtol=1e-6)
    single = scattered(data)
    filled = np.asarray(single.present) == 1
    assert len(filled) == 24  # three significant binary digits
    columns = single.conditions, single.inputs, single.outputs, single.error_variances
    found = zip(*(np.asarray(column)[filled].tolist() for column in columns), strict=True)
    assert sorted((number, tuple(x), y, error) for number, x, y, error in found) == expected
    assert_array_equal(np.asarray(single.outputs)[~filled], 0)
    assert_allclose(
        single.noise(jnp.asarray(noise))[filled],
        (noise[np.asarray(single.conditions)] + single.error_variances)[filled],
    )
    for number, places in enumerate(np.asarray(single.places)):
        assert_array_equal(places[places < 24], np.flatnonzero(filled & (np.asarray(single.conditions) == number)))


def test_some_blocks_hold_whole_rows_of_their_conditions(rng):
    conditions = np.repeat(np.arange(4), [300, 5, 40, 700])
    inputs, outputs, errors = (rng.standard_normal(shape) for shape in ((1045, 2), 1045, 1045))
    data = long_data(inputs, outputs, conditions, 4, error_variances=errors)
    some = layouts.some_blocks(data, 400, seed=0)
    known = {tuple(x): (y, e, d) for x, y, e, d in zip(inputs, outputs, errors, conditions, strict=True)}
    found = rows_of(some)
    assert [(y, error) for _, _, y, error in found] == [known[x][:2] for _, x, _, _ in found]
    # renumbered in order, so that equal numbers mean equal conditions
    pairs = {(number, known[x][2]) for number, x, _, _ in found}
    assert len(pairs) == some.n_conditions
    assert_array_equal(some.counts, np.bincount([number for number, *_ in found]))
    assert 300 <= some.n_observations <= 500
    assert layouts.some_blocks(data, 10_000, seed=0).n_observations == 1045
    assert len(layouts.some_blocks(data, 1, seed=0).present) == 1


# Observations in standardised units


@pytest.fixture
def complete(rng):
    """A grid of five inputs and three conditions, row by row, with the same error of all measurements."""
    order = rng.permutation(15)
    inputs, conditions = np.tile(rng.normal(size=(5, 2)), (3, 1)), np.repeat(np.arange(3), 5)
    return Observations(inputs, np.exp(rng.normal(size=15)), conditions, (0, 1, 2), errors=np.full(15, 0.1)).some(order)


@pytest.mark.parametrize("with_errors", [False, True])
def test_a_complete_grid_is_found_in_rows_of_any_order(complete, with_errors):
    seen = complete if with_errors else complete._replace(errors=None)
    scaling = scaling_of(seen.inputs, seen.outputs)
    data = layouts.standardised(seen, scaling)
    assert isinstance(data, GridData)
    assert data.outputs.shape == (5, 3)
    assert_array_equal(data.counts, [5, 5, 5])
    assert_allclose(data.squares, np.sum(np.asarray(data.outputs) ** 2, axis=0))
    assert (data.n_observations, data.n_conditions) == (15, 3)
    error = 0.01 / scaling.output_scale**2 if with_errors else 0.0
    assert_allclose(data.noise(jnp.ones(3)), 1 + error)
    expected = sorted(
        zip(seen.conditions.tolist(), scaling.inputs(seen.inputs).tolist(), scaling.outputs(seen.outputs), strict=True)
    )
    assert_allclose(
        [(number, *x, y) for number, x, y in expected], [(d, *x, y) for d, x, y, _ in rows_of(grid_as_long(data))]
    )


@pytest.mark.parametrize("change", ["missing", "duplicated", "moved", "missing and duplicated", "errors", "unseen"])
def test_a_grid_with_a_cell_out_of_place_is_read_as_long_form(complete, change):
    keep = np.arange(15)
    keep = {"missing": keep[1:], "duplicated": np.r_[keep, 3], "missing and duplicated": np.r_[keep[1:], 3]}.get(
        change, keep
    )
    seen = complete.some(keep)
    if change == "moved":
        seen.inputs[7] += 1.0
    if change == "errors":
        seen.errors[7] = 0.2
    if change == "unseen":
        seen = seen._replace(ids=(0, 1, 2, 3))
    scaling = scaling_of(seen.inputs, seen.outputs, transform=Logarithm())
    data = layouts.standardised(seen, scaling)
    assert isinstance(data, LongData)
    errors = (seen.errors / seen.outputs / scaling.output_scale) ** 2
    values = scaling.inputs(seen.inputs), scaling.outputs(seen.outputs), errors
    expected = sorted((int(c), tuple(x), y, e) for c, x, y, e in zip(seen.conditions, *values, strict=True))
    assert rows_of(data) == expected


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((600, 2), GridData), ((601, 2), SparseData), ((2, 601), SparseData), (1000, ScatteredData), (1001, SparseData)],
)
def test_likelihoods_are_exact_while_that_is_affordable(shape, kind):
    if isinstance(shape, tuple):
        data = GridData(jnp.zeros((shape[0], 1)), jnp.zeros(shape))
    else:
        conditions = np.repeat([0, 1], [64, shape - 64])
        data = long_data(np.zeros((shape, 1)), np.zeros(shape), conditions, 2)
    latents = jnp.arange(float(data.n_conditions))[:, None]
    parameters = replace(small_parameters(), latent_mean=latents, latent_variance=jnp.ones(latents.shape))
    found = likelihood_data(data, parameters)
    assert isinstance(found, kind)
    if kind is SparseData:
        assert_array_equal(found.inducing_inputs, parameters.inducing_inputs)
        assert len(found.inducing_conditions) == min(3, data.n_conditions)
    if kind is ScatteredData:  # conditions with more than 64 observations have no places of their own
        assert_array_equal(np.sum(np.asarray(found.places) < len(found.present), axis=1), [64, 0])
