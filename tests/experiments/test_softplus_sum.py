"""The sum of softplus, and its gradients, are those of PyTorch's own operations."""

import importlib
import os

import pytest
import torch
from torch.nn.functional import softplus

from argrad.experiments.softplus_sum import softplus_sum, sum_and_squash

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def inputs(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 7, 5), (2, 5, 11), (2, 1, 11))
    return [(3 * torch.randn(shape, generator=generator, dtype=dtype)).to(device).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("device", DEVICES)
def test_value_and_gradients(device):
    dtype = torch.float64 if device == "cpu" else torch.float32
    ours, theirs = inputs(device, dtype), inputs(device, dtype)
    weights = torch.linspace(-1, 2, 14, dtype=dtype, device=device).reshape(2, 7)
    (softplus_sum(*ours) * weights).sum().backward()
    hidden, weight, bias = theirs
    expected = softplus(hidden @ weight + bias).sum(-1)
    (expected * weights).sum().backward()
    torch.testing.assert_close(softplus_sum(*ours), expected)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_huge_logits_stay_finite():
    logits = torch.tensor([[[1e4, -1e4, 0.0]]])
    total = sum_and_squash(logits, torch.zeros(1, 1, 3))
    torch.testing.assert_close(total, torch.tensor([[1e4 + 0.6931]]))
    assert logits.flatten().tolist() == [1.0, 0.0, 0.5]


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1")
def test_the_kernel_is_the_same():
    pytest.importorskip("triton")
    launch = importlib.import_module("argrad.experiments.softplus_sum_kernel").launch
    logits = 5 * torch.randn(3, 4, 20, generator=torch.Generator().manual_seed(1))
    logits[0, 0, :2] = torch.tensor([200.0, -200.0])
    bias = torch.randn(3, 1, 20, generator=torch.Generator().manual_seed(2))
    ours, theirs = logits.clone(), logits.clone()
    torch.testing.assert_close(launch(ours, bias), sum_and_squash(theirs, bias))
    torch.testing.assert_close(ours, theirs)
