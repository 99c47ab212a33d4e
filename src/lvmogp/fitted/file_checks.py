"""Whether the arrays and the document of a model file fit together, before anything is computed from them.

A digest tells damage; these checks are for files that were made or changed by other programs. Sizes that follow from
each other are compared first, so that nothing much larger than the file itself is ever allocated.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lvmogp.errors import ModelFileError
from lvmogp.kernels.covariances import Composite, Constant, Kernel
from lvmogp.storage.tensor_file import ModelFile
from lvmogp.tables.transforms import TRANSFORMS

# The axes of each array; those of one name are equally long throughout a file.
_PARAMETERS = {
    "parameters.inducing_inputs": "M_X Q_X",
    "parameters.inducing_latents": "M_H Q_H",
    "parameters.latent_mean": "D L",
    "parameters.latent_variance": "D L",
    "parameters.noise_variance": "noise",
    "posterior.mean": "M_X M_H",
    "scaling.input_mean": "Q_X",
    "scaling.input_scale": "Q_X",
}
_COVARIANCES = {
    "kronecker": {
        "covariance.input_basis": "M_X M_X",
        "covariance.latent_basis": "M_H M_H",
        "covariance.variances": "M_X M_H",
    },
    "dense": {"covariance.matrix": "M M"},
}
_KNOWN = {
    "known.values": "D F",
    "known.missing_condition": "missing",
    "known.missing_coordinate": "missing",
    "known.missing_mean": "missing",
    "known.missing_variance": "missing",
    "features.values": "described F",
    "features.mean": "F",
    "features.scale": "F",
}
_DATA = {"data.inputs": "n Q_X", "data.outputs": "n", "data.conditions": "n"}
_DRAWS = {
    "draws.latents": "S D Q_H",
    "draws.noise_variance": "S noise",
    "draws.chain": "S",
    "draws.log_weight": "S",
}
_SPREAD = {"draws.noise_spread.median": "S", "draws.noise_spread.deviation": "S"}
_ANSWERING = {"draws.answering": "S_few"}
_WHOLE = ("known.missing_condition", "known.missing_coordinate", "data.conditions", "draws.chain", "draws.answering")
_POSITIVE = (
    "parameters.latent_variance",
    "parameters.noise_variance",
    "scaling.input_scale",
    "known.missing_variance",
    "features.scale",
    "draws.noise_variance",
    "draws.noise_spread.median",
    "draws.noise_spread.deviation",
)
_POSITIVE_OF_ADDED = ".noise"
_NOT_NEGATIVE_OF_ADDED = ".variance"  # zero where a coordinate is known from a feature
_MAY_BE_MISSING = ("features.values",)
_TEXTS = ("columns", "date_columns")


def check_content(content: ModelFile) -> None:
    """Refuse content that is no model."""
    tensors, document = content
    _check_document(document)
    sizes = {"D": len(document["ids"])}
    _check_arrays(tensors, _PARAMETERS, sizes)
    if sizes["noise"] not in (1, sizes["D"]):
        raise ModelFileError(f"there are {sizes['noise']} noise variances for {sizes['D']} conditions")
    if document["columns"] is not None and len(document["columns"]) != sizes["Q_X"]:
        raise ModelFileError(f"there are {len(document['columns'])} names for {sizes['Q_X']} columns of inputs")
    sizes["M"] = sizes["M_X"] * sizes["M_H"]
    _check_arrays(tensors, _COVARIANCES[document["covariance"]], sizes)
    if "known.values" in tensors:
        _check_arrays(tensors, _KNOWN, sizes)
        _check_numbers(tensors, "known.missing_condition", sizes["D"])
        _check_numbers(tensors, "known.missing_coordinate", sizes["F"])
    if sizes["Q_H"] != sizes["L"] + sizes.get("F", 0):
        raise ModelFileError(f"inducing latents have {sizes['Q_H']} coordinates, conditions another number")
    if "data.inputs" in tensors:
        errors = {"data.errors": "n"} if "data.errors" in tensors else {}
        _check_arrays(tensors, _DATA | errors, sizes)
        _check_numbers(tensors, "data.conditions", sizes["D"])
    if "draws.latents" in tensors:
        _check_arrays(tensors, _DRAWS | (_SPREAD if "draws.noise_spread.median" in tensors else {}), sizes)
    if "draws.answering" in tensors:
        _check_arrays(tensors, _ANSWERING, sizes)
        _check_numbers(tensors, "draws.answering", sizes["S"])
    for number, _ in enumerate(document["added"]):
        _check_added(tensors, f"added.{number}.", sizes)


def _check_added(tensors: Mapping[str, np.ndarray], prefix: str, sizes: Mapping[str, int]) -> None:
    # Particles of the latents, those of each draw, or the mean and variance of one Gaussian.
    particles = "S_few particles" if "S" in sizes else "particles"
    axes = {"inputs": "n Q_X", "outputs": "n", "errors": "n", "features": "F"}
    if f"{prefix}mean" in tensors:
        axes |= {"mean": "one Q_H", "variance": "one Q_H"}
    else:
        axes |= {"latents": f"{particles} Q_H", "noise": particles, "log_weights": particles}
    optional = [name for name in ("errors", "features") if f"{prefix}{name}" not in tensors]
    wanted = {f"{prefix}{name}": each for name, each in axes.items() if name not in optional}
    own = {name: size for name, size in sizes.items() if name in ("Q_X", "Q_H", "F", "S_few")}
    _check_arrays(tensors, wanted, own | {"one": 1}, finite=False)


def _check_arrays(
    tensors: Mapping[str, np.ndarray], wanted: Mapping[str, str], sizes: dict[str, int], *, finite: bool = True
) -> None:
    for name, axes in wanted.items():
        values, names = tensors[name], axes.split()
        if values.dtype.kind != ("i" if name in _WHOLE else "f"):
            raise ModelFileError(f"{name} holds {values.dtype}")
        if len(names) != values.ndim or any(
            sizes.setdefault(axis, length) != length for axis, length in zip(names, values.shape, strict=True)
        ):
            expected = tuple(sizes.get(axis, axis) for axis in names)
            raise ModelFileError(f"{name} has the shape {values.shape}, where {expected} fits the rest")
        if finite and name not in _MAY_BE_MISSING and not np.all(np.isfinite(values)):
            raise ModelFileError(f"{name} holds NaN or infinite values")
        if (name in _POSITIVE or name.endswith(_POSITIVE_OF_ADDED)) and not np.all(values > 0):
            raise ModelFileError(f"{name} holds values that are not positive")
        if name.endswith(_NOT_NEGATIVE_OF_ADDED) and not np.all(values >= 0):
            raise ModelFileError(f"{name} holds negative values")


def _check_numbers(tensors: Mapping[str, np.ndarray], name: str, n_things: int) -> None:
    if np.any((tensors[name] < 0) | (tensors[name] >= n_things)):
        raise ModelFileError(f"{name} counts beyond the {n_things} there are")


def _check_document(document: Mapping[str, Any]) -> None:
    for name in _TEXTS:
        stored = document.get(name) if name == "date_columns" else document[name]
        if stored is not None and not (isinstance(stored, list) and all(isinstance(text, str) for text in stored)):
            raise ModelFileError(f"{name} is no list of texts")
    if not isinstance(document.get("output_name"), str | None):
        raise ModelFileError("output_name is no text")
    for name, value in (("log_output", document.get("log_output", False)), ("is_grid", document["is_grid"])):
        if not isinstance(value, bool):
            raise ModelFileError(f"{name} is neither true nor false")
    if document.get("output_transform") not in TRANSFORMS:
        raise ModelFileError(f"output_transform is none of {list(TRANSFORMS)}")
    outcome = document["outcome"]
    for own in (outcome, *outcome["restarts"]):
        numbers = [value for name, value in own.items() if name not in ("restarts", "recipe", "status")]
        if not all(isinstance(value, int | float | None) for value in numbers):
            raise ModelFileError("the account of the fit holds something other than numbers")


def check_kernel(kernel: Kernel, n_columns: int) -> None:
    """Refuse a kernel that looks at columns which its points do not have."""
    if isinstance(kernel, Composite):
        for term in kernel.terms:
            check_kernel(term, n_columns)
        return
    if isinstance(kernel, Constant):
        return
    columns: Sequence[int] | None = getattr(kernel, "columns", None)
    seen = range(n_columns) if columns is None else columns
    if any(not 0 <= column < n_columns for column in seen):
        raise ModelFileError(f"a kernel looks at the columns {columns} of {n_columns}")
    for name in ("lengthscale", "period", "variance"):
        if np.ndim(getattr(kernel, name, 0.0)) == 1 and np.size(getattr(kernel, name)) not in (1, len(seen)):
            raise ModelFileError(
                f"a kernel has {np.size(getattr(kernel, name))} values of {name} for {len(seen)} columns"
            )
