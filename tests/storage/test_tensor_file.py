"""What is written comes back the same, whole or not at all, and a damaged or foreign file is always noticed."""

import json
import os
import stat
from unittest import mock

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save
from whole_models import assert_same, read

from lvmogp.errors import ModelFileError
from lvmogp.ground import writing
from lvmogp.storage.codec import Content
from lvmogp.storage.tensor_file import digest_of_arrays, digest_of_header, opened, write

CONTENT = Content(
    tensors={
        "double": np.random.default_rng(0).normal(size=(7, 3)),
        "single": np.arange(6, dtype=np.float32).reshape(2, 3),
        "whole": np.array([[-(2**62), 5]]),
        "flags": np.array([True, False]),
        "number": np.array(0.5),
        "empty": np.empty((0, 2)),
        "odd": np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324]),
        "transposed": np.arange(6.0).reshape(2, 3).T,
    },
    document={"text": "Ünïcode ✓ \ud800", "nested": [{"a": None}, [1, 2.5, True]], "empty": {}},
)
OTHER = Content({"new": np.ones(2)}, {"new": 1})


@pytest.fixture
def path(tmp_path):
    """A model file."""
    target = tmp_path / "brakes.lvmogp"
    write(target, CONTENT)
    return target


def test_arrays_and_document_come_back_bit_by_bit(path):
    assert_same(read(path), CONTENT)
    with opened(path) as file:  # before arrays are read
        assert file.document == CONTENT.document
        sizes = {name: (size.dtype, size.shape) for name, size in file.sizes.items()}
        assert sizes == {name: (values.dtype, values.shape) for name, values in CONTENT.tensors.items()}


def test_writing_replaces_an_earlier_file_and_leaves_nothing_else(path):
    write(path, OTHER)
    assert_same(read(path), OTHER)
    assert list(path.parent.iterdir()) == [path]
    (path.parent / "new").touch()
    assert stat.filemode(path.stat().st_mode) == stat.filemode((path.parent / "new").stat().st_mode)


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("is_there", [True, False])
def test_an_interrupt_while_writing_leaves_what_was_there(path, step, is_there):
    earlier = path.read_bytes()
    if not is_there:
        path.unlink()
    with mock.patch.object(writing.os, step, side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        write(path, OTHER)
    assert [each.read_bytes() for each in path.parent.iterdir()] == [earlier] * is_there


def test_all_is_on_disk_before_the_name_changes_hands(path, monkeypatch):
    steps = []
    replace, fsync = os.replace, os.fsync
    monkeypatch.setattr(writing.os, "fsync", lambda handle: (steps.append("on disk"), fsync(handle)))
    monkeypatch.setattr(writing.os, "replace", lambda *names: (steps.append(read(names[0])), replace(*names)))
    write(path, CONTENT)
    assert steps[0] == "on disk"
    assert_same(steps[1], CONTENT)


# Damage; that of single bytes is in test_fuzz.py


CHANGES = {
    "value": lambda whole: {"whole": whole + 1},
    "type": lambda whole: {"whole": whole.view(float)},
    "shape": lambda whole: {"whole": whole.T},
    "name": lambda whole: {"other": whole},
    "left out": lambda whole: {},
    "added": lambda whole: {"whole": whole, "other": np.ones(1)},
}


@pytest.mark.parametrize("change", [*CHANGES, "document", "digest", "header digest"])
def test_an_edited_array_or_entry_fails_in_words(path, change):
    tensors = load_file(path)
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    if change in CHANGES:
        tensors |= CHANGES[change](tensors.pop("whole"))
        tensors = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    else:
        metadata[change] = metadata[change].replace("5", "6")
    path.write_bytes(save(tensors, metadata))
    with pytest.raises(ModelFileError, match="is damaged: its content does not match its digest; restore it from a"):
        read(path)


# Foreign files


def of_size(shape: list[int], offsets: list[int]) -> bytes:
    """A file whose header tells of an array of this size."""
    header = json.dumps({"big": {"dtype": "F64", "shape": shape, "data_offsets": offsets}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(8)


def with_right_digests(document: str = "{}", version: str = "1", **tensors: np.ndarray) -> bytes:
    digests = {"header digest": digest_of_header(document, tensors), "digest": digest_of_arrays(tensors)}
    return save(tensors, {"format": "lvmogp-model", "version": version, "document": document, **digests})


NO_MODEL = "is not a model file, or it is damaged: "
SIZES = [([10**12], [0, 8 * 10**12]), ([10**12], [0, 8]), ([2**62, 4], [0, 8]), ([-1], [0, 8]), ([1], [8, 0])]
FOREIGN = [
    *((content, NO_MODEL) for content in (b"", b"x,y\n1,2\n", b"{" * 10_000, bytes(1000))),
    *((of_size(*size), NO_MODEL) for size in SIZES),  # before memory is taken
    *(
        (save({"weights": np.ones(3)}, metadata), "is a safetensors file, but not a model saved by lvmogp")
        for metadata in (None, {"format": "pt"}, {"version": "1", "document": "{}"})
    ),
    *(
        (
            with_right_digests(version=version),
            rf"has format version {version[:20]}, but this .* up to 1; upgrade lvmogp",
        )
        for version in ("2", "0", "", "-1", "1.0", "²", "9" * 5000)
    ),
    *(
        (with_right_digests(text), "was changed by hand: its document is no JSON")
        for text in ("", "{", "[" * 100_000, "9" * 5000, "nothing")
    ),
    (with_right_digests(half=np.ones(3, np.float16)), "was changed by hand: it holds an array of F16"),
]


@pytest.mark.parametrize(("content", "words"), FOREIGN, ids=range(len(FOREIGN)))
def test_a_foreign_file_fails_in_words(path, content, words):
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=rf"brakes\.lvmogp {words}"):
        read(path)


@pytest.mark.parametrize("name", ["absent", "."])
def test_a_missing_file_and_a_folder_fail_in_words(tmp_path, name):
    with pytest.raises(ModelFileError, match="there is no model file at "):
        read(tmp_path / name)
