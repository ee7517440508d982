"""A hook of mkdocs: what the pages link to outside of docs/ is part of the site, and nothing on disk is changed.

Pages say ``../CHANGELOG.md`` or ``../results/figure1.png``, which works where the repository is browsed. For the site,
such a file gets a place below ``project/``, and links to it, and from it, are turned towards that place while the page
is built. Markdown becomes a page, a picture stays a picture, and anything else (a source file, the licence) is shown as
the text that it is.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = {
    ROOT / "README.md": "project/readme.md",
    ROOT / "CHANGELOG.md": "project/changelog.md",
    ROOT / "CONTRIBUTING.md": "project/contributing.md",
    ROOT / "benchmarks" / "README.md": "project/benchmarks.md",
}
"""Pages outside of docs/, and where they are in the site; whatever a page links to comes along."""
LINK = re.compile(r"\]\((?P<target>[^()\s#]+)(?P<anchor>#[^()\s]*)?\)")
NOT_RUN = re.compile(r"^( *```\w+) no-run$", re.M)
"""A word for the tests, which highlighting does not know."""
AS_IT_IS = {".md", ".png", ".svg"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside of docs/, and every file that a page links to there."""
    pages = [*(DOCS / file.src_uri for file in files.documentation_pages()), *PAGES]
    linked = {target for page in pages for target in linked_files(page)}
    for path in sorted({*PAGES, *linked}):
        if not path.is_relative_to(DOCS):
            files.append(as_file(path, config))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links that leave docs/, or come from outside of it, towards the places in the site."""
    path = Path(page.file.abs_src_path) if page.file.abs_src_path else None
    if path is None or path.suffix != ".md":
        return markdown
    here = posixpath.dirname(place(path))

    def turned(link: re.Match[str]) -> str:
        target = (path.parent / link["target"]).resolve()
        if not target.is_file() or (path.is_relative_to(DOCS) and target.is_relative_to(DOCS)):
            return link[0]
        return f"]({posixpath.relpath(place(target), here)}{link['anchor'] or ''})"

    markdown = NOT_RUN.sub(r"\1", LINK.sub(turned, markdown))
    # Python-Markdown reads what is inside of HTML only where it is told to; GitHub always does.
    return markdown.replace("<details>", '<details markdown="1">')


def linked_files(page: Path) -> set[Path]:
    """The files of the repository that a page links to."""
    targets = {(page.parent / link["target"]).resolve() for link in LINK.finditer(page.read_text(encoding="utf-8"))}
    return {target for target in targets if target.is_file() and target.is_relative_to(ROOT)}


def place(path: Path) -> str:
    """Where a file of the repository lies in the site."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    if path in PAGES:
        return PAGES[path]
    name = path.relative_to(ROOT).as_posix()
    return f"project/{name}" if path.suffix in AS_IT_IS else f"project/{name}.md"


def as_file(path: Path, config: MkDocsConfig) -> File:
    """A file outside of docs/ as mkdocs wants it: read from where it is, or a page that shows it as text."""
    if path.suffix in AS_IT_IS:
        return File.generated(config, place(path), abs_src_path=str(path))
    text = path.read_text(encoding="utf-8")
    shown = f"# {path.name}\n\n`{path.relative_to(ROOT)}`\n\n````{path.suffix.removeprefix('.')}\n{text}````\n"
    return File.generated(config, place(path), content=shown, inclusion=InclusionLevel.NOT_IN_NAV)
