"""Names in docstrings that carry a Sphinx role, such as ``:func:``, are shown as plain code."""

import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

_ROLE = re.compile(r":(?:func|meth|class|attr|mod):(?=<code>)")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Drop the roles."""
    return _ROLE.sub("", html)
