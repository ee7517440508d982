"""Processes that train one model together: who takes which part of a batch, and how gradients are added up.

Every process draws the noise of the whole batch from the same generator and keeps its own part, and losses are divided
by the size of the whole batch, so the sum of the gradients is what one process would have computed, whatever their
number.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = ["World"]

SETTLING = 0.3
"""Seconds between the last message and leaving the group. Without a pause a process on a busy machine ended now and
then (4 times in 45) with "terminate called without an active exception"; with it, not once in 24: the threads that
carry messages seem to let go of the last one a moment after it has come."""


@final
@dataclass(frozen=True)
class World:
    """The processes of one training run; a single process by default."""

    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls, device: torch.device) -> World:
        """Join the group that torchrun describes in the environment; alone where there is none."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls()
        if not dist.is_initialized():
            backend = "nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=datetime.timedelta(minutes=10))
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def leads(self) -> bool:
        """Whether this process writes files and talks to the user."""
        return self.rank == 0

    def share(self, whole: Tensor, dim: int = 0) -> Tensor:
        """The part of a tensor that is this process's, split along a dimension; sizes differ by one at most."""
        return whole if self.size == 1 else whole.tensor_split(self.size, dim)[self.rank]

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over processes, in place of the tensor's own value."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def add_up_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace every gradient by its sum over processes; one message for each type of number."""
        if self.size == 1:
            return
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for parameter in parameters:
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                by_type.setdefault(parameter.grad.dtype, []).append(parameter.grad)
        for gradients in by_type.values():
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            dist.all_reduce(flat)
            start = 0
            for gradient in gradients:
                gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
                start += gradient.numel()

    def copy_from_leader(self, module: nn.Module) -> None:
        """Give every process the leader's parameters and buffers."""
        if self.size > 1:
            for tensor in [*module.parameters(), *module.buffers()]:
                dist.broadcast(tensor.data, 0)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return flag if self.size == 1 else self.sum_numbers(flag)[0] > 0

    def sum_numbers(self, *numbers: float) -> list[float]:
        """The sum over processes of each of some numbers."""
        if self.size == 1:
            return list(numbers)
        total: list[float] = self.sum(torch.tensor(numbers, dtype=torch.float64, device=message_device())).tolist()
        return total

    def bytes_from_leader(self, contents: bytes) -> bytes:
        """What the leader has, in every process."""
        if self.size == 1:
            return contents
        length = torch.tensor(len(contents), device=message_device())
        dist.broadcast(length, 0)
        message = torch.empty(int(length), dtype=torch.uint8, device=length.device)
        if self.leads and contents:
            message.copy_(torch.frombuffer(bytearray(contents), dtype=torch.uint8))
        dist.broadcast(message, 0)
        return message.cpu().numpy().tobytes()

    def wait(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            dist.barrier()

    def leave(self) -> None:
        """Wait for the others and leave the group; call it when models and optimisers are gone."""
        if self.size > 1:
            dist.barrier()
            time.sleep(SETTLING)
            dist.destroy_process_group()


def message_device() -> torch.device:
    """Where tensors have to be that processes send each other."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
