"""Compiled programs are kept in the user's cache folder, where that is possible and nobody said otherwise."""

import os
import subprocess
import sys

import pytest

from lvmogp.ground.cache import cache_folder, keep_compiled_programs

VARIABLES = (
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_COMPILATION_CACHE_MAX_SIZE",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
    "TF_CPP_MIN_LOG_LEVEL",
)


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what a test leaves behind is undone
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_programs_go_to_a_folder_of_this_kind_of_processor(tmp_path):
    keep_compiled_programs()
    folder = os.environ["JAX_COMPILATION_CACHE_DIR"]
    assert os.path.dirname(folder) == str(tmp_path / "lvmogp" / "compiled")
    assert os.path.isdir(folder)
    assert int(os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"]) > 0


def test_what_the_user_set_stays(monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    keep_compiled_programs()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "elsewhere"
    # A limit would not suit a folder that has been filled without one.
    assert "JAX_COMPILATION_CACHE_MAX_SIZE" not in os.environ


def test_a_folder_that_cannot_be_made_is_done_without(tmp_path):
    (tmp_path / "lvmogp").write_text("a file where a folder should be")
    keep_compiled_programs()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_the_folder_of_the_home_is_taken_without_the_variable(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "lvmogp"


def test_a_second_process_finds_the_programs_of_the_first():
    code = (
        "from lvmogp.ground.cache import keep_compiled_programs; keep_compiled_programs()\n"
        "import jax, os\n"
        "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)\n"
        "hits = []\n"
        "jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))\n"
        "jax.jit(lambda x: x * 2 + 1)(1.0)\n"
        "print('/jax/compilation_cache/cache_hits' in hits)\n"
    )
    found = [
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
        for _ in range(2)
    ]
    assert found == [["False"], ["True"]]
