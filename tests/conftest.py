"""Fixtures and settings shared by every test."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before torch and matplotlib are imported, and inherited by every process a test starts.
os.environ.setdefault("MPLBACKEND", "Agg")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"

import hypothesis
import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers already share the cores; threads of their own only slow them down

# The same examples on every run: a test that fails has to fail again when someone looks at it.
hypothesis.settings.register_profile("argrad", deadline=None, derandomize=True, database=None, print_blob=True)
hypothesis.settings.load_profile("argrad")


@pytest.fixture
def generator() -> torch.Generator:
    """A CPU generator with a fixed seed, fresh for every test."""
    return torch.Generator().manual_seed(20190526)


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder $ARGRAD_DATA names; tests that need big data sets are skipped without it."""
    root = os.environ.get("ARGRAD_DATA", "")
    if not root:
        pytest.skip("needs big data sets: set ARGRAD_DATA to the folder that holds them")
    if not Path(root).is_dir():
        pytest.skip(f"needs big data sets: ARGRAD_DATA is {root!r}, which is not a folder")
    return Path(root)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A headless browser: Debian's Chromium, driven by Playwright; skips the test where one is missing.

    One for all tests: Playwright's synchronous interface can be started only once in a thread.
    """
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("needs a browser: install Chromium")
    with api.sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()
