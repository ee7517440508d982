"""`import argrad` is cheap: whoever has torch loaded hardly notices it."""

import math
import os
import subprocess
import sys

ROUNDS = 3
ALLOWED_SECONDS = 0.3
ALLOWED_SHARE = 0.3
"""Of what torch takes, where the machine is slow or busy."""
HEAVY = {"scipy", "sklearn", "numba", "matplotlib", "tyro", "rich", "pooch", "PIL", "safetensors", "gradio", "nibabel"}


def run(code: str) -> str:
    # Without bytecode every import would compile the sources anew, which is not what a user sees.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    child = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert child.returncode == 0, child.stderr
    return child.stdout


def cpu_seconds(imports: str) -> float:
    """User and system time of a fresh process that only imports; other tests on the same cores hardly change it."""
    return float(run(f"import {imports}; import time; print(time.process_time())"))


def test_import_adds_little_to_torch() -> None:
    # Interleaved, so that a busy or throttled machine slows both sides; the best of each is the one least disturbed.
    # There is another round only where the last one found too much.
    torch_alone = with_argrad = math.inf
    for _ in range(ROUNDS):
        torch_alone = min(torch_alone, cpu_seconds("torch"))
        with_argrad = min(with_argrad, cpu_seconds("torch, argrad"))
        added, allowed = with_argrad - torch_alone, max(ALLOWED_SECONDS, ALLOWED_SHARE * torch_alone)
        if added <= allowed:
            break
    assert added <= allowed, (
        f"import argrad adds {added:.2f} s to import torch ({torch_alone:.2f} s); allowed: {allowed:.2f} s.\n"
        f"See what takes the time: python -X importtime -c 'import torch, argrad'"
    )


def test_import_leaves_heavy_packages_alone() -> None:
    # Compared with torch alone, because torch may import one of these by itself.
    loaded = "import sys; print(*(name for name in sys.modules if '.' not in name))"
    from_torch = set(run(f"import torch; {loaded}").split())
    from_argrad = set(run(f"import argrad; {loaded}").split())
    assert "argrad" in from_argrad
    heavy = sorted((from_argrad - from_torch) & HEAVY)
    assert not heavy, f"import argrad loads {', '.join(heavy)}; import them in the function that uses them"
