"""The costs of all codes, and their gradients, are those of PyTorch's own operations."""

import importlib
import os

import pytest
import torch
from torch.nn.functional import softplus

from argrad.experiments.softplus_sum import all_costs, hidden_of_pairs, sum_and_squash, sum_over_codes

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def inputs(device: str, dtype: torch.dtype, sizes: tuple[int, int], hidden: int = 5) -> list[torch.Tensor]:
    """Two models, three images, 11 pixels."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, size, hidden) for size in sizes]
    shapes += [(2, hidden, 11), (2, 1, 11), (2, 3, hidden), (2, 3)]
    return [(2 * torch.randn(shape, generator=generator, dtype=dtype)).to(device).requires_grad_() for shape in shapes]


def plain(first, last, weight, bias, seen, constant):
    """The costs as they are defined, code by code."""
    hidden = torch.stack([(a + b).relu() for a in first.unbind(1) for b in last.unbind(1)], 1)
    return softplus(hidden @ weight + bias).sum(-1).unsqueeze(1) - seen @ hidden.mT - constant.unsqueeze(-1)


def upstream_like(costs: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(costs.shape, generator=generator, dtype=costs.dtype).to(costs.device)


def tolerance(device: str) -> dict[str, float]:
    return {} if device == "cpu" else {"rtol": 1e-4, "atol": 1e-4}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sizes", [(4, 4), (4, 8), (1, 2), (3, 5)])
@pytest.mark.parametrize("hidden", [3, 4, 5])
def test_value_and_gradients(device, sizes, hidden):
    given = inputs(device, torch.float64 if device == "cpu" else torch.float32, sizes, hidden)
    ours, theirs = all_costs(*given), plain(*given)
    assert ours.shape == (2, 3, sizes[0] * sizes[1])
    torch.testing.assert_close(ours, theirs, **tolerance(device))
    upstream = upstream_like(theirs)
    expected = torch.autograd.grad(theirs, given, upstream)
    for one, other in zip(torch.autograd.grad(ours, given, upstream), expected, strict=True):
        torch.testing.assert_close(one, other, **tolerance(device))


@pytest.mark.parametrize("number", range(6))
def test_one_gradient_alone_is_the_same(number):
    given = inputs("cpu", torch.float64, (4, 8))
    expected = torch.autograd.grad(plain(*given).square().sum(), given[number])
    alone = [tensor.detach().requires_grad_(place == number) for place, tensor in enumerate(given)]
    torch.testing.assert_close(torch.autograd.grad(all_costs(*alone).square().sum(), alone[number]), expected)


def test_the_last_half_changes_fastest():
    first, last = torch.tensor([[[10.0], [20.0]]]), torch.tensor([[[1.0], [2.0], [-30.0]]])
    assert hidden_of_pairs(first, last).flatten().tolist() == [11, 12, 0, 21, 22, 0]


@pytest.mark.parametrize("chunks", [None, 1, 2, 8])
def test_sums_in_chunks(chunks):
    generator = torch.Generator().manual_seed(2)
    left, right = (torch.randn(3, 16, width, generator=generator, dtype=torch.float64) for width in (5, 7))
    torch.testing.assert_close(sum_over_codes(left.mT, right, chunks), left.mT @ right)
    torch.testing.assert_close(sum_over_codes(left.mT.contiguous(), right, chunks), left.mT @ right)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_captured_graph_is_the_same():
    given = inputs("cuda", torch.float32, (4, 8))
    upstream = upstream_like(plain(*given))

    def work() -> tuple[torch.Tensor, ...]:
        costs = all_costs(*given)
        return costs.detach(), *torch.autograd.grad(costs, given, upstream)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = work()
    with torch.no_grad():
        for tensor in given:
            tensor.mul_(0.5)
    graph.replay()
    for one, other in zip(captured, work(), strict=True):
        torch.testing.assert_close(one, other, **tolerance("cuda"))


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
