"""Whether products round is found by multiplying, and setting it back is not forgotten."""

import pytest
import torch

from argrad.solvers.rounding import cpu_never_rounds, products_are_exact


@pytest.fixture
def rounding(monkeypatch):
    """A processor that rounds factors to 7 bits of mantissa where it is let, as one with AMX does."""
    multiply = torch.Tensor.__matmul__

    def product(left, right):
        if torch.get_float32_matmul_precision() == "medium":
            left, right = left.bfloat16().float(), right.bfloat16().float()
        return multiply(left, right)

    monkeypatch.setattr(torch.Tensor, "__matmul__", product)
    cpu_never_rounds.cache_clear()
    yield
    cpu_never_rounds.cache_clear()


def test_a_processor_that_rounds_is_found_out(rounding):
    before = torch.get_float32_matmul_precision()
    assert not cpu_never_rounds()
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_a_gpu_is_exact_at_the_highest_precision_alone(precision):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        assert products_are_exact(torch.device("cuda")) == (precision == "highest")
        assert products_are_exact(torch.device("cpu")) == (precision != "medium" or cpu_never_rounds())
    finally:
        torch.set_float32_matmul_precision(before)
