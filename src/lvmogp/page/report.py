"""One self-contained HTML page on which a fitted model can be explored."""

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from lvmogp.__about__ import __version__
from lvmogp.errors import SettingError
from lvmogp.estimator import LVMOGPRegressor
from lvmogp.ground.precision import double_precision
from lvmogp.ground.writing import replace_file
from lvmogp.insight.summary import Summary, summary
from lvmogp.kernels.covariances import Composite, Kernel, Sum, plain_kernel
from lvmogp.model.parameters import Kernels
from lvmogp.page.data import page_data
from lvmogp.typing import HostFloat


def write_report(model: LVMOGPRegressor, path: str | os.PathLike[str]) -> None:
    """Write the page of a fitted model: one file that needs no network, whole or not at all."""
    target = Path(path)
    if not target.parent.is_dir():
        raise SettingError(f"there is no folder {target.parent} to write {target.name} to; make it first")
    replace_file(target, report_page(model).encode())


def report_page(model: LVMOGPRegressor) -> str:
    """Return the page as text."""
    found = summary(model)
    with double_precision():
        document = page_data(model.model_) | _shown(model, found)
    kept = [each for each in (files("lvmogp") / "page").iterdir() if each.name.endswith((".js", ".css", ".html"))]
    assets = {each.name: each.read_text(encoding="utf-8") for each in kept}
    library, style, template = (assets.pop(name) for name in ("d3.min.js", "page.css", "template.html"))
    start = assets.pop("main.js")  # all other scripts only define what it uses
    code = '(() => {\n"use strict";\n' + "\n".join([*(assets[name] for name in sorted(assets)), start]) + "})();\n"
    # JSON that no browser can mistake for markup. It escapes all that is not ASCII, U+2028 and U+2029 too.
    data = json.dumps(document, allow_nan=False)
    # A content security policy: these scripts, this style, and nothing from anywhere else.
    digests = (base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in (library, code, style))
    first, second, third = (f"'sha256-{digest}'" for digest in digests)
    allowed = f"script-src {first} {second}; style-src {third}"
    parts = {
        "policy": f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'",
        "title": html.escape(document["title"]),
        "style": style,
        "data": data.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"),
        "library": library,
        "code": code,
    }
    return re.sub("<!--(.*?)-->", lambda place: parts[place[1]], template)


def _shown(model: LVMOGPRegressor, found: Summary) -> dict[str, Any]:
    fitted, output, condition = model.model_, found.output or "output", model.condition or "condition"
    kernels, features = fitted.posterior.parameters.kernels, fitted.condition_features
    labels = fitted.scaling.input_labels(found.inputs)
    coordinates = [f"latent {number + 1}" for number in range(found.n_latent)]
    over_conditions, scale = "Over latents", np.ones(found.n_latent)
    if features is not None:
        coordinates += features.coordinate_names
        over_conditions, scale = "Over latents and features", np.concatenate([scale, features.scale])
    facts = [("Latent dimensions", str(found.n_latent) if kernels.of_latents else "none")]
    if not kernels.is_plain:
        facts.append(("Each curve is a sum", _parts(kernels, over_conditions)))
    return {
        "title": f"{output} by {condition}",
        "inputNames": found.inputs,
        "outputName": output,
        "conditionName": condition,
        "facts": _facts(found, fitted.scaling.label(output), labels, facts),
        "kernels": [
            (name, _described(kernel, labels, fitted.scaling.input_scale))
            if is_of_inputs
            else (name, _described(kernel, coordinates, scale))
            for name, kernel, is_of_inputs in _named_kernels(kernels, over_conditions)
        ],
        "settings": [(name, _setting(value)) for name, value in model.get_params(deep=False).items()],
        "inputRelevance": found.input_relevance.to_numpy().tolist(),
        "latentRelevance": [
            [f"latent {q}", value]
            for q, value in found.latent_relevance.itertuples(index=False)
            if kernels.of_latents  # else they play no part
        ],
        "featureRelevance": found.feature_relevance.to_numpy().tolist(),
        "coordinateNames": coordinates,
        "remarks": found.remarks,
        "version": __version__,
    }


def _named_kernels(kernels: Kernels, over_conditions: str) -> Iterator[tuple[str, Kernel, bool]]:
    # Each kernel with what it is about, and whether it is one of inputs.
    several = len(kernels.of_latents) > 1
    for number, term in enumerate(kernels.terms, start=1):
        if term.latent_kernel is None:
            yield "Over inputs, of the curve that all conditions share", term.input_kernel, True
        else:
            which = f", term {number}" if several else ""
            yield f"Over inputs{which}", term.input_kernel, True
            yield f"{over_conditions}{which}", term.latent_kernel, False
    if kernels.own is not None:
        yield "Over inputs, of each condition's own curve", kernels.own, True


def _parts(kernels: Kernels, over_conditions: str) -> str:
    n_terms, point = len(kernels.of_latents), over_conditions.removeprefix("Over ")
    parts = ["one that all conditions share"] * kernels.has_shared
    if n_terms:
        parts.append(f"one that depends on {point}" if n_terms == 1 else f"{n_terms} that depend on {point}")
    return ", ".join([*parts, *["one of its own"] * (kernels.own is not None)])


def _facts(found: Summary, quantity: str, inputs: list[str], latents: list[tuple[str, str]]) -> list[tuple[str, str]]:
    observations = "not kept in this model" if found.n_observations is None else f"{found.n_observations:,}"
    starts = "1 start" if found.n_starts == 1 else f"{found.n_starts:,} starts"
    facts = [
        ("Observations", observations),
        ("Conditions", f"{found.n_conditions:,} trained, {len(found.conditions_added):,} added later"),
        *latents,
        ("Bound on the log evidence", f"{found.bound:.2f}"),
        ("Fit", f"{found.status}; {starts} in {found.seconds:.0f} s"),
        (f"Noise, sd of {quantity}", f"{found.noise_sd:.3g}"),
    ]
    if found.input_transform:
        facts.append(("Inputs as they are modelled", ", ".join(inputs)))
    if (left := found.leave_out) is not None:
        facts += [
            ("Error on points left out, root mean square", f"{left.rmse:.3g} (outputs vary by {left.spread:.3g})"),
            ("Points left out inside their 95 % interval", f"{100 * left.coverage:.0f} %"),
        ]
    return facts


def _described(kernel: Kernel, columns: list[str], scale: HostFloat) -> str:
    """Return a fitted kernel in words, its lengthscales and periods in the units of columns of these labels."""
    if isinstance(kernel, Composite):
        parts = [_described(term, columns, scale) for term in kernel.terms]
        return (" + " if isinstance(kernel, Sum) else " × ").join(f"({part})" for part in parts)
    stored, words = plain_kernel(kernel), list[str]()
    if stored.get("columns") is not None:
        columns, scale = [columns[column] for column in stored["columns"]], scale[list(stored["columns"])]
    for name in [each for each in ("variance", "lengthscale", "period", "shape") if each in stored]:
        values = np.atleast_1d(np.asarray(stored[name], dtype=float))
        has_units = name == "period" or (name == "lengthscale" and stored["kind"] != "periodic")
        values = values * scale if has_units else values
        numbers = [f"{value:.3g}" for value in values]
        if len(numbers) > 1 or (has_units and columns[0].startswith("log ")):
            numbers = [f"{number} ({column})" for number, column in zip(numbers, columns, strict=True)]
        words.append(f"{name} {', '.join(numbers)}")
    return f"{stored['kind']}: {'; '.join(words)}"


def _setting(value: Any) -> str:
    if isinstance(value, Composite):
        return (" + " if isinstance(value, Sum) else " * ").join(_setting(term) for term in value.terms)
    return type(value).__name__ if isinstance(value, Kernel) else str(value)
