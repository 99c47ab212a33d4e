"""The codec on small containers of its own: what is encoded comes back bit for bit, what does not fit is refused."""

import dataclasses
import datetime
import enum
import json
import math
from collections.abc import Hashable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example as case
from hypothesis import given, settings
from hypothesis import strategies as st
from whole_models import assert_same, edited

from lvmogp.algebra.constraints import positive
from lvmogp.errors import ModelFileError, SettingError
from lvmogp.ground.rules import ANY_VALUE, LOG_WEIGHTS, NOT_NEGATIVE, POSITIVE, Along, AnyFloat, Below
from lvmogp.kernels.covariances import RBF, Constant, Kernel, Linear, Matern12, Periodic, RationalQuadratic
from lvmogp.storage.codec import Content, decode, decode_id, encode, encode_id, planned
from lvmogp.tables.scaling import Logarithm, SquareRoot, Transform
from lvmogp.typing import Array, Bool, Float, Int, Scalar


class Colour(enum.Enum):
    RED = "a long word for red"
    BLUE = 2


class Point(NamedTuple):
    x: float
    y: float = 0.0


@dataclasses.dataclass(frozen=True)
class Line:
    ends: tuple[Point, Point]
    name: str


class Tree(eqx.Module):
    weights: Annotated[Float[Array, " S"], LOG_WEIGHTS]
    noise: Float[Array, " D"] = positive()
    fixed: tuple[str, ...] = eqx.field(static=True, default=("noise",))


class Member(NamedTuple):
    rows: Float[np.ndarray, "m Q"]
    errors: Annotated[Float[np.ndarray, " m"], NOT_NEGATIVE] | None


class Everything(NamedTuple):
    ids: Annotated[tuple[Hashable, ...], Along("D")]
    size: Annotated[int, Along("Q")]
    means: Float[Array, "D Q"]
    numbers: Annotated[Int[np.ndarray, " n"], Below("D")]
    flags: Bool[np.ndarray, " n"]
    table: Annotated[Float[np.ndarray, "n Q"], ANY_VALUE] | None
    stack: Float[Array, "*draws 2 Q"]
    other: Float[np.ndarray, "*draws"]
    loose: Float[np.ndarray, "... _"]
    number: Scalar
    tree: Tree
    shape: Point | Line
    setting: str | bool | int | float | Kernel | Mapping[Hashable, str | None] | None
    transform: Transform | None
    kernel: Kernel
    colour: Colour
    method: Literal["exact", "gaussian"]
    history: tuple[AnyFloat, ...]
    scale: Annotated[float, POSITIVE]
    bounds: Mapping[int | None, float]
    members: Mapping[Hashable, Member]


def example(dtype: str = "float64", **changes: Any) -> Everything:
    rng = np.random.default_rng(0)

    def reals(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(dtype)

    return Everything(
        ids=("a", 1, ("b", datetime.date(2020, 1, 2))),
        size=2,
        means=jnp.asarray(reals(3, 2)),
        numbers=np.array([0, 2, 1, 2], dtype=np.int32),
        flags=np.array([True, False, True, True]),
        table=np.array([[np.nan, 1.0]] * 4, dtype=dtype),
        stack=jnp.asarray(reals(5, 2, 2)),
        other=reals(5),
        loose=reals(1, 2, 3),
        number=jnp.asarray(0.25, dtype),
        tree=Tree(jnp.log(jnp.asarray([0.25, 0.75, 0.0], dtype)), jnp.asarray([1.0, 2.0, 3.0], dtype)),
        shape=Line((Point(0.1, -0.0), Point(5e-324)), "Ünïcode ✓ \ud800"),
        setting=RBF([1.0, 0.1], columns=(0, 2), fixed="variance"),
        transform=Logarithm(),
        kernel=RBF(jnp.asarray([1 / 3, 0.2], dtype), jnp.asarray(0.7, dtype)) * Periodic(24.0) + Linear(),
        colour=Colour.RED,
        method="gaussian",
        history=(1.5, -math.inf, math.nan, 0.1),
        scale=1 / 3,
        bounds={2: -1.5, None: 0.0, 1: 2.5},
        members={("new", True): Member(reals(2, 2), np.zeros(2)), "x": Member(reals(0, 2), None)},
    )._replace(**changes)


def through_json(content: Content) -> Content:
    return Content(content.tensors, json.loads(json.dumps(content.document, allow_nan=False)))


def returned(value: Any, kind: Any) -> Any:
    return decode(*through_json(encode(value, kind)), kind)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"dtype": "float32"},
        {"shape": Point(1.0, 2.0)},
        *({"setting": setting} for setting in ("rbf", True, 1, 1.0, None, Constant(0.7, fixed="variance"))),
        {"setting": {"a": "log", 1: None}},
        {"transform": None},
        {"transform": SquareRoot()},
        {"table": None},
        {"stack": jnp.zeros((2, 2)), "other": np.array(0.5)},
        {"kernel": RationalQuadratic(shape=2.0) + Matern12(0.3) * (RBF(columns=1) + Periodic([1.0, 7.0], fixed=()))},
        {"bounds": {}, "members": {}, "history": ()},
    ],
    ids=str,
)
def test_everything_comes_back_bit_for_bit(change):
    found = returned(example(**change), Everything)
    assert_same(found, example(**change))
    assert list(found.bounds) == list(example(**change).bounds)
    assert [isinstance(each, jax.Array) for each in (found.means, found.numbers)] == [True, False]


IDS = st.recursive(
    st.text() | st.integers() | st.booleans() | st.floats(allow_nan=False) | st.dates() | st.datetimes(),
    lambda parts: st.lists(parts, max_size=3).map(tuple),
    max_leaves=5,
)


@settings(max_examples=50, deadline=None)
@case(datetime.datetime(2024, 2, 29, 12, 34, 56, 789, tzinfo=datetime.timezone(datetime.timedelta(hours=5.5))))
@case("\ud800")
@case(-(2**80))
@given(IDS)
def test_ids_come_back_with_their_type(value):
    found = decode_id(json.loads(json.dumps(encode_id(value), allow_nan=False)))
    assert found == value
    assert encode_id(found) == encode_id(value)  # which tells 1 from 1.0 and True


# What does not fit


ENCODED = through_json(encode(example(), Everything))
UNFIT = [
    ("means", lambda values: values[:2], r"means has the shape \(2, 2\), where \(3, 2\) fits the rest"),
    ("means", lambda values: values.astype(int), "means holds int64"),
    ("means", lambda values: values * np.nan, "means holds NaN or infinite values"),
    ("numbers", lambda values: values + 1, "numbers counts beyond the 3 there are"),
    ("stack", lambda values: values[:, :1], r"stack has the shape \(5, 1, 2\)"),
    ("stack", lambda values: values[0, 0], r"stack has the shape \(2,\), where \('\*draws', '2', 2\)"),
    ("other", lambda values: values[1:], r"other has the shape \(4,\), where \(5,\)"),
    ("number", lambda values: values[None], r"number has the shape \(1,\)"),
    ("tree.weights", lambda values: values + 0.1, "tree.weights holds numbers that are no logarithms"),
    ("tree.noise", lambda values: -values, "tree.noise holds values that are not positive"),
    ("members.0.1.rows", lambda values: values[:, :1], r"members.0.1.rows has the shape \(2, 1\), where \(.*, 2\)"),
    ("members.0.1.errors", lambda values: values - 1, "members.0.1.errors holds negative values"),
    ("members.0.1.errors", lambda values: values[:1], r"members.0.1.errors has the shape \(1,\), where \(2,\)"),
    ("ids", [["str", "a"], ["int", 1], ["str", "a"]], "ids names something twice"),
    ("ids", [["str", "a"], ["int", 1], ["bool", True]], "ids: condition ids mix True/False with numbers"),
    ("ids", [["str", "a"]], r"means has the shape \(3, 2\), where \(1, 2\)"),
    ("ids.0", ["float", "nan"], "ids.0 is a condition id 'nan' that is no float"),
    ("ids.0", ["int", "1"], "'1' that is no int"),
    ("ids.0", ["complex", "1j"], "of unknown type 'complex'"),
    ("ids.0", [["str"], "a"], "of unknown type"),
    ("size", 3, "means has the shape"),
    ("size", 2.0, "size holds 2.0, which is no int"),
    ("means", None, "means is not there, or is no array"),
    ("shape", {"Circle": {}}, r"shape is of unknown kind 'Circle', none of \['Point', 'Line'\]"),
    ("shape", {"Point": {}, "Line": {}}, "instead of one of"),
    ("shape.Line.ends", [], "shape.ends has 0 entries instead of 2"),
    ("shape.Line.later", 7, "shape.later is nothing that this version knows"),
    ("kernel.sum.terms", {}, "kernel.terms is no list"),
    ("kernel.sum.terms.1.linear.fixed", ["mass"], "Linear has no hyperparameter 'mass' to hold fixed"),
    ("colour", "GREEN", "colour holds 'GREEN', none of .'RED', 'BLUE'."),
    ("scale", "-0x1.8000000000000p+1", "scale holds values that are not positive"),
    ("scale", "3", "scale holds '3', which is no float"),
    ("bounds.0.0", 1, "bounds names something twice"),
]


@pytest.mark.parametrize(("path", "value", "words"), UNFIT)
def test_what_does_not_fit_is_refused_by_name(path, value, words):
    with pytest.raises(ModelFileError, match=words):
        decode(*edited(ENCODED, path, value), Everything)


def test_sizes_are_refused_before_any_array_is_there():
    tensors, document = ENCODED
    sizes = {name: jax.ShapeDtypeStruct(values.shape, values.dtype) for name, values in tensors.items()}
    assert_same(planned(sizes, document, Everything)(tensors), example())
    with pytest.raises(ModelFileError, match=r"means has the shape \(1000000000000, 2\)"):
        planned({**sizes, "means": jax.ShapeDtypeStruct((10**12, 2), float)}, document, Everything)


def test_what_is_missing_or_unknown_is_refused_by_name():
    tensors, document = ENCODED
    for name in tensors:
        with pytest.raises(ModelFileError, match=f"^{name} is not there"):
            decode({other: values for other, values in tensors.items() if other != name}, document, Everything)
    for name in document:
        with pytest.raises(ModelFileError, match=f"^{name} is not there"):
            decode(tensors, {other: entry for other, entry in document.items() if other != name}, Everything)
    with pytest.raises(ModelFileError, match="later is an array that this version does not know"):
        decode({**tensors, "later": np.ones(1)}, document, Everything)
    with pytest.raises(ModelFileError, match="the document is no table of names and values"):
        decode(tensors, [], Everything)


def test_what_is_nested_without_end_is_refused():
    name, kernel = ["str", "a"], {"constant": {}}
    for _ in range(400):
        name, kernel = ["tuple", [name]], {"sum": {"terms": [kernel]}}
    for document, kind in ((name, Hashable), (kernel, Kernel)):
        with pytest.raises(ModelFileError, match="more than 60 levels"):
            decode({}, document, kind)


class HomeMade(RBF):
    """A kernel that the library has never heard of."""


def test_what_could_not_be_read_is_not_written():
    for kernel in (HomeMade(), RBF() + HomeMade()):
        with pytest.raises(SettingError, match="HomeMade is a kernel of your own, which a model file cannot hold"):
            encode(kernel, Kernel)
    with pytest.raises(ModelFileError, match="means holds NaN"):
        encode(example(means=jnp.full((3, 2), np.nan)), Everything)
    with pytest.raises(ModelFileError, match="scale holds values that are not positive"):
        encode(example(scale=0.0), Everything)
    for change in ({"means": np.zeros((3, 2), int)}, {"shape": 7}, {"size": 2.0}, {"tree": Point(1.0)}):
        with pytest.raises(TypeError, match=next(iter(change))):
            encode(example(**change), Everything)
