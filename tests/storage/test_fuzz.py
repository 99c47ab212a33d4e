"""A fixed set of damaged and edited files of each kind; ``make test-fuzz`` reads many more."""

import json
import os
from collections import Counter

import fuzzing
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("openpyxl")
MANY = int(os.environ.get("LVMOGP_MANY", "0"))
N_VARIANTS = {"model file": 30, "model file with a right digest": 25, "Excel": 40}


@pytest.mark.parametrize("name", fuzzing.KINDS)
def test_a_variant_is_refused_in_our_words_or_read_as_it_was_written(tmp_path, record_property, name):
    found = list(fuzzing.verdicts(fuzzing.KINDS[name], range(MANY or N_VARIANTS.get(name, 150)), tmp_path))
    assert [each for each in enumerate(found) if each[1].outcome == fuzzing.FOREIGN] == []
    assert sum(each.outcome == fuzzing.REFUSED for each in found) >= len(found) / 10
    assert all(each.words for each in found if each.outcome == fuzzing.REFUSED)
    record_property("measured", json.dumps({"kind": name, **Counter(each.outcome for each in found)}))


def test_what_is_wrong_is_seen(tmp_path):
    """An error that is not ours, and another content where there is a checksum."""

    def make(folder):
        (folder / "file").write_bytes(b"good")
        return folder / "file"

    def fail(path):
        if b"good" not in path.read_bytes():
            raise KeyError("foreign")

    kind = fuzzing.Kind(make, fail, lambda path, good, rng: path.write_bytes(b"bad"))
    assert list(fuzzing.verdicts(kind, range(1), tmp_path)) == [(fuzzing.FOREIGN, "KeyError: 'foreign'")]
    for may_differ, outcome in ((False, fuzzing.FOREIGN), (True, fuzzing.OTHER)):
        kind = fuzzing.Kind(make, lambda path: path.read_bytes(), fuzzing.vary_bytes, may_differ)
        (found,) = fuzzing.verdicts(kind, range(1), tmp_path)
        assert found.outcome == outcome
