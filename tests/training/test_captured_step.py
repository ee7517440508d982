"""A captured step does what the step does, and capturing leaves no trace."""

import pytest
import torch
from torch import Tensor, nn

from argrad.training.captured_step import CapturedStep, remember

needs_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Training:
    """A linear model, Adam, and a batch that a cursor picks."""

    def __init__(self, device: str) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(50, 3, generator=generator).to(device)
        self.model = nn.Linear(3, 1)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        self.model.to(device)
        self.adam = torch.optim.Adam(self.model.parameters(), 0.1, capturable=device == "cuda")
        self.cursor = torch.zeros((), dtype=torch.int64, device=device)
        self.offsets = torch.arange(5, device=device)

    def step(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad = None
        self.model(self.x[self.cursor + self.offsets]).square().mean().backward()
        self.adam.step()
        self.cursor.add_(5)

    def changes(self) -> list[Tensor]:
        memory = [tensor for state in self.adam.state.values() for tensor in state.values()]
        return [*self.model.state_dict().values(), self.cursor, *memory]


def test_undoing_puts_back_what_was_there_and_empties_what_came() -> None:
    training = Training("cpu")
    before = [tensor.detach().clone() for tensor in training.changes()]
    undo = remember(training.changes)
    training.step()
    undo()
    for tensor, value in zip(training.changes(), before, strict=False):
        assert torch.equal(tensor, value)
    assert len(training.changes()) > len(before)
    assert not any(bool(tensor.any()) for tensor in training.changes()[len(before) :])
    training.step()
    fresh = Training("cpu")
    fresh.step()
    for one, other in zip(training.changes(), fresh.changes(), strict=True):
        assert torch.equal(one, other)


def test_on_a_cpu_it_is_the_step() -> None:
    training = Training("cpu")
    captured = CapturedStep(training.step, training.changes, torch.device("cpu"))
    captured()
    assert captured.graph is None
    assert int(training.cursor) == 5


@needs_a_gpu
@pytest.mark.parametrize("steps_before", [0, 2])
def test_on_a_gpu_the_graph_does_what_the_step_does(steps_before: int) -> None:
    """Captured at once, or after a few steps, when Adam remembers something already."""
    by_graph, by_hand = Training("cuda"), Training("cuda")
    for _ in range(steps_before):
        by_graph.step()
    captured = CapturedStep(by_graph.step, by_graph.changes, torch.device("cuda"))
    for _ in range(4):
        captured()
    for _ in range(steps_before + 4):
        by_hand.step()
    assert captured.graph is not None
    for one, other in zip(by_graph.changes(), by_hand.changes(), strict=True):
        torch.testing.assert_close(one, other)


@needs_a_gpu
def test_every_replay_draws_anew() -> None:
    total = torch.zeros(3, device="cuda")
    step = CapturedStep(lambda: total.copy_(torch.rand(3, device="cuda")), lambda: [total], torch.device("cuda"))
    step()
    first = total.clone()
    step()
    assert not torch.equal(first, total)
