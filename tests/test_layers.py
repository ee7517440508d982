"""The core works in a bare PyTorch image: torch and numpy are all it imports.

The order of the layers is a contract for import-linter (`make lint`). That tool sees imports inside functions too, and
those are allowed, so what is imported when a module loads is checked here, by taking the other packages away.
"""

import subprocess
import sys

CORE = ("argrad", "argrad.noise", "argrad.solvers", "argrad.latents", "argrad.costs")
CORE += ("argrad.estimators", "argrad.training")

# Every dependency and extra in pyproject.toml but torch and numpy, by import name.
NOT_IN_CORE = ["scipy", "sklearn", "joblib", "numba", "llvmlite", "safetensors", "tyro", "rich", "matplotlib"]
NOT_IN_CORE += ["pooch", "requests", "PIL", "gradio", "nibabel", "maxflow", "tensorboard"]

ON_GPUS = ["argrad.solvers.pairwise_kernel"]
"""Imported on a GPU only, where torch brings Triton."""

CHILD = """
import importlib, pkgutil, sys

for blocked in {blocked!r}:
    sys.modules[blocked] = None  # importing it now raises ModuleNotFoundError

for name in {modules!r}:
    module = importlib.import_module(name)
    if name != "argrad":
        for found in pkgutil.walk_packages(getattr(module, "__path__", []), name + "."):
            if found.name not in {on_gpus!r}:
                importlib.import_module(found.name)
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)


def test_core_imports_with_torch_and_numpy_alone() -> None:
    # In one process: `import argrad` comes before any of them, and loads most of all.
    child = run(CHILD.format(blocked=NOT_IN_CORE, modules=CORE, on_gpus=ON_GPUS))
    assert child.returncode == 0, f"importing the core with torch and numpy alone failed:\n{child.stderr}"


def test_experiments_import_with_torch_and_numpy_alone() -> None:
    """Their full runs happen on GPU machines that have little else."""
    names = ("table1", "table1_page", "figure1", "figure2", "figure3", "epsilon_learning_rate", "step_profile")
    names += ("completion", "figure4", "figure5", "hashing", "hippocampus", "table2", "tokenizer", "whole_brain")
    imports = "; ".join(f"import argrad.experiments.{name}" for name in names)
    code = f"import sys; sys.modules.update(dict.fromkeys({NOT_IN_CORE!r})); {imports}"
    child = run(code)
    assert child.returncode == 0, child.stderr


def test_a_blocked_package_is_noticed() -> None:
    child = run(CHILD.format(blocked=["json"], modules=["json"], on_gpus=ON_GPUS))
    assert child.returncode != 0
    assert "json" in child.stderr
