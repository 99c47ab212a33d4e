"""What is written comes back the same, whole or not at all, and a damaged or foreign file is always noticed."""

import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save, save_file
from whole_models import assert_same

from lvmogp.errors import ModelFileError
from lvmogp.ground import writing
from lvmogp.storage.codec import Content
from lvmogp.storage.tensor_file import digest_of_arrays, digest_of_header, opened, read, write

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


def test_arrays_and_document_come_back_bit_by_bit(path, monkeypatch):
    assert_same(read(path), CONTENT)
    monkeypatch.chdir(path.parent)
    assert_same(read("brakes.lvmogp"), CONTENT)
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


class Crash(BaseException):
    """What no ordinary handler catches: the user's Ctrl-C, or the machine going down."""


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("crash", [OSError("no space left on device"), Crash()], ids=["error", "interrupt"])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_crash_while_writing_leaves_what_was_there(path, monkeypatch, step, crash, is_there):
    def fail(*_):
        raise crash

    earlier = path.read_bytes()
    if not is_there:
        path.unlink()
    monkeypatch.setattr(writing.os, step, fail)
    with pytest.raises(type(crash)):
        write(path, OTHER)
    monkeypatch.undo()
    assert [each.read_bytes() for each in path.parent.iterdir()] == [earlier] * is_there


def test_all_is_on_disk_before_the_name_changes_hands(path, monkeypatch):
    steps = []
    replace, fsync = os.replace, os.fsync
    monkeypatch.setattr(writing.os, "fsync", lambda handle: (steps.append("on disk"), fsync(handle)))
    monkeypatch.setattr(writing.os, "replace", lambda *names: (steps.append(read(names[0])), replace(*names)))
    write(path, CONTENT)
    assert steps[0] == "on disk"
    assert_same(steps[1], CONTENT)


def test_a_document_that_is_no_json_fails_before_the_file_is_touched(path):
    earlier = path.read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        write(path, Content({}, {"bound": np.nan}))
    assert path.read_bytes() == earlier


# Damage; that of single bytes is in test_fuzz.py


def metadata_of(path: Path) -> dict[str, str]:
    whole = path.read_bytes()
    return json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])["__metadata__"]


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
    tensors, metadata = load_file(path), metadata_of(path)
    if change in CHANGES:
        tensors |= CHANGES[change](tensors.pop("whole"))
        tensors = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    else:
        metadata[change] = metadata[change].replace("5", "6")
    path.write_bytes(save(tensors, metadata))
    with pytest.raises(ModelFileError, match="is damaged: its content does not match its digest; restore it from a"):
        read(path)


# Foreign files


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"version": "1", "document": "{}"}])
def test_a_safetensors_file_of_others_fails_in_words(tmp_path, metadata):
    save_file({"weights": np.ones(3)}, tmp_path / "other.safetensors", metadata)
    text = "other.safetensors is a safetensors file, but not a model saved by lvmogp"
    with pytest.raises(ModelFileError, match=text):
        read(tmp_path / "other.safetensors")


@pytest.mark.parametrize("content", [b"", b"x,y\n1,2\n", b"{" * 10_000, bytes(1000)])
def test_a_file_of_another_kind_a_missing_one_and_a_folder_fail_in_words(tmp_path, content):
    (tmp_path / "data.csv").write_bytes(content)
    with pytest.raises(ModelFileError, match=r"data\.csv is not a model file, or it is damaged: "):
        read(tmp_path / "data.csv")
    for name in ("absent", "."):
        with pytest.raises(ModelFileError, match="there is no model file at "):
            read(tmp_path / name)


@pytest.mark.parametrize("version", ["2", "0", "", "-1", "1.0", "²", "9" * 5000])
def test_another_version_fails_in_words(path, version):
    path.write_bytes(save(load_file(path), metadata_of(path) | {"version": version}))
    text = rf"has format version {version[:20]}, but this lvmogp .* reads versions up to 1; upgrade lvmogp to read it"
    with pytest.raises(ModelFileError, match=text):
        read(path)


@pytest.mark.parametrize(
    ("shape", "offsets"),
    [([10**12], [0, 8 * 10**12]), ([10**12], [0, 8]), ([2**62, 4], [0, 8]), ([-1], [0, 8]), ([1], [8, 0])],
)
def test_an_array_longer_than_its_file_is_refused_before_memory_is_taken(path, shape, offsets):
    array = {"dtype": "F64", "shape": shape, "data_offsets": offsets}
    header = json.dumps({"__metadata__": metadata_of(path), "big": array}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(ModelFileError, match=r"brakes\.lvmogp is not a model file, or it is damaged: "):
        read(path)


def with_right_digests(document: str, tensors: dict[str, np.ndarray]) -> bytes:
    digests = {"header digest": digest_of_header(document, tensors), "digest": digest_of_arrays(tensors)}
    return save(tensors, {"format": "lvmogp-model", "version": "1", "document": document, **digests})


@pytest.mark.parametrize(
    ("document", "tensors", "words"),
    [
        *((text, {}, "its document is no JSON") for text in ("", "{", "[" * 100_000, "9" * 5000, "nothing")),
        ("{}", {"half": np.ones(3, np.float16)}, "it holds an array of F16"),
    ],
    ids=["empty", "open", "deep", "long", "text", "half precision"],
)
def test_what_no_file_of_ours_holds_fails_in_words_whatever_its_digest(path, document, tensors, words):
    path.write_bytes(with_right_digests(document, tensors))
    with pytest.raises(ModelFileError, match=rf"brakes\.lvmogp was changed by hand: {words}"):
        read(path)
