"""Rounding of matrix products is set for a while, and PyTorch's newer settings are left alone."""

import subprocess
import sys

import pytest
import torch

from argrad.training.matmul_precision import matmul_precision, training_precision


def test_it_is_set_back_after_an_error():
    before = torch.get_float32_matmul_precision()
    with matmul_precision("high"):
        assert torch.get_float32_matmul_precision() == "high"
    with pytest.raises(ZeroDivisionError), matmul_precision("high"):
        print(1 / 0)
    assert torch.get_float32_matmul_precision() == before


def test_training_rounds_on_a_gpu_alone():
    before = torch.get_float32_matmul_precision()
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(300, 300, generator=generator) for _ in range(2))
    exact = left.double() @ right.double()
    with training_precision(torch.device("cpu")):
        torch.testing.assert_close(left @ right, exact.float(), atol=1e-4, rtol=1e-5)
    with training_precision(torch.device("cuda")):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize("never", [True, False])
def test_a_cpu_takes_the_faster_products_only_where_they_are_exact(monkeypatch, never):
    monkeypatch.setattr("argrad.training.matmul_precision.cpu_never_rounds", lambda: never)
    before = torch.get_float32_matmul_precision()
    with training_precision(torch.device("cpu")):
        assert torch.get_float32_matmul_precision() == ("medium" if never else before)
    assert torch.get_float32_matmul_precision() == before


NEWER = """
import torch
import argrad
from argrad.training.matmul_precision import matmul_precision

torch.backends.cuda.matmul.fp32_precision = "tf32"
with matmul_precision("highest"):
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"
q = argrad.PairwiseBits(torch.zeros(3), torch.full((3, 3), 0.1))
exact = argrad.PairwiseBits(torch.zeros(3, dtype=torch.float64), torch.full((3, 3), 0.1, dtype=torch.float64))
torch.testing.assert_close(q.mean().double(), exact.mean(), atol=1e-6, rtol=1e-6)
"""


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="this PyTorch has no newer settings")
def test_newer_settings_are_left_alone():
    found = subprocess.run([sys.executable, "-c", NEWER], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
