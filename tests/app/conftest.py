"""A folder of small runs, the app that shows it, and a browser that notes what the page asks for."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("gradio", reason="needs the web app's packages: pip install 'argrad[app]'")

from argrad.app.library import Library

SCAN = (20, 24, 16)
"""Voxels of the scans that the segmentation run is trained on."""


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two small runs on digits, `codes` and `bits`, each with its report. Do not change it."""
    from argrad.data import load
    from argrad.models.discrete_vae.report import evaluate, write_report
    from argrad.models.discrete_vae.run import TrainSettings, train_run
    from argrad.training import RunFolder

    root = tmp_path_factory.mktemp("runs")
    images = load("digits")
    for name, latent in {
        "codes": {"values": 10},
        "bits": {"latent": "bits", "variables": 6, "estimator": "local-expectation"},
    }.items():
        longer = 12 if "ARGRAD_SCREENSHOTS" in os.environ else 1
        settings = TrainSettings(epochs=8 * longer, hidden=64, **latent)
        folder = RunFolder.create(root / name, asdict(settings))
        module, trained = train_run(settings, folder, images=images)
        write_report(folder.path, module, images, settings, trained.history, evaluate(module.eval(), images))
    return root


@pytest.fixture(scope="session")
def library(runs: Path) -> Library:
    return Library([runs])


@contextmanager
def served(*arguments: str | Path) -> Iterator[str]:
    """`argrad app` in a process of its own, on a free port; gives the address."""
    command = [sys.executable, "-m", "argrad", "app", *map(str, arguments), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


@pytest.fixture(scope="session")
def address(runs: Path) -> Iterator[str]:
    """Where the app is served."""
    with served(runs) as where:
        yield where


@dataclass
class Watched:
    """A page in a browser, and what it asked for and complained about."""

    page: Any
    address: str
    elsewhere: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def open(self, tab: str, *, width: int = 1280, height: int = 900) -> Any:
        """Show a tab; gives the page."""
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.goto(self.address)
        self.page.get_by_role("tab").first.wait_for()
        return self.show(tab)

    def show(self, tab: str) -> Any:
        """Go to a tab of the open page."""
        shown = self.page.get_by_role("tab", name=tab, exact=True)
        if shown.count() == 0:  # on a narrow screen some are in a menu
            self.page.locator(".overflow-menu > button").click()
            shown = self.page.locator(".overflow-dropdown button", has_text=tab)
        shown.first.click()
        return self.page

    def check(self) -> None:
        """Nothing was asked of another machine, and nothing went wrong in the page."""
        assert self.elsewhere == []
        assert self.complaints == []


def watch(browser: Any, address: str) -> Watched:
    """A new visitor."""
    context = browser.new_context(accept_downloads=True)
    watched = Watched(context.new_page(), address)

    def note(request: Any) -> None:
        if urlsplit(request.url).scheme not in ("data", "blob") and not request.url.startswith(address):
            watched.elsewhere.append(request.url)

    watched.page.on("request", note)
    watched.page.on("pageerror", lambda error: watched.complaints.append(str(error)))
    watched.page.on(
        "console", lambda message: watched.complaints.append(message.text) if message.type == "error" else None
    )
    return watched


@pytest.fixture
def visitor(chromium: Any, address: str) -> Iterator[Watched]:
    """Somebody who opens the app."""
    watched = watch(chromium, address)
    yield watched
    watched.page.context.close()


@pytest.fixture
def another_visitor(chromium: Any, address: str) -> Iterator[Watched]:
    """Somebody else at the same time."""
    watched = watch(chromium, address)
    yield watched
    watched.page.context.close()


@pytest.fixture(scope="session")
def model_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small runs for Segment and Complete: `ellipses` and `digits`. Do not change it.

    They are trained for longer where pictures of the app are wanted.
    """
    import numpy as np
    import torch

    from argrad.data.label_table import LabelTable
    from argrad.models.anatomy.run import (
        FitSettings,
        PriorSettings,
        grid_labels,
        grid_scans,
        model_config,
        prior_config,
        train_model,
        train_prior,
    )
    from argrad.models.completion.run import CompletionSettings, completion_config, load_pictures, train_completion
    from argrad.training import RunFolder
    from ellipses import cases

    longer = 8 if "ARGRAD_SCREENSHOTS" in os.environ else 1
    root = tmp_path_factory.mktemp("model-runs")
    table = LabelTable.of({5: "left part", 9: "right part"})
    maps, _ = cases(8 * longer, 0, SCAN)
    _, scans = cases(4 * longer, 1, SCAN)
    indices = [torch.from_numpy(table.to_indices(one, "a map")) for one in maps]
    gridded, of_prior = grid_labels(indices, PriorSettings(latent=4, width=4, epochs=4 * longer, batch_size=4))
    beside = RunFolder.create(tmp_path_factory.mktemp("prior") / "run", prior_config(of_prior, table, "maps"))
    prior, _ = train_prior(gridded, len(table), of_prior, beside)
    fit = FitSettings(
        background_classes=2, shared=("5+9",), refine=10, width=4, pretrain_epochs=1, epochs=2 * longer, batch_size=4
    )
    folder = RunFolder.create(root / "ellipses", model_config(fit, beside, "scans"))
    seen = grid_scans([torch.from_numpy(one.astype(np.float32)) for one in scans], of_prior.grid, of_prior.align)
    train_model(prior, table.ids, seen, fit, of_prior.align, folder)

    settings = CompletionSettings(hidden=64, features=32, dimension=8, epochs=4 * longer, learning_rate=3e-3)
    digits = load_pictures("digits")
    folder = RunFolder.create(root / "digits", completion_config(settings, digits.shape))
    train_completion(settings, folder, digits)
    return root


@pytest.fixture(scope="session")
def model_library(model_runs: Path) -> Library:
    return Library([model_runs])


@pytest.fixture(scope="session")
def model_address(model_runs: Path) -> Iterator[str]:
    """Where an app with these runs is served."""
    with served(model_runs) as where:
        yield where


@pytest.fixture
def visit(chromium: Any) -> Iterator[Callable[[str], Watched]]:
    """Opens an address as a new visitor, as often as it is asked to."""
    opened: list[Watched] = []

    def open_address(address: str) -> Watched:
        opened.append(watch(chromium, address))
        return opened[-1]

    yield open_address
    for watched in opened:
        watched.page.context.close()


@pytest.fixture
def serve() -> Callable[..., AbstractContextManager[str]]:
    """Serves the app for a folder of the test's own."""
    return served
