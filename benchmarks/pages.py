"""Parts of documentation pages that are made from results, between two marks."""

from pathlib import Path


def with_part(text: str, begin: str, end: str, part: str) -> str:
    """The text with what stands between the marks replaced."""
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page lacks {begin if not found else end}")
    return f"{before}{begin}\n\n{part}\n\n{end}{after}"


def write_part(page: Path, begin: str, end: str, part: str) -> None:
    """Replace what stands between the marks of a page."""
    page.write_text(with_part(page.read_text(encoding="utf-8"), begin, end, part), encoding="utf-8")
