"""Answers of variational fits are those that were kept."""

import pytest
from frozen import cases, check


@pytest.mark.parametrize(("model", "answer"), cases(draws=False))
def test_answers_are_those_that_were_kept(model, answer):
    check(model, answer)
