"""What docs/trust-*.md say of measurements, made from what the tests of trust wrote down.

    python -m benchmarks.trust hostile

Reads what `make test-hostile`, `make test-numerics` or `make test-fuzz` left in out/, writes it to results/ and makes
the measured parts of the pages anew. Fails if fits moved by more than a hundredth in more than 1 % of the data sets.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from benchmarks.pages import with_part
from lvmogp.__about__ import __version__

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
_RULES = {
    "order of rows": "other order of rows",
    "names": "other names of conditions",
    "units": "other units (powers of two)",
}
_QUANTITIES = {
    "bound": "bound, as a share of its largest term",
    "mean": "mean, in standard deviations of the prior",
    "variance": "variance, as a share of the prior's",
}
_HUNDREDTH = "within a hundredth"


def hostile(measured: list[dict[str, Any]]) -> dict[str, Any]:
    """How many data sets were answered, and by how many standard deviations of the output answers moved."""
    refused = Counter(each["refusal"][:90] for each in measured if each["refusal"] is not None)
    findings = Counter(rule.partition(":")[0] for each in measured for rule in each["findings"])
    distances: dict[str, list[float]] = {}
    for rule, distance in (pair for each in measured for pair in each["moved"].items()):
        distances.setdefault(rule, []).append(distance)
    return {
        "data_sets": len(measured),
        "answered": len(measured) - refused.total(),
        "refused_in_words": dict(refused.most_common()),
        "findings_by_rule": dict(findings.most_common()),
        "moved": {
            rule: {"checked": len(found), _HUNDREDTH: float(np.mean(np.asarray(found) <= 0.01)), "largest": max(found)}
            for rule, found in sorted(distances.items())
        },
    }


def numerics(measured: list[dict[str, Any]]) -> dict[str, Any]:
    """Typical and largest error of each quantity by noise variance, with the case that has the largest."""
    rows = []
    for dtype, quantity in [(dtype, name) for dtype in ("float64", "float32") for name in _QUANTITIES]:
        if (dtype, quantity) == ("float32", "bound"):
            continue  # bounds are computed in double precision whatever the model is stored in
        for noise in sorted({each["case"]["noise"] for each in measured}):
            own = [each for each in measured if each["case"]["noise"] == noise]
            errors = [each[dtype][quantity] for each in own]
            row = {"dtype": dtype, "quantity": quantity, "noise": noise, "typical": float(np.median(errors))}
            rows.append(row | {"largest": max(errors), "at": own[int(np.argmax(errors))]["case"]})
    return {"cases": len(measured), "errors": rows}


def fuzz(measured: list[dict[str, Any]]) -> dict[str, Any]:
    """What became of the variants of each kind of file."""
    return {"kinds": {each.pop("kind"): each for each in measured}}


def hostile_table(account: dict[str, Any]) -> str:
    """How far answers moved when the same data were told in another way."""
    lines = [
        "| | data sets, parameters fixed | moved at most | data sets fitted anew | moved by less than 0.01 | at most |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for rule, words in _RULES.items():
        fixed, anew = (account["moved"][f"{rule}, {how}"] for how in ("fixed parameters", "fitted anew"))
        within = f"{100 * anew[_HUNDREDTH]:.1f} %"
        lines.append(
            f"| {words} | {fixed['checked']} | {fixed['largest']:.0g} | {anew['checked']} | {within} | "
            f"{anew['largest']:.0g} |"
        )
    refused = sum(account["refused_in_words"].values())
    found = account["findings_by_rule"]
    findings = "; ".join(f"{rule}: {count}" for rule, count in found.items()) or "none"
    lines += [
        "",
        f"Of {account['data_sets']} data sets {account['answered']} were answered and {refused} refused in words; "
        f"anything else that should not be: {findings}.",
    ]
    return "\n".join(lines)


def numerics_table(account: dict[str, Any]) -> str:
    """Largest and, in brackets, typical errors against fifty digits."""
    rows = account["errors"]
    levels = sorted({row["noise"] for row in rows})
    lines = [
        f"| | {' | '.join(f'noise variance {level:g}' for level in levels)} |",
        "| --- " * (len(levels) + 1) + "|",
    ]
    for dtype, quantity in dict.fromkeys((row["dtype"], row["quantity"]) for row in rows):
        own = {row["noise"]: row for row in rows if (row["dtype"], row["quantity"]) == (dtype, quantity)}
        words = _QUANTITIES[quantity] + (', `dtype="float32"`' if dtype == "float32" else "")
        cells = [f"{own[level]['largest']:.0e} ({own[level]['typical']:.0e})" for level in levels]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join(lines)


def endurance_sentence(account: dict[str, Any]) -> str:
    """What a long run came to."""
    same = "the same, bit for bit" if all(account["checks"].values()) else "**not the same**"
    minutes = f"{account['seconds'] / 60:.0f} minutes"
    return (
        f"{account['n_fits']} fits and {account['n_predictions']} predictions in {minutes}: "
        f"memory in the last quarter was {account['memory_of_last_quarter_over_second']:.3f} of that in the second, "
        f"{account['most_resident_mb'] / 1000:.1f} GB at most; at the end the first model's answers, and a first fit "
        f"made anew, were {same}."
    )


_PARTS = {
    "hostile": ("trust-data.md", hostile_table),
    "numerics": ("trust-data.md", numerics_table),
    "endurance": ("trust-package.md", endurance_sentence),
}


def pages() -> dict[Path, str]:
    """Each page as it should be."""
    found: dict[Path, str] = {}
    for name, (page, part) in _PARTS.items():
        account = json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))
        text = found.get(DOCS / page) or (DOCS / page).read_text(encoding="utf-8")
        found[DOCS / page] = with_part(text, f"<!-- {name}: begin -->", f"<!-- {name}: end -->", part(account))
    return found


def main() -> int:
    """Write down what the tests of one kind measured."""
    (name,) = sys.argv[1:]
    properties = ElementTree.parse(ROOT / "out" / f"{name}.xml").iter("property")
    measured = [json.loads(each.attrib["value"]) for each in properties if each.attrib["name"] == "measured"]
    account = {"version": __version__, **{"hostile": hostile, "numerics": numerics, "fuzz": fuzz}[name](measured)}
    (ROOT / "results" / f"{name}.json").write_text(json.dumps(account, indent=1) + "\n", encoding="utf-8")
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
    anew = [found for rule, found in account.get("moved", {}).items() if rule.endswith("fitted anew")]
    return int(any(found[_HUNDREDTH] < 0.99 for found in anew))


if __name__ == "__main__":
    sys.exit(main())
