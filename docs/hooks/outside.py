"""What lives outside ``docs`` but is part of the site: the changelog, how to contribute, the figures of the results."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
RESULTS = "results"
PAGES_WITH_FIGURES = ("results.md", "benchmarks.md", "next-measurement.md", "fully-bayesian.md")


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages and figures from outside."""
    for page, source in PAGES.items():
        content = (ROOT / source).read_text().replace("](docs/", "](")
        files.append(File.generated(config, page, content=content))
    for figure in sorted((ROOT / RESULTS).rglob("*.png")):
        files.append(File.generated(config, figure.relative_to(ROOT).as_posix(), abs_src_path=str(figure)))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let the pages of results find their figures; the folder itself is not part of the site."""
    if page.file.src_uri not in PAGES_WITH_FIGURES:
        return markdown
    return markdown.replace(f"[{RESULTS}](../{RESULTS})", f"`{RESULTS}/`").replace(f"](../{RESULTS}/", f"]({RESULTS}/")
