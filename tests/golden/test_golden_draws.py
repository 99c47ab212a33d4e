"""Answers of posterior draws are those that were kept."""

import pytest
from frozen import cases, check


@pytest.mark.parametrize(("model", "answer"), cases(draws=True))
def test_answers_are_those_that_were_kept(model, answer):
    check(model, answer)
