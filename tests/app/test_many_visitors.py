"""Many people at once: nobody gets an error, and the server does not grow."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.slow
def test_twenty_visitors_click_for_a_minute(runs: Path) -> None:
    child = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "app_load.py", runs, "--visitors", "20", "--seconds", "60"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert child.returncode == 0, child.stdout + child.stderr
    found = json.loads(child.stdout)
    assert found["errors"] == []
    assert found["finished"] == 20
    assert found["clicks"] > 200
    assert found["answer_seconds"]["all"]["p95"] < 3
    assert found["memory_mib"]["at the end"] < found["memory_mib"]["after a quarter"] + 100
