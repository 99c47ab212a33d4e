"""Whatever comes in, answers are finite and do not depend on how the same data are told, or words say why not.

A small and fixed part of what ``make test-hostile`` does with a thousand data sets.
"""

import pytest
from hostile_checks import FITTED, Account, examined
from hostile_sets import Recipe, recipes
from hypothesis import HealthCheck, Phase, given, settings

# A few observations of four conditions: every shape of data has to be compiled for.
SMALL = (0,)
few = settings(
    max_examples=4,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@few
@given(recipe=recipes(SMALL))
def test_hostile_data_are_answered_well_or_refused_in_words(recipe: Recipe):
    assert examined(recipe).findings == ()


@few
@given(recipe=recipes(SMALL))
def test_single_precision_survives_what_double_precision_does(recipe: Recipe):
    assert examined(recipe, dtype="float32", refits=False).findings == ()


PLAIN = Recipe(0, "uniform", "curves", "words", "arrays", 1.0, 1.0, 0.0, None, 4)


@pytest.mark.parametrize("kind", ["missing", "none"])
def test_a_missing_id_is_refused(kind):
    account = examined(PLAIN._replace(ids=kind))
    assert "DataError: a condition id is missing (None or NaN)" in account.refusal
    assert account.findings == ()


def test_plain_data_move_by_rounding_alone():
    account = examined(PLAIN)
    assert account.refusal is None
    assert account.findings == ()
    assert len(account.moved) == 6
    assert max(account.moved.values()) < FITTED


def test_an_answer_that_is_wrong_is_found(monkeypatch):
    def broken(self, X, conditions=None, **asked):
        return X[:, 0], 0 * X[:, 0]

    monkeypatch.setattr("lvmogp.LVMOGPRegressor.predict", broken)
    found: Account = examined(PLAIN, refits=False)
    assert {finding.rule for finding in found.findings} == {"variances are positive"}
