"""The page with all tabs, and the server that shows it: on this machine alone, and asking nobody else for anything."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Collection
from typing import Any, final
from urllib.parse import urlsplit

# Before Gradio is imported: no telemetry, no look for newer versions, nothing from a hub.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

import fastapi
import gradio as gr
import uvicorn
from gradio.themes.utils.fonts import LocalFont
from starlette.datastructures import Headers
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from argrad.app.compare.tab import compare_tab
from argrad.app.complete.tab import complete_tab
from argrad.app.explore.tab import explore_tab
from argrad.app.lab.tab import lab_tab
from argrad.app.library import Library
from argrad.app.segment.tab import segment_tab

__all__ = ["TABS", "build", "find_port", "serve"]

TABS: dict[str, Callable[[Library], None]] = {
    "Explore": explore_tab,
    "Compare": compare_tab,
    "Estimator lab": lab_tab,
    "Segment": segment_tab,
    "Complete": complete_tab,
}
THIS_MACHINE = ("127.0.0.1", "localhost", "::1")
LARGEST_UPLOAD = 64 * 2**20
"""Bytes. A scan of 256³ voxels in 16 bits takes 32 MiB even before compression."""
KEEP_FILES = 3600
"""Seconds after which files that visitors uploaded or made are removed."""
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; media-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; "
    "connect-src 'self' data: blob:; frame-ancestors 'self'; base-uri 'self'; form-action 'self'"
)
"""What the browser may load: this server and what the page itself made, whatever a component would ask for."""
STYLE = """
.gradio-container { width: 100%; max-width: 76rem !important; margin: 0 auto !important; overflow: clip !important; }
.pixels img { image-rendering: pixelated; }
.soft { color: var(--body-text-color); opacity: .75; }
@media (max-width: 40rem) { .gradio-container { padding: .5rem !important; } }
"""


def build(library: Library) -> gr.Blocks:
    """The page: a tab for each thing one can do."""
    page: gr.Blocks = gr.Blocks(title="argrad", analytics_enabled=False, delete_cache=(600, KEEP_FILES))
    with page:
        gr.Markdown("# argrad\nLook inside models that learn through discrete choices.")
        with gr.Tabs():
            for name, fill in TABS.items():
                with gr.Tab(name, id=name):
                    fill(library)
    return page


@final
class Restrict:
    """Keeps the page to itself; streams pass through as they are.

    Answers get headers that keep the browser from asking anybody else. What another web page in the same browser sends
    is refused: its origin is not the host, or, where it has given itself this machine's address, the host is not this
    machine's name. So are uploads that are too large, or do not say how large they are.

    Args:
        app: what answers.
        hosts: names under which the page may be opened; None for any.
    """

    HEADERS = (
        (b"content-security-policy", POLICY.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
    )

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None = None) -> None:
        self.app, self.hosts = app, hosts

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Why a request is not answered, if so."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if self.hosts is not None and urlsplit(f"//{host}").hostname not in self.hosts:
            return 403, f"this page is not served under the name {host}"
        if scope["method"] not in ("GET", "HEAD") and origin is not None and urlsplit(origin).netloc != host:
            return 403, "requests from other pages are not answered"
        if scope["method"] == "POST" and scope["path"].endswith("/upload"):
            length = headers.get("content-length", "")
            if not length.isdigit() or int(length) > LARGEST_UPLOAD + 2**20:
                return 413, f"uploads are limited to {LARGEST_UPLOAD // 2**20} MiB"
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        refused = self.refusal(scope) if scope["type"] == "http" else None
        if refused is not None:
            await PlainTextResponse(refused[1], status_code=refused[0])(scope, receive, send)
            return

        async def send_restricted(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *self.HEADERS]
            await send(message)

        await self.app(scope, receive, send_restricted)


def make_theme() -> gr.themes.Default:
    """Colours and fonts; bold for headings, because the semi-bold files that come with Gradio lack most letters."""
    weights = (400, 700)
    return gr.themes.Default(
        primary_hue="indigo",
        secondary_hue="teal",
        font=(LocalFont("Source Sans Pro", weights), "ui-sans-serif", "system-ui", "sans-serif"),
        font_mono=(LocalFont("IBM Plex Mono", weights), "ui-monospace", "Consolas", "monospace"),
    )


def make_application(library: Library, hosts: Collection[str] | None = None) -> fastapi.FastAPI:
    """The web application: the page, and the report of every run; under these names alone, or any."""
    application = fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    application.add_middleware(Restrict, hosts=hosts)

    def report(name: str) -> Response:
        try:
            page = library.find(name).report
        except ValueError as error:
            return PlainTextResponse(str(error), status_code=404)
        if page is None:
            return PlainTextResponse(f"there is no report of the run {name!r}", status_code=404)
        return FileResponse(page, media_type="text/html")

    application.add_api_route("/report/{name:path}", report)
    page = build(library)
    page.queue(default_concurrency_limit=4, max_size=200)
    mounted: fastapi.FastAPI = gr.mount_gradio_app(
        application,
        page,
        path="/",
        footer_links=[],
        max_file_size=LARGEST_UPLOAD,
        show_error=False,
        ssr_mode=False,
        mcp_server=False,
        enable_monitoring=False,
        theme=make_theme(),
        css=STYLE,
    )
    return mounted


def find_port(host: str, wanted: int) -> int:
    """The wanted port if it is free, else the next that is; 0 takes any."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in range(wanted, wanted + 100) if wanted else [0]:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            found: int = probe.getsockname()[1]
            return found
    raise ValueError(f"no port from {wanted} to {wanted + 99} is free on {host}; give another with --port")


def make_server(library: Library, host: str, port: int) -> uvicorn.Server:
    """A server that is ready to run."""
    application = make_application(library, THIS_MACHINE if host in THIS_MACHINE else None)
    # An open page keeps a connection for as long as it is open; Ctrl-C does not wait for that.
    config = uvicorn.Config(
        application, host=host, port=port, log_level="warning", ws="none", timeout_graceful_shutdown=1
    )
    return uvicorn.Server(config)


def serve(library: Library, *, host: str, port: int, ready: Callable[[str], Any]) -> None:
    """Serve until interrupted; ``ready`` is told the address once the page can be opened."""
    server = make_server(library, host, port)
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def tell() -> None:
        while not server.started and not server.should_exit:
            time.sleep(0.02)
        if server.started:
            ready(address)

    threading.Thread(target=tell, daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how it ends, not a mishap
        server.run()
