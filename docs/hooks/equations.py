"""The numbered formulas of the page of mathematics get an anchor each, and their numbers stay in sight.

The page is written as plain text, to be read beside the code; formulas are indented and end in their number.
"""

import html
import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

PAGE = "mathematics.md"
_BLOCK = re.compile(r"(?:^    .*\n)+", re.MULTILINE)
_NUMBERED = re.compile(r"(.*?)\s*\((\d+)\)")


def with_anchors(markdown: str) -> str:
    """The page with each indented block of formulas as rows of formula and number."""
    return _BLOCK.sub(_rows, markdown)


def _rows(block: re.Match[str]) -> str:
    return "".join(["<div>\n", *(_row(line) for line in block[0].splitlines()), "</div>\n"])


def _row(line: str) -> str:
    numbered = _NUMBERED.fullmatch(line.strip())
    formula, number = numbered.groups() if numbered else (line.strip(), None)
    end = f'<a href="#equation-{number}">({number})</a>' if number else ""
    anchor = f' id="equation-{number}"' if number else ""
    return f'<div class="equation"{anchor}><span>{html.escape(formula)}</span>{end}</div>\n'


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the page of mathematics."""
    return with_anchors(markdown) if page.file.src_uri == PAGE else markdown
