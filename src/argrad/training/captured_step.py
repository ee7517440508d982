"""A training step that a GPU plays back as one captured graph.

A step of a small model is hundreds of kernels of a few microseconds each, and Python takes longer to launch them than
the GPU to run them. A graph launches all of them at once. What a step reads from outside must be tensors that stay
where they are: a schedule writes into one, and a number that Python holds would be frozen at its first value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import final

import torch
from torch import Tensor

__all__ = ["CapturedStep"]

WARM_UP = 3
"""Steps before the capture, on a stream of their own, as PyTorch asks for."""


@final
class CapturedStep:
    """A step, captured on the first call where the device can; elsewhere the step itself.

    Warming up and capturing take steps, which are undone: tensors that were there before get their values back, and
    those that came with the first step, such as what Adam remembers, start at zero. Random numbers of the device's own
    generator are drawn anew at every replay.

    Args:
        step: no arguments, no result that is used; it allocates nothing that outlives it and waits for nothing.
        changes: all tensors that a step changes, as many as there are by now.
        device: where the step runs.
        capture: False leaves it to Python even on a GPU.

    >>> count = torch.zeros(())
    >>> step = CapturedStep(lambda: count.add_(1), lambda: [count], torch.device("cpu"))
    >>> step(), step(), count
    (None, None, tensor(2.))
    """

    def __init__(
        self,
        step: Callable[[], object],
        changes: Callable[[], Iterable[Tensor]],
        device: torch.device,
        *,
        capture: bool = True,
    ) -> None:
        self.step, self.changes = step, changes
        self.captures = capture and device.type == "cuda"
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """One step."""
        if not self.captures:
            self.step()
            return
        self.prepare()
        assert self.graph is not None
        self.graph.replay()

    def prepare(self) -> None:
        """Capture now, for instance before a clock starts."""
        if self.captures and self.graph is None:
            self.graph = capture_and_undo(self.step, self.changes)


def capture_and_undo(step: Callable[[], object], changes: Callable[[], Iterable[Tensor]]) -> torch.cuda.CUDAGraph:
    """The graph of a step; afterwards everything is as before."""
    undo = remember(changes)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    undo()
    return graph


def remember(changes: Callable[[], Iterable[Tensor]]) -> Callable[[], None]:
    """What puts tensors back to what they are now, and those that are not there yet to zero."""
    kept = [(tensor, tensor.detach().clone()) for tensor in changes()]

    @torch.no_grad()
    def undo() -> None:
        known = {tensor.data_ptr() for tensor, _ in kept}  # the same tensor may come in another Python object
        for tensor, value in kept:
            tensor.copy_(value)
        for tensor in changes():
            if tensor.data_ptr() not in known:
                tensor.zero_()

    return undo
