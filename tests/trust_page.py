"""The tables of docs/trust-data.md, made from what the commands wrote down."""

import json
from pathlib import Path
from typing import Any

from benchmarks.pages import with_part

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "trust-data.md"
_MARKS = {name: (f"<!-- {name}: begin -->", f"<!-- {name}: end -->") for name in ("hostile", "numerics")}
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


def hostile_table(account: dict[str, Any]) -> str:
    """How far answers moved when the same data were told in another way."""
    lines = [
        "| | parameters fixed | | fitted anew | | |",
        "| --- | --- | --- | --- | --- | --- |",
        "| | data sets | largest | data sets | within 0.01 | largest |",
    ]
    for rule, words in _RULES.items():
        fixed, anew = (account["moved"][f"{rule}, {how}"] for how in ("fixed parameters", "fitted anew"))
        within = f"{100 * anew['within a hundredth']:.1f} %"
        lines.append(
            f"| {words} | {fixed['checked']} | {fixed['largest']:.0e} | {anew['checked']} | {within} | "
            f"{anew['largest']:.0e} |"
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


def made(text: str) -> str:
    """The page with its tables made anew."""
    for name, table in (("hostile", hostile_table), ("numerics", numerics_table)):
        account = json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))
        text = with_part(text, *_MARKS[name], table(account))
    return text


def write_page() -> None:
    """Make the tables anew."""
    PAGE.write_text(made(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
