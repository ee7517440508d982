"""The documentation as a whole: every page can be reached, every link leads somewhere, the site builds, and reading it
asks no other machine for anything."""

import ast
import functools
import http.server
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import argrad

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
OUTSIDE = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "README.md"]
PAGES = [*OUTSIDE, *sorted(DOCS.rglob("*.md"))]

FENCE = re.compile(r"^ *(`{3,}).*?^ *\1`* *$", re.M | re.S)
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.S)
LINK = re.compile(r"\]\(([^()\s]*(?:\([^()\s]*\))?[^()\s]*)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *#* *$", re.M)


class NavLoader(yaml.SafeLoader):
    """Reads mkdocs.yml without calling the Python that it names."""


NavLoader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)


def settings() -> dict:
    return yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), NavLoader)


def leaves(nav: object) -> Iterator[str]:
    """The files that a nav names, in order."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for part in nav.values():
            yield from leaves(part)
    elif isinstance(nav, list):
        for part in nav:
            yield from leaves(part)


def prose(path: Path) -> str:
    """A page without its code."""
    return CODE.sub("", FENCE.sub("", path.read_text(encoding="utf-8")))


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: Counter[str] = Counter()
    names = set()
    for heading in HEADING.findall(FENCE.sub("", path.read_text(encoding="utf-8"))):
        text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        names.add(name if not found[name] else f"{name}-{found[name]}")
        found[name] += 1
    return names


def broken_links(path: Path) -> list[str]:
    """Links of a page that lead nowhere; what is not a relative link is not looked at."""
    broken = []
    for link in LINK.findall(prose(path)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    return broken


def test_nav_lists_every_page_once():
    listed = Counter(name for name in leaves(settings()["nav"]) if not name.startswith("project/"))
    assert listed == Counter(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    assert broken_links(path) == []


def test_a_broken_link_is_seen(tmp_path):
    (tmp_path / "other.md").write_text("# Über ε\n\n## Twice\n\n## Twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md#über-ε) [b](other.md#twice-1) [c](#here) [d](gone.md) [e](other.md#gone) `[f](gone.md)`\n\n"
        "# Here\n\n```text\n[g](gone.md)\n```\n"
    )
    assert broken_links(page) == ["gone.md", "other.md#gone"]


def test_no_page_loads_anything_by_url():
    for path in PAGES:
        assert not re.search(r"!\[[^\]]*\]\(https?:|<(?:img|script|link|iframe)[^>]*https?:", prose(path)), path


def test_tests_that_the_pages_name_exist():
    for page in (DOCS / "mathematics.md", DOCS / "errata.md"):
        for name, function in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text(encoding="utf-8")):
            tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))
            assert function in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, function


def test_everything_public_is_in_the_reference():
    pages = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md"))
    documented = set(re.findall(r"^::: (\S+)", pages, re.M))
    public = {name: getattr(argrad, name).__module__ for name in argrad.__all__ if name != "__version__"}
    assert {name for name, module in public.items() if module not in documented} == set()


# --- the built site ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it: a warning is an error."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    child = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert child.returncode == 0, child.stderr
    assert "WARNING" not in child.stderr, child.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_without_warnings(site):
    for name in ("index", "mathematics", "tutorials/first-model", "project/changelog", "reference/estimators"):
        assert (site / f"{name}.html").stat().st_size > 1000
    assert (site / "project" / "results" / "figure1.png").exists()  # linked from a page, outside of docs/
    assert not (site / "site").exists()  # the build's own code stays at home


@pytest.mark.slow
def test_docstrings_are_rendered(site):
    page = (site / "reference" / "estimators.html").read_text(encoding="utf-8")
    text = re.sub(r"<[^>]+>", "", page)
    assert "<math" in page
    assert ":math:" not in text
    assert ".. math::" not in text
    assert ":class:" not in text
    assert "\x02" not in page
    assert "&lt;w, z&gt;" in page  # an inner product, not a tag


@pytest.mark.slow
def test_no_file_of_the_site_loads_anything_by_url(site):
    for path in site.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        loads = re.findall(r"<(?:script|img|iframe|source)[^>]*\ssrc=\"(https?:[^\"]*)", page)
        loads += re.findall(r"<link[^>]*rel=\"(?:stylesheet|preconnect|icon)\"[^>]*href=\"(https?:[^\"]*)", page)
        assert loads == [], path
    for path in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?https?:", path.read_text(encoding="utf-8")), path


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(QuietHandler, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["server", "file"])
@pytest.mark.parametrize("width", [1280, 390], ids=["desktop", "phone"])
def test_reading_asks_no_other_machine(site, chromium, address, how, width):
    start = address if how == "server" else site.as_uri()
    page = chromium.new_page(viewport={"width": width, "height": 900})
    page.set_default_timeout(120_000)  # a busy machine may take its time
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on(
        "console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    for name in ("index", "reference/estimators", "tutorials/structured-latent", "results"):
        page.goto(f"{start}/{name}.html", wait_until="load")
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), f"{name} is too wide"
        assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)"), name
    page.close()
    assert len(asked) > 4
    assert [url for url in asked if not url.startswith((start, "data:", "about:", "blob:"))] == []
    assert complaints == []


@pytest.mark.slow
@pytest.mark.parametrize("how", ["server", "file"])
def test_search_finds_a_page(site, chromium, address, how):
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(120_000)
    page.goto(f"{address if how == 'server' else site.as_uri()}/index.html", wait_until="load")
    page.locator("input[name=query]").press_sequentially("leave-one-out")  # the page listens to keys
    result = page.locator(".md-search-result__link").first
    result.wait_for()
    assert result.get_attribute("href")
    page.close()
