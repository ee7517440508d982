"""What estimators with control variates share: running moments of the cost, and a small network of any input size."""

import warnings
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from argrad.estimators.base import Estimator, unchanged
from argrad.latents import Latent

__all__ = ["RunningMoments", "features", "has_lazy", "prepare_for", "small_network"]


@final
class RunningMoments(nn.Module):
    """Exponential moving mean and standard deviation of the costs seen in earlier calls.

    Only earlier calls count, so a baseline made of them is independent of the present noise and adds no bias.
    """

    sums: Tensor
    sum_over_processes: Callable[[Tensor], Tensor] = staticmethod(unchanged)
    """As for estimators."""

    def __init__(self, decay: float = 0.95) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("sums", torch.zeros(3))  # moving averages of 1, the cost, and its square

    def reset(self) -> None:
        """Forget everything."""
        self.sums.zero_()

    def location(self) -> Tensor:
        """The mean so far; 0 before the first update."""
        return self.sums[1] / self.sums[0].clamp_min(torch.finfo(self.sums.dtype).tiny)

    def scale(self) -> Tensor:
        """The standard deviation so far; 1 before the first update and where the costs do not vary."""
        tiny = torch.finfo(self.sums.dtype).tiny
        variance = self.sums[2] / self.sums[0].clamp_min(tiny) - self.location().square()
        return torch.where(variance > 0, variance.clamp_min(tiny).sqrt(), 1.0)

    @torch.no_grad()
    def update(self, costs: Tensor) -> None:
        """Take in one batch of costs; an empty batch changes nothing."""
        costs = costs.to(self.sums)
        count = torch.full_like(self.sums[0], costs.numel())
        batch = self.sum_over_processes(torch.stack([count, costs.sum(), costs.square().sum()]))
        self.sums.lerp_(batch / batch[0].clamp_min(1), (1 - self.decay) * batch[0].clamp_max(1))


def small_network(hidden: int = 64) -> nn.Sequential:
    """Two layers, any input size, one output that starts at zero; sized by the first call."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Lazy modules are a new feature")
        first = nn.LazyLinear(hidden)
    last = nn.Linear(hidden, 1)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(first, nn.SiLU(), last)


def features(latent: Latent, parts: list[Tensor], context: Tensor | None) -> Tensor:
    """Join parts ``[*batch, *event]`` and an optional context ``[*batch, d]`` to ``[*batch, features]``."""
    flat = [part.flatten(part.dim() - latent.event_dims) for part in parts]
    if context is not None:
        if context.shape[:-1] != latent.batch_shape:
            raise ValueError(
                f"context must have shape [*batch, d] with batch {tuple(latent.batch_shape)}, "
                f"got {tuple(context.shape)}"
            )
        flat.append(context.to(flat[0].dtype))
    return torch.cat(flat, -1)


def apply_network(network: nn.Module, inputs: Tensor, batch_shape: torch.Size) -> Tensor:
    """One number per example from a network that returns ``[*batch]`` or ``[*batch, 1]``, in its own precision."""
    parameters = list(network.parameters())
    if any(nn.parameter.is_lazy(parameter) for parameter in parameters):
        network.to(inputs.device)
    output = network(inputs.to(parameters[0].dtype) if parameters else inputs).to(inputs.dtype)
    assert isinstance(output, Tensor)
    if output.shape == (*batch_shape, 1):
        output = output.squeeze(-1)
    if output.shape != batch_shape:
        raise ValueError(
            f"the network must return one number per example, {tuple(batch_shape)}, got {tuple(output.shape)}"
        )
    return output


def prepare_for(estimator: Estimator, latent: Latent) -> None:
    """Refuse an estimator that does not fit the latent, and size whatever of it is sized by its first call.

    It happens before training, where the seed in force decides the weights.

    Args:
        estimator: on the CPU, as the latent is.
        latent: of one example, whose scores require a gradient.
    """
    estimator.require_support(latent)
    if has_lazy(estimator):
        event = tuple(range(-latent.event_dims, 0))
        estimator(latent, lambda z: z.sum(event), generator=torch.Generator().manual_seed(0))
        for moments in (part for part in estimator.modules() if isinstance(part, RunningMoments)):
            moments.reset()


def has_lazy(module: nn.Module) -> bool:
    """Whether the module has parameters whose size is not known yet."""
    return any(nn.parameter.is_lazy(parameter) for parameter in module.parameters())
