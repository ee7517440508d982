r"""The mixed model of the semi-supervised VAE as a plain module: a class and, for each class, a Gaussian vector.

.. math:: p(x, c, z) = \tfrac1k\, N(z; 0, I)\, p(x | c, z), \qquad q(c, z | x) = q(c | x)\, N(z; \mu_c(x), \sigma_c(x))

A trunk features-400-200 feeds a class head 200-100-k and a Gaussian head 200-(100·k), whose second half 100-66-(2·dim)
is shared by all classes. The decoder reads diag(c)·z, the k·dim numbers of which only the block of the class is not
zero, through k·dim-400-features. Activations are leaky ReLUs with slope 0.2.

Since the decoder's input for a class is one block, its first layer is k matrices [dim, 400]: decoding all k classes of
B examples multiplies B·k·dim·400 + B·k·400·features numbers, which is k times what one class takes and no more (masked
inputs of full length would take B·k·(k·dim)·400 in the first layer).

All methods accept stacked models: parameters ``[*models, …]`` as :func:`stack` makes them, x ``[*models, B,
features]``.

Reference: Lorberbom, Gane, Jaakkola & Hazan, 2019, "Direct optimization through arg max for discrete variational
auto-encoder", section 5.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, leaky_relu, linear, softplus

from argrad.latents import Categorical, Gaussian

__all__ = ["SemiSupervisedModule", "member", "stack"]

SLOPE = 0.2
"""Of the leaky ReLUs."""
WIDEST_LOGVAR = 10.0
"""Log-variances are kept within this distance of 0, smoothly, so that no exponential overflows."""


@final
class SemiSupervisedModule(nn.Module):
    """Trunk, class head, Gaussian head and decoder.

    Args:
        features: numbers in one example.
        classes: k.
        latent: dimensions of the Gaussian vector.
        hidden: widths: of the trunk's two layers, of the class head, and of the Gaussian head's second layer.
        dropout: share of the Gaussian head's last hidden layer that is dropped in train mode.
        likelihood: "bernoulli" for x in [0, 1], or "gaussian".
        scale: the gaussian's standard deviation.

    >>> module = SemiSupervisedModule(64, 10, 5)
    >>> x = torch.rand(3, 64)
    >>> scores, gaussian = module.encode(x)
    >>> scores.shape, gaussian.mean.shape
    (torch.Size([3, 10]), torch.Size([3, 10, 5]))
    >>> module.negative_elbo(x).shape
    torch.Size([3])
    """

    def __init__(
        self,
        features: int,
        classes: int,
        latent: int = 20,
        *,
        hidden: tuple[int, int, int, int] = (400, 200, 100, 66),
        dropout: float = 0.0,
        likelihood: Literal["bernoulli", "gaussian"] = "bernoulli",
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        if features < 1 or classes < 2 or latent < 1 or len(hidden) != 4 or min(hidden) < 1:
            raise ValueError(
                "the model needs features >= 1, classes >= 2, latent >= 1 and four hidden widths >= 1, got "
                f"{features}, {classes}, {latent} and {hidden}"
            )
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
        if likelihood not in ("bernoulli", "gaussian"):
            raise ValueError(f'likelihood must be "bernoulli" or "gaussian", got {likelihood!r}')
        if not 0 < scale < math.inf:
            raise ValueError(f"scale must be a positive number, got {scale}")
        self.features, self.classes, self.latent = features, classes, latent
        self.dropout, self.likelihood, self.scale = dropout, likelihood, scale
        wide, narrow, head, last = hidden
        self.trunk_enter, self.trunk_leave = nn.Linear(features, wide), nn.Linear(wide, narrow)
        self.class_enter, self.class_leave = nn.Linear(narrow, head), nn.Linear(head, classes)
        self.gaussian_enter = nn.Linear(narrow, head * classes)
        self.gaussian_hidden, self.gaussian_leave = nn.Linear(head, last), nn.Linear(last, 2 * latent)
        self.decoder_enter, self.decoder_leave = nn.Linear(classes * latent, wide), nn.Linear(wide, features)

    def trunk(self, x: Tensor) -> Tensor:
        """What both heads read, ``[*models, B, 200]``."""
        return activate(affine(self.trunk_leave, activate(affine(self.trunk_enter, x))))

    def class_scores(self, trunk: Tensor) -> Tensor:
        """The scores of q(c|x), ``[*models, B, k]``."""
        return affine(self.class_leave, activate(affine(self.class_enter, trunk)))

    def gaussians(self, trunk: Tensor) -> Gaussian:
        """The Gaussian of every class, ``[*models, B, k, dim]``; its last layers see B·k rows at once."""
        rows = activate(affine(self.gaussian_enter, trunk)).unflatten(-1, (self.classes, -1))
        return self._gaussian(rows.flatten(-3, -2), (trunk.shape[-2], self.classes))

    def gaussian_of(self, trunk: Tensor, z: Tensor) -> Gaussian:
        """The Gaussian of one class per example, ``[*models, B, dim]``; z is one-hot ``[*models, B, k]``."""
        rows = activate(affine(self.gaussian_enter, trunk)).unflatten(-1, (self.classes, -1))
        return self._gaussian((rows * z.unsqueeze(-1)).sum(-2), (trunk.shape[-2],))

    def _gaussian(self, rows: Tensor, shape: tuple[int, ...]) -> Gaussian:
        hidden = activate(affine(self.gaussian_hidden, rows))
        if self.dropout > 0:
            hidden = dropout(hidden, self.dropout, self.training)
        mean, logvar = affine(self.gaussian_leave, hidden).unflatten(-2, shape).chunk(2, -1)
        return Gaussian(mean, WIDEST_LOGVAR * (logvar / WIDEST_LOGVAR).tanh(), validate=False)

    def encode(self, x: Tensor) -> tuple[Tensor, Gaussian]:
        """Class scores ``[*models, B, k]`` and the Gaussian of every class."""
        trunk = self.trunk(x)
        return self.class_scores(trunk), self.gaussians(trunk)

    def decode_hidden(self, z: Tensor, vectors: Tensor) -> Tensor:
        """The decoder's hidden layer ``[*extra, *models, B, 400]`` for diag(z)·vectors.

        Args:
            z: one-hot, or a point of the simplex, ``[*extra, *models, B, k]``.
            vectors: one per class, ``[*models, B, k, dim]``.
        """
        return activate(affine(self.decoder_enter, (z.unsqueeze(-1) * vectors).flatten(-2)))

    def decode_hidden_all(self, vectors: Tensor) -> Tensor:
        """The decoder's hidden layer for every class, ``[*models, k, B, 400]``; only its own block is multiplied."""
        weight = self.decoder_enter.weight.unflatten(-1, (self.classes, self.latent))  # [*models, 400, k, dim]
        blocks = weight.movedim(-3, -1)  # [*models, k, dim, 400]
        bias = self.decoder_enter.bias[..., None, None, :]
        return activate(vectors.transpose(-3, -2) @ blocks + bias)

    def decode(self, z: Tensor, vectors: Tensor) -> Tensor:
        """The mean of x under p(x|c, z), ``[*models, B, features]``; arguments as in :meth:`decode_hidden`."""
        output = affine(self.decoder_leave, self.decode_hidden(z, vectors))
        return output.sigmoid() if self.likelihood == "bernoulli" else output

    def costs(self, x: Tensor, hidden: Tensor) -> Tensor:
        """−log p(x|c, z) from the decoder's hidden layer.

        Args:
            x: ``[*models, B, features]``.
            hidden: ``[*extra, *models, B, 400]``.

        Returns:
            ``[*extra, *models, B]``.
        """
        output = affine(self.decoder_leave, hidden)
        if self.likelihood == "gaussian":
            return self._squares(x, output)
        return (softplus(output, threshold=40) - x * output).sum(-1)

    def costs_of_all(self, x: Tensor, vectors: Tensor) -> Tensor:
        """−log p(x|c, z) of every class c, ``[*models, B, k]``."""
        hidden = self.decode_hidden_all(vectors)
        output = affine(self.decoder_leave, hidden.flatten(-3, -2)).unflatten(-2, (self.classes, x.shape[-2]))
        if self.likelihood == "gaussian":
            return self._squares(x.unsqueeze(-3), output).mT
        # <x, output> is linear in the hidden layer: one product per example, and none per class and pixel.
        weight, bias = self.decoder_leave.weight, self.decoder_leave.bias
        compared = (hidden * (x @ weight).unsqueeze(-3)).sum(-1) + (x * bias.unsqueeze(-2)).sum(-1).unsqueeze(-2)
        return (softplus(output, threshold=40).sum(-1) - compared).mT

    def _squares(self, x: Tensor, output: Tensor) -> Tensor:
        constant = self.features * (math.log(self.scale) + 0.5 * math.log(2 * math.pi))
        return 0.5 * ((output - x) / self.scale).square().sum(-1) + constant

    @torch.no_grad()
    def negative_elbo(
        self, x: Tensor, *, noise: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        r"""The negative ELBO of each example, ``[*models, B]``: exact over classes, one Gaussian draw for each.

        .. math:: \sum_c q(c|x)\,[-\log p(x|c, z_c) + \mathrm{KL}(q(z|x, c) \,\|\, N(0, I))] + \mathrm{KL}(q(c|x) \,\|\,
            1/k)

        Args:
            x: ``[*models, B, features]``.
            noise: standard normal, ``[*models, B, k, dim]``; drawn where it is None.
            generator: where fresh noise comes from.
        """
        scores, gaussian = self.encode(x)
        q = Categorical(scores, validate=False)
        costs = self.costs_of_all(x, gaussian.rsample(noise=noise, generator=generator)) + gaussian.kl()
        return (q.mean() * costs).sum(-1) + q.kl()

    @torch.no_grad()
    def sample(
        self, labels: Tensor, *, generator: torch.Generator | None = None, noise: Tensor | None = None
    ) -> Tensor:
        """The mean of x for given classes and Gaussian vectors from the prior, ``[n, features]``.

        Args:
            labels: class numbers ``[n]``.
            generator: where fresh noise comes from.
            noise: the vectors themselves, ``[n, dim]``.
        """
        weight = self.decoder_enter.weight
        if noise is None:
            noise = torch.randn(
                (len(labels), self.latent), generator=generator, device=weight.device, dtype=weight.dtype
            )
        z = nn.functional.one_hot(labels, self.classes).to(weight.dtype)
        return self.decode(z, noise.unsqueeze(-2).expand(-1, self.classes, -1))

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"features={self.features}, classes={self.classes}, latent={self.latent}, likelihood={self.likelihood!r}"


def affine(layer: nn.Linear, x: Tensor) -> Tensor:
    """A linear layer on ``[*extra, *models, n, in]``, whose parameters may be stacked."""
    if layer.weight.dim() == 2:
        return linear(x, layer.weight, layer.bias)
    if x.dim() == 3 and layer.weight.dim() == 3:
        return torch.baddbmm(layer.bias.unsqueeze(-2), x, layer.weight.mT)
    product: Tensor = x @ layer.weight.mT
    return product + layer.bias.unsqueeze(-2)


def activate(x: Tensor) -> Tensor:
    """The leaky ReLU of all hidden layers."""
    return leaky_relu(x, SLOPE)


def stack(modules: Sequence[SemiSupervisedModule]) -> SemiSupervisedModule:
    """One module whose parameters are those of many of the same shape, ``[models, …]``."""
    stacked = copy.deepcopy(modules[0])
    states = [module.state_dict() for module in modules]
    for name in states[0]:
        layer, _, which = name.rpartition(".")
        together = torch.stack([state[name] for state in states])
        setattr(stacked.get_submodule(layer), which, nn.Parameter(together))
    return stacked


def member(stacked: SemiSupervisedModule, number: int) -> SemiSupervisedModule:
    """One of the models that :func:`stack` put together, as a module of its own."""
    alone = copy.deepcopy(stacked)
    for name, tensor in stacked.state_dict().items():
        layer, _, which = name.rpartition(".")
        setattr(alone.get_submodule(layer), which, nn.Parameter(tensor[number].clone()))
    return alone
