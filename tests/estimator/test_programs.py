"""Programs that outlive the process: the same numbers, and never those of another function."""

import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from small_models import grid_case, long_case, replace, small_parameters

from lvmogp.ground import programs
from lvmogp.ground.compiling import compiled, programs_made
from lvmogp.ground.programs import are_own, forget_programs, is_own, text_of, types_of
from lvmogp.inference.optimise import maximise
from lvmogp.inference.restarts import collapsed_objective
from lvmogp.kernels.covariances import RBF, Linear, Periodic
from lvmogp.model.posterior import posterior

MATRIX = jnp.array([[2.0, 0.5], [0.5, 1.0]])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of its own, and a process that knows no programs yet."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    monkeypatch.setenv("LVMOGP_KEEP_PROGRAMS", "1")
    monkeypatch.setattr(programs, "_programs", {})
    yield tmp_path / "lvmogp-programs"
    jax.config.update("jax_compilation_cache_dir", before)


def kept_program(function, about, arguments):
    return programs.kept_program(function, about, arguments, options={}, on_new=lambda: None)


def halved(matrix):
    return jnp.linalg.cholesky(matrix) / 2, jnp.sum(matrix)


def forbid_making(monkeypatch):
    def fail(*_, **__):
        raise AssertionError("a program was made that should have been read")

    monkeypatch.setattr(export, "export", fail)


def test_a_program_is_read_by_the_next_process(folder, monkeypatch):
    first = kept_program(halved, "halved", [MATRIX])(MATRIX)
    programs._programs.clear()
    forbid_making(monkeypatch)
    again = kept_program(halved, "halved", [MATRIX])(MATRIX)
    for found, read, expected in zip(first, again, halved(MATRIX), strict=True):
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(read, expected)


def test_another_shape_type_or_function_is_another_program(folder):
    kept_program(halved, "halved", [MATRIX])
    kept_program(halved, "halved", [jnp.eye(3)])
    kept_program(halved, "halved", [MATRIX.astype("float32")])
    kept_program(halved, "another", [MATRIX])
    kept_program(halved, "halved", [MATRIX])
    with jax.default_matmul_precision("highest"):
        kept_program(halved, "halved", [MATRIX])
    assert len(list(folder.iterdir())) == 5


@pytest.mark.parametrize("damage", [lambda content: content[:-5], lambda content: content[:60] + b"x" + content[61:]])
def test_a_damaged_program_is_made_again(folder, damage):
    kept_program(halved, "halved", [MATRIX])
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    programs._programs.clear()
    np.testing.assert_array_equal(kept_program(halved, "halved", [MATRIX])(MATRIX)[0], halved(MATRIX)[0])
    assert path.read_bytes() == whole


def without_a_folder(monkeypatch):
    jax.config.update("jax_compilation_cache_dir", None)


def without_caches(monkeypatch):
    monkeypatch.setattr(programs, "_CONFIG", SimpleNamespace(jax_enable_compilation_cache=False))


def unwanted(monkeypatch):
    monkeypatch.setenv("LVMOGP_KEEP_PROGRAMS", "0")


@pytest.mark.parametrize("state", [without_a_folder, without_caches, unwanted])
def test_nothing_is_kept_where_jax_keeps_nothing_or_where_that_is_not_wanted(folder, state, monkeypatch):
    state(monkeypatch)
    assert kept_program(halved, "halved", [MATRIX]) is None
    assert not folder.exists()


def test_a_folder_that_cannot_be_made_keeps_nothing_and_hinders_nothing(folder):
    folder.parent.joinpath("lvmogp-programs").write_text("in the way")
    np.testing.assert_array_equal(kept_program(halved, "halved", [MATRIX])(MATRIX)[1], 4.0)


def test_what_calls_back_into_python_is_not_kept(folder, monkeypatch):
    def calling(matrix):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((2, 2), float), matrix)

    assert kept_program(calling, "calling", [MATRIX]) is None
    forbid_making(monkeypatch)
    assert kept_program(calling, "calling", [MATRIX]) is None  # and is not tried again


def test_the_oldest_programs_make_room(folder, monkeypatch):
    monkeypatch.setattr(programs, "_MOST_KEPT", 4)
    for number in range(5):
        kept_program(halved, f"number {number}", [MATRIX])
    assert len(list(folder.iterdir())) == 3


def own_alone(tree):
    return are_own(types_of(tree))


class Own(RBF):
    """A kernel that a user writes."""


def test_only_what_is_our_own_is_kept():
    assert is_own(collapsed_objective)
    assert not is_own(lambda tree, data: 0.0)
    assert not is_own(halved)
    assert own_alone((small_parameters(), long_case().data))
    assert own_alone(RBF(1.0) + RBF(2.0))
    assert not own_alone(RBF(1.0) + Own(2.0))


def test_fixed_arguments_have_texts_that_tell_them_apart():
    assert text_of("1") != text_of(1) != text_of(1.0)
    assert text_of(posterior) == "lvmogp.model.posterior.posterior"
    assert text_of(halved) is None
    assert text_of(object()) is None


def same_trees(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-13), found, expected)


def test_what_a_kept_program_returns_has_its_modules_again(folder, monkeypatch):
    kernel = RBF(jnp.ones(1), jnp.array(2.0), columns=0) + Linear(jnp.ones(1), columns=1)
    kernel = kernel * Periodic(jnp.array([3.0]), jnp.ones(1), columns=0)  # whose period is held fixed
    arguments = replace(small_parameters(), input_kernel=kernel), grid_case().data
    monkeypatch.setattr(programs, "_found", {})
    kept = compiled(posterior)
    same_trees(kept(*arguments), jax.jit(posterior)(*arguments))
    forget_programs()
    forbid_making(monkeypatch)
    n_made = programs_made()
    same_trees(kept(*arguments), jax.jit(posterior)(*arguments))
    same_trees(kept(*arguments), jax.jit(posterior)(*arguments))
    assert programs_made() == n_made + 1


def test_kernels_of_the_user_are_compiled_but_not_kept(folder, monkeypatch):
    monkeypatch.setattr(programs, "_found", {})
    arguments = replace(small_parameters(), input_kernel=Own(jnp.ones(2), jnp.array(2.0))), grid_case().data
    same_trees(compiled(posterior)(*arguments).mean, jax.jit(posterior)(*arguments).mean)
    assert not folder.exists()


def test_a_search_is_the_same_by_kept_programs(folder):
    kept = maximise(collapsed_objective, small_parameters(), long_case().data, max_iterations=8, tolerance=0.0)
    assert len(list(folder.iterdir())) == 1
    jax.config.update("jax_compilation_cache_dir", None)
    plain = maximise(collapsed_objective, small_parameters(), long_case().data, max_iterations=8, tolerance=0.0)
    np.testing.assert_array_equal(kept.history, plain.history)


def test_a_process_that_only_reads_finds_lapack_ready(folder):
    kept_program(halved, "halved", [MATRIX])
    script = (
        "import jax, jax.numpy as jnp; from lvmogp.ground.programs import kept_program\n"
        "jax.config.update('jax_enable_x64', True)\n"
        f"jax.config.update('jax_compilation_cache_dir', {str(folder.parent)!r})\n"
        "matrix = jnp.array([[2.0, 0.5], [0.5, 1.0]])\n"
        "print(float(kept_program(print, 'halved', [matrix], options={}, on_new=list)(matrix)[0][0, 0]))"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(found.stdout) == 2**0.5 / 2
