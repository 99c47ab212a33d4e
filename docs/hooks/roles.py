"""Docstrings and signatures are shown without what is only for other readers.

Names that carry a Sphinx role, such as ``:func:``, are plain code. ``AnyFloat``, which tells the codec of files that
NaN and infinity may be stored, is a float.
"""

import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

_ROLE = re.compile(r":(?:func|meth|class|attr|mod):(?=<code>)")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Drop the roles, and name the type that it is."""
    return _ROLE.sub("", html).replace("AnyFloat", "float")
