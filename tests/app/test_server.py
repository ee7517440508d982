"""The app as a whole: it starts, shows every tab, keeps to this machine."""

import http.client
import re
import urllib.error
import urllib.request
from typing import Any

import pytest

from argrad.app import server
from argrad.app.server import TABS, find_port


def test_page_and_report_are_served_with_a_policy(address: str) -> None:
    with urllib.request.urlopen(address) as answer:
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    with urllib.request.urlopen(f"{address}/report/codes") as answer:
        assert answer.headers["Content-Type"].startswith("text/html")
        assert b"<h1>" in answer.read()


@pytest.mark.parametrize("name", ["nothing", "../codes", "codes/config.json", "%2e%2e/codes"])
def test_only_reports_of_known_runs_are_served(address: str, name: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{address}/report/{name}")
    with caught.value as answer:
        assert answer.code == 404


@pytest.mark.parametrize(
    ("method", "path", "headers", "code"),
    [
        ("GET", "/", {"Host": "elsewhere.example"}, 403),  # another name for this machine's address
        ("POST", "/gradio_api/queue/join", {"Origin": "http://elsewhere.example"}, 403),
        ("POST", "/gradio_api/queue/join", {"Origin": "null"}, 403),
        ("POST", "/gradio_api/upload", {"Content-Length": str(10**9)}, 413),
        ("POST", "/gradio_api/upload", {"Transfer-Encoding": "chunked"}, 413),
    ],
)
def test_other_pages_and_huge_uploads_are_refused(
    address: str, method: str, path: str, headers: dict[str, str], code: int
) -> None:
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=20)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        if method == "POST" and "upload" not in path:
            connection.putheader("Content-Length", "0")
        connection.endheaders()
        assert connection.getresponse().status == code
    finally:
        connection.close()


def test_a_port_that_is_taken_is_passed_over(address: str) -> None:
    taken = int(address.rsplit(":", 1)[1])
    assert find_port("127.0.0.1", taken) > taken


def test_every_tab_opens_in_a_browser(visitor: Any) -> None:
    """The smoke test: no request leaves the machine, and nothing is complained about."""
    page = visitor.open("Explore")
    page.locator(".explore-picture img").first.wait_for()
    for tab in TABS:
        visitor.show(tab)
        page.get_by_role("tabpanel").locator("visible=true").first.wait_for()
    visitor.check()


def test_fonts_come_with_the_app_and_have_all_letters(address: str) -> None:
    with urllib.request.urlopen(f"{address}/theme.css") as answer:
        fonts = re.findall(r"url\('([^']*)'\)", answer.read().decode())
    assert len(fonts) == 4
    for font in fonts:
        with urllib.request.urlopen(f"{address}/{font}") as answer:
            assert len(answer.read()) > 20_000, font  # those of a few letters have five thousand bytes


def test_ctrl_c_is_no_mishap(monkeypatch: pytest.MonkeyPatch, library: Any) -> None:
    class Interrupted:
        started, should_exit = False, True

        def run(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(server, "make_server", lambda *arguments: Interrupted())
    server.serve(library, host="127.0.0.1", port=1, ready=print)
