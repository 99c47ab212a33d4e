"""The page about the command line is written by the command line itself when the site is built."""

import html
import re
import subprocess
import sys

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

PAGE = "command-line.md"
COMMANDS_HERE = "<!-- commands -->"
_EXAMPLE = re.compile(r"^(?:<[^>]*>)?Example:(?:</[^>]*>)? (.*)$", re.MULTILINE)


def commands() -> str:
    """What ``--help`` says about each command, in Markdown, from its second-level headings on."""
    asked = [sys.executable, "-m", "typer", "lvmogp.cli.app", "utils", "docs", "--name", "lvmogp"]
    answer = subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True).stdout
    of_each = re.sub(r"\A.*?(?=^## )", "", answer, flags=re.DOTALL | re.MULTILINE)
    return _EXAMPLE.sub(lambda line: f"**Example**:\n\n```console\n$ {html.unescape(line[1])}\n```", of_each)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the commands in their place."""
    return markdown.replace(COMMANDS_HERE, commands()) if page.file.src_uri == PAGE else markdown
