"""Whatever comes in, answers are finite and do not depend on how the same data are told, or words say why not.

A few data sets; ``make test-hostile`` makes a thousand.
"""

import json
import os

import jax
import pytest
from hostile_checks import FITTED, examined
from hostile_sets import LAYOUTS, Recipe, recipe

MANY = int(os.environ.get("LVMOGP_MANY", "0"))
PLAIN = Recipe(0, "uniform", "curves", "words", "arrays", 1.0, 1.0, 0.0, None, 4)


@pytest.mark.parametrize(("number", "dtype"), [pytest.param(2, "float64", marks=pytest.mark.long), (3, "float32")])
def test_hostile_data_are_answered_well_or_refused_in_words(number, dtype):
    # A few observations of four conditions: every shape of data has to be compiled for.
    assert examined(recipe(number, layout=0), dtype=dtype, refits=False).findings == []


@pytest.mark.parametrize("batch", range(0, MANY, 10))
def test_a_thousand_data_sets(batch, record_property):
    jax.clear_caches()  # a process may hold so many programs only; those on disk are quick to read
    broken = []
    for number in range(batch, batch + 10):
        chosen = recipe(number, layout=batch // 10 % len(LAYOUTS))
        account = examined(chosen, dtype="float32" if number % 5 == 0 else "float64")
        record_property("measured", json.dumps({"recipe": chosen._asdict(), **account._asdict()}, default=float))
        broken += [(chosen, finding) for finding in account.findings]
    assert broken == []


def test_plain_data_move_by_rounding_alone():
    account = examined(PLAIN)
    assert account.refusal is None
    assert account.findings == []
    assert len(account.moved) == 6
    assert max(account.moved.values()) < FITTED


def test_an_answer_that_is_wrong_is_found(monkeypatch):
    def broken(self, X, conditions=None, **asked):
        return X[:, 0], 0 * X[:, 0]

    monkeypatch.setattr("lvmogp.LVMOGPRegressor.predict", broken)
    assert examined(PLAIN, refits=False).findings == ["variances are positive"]
