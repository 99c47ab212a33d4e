"""One self-contained HTML page on which a fitted model can be explored."""

import base64
import hashlib
import html
import json
import os
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from lvmogp.__about__ import __version__
from lvmogp.errors import SettingError
from lvmogp.estimator import LVMOGPRegressor
from lvmogp.ground.precision import double_precision
from lvmogp.ground.writing import replace_file
from lvmogp.insight.relevance import coordinate_names
from lvmogp.insight.summary import Summary, summary
from lvmogp.kernels.covariances import Composite, Kernel, Sum, plain_kernel
from lvmogp.page.data import page_data
from lvmogp.typing import HostFloat

Row = tuple[str, str]
_SCRIPTS = (
    "arrays.js",
    "linalg.js",
    "kernels.js",
    "covariance.js",
    "transforms.js",
    "model.js",
    "particles.js",
    "new_condition.js",
    "next_measurement.js",
    "drawing.js",
    "latent_view.js",
    "curve_view.js",
    "observations.js",
    "tables.js",
    "words.js",
    "interface.js",
    "main.js",
)
_HYPERPARAMETERS = ("variance", "lengthscale", "period", "shape")


def write_report(model: LVMOGPRegressor, path: str | os.PathLike[str]) -> None:
    """Write the page of a fitted model: one file that needs no network, whole or not at all."""
    target = Path(path)
    if not target.parent.is_dir():
        raise SettingError(f"there is no folder {target.parent} to write {target.name} to; make it first")
    replace_file(target, report_page(model).encode())


def report_page(model: LVMOGPRegressor) -> str:
    """The page as text."""
    check_is_fitted(model, "model_", msg="this LVMOGPRegressor is not fitted yet; a page shows a fitted model")
    found = summary(model)
    with double_precision():
        document = page_data(model.model_) | _shown(model, found)
    library = _asset("d3.min.js")
    code = '(() => {\n"use strict";\n' + "\n".join(_asset(name) for name in _SCRIPTS) + "})();\n"
    style = _asset("page.css")
    parts = {
        "policy": _policy(scripts=(library, code), style=style),
        "title": html.escape(document["title"]),
        "style": style,
        "data": _as_script_data(document),
        "library": library,
        "code": code,
    }
    before, *pieces = _asset("template.html").split("<!--")
    page = [before]
    for piece in pieces:
        name, _, after = piece.partition("-->")
        page += [parts[name], after]
    return "".join(page)


def _asset(name: str) -> str:
    return (files("lvmogp") / "page" / name).read_text(encoding="utf-8")


def _policy(*, scripts: tuple[str, ...], style: str) -> str:
    """A content security policy: these scripts, this style, and nothing from anywhere else."""
    allowed = " ".join(_digest(script) for script in scripts)
    return f"default-src 'none'; script-src {allowed}; style-src {_digest(style)}; base-uri 'none'; form-action 'none'"


def _digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _as_script_data(document: dict[str, Any]) -> str:
    """JSON that no browser can mistake for markup."""
    text = json.dumps(document, allow_nan=False)  # escapes all that is not ASCII, U+2028 and U+2029 too
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _shown(model: LVMOGPRegressor, found: Summary) -> dict[str, Any]:
    output = found.output or "output"
    return {
        "title": f"{output} by {model.condition}" if model.condition else f"{output} by condition",
        "inputNames": found.inputs,
        "outputName": output,
        "conditionName": model.condition or "condition",
        "facts": _facts(model, found),
        "kernels": _kernel_rows(model, found.inputs),
        "settings": [(name, _setting(value)) for name, value in model.get_params(deep=False).items()],
        "inputRelevance": [[str(name), float(value)] for name, value in found.input_relevance.itertuples(index=False)],
        "latentRelevance": [
            [f"latent {name}", float(value)] for name, value in found.latent_relevance.itertuples(index=False)
        ],
        "featureRelevance": [[name, float(value)] for name, value in found.feature_relevance.itertuples(index=False)],
        "coordinateNames": coordinate_names(model),
        "remarks": found.remarks,
        "version": __version__,
    }


def _facts(model: LVMOGPRegressor, found: Summary) -> list[Row]:
    quantity = model.model_.scaling.label(found.output or "output")
    observations = "not kept in this model" if found.n_observations is None else f"{found.n_observations:,}"
    facts = [
        ("Observations", observations),
        ("Conditions", f"{found.n_conditions:,} trained, {len(found.conditions_added):,} added later"),
        ("Latent dimensions", str(found.n_latent)),
        ("Bound on the log evidence", f"{found.bound:.2f}"),
        ("Fit", f"{found.status}; {_counted(found.n_starts, 'start')} in {found.seconds:.0f} s"),
        (f"Noise, sd of {quantity}", f"{found.noise_sd:.3g}"),
    ]
    if found.leave_out is not None:
        left_out = found.leave_out
        facts += [
            (
                "Error on points left out, root mean square",
                f"{left_out.rmse:.3g} (outputs vary by {left_out.spread:.3g})",
            ),
            ("Points left out inside their 95 % interval", f"{100 * left_out.coverage:.0f} %"),
        ]
    return facts


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _kernel_rows(model: LVMOGPRegressor, inputs: list[str]) -> list[Row]:
    parameters = model.model_.posterior.parameters
    descriptions = model.model_.descriptions
    scale, over_conditions = np.ones(model.n_latent_), "Over latents"
    if descriptions is not None:
        over_conditions = "Over latents and features"
        scale = np.concatenate([scale, descriptions.scale])
    return [
        ("Over inputs", _described(parameters.input_kernel, inputs, model.model_.scaling.input_scale)),
        (over_conditions, _described(parameters.latent_kernel, coordinate_names(model), scale)),
    ]


def _described(kernel: Kernel, columns: list[str], scale: HostFloat) -> str:
    """A fitted kernel in words, its lengthscales and periods in the user's units."""
    if isinstance(kernel, Composite):
        parts = [_described(term, columns, scale) for term in kernel.terms]
        return (" + " if isinstance(kernel, Sum) else " × ").join(f"({part})" for part in parts)
    stored = plain_kernel(kernel)
    seen = stored.get("columns")
    if seen is not None:
        columns, scale = [columns[column] for column in seen], scale[list(seen)]
    words = [_hyperparameter(stored, name, columns, scale) for name in _HYPERPARAMETERS if name in stored]
    return f"{stored['kind']}: {'; '.join(words)}"


def _hyperparameter(stored: dict[str, Any], name: str, columns: list[str], scale: HostFloat) -> str:
    values = np.atleast_1d(np.asarray(stored[name], dtype=float))
    if name == "period" or (name == "lengthscale" and stored["kind"] != "periodic"):
        values = values * scale
    if len(values) == 1:
        return f"{name} {values[0]:.3g}"
    return f"{name} " + ", ".join(f"{value:.3g} ({column})" for value, column in zip(values, columns, strict=True))


def _setting(value: Any) -> str:
    if isinstance(value, Composite):
        return (" + " if isinstance(value, Sum) else " * ").join(_setting(term) for term in value.terms)
    return type(value).__name__ if isinstance(value, Kernel) else str(value)
