"""Both forms of data hold every observation once, whatever the conditions' sizes."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from lvmogp.ground.padding import block_layout
from lvmogp.model.layouts import GridData, grid_as_long, long_data, some_blocks

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
@settings(deadline=None, max_examples=100, derandomize=True)
def test_every_row_is_found_once_in_a_block_of_its_own_condition(counts):
    conditions = shuffled_conditions(counts)
    layout = block_layout(conditions, len(counts))
    present = layout.present == 1
    assert_array_equal(np.sort(layout.row[present]), np.arange(len(conditions)))
    assert_array_equal(layout.present[~present], 0)
    condition_of_place = np.broadcast_to(layout.block_condition[:, None], layout.row.shape)
    assert_array_equal(conditions[layout.row[present]], condition_of_place[present])
    for condition in range(len(counts)):  # rows of a condition keep their order
        rows = layout.row[present & (condition_of_place == condition)]
        assert_array_equal(rows, np.flatnonzero(conditions == condition))


@given(counts=row_counts)
@example(counts=[1] * 40)
@example(counts=[100_000, 0, 1, 1, 3])
@settings(deadline=None, max_examples=100, derandomize=True)
def test_padding_is_modest(counts):
    for block_cost in (8, 16):
        n_blocks, size = block_layout(shuffled_conditions(counts), len(counts), block_cost=block_cost).row.shape
        costs = []
        for other_size in (4, 8, 16, 32, 64, 128, 256):
            other_blocks = sum(-(-count // other_size) for count in counts)
            digits = max(len(f"{other_blocks:b}") - 3, 0)
            while other_blocks % 2**digits:  # three significant binary digits
                other_blocks += 1
            costs.append(other_blocks * (other_size + block_cost))
        assert n_blocks * (size + block_cost) == min(costs)


def test_large_even_conditions_are_hardly_padded():
    layout = block_layout(shuffled_conditions([1024] * 16), 16)
    assert layout.row.size == 1024 * 16


def test_data_sets_of_similar_size_share_their_shapes():
    shapes = {block_layout(shuffled_conditions([64] * count), count).row.shape for count in range(33, 41)}
    assert shapes == {(40, 64)}


def test_long_data_hold_the_rows_as_given(rng):
    counts = [3, 0, 17, 1]
    conditions = shuffled_conditions(counts)
    inputs, outputs = rng.normal(size=(21, 2)), rng.normal(size=21)
    data = long_data(inputs, outputs, conditions, 4)
    layout = block_layout(conditions, 4)
    for block, place in np.ndindex(layout.row.shape):
        if layout.present[block, place]:
            row = layout.row[block, place]
            assert_array_equal(data.inputs[block, place], inputs[row])
            assert data.outputs[block, place] == outputs[row]
        else:
            assert data.outputs[block, place] == 0
    assert_array_equal(data.present, layout.present)
    assert_array_equal(data.block_condition, layout.block_condition)
    assert_array_equal(data.counts, counts)
    assert (data.n_observations, data.n_conditions) == (21, 4)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_long_data_have_the_dtype_asked_for(rng, dtype):
    data = long_data(rng.normal(size=(5, 1)), rng.normal(size=5), np.array([0, 1, 1, 0, 1]), 2, dtype)
    assert {data.inputs.dtype, data.outputs.dtype, data.present.dtype, data.counts.dtype} == {jnp.dtype(dtype)}


def test_sum_by_condition_equals_a_loop(rng):
    counts = [40, 0, 3, 7, 300]
    conditions = shuffled_conditions(counts)
    inputs, outputs = rng.normal(size=(350, 2)), rng.normal(size=350)
    data = long_data(inputs, outputs, conditions, 5)
    by_block = jnp.einsum("Bb,BbQ->BQ", data.outputs, data.inputs)
    expected = np.zeros((5, 2))
    for condition, x, y in zip(conditions, inputs, outputs, strict=True):
        expected[condition] += y * x
    assert_allclose(data.sum_by_condition(by_block), expected, rtol=1e-12, atol=1e-12)
    assert_array_equal(data.sum_by_condition(jnp.sum(data.present, axis=1)), counts)


def test_a_grid_counts_its_observations(rng):
    data = GridData(jnp.asarray(rng.normal(size=(7, 2))), jnp.asarray(rng.normal(size=(7, 3))))
    assert_array_equal(data.counts, [7, 7, 7])
    assert (data.n_observations, data.n_conditions) == (21, 3)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_grid_in_long_form_equals_the_grid_row_by_row(rng, dtype):
    inputs, outputs = rng.normal(size=(7, 2)), rng.normal(size=(7, 3))
    grid = GridData(jnp.asarray(inputs, dtype), jnp.asarray(outputs, dtype))
    data = grid_as_long(grid)
    for condition in range(3):
        mine = np.asarray((data.block_condition == condition)[:, None] & (data.present == 1))
        assert_array_equal(np.asarray(data.inputs)[mine], grid.inputs)
        assert_array_equal(np.asarray(data.outputs)[mine], grid.outputs[:, condition])
    assert_array_equal(data.counts, grid.counts)
    assert data.outputs.dtype == dtype
    assert (data.n_observations, data.n_conditions) == (21, 3)


def test_some_blocks_hold_whole_rows_of_their_conditions(rng):
    counts = np.array([300, 5, 40, 700])
    conditions = np.repeat(np.arange(4), counts)
    inputs, outputs = rng.standard_normal((len(conditions), 2)), rng.standard_normal(len(conditions))
    data = long_data(inputs, outputs, conditions, 4)
    some = some_blocks(data, 400, seed=0)
    present = np.asarray(some.present) > 0
    rows = {
        tuple(point): (output, condition) for point, output, condition in zip(inputs, outputs, conditions, strict=True)
    }
    found = [rows[tuple(point)] for point in np.asarray(some.inputs)[present]]
    assert np.asarray(some.outputs)[present].tolist() == [output for output, _ in found]
    # renumbered in order, so that equal numbers mean equal conditions
    blocks = np.broadcast_to(np.asarray(some.block_condition)[:, None], present.shape)[present]
    pairs = set(zip(blocks.tolist(), [condition for _, condition in found], strict=True))
    assert len(pairs) == some.n_conditions
    assert np.asarray(some.counts).tolist() == np.bincount(blocks).tolist()
    assert 300 <= some.n_observations <= 500
    assert some_blocks(data, 10_000, seed=0).n_observations == len(conditions)
