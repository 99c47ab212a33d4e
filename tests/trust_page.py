"""What docs/trust-*.md say of measurements, made from what the commands wrote down."""

import json
from pathlib import Path
from typing import Any

from benchmarks.pages import with_part

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


def hostile_table(account: dict[str, Any]) -> str:
    """How far answers moved when the same data were told in another way."""
    lines = [
        "| | data sets, parameters fixed | moved at most | data sets fitted anew | moved by less than 0.01 | at most |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for rule, words in _RULES.items():
        fixed, anew = (account["moved"][f"{rule}, {how}"] for how in ("fixed parameters", "fitted anew"))
        within = f"{100 * anew['within a hundredth']:.1f} %"
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


def write_pages() -> None:
    """Make the measured parts of the pages anew."""
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
