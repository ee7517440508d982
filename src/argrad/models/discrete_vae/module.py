r"""The discrete variational auto-encoder as a plain module.

An encoder gives the scores of q(z|x), a decoder the parameters of p(x|z), and the objective is the negative ELBO

.. math:: E_{q(z|x)}[-\log p(x|z)] + \mathrm{KL}(q(z|x) \,\|\, p(z)) \;\ge\; -\log p(x),

the first term by any estimator, the KL in closed form. The prior p(z) is uniform or learnt.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Literal, final

import torch
from torch import Tensor, nn

from argrad.costs import Reconstruction, all_costs, evaluate
from argrad.estimators import Estimator, Exact
from argrad.estimators.base import Noise
from argrad.estimators.control import has_lazy, prepare_for
from argrad.latents import MAX_STATES, Bits, Categorical, Latent
from argrad.latents.base import cheaply_known_finite

__all__ = ["DiscreteVAEModule", "LatentKind", "Likelihood", "a_parameter", "default_networks", "prepare"]

LatentKind = Literal["categorical", "bits"]
Likelihood = Literal["bernoulli", "gaussian"]


def default_networks(shape: tuple[int, ...], codes: int, hidden: int = 300) -> tuple[nn.Sequential, nn.Sequential]:
    """The paper's networks: one hidden layer of ReLUs on each side.

    Args:
        shape: of one example.
        codes: numbers in one flattened z, which is also how many scores the encoder gives.
        hidden: width.
    """
    if hidden < 1:
        raise ValueError(f"hidden must be at least 1, got {hidden}")
    if codes < 1:
        raise ValueError(f"a code needs at least one number, got {codes}; give variables >= 1 and values >= 2")
    pixels = math.prod(shape)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, codes))
    decoder = nn.Sequential(
        nn.Flatten(), nn.Linear(codes, hidden), nn.ReLU(), nn.Linear(hidden, pixels), nn.Unflatten(1, shape)
    )
    return encoder, decoder


@final
class DiscreteVAEModule(nn.Module):
    """Encoder, decoder, prior and estimator.

    Args:
        encoder: maps x ``[B, *shape]`` to scores ``[B, variables * values]`` (``[B, variables]`` for bits).
        decoder: maps z ``[N, values]``, ``[N, variables, values]`` or (bits) ``[N, variables]`` to logits or means
            ``[N, *shape]``.
        estimator: of the gradient of the reconstruction term.
        latent: "categorical" or "bits".
        variables: how many.
        values: of each categorical variable.
        prior: "uniform" or "learnt".
        likelihood: "bernoulli" for x in [0, 1], or "gaussian".
        scale: the gaussian's standard deviation.

    >>> from argrad import Exact
    >>> module = DiscreteVAEModule(*default_networks((8, 8), 10), Exact())
    >>> module.losses(torch.rand(5, 8, 8)).shape
    torch.Size([5])
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        estimator: Estimator,
        *,
        latent: LatentKind = "categorical",
        variables: int = 1,
        values: int = 10,
        prior: Literal["uniform", "learnt"] = "uniform",
        likelihood: Likelihood = "bernoulli",
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        if latent not in ("categorical", "bits"):
            raise ValueError(f'latent must be "categorical" or "bits", got {latent!r}')
        if prior not in ("uniform", "learnt"):
            raise ValueError(f'prior must be "uniform" or "learnt", got {prior!r}')
        if likelihood not in ("bernoulli", "gaussian"):
            raise ValueError(f'likelihood must be "bernoulli" or "gaussian", got {likelihood!r}')
        if variables < 1 or (latent == "categorical" and values < 2):
            raise ValueError(f"a discrete latent needs variables >= 1 and values >= 2, got {variables} and {values}")
        self.encoder = encoder
        self.decoder = decoder
        self.estimator = estimator
        self.latent = latent
        self.variables = variables
        self.values = 2 if latent == "bits" else values
        self.likelihood = likelihood
        self.scale = scale
        self.prior_scores = nn.Parameter(torch.zeros(self.event_shape)) if prior == "learnt" else None

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The shape of one z."""
        if self.latent == "bits":
            return (self.variables,)
        return (self.values,) if self.variables == 1 else (self.variables, self.values)

    def distribution(self, scores: Tensor, *, validate: bool = True) -> Latent:
        """The latent with given scores ``[*batch, *event]``."""
        if self.latent == "bits":
            return Bits(scores, validate=validate)
        return Categorical(scores, event_dims=1 if self.variables == 1 else 2, validate=validate)

    def posterior(self, x: Tensor, *, validate: bool = True) -> Latent:
        """q(z|x) for a batch."""
        scores = self.encoder(x)
        shape = (len(x), *self.event_shape)
        if scores.shape != shape:
            if scores.numel() != math.prod(shape):
                raise ValueError(
                    f"the encoder turned {len(x)} examples into shape {tuple(scores.shape)}; "
                    f"this latent needs [{len(x)}, {math.prod(self.event_shape)}]"
                )
            scores = scores.reshape(shape)
        return self.distribution(scores, validate=validate)

    def prior(self) -> Latent | None:
        """p(z), without batch dimensions; None is uniform."""
        return None if self.prior_scores is None else self.distribution(self.prior_scores)

    def reconstruction(self, x: Tensor) -> Reconstruction:
        """The cost −log p(x|z)."""
        return Reconstruction(x, self.decoder, self.likelihood, scale=self.scale)

    def losses(
        self,
        x: Tensor,
        *,
        kl_weight: float = 1.0,
        generator: torch.Generator | None = None,
        noise: Noise | None = None,
    ) -> Tensor:
        """The negative ELBO of each example, ``[B]``, carrying the gradient estimate."""
        q = self.posterior(x, validate=False)  # the training loop looks at the loss
        q.known_finite, q.differentiated_once = cheaply_known_finite(q.scores), True
        cost = self.estimator(q, self.reconstruction(x), generator=generator, noise=noise)
        assert isinstance(cost, Tensor)
        kl = q.kl(self.prior())
        return cost + (kl if kl_weight == 1.0 else kl_weight * kl)

    @torch.no_grad()
    def negative_elbo(
        self, x: Tensor, *, generator: torch.Generator | None = None, exact_up_to: int = MAX_STATES
    ) -> Tensor:
        """The negative ELBO, ``[B]``: exact where there are at most so many structures, else with one sample."""
        q = self.posterior(x)
        cost = self.reconstruction(x)
        if q.num_states <= exact_up_to:
            expected: Tensor = Exact()(q, cost)
        else:
            expected = evaluate(cost, q, q.sample(generator=generator))
        return expected + q.kl(self.prior())

    @torch.no_grad()
    def negative_log_likelihood(
        self,
        x: Tensor,
        *,
        samples: int = 1000,
        generator: torch.Generator | None = None,
        exact_up_to: int = MAX_STATES,
    ) -> Tensor:
        r"""−log p(x), ``[B]``: exact where all structures can be summed, else the importance-weighted bound.

        With samples from q the bound is :math:`-\log\frac1S\sum_s p(x, z_s)/q(z_s|x)`, in expectation never below
        −log p(x).
        """
        q = self.posterior(x)
        cost = self.reconstruction(x)
        if q.num_states <= exact_up_to:
            log_prior = self._log_prior_of_all(q)
            return -(log_prior - all_costs(cost, q)).logsumexp(-1)
        z = q.sample((samples,), generator=generator)
        prior = self.prior()
        log_prior = torch.tensor(-self.variables * math.log(self.values)) if prior is None else prior.log_prob(z)
        log_weight = log_prior - evaluate(cost, q, z) - q.log_prob(z)
        return math.log(samples) - log_weight.logsumexp(0)

    def _log_prior_of_all(self, q: Latent) -> Tensor:
        prior = self.prior()
        if prior is None:
            return torch.full((), -self.variables * math.log(self.values), device=q.scores.device)
        return prior.log_prob_all()

    def decode(self, z: Tensor) -> Tensor:
        """The mean of x under p(x|z), ``[N, *shape]``."""
        output = self.decoder(z)
        assert isinstance(output, Tensor)
        return output.sigmoid() if self.likelihood == "bernoulli" else output

    @torch.no_grad()
    def sample(self, number: int, *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Draw z from the prior and decode: codes ``[number, *event]`` and means of x ``[number, *shape]``."""
        parameter = next(self.decoder.parameters(), torch.zeros(()))
        scores = torch.zeros(self.event_shape, device=parameter.device, dtype=parameter.dtype)
        prior = self.prior() or self.distribution(scores)
        z = prior.sample((number,), generator=generator)
        return z, self.decode(z)

    @torch.no_grad()
    def usage(self, x: Tensor) -> Tensor:
        """How often each value of each variable is used: the mean of q(z|x) over x, ``[variables, values]``."""
        mean = self.posterior(x).mean().mean(0)
        if self.latent == "bits":
            return torch.stack([1 - mean, mean], -1)
        return mean.reshape(self.variables, self.values)


def prepare(module: DiscreteVAEModule, shape: tuple[int, ...]) -> None:
    """Refuse an estimator that does not fit the latent, and size whatever is sized by its first call.

    It happens before training, where the seed in force decides the weights.

    Args:
        module: in train mode and on the CPU.
        shape: of one example.
    """
    dtype = a_parameter(module).dtype
    if has_lazy(module.encoder) or has_lazy(module.decoder):
        module.eval()
        with torch.no_grad():
            module.decode(module.posterior(torch.zeros(1, *shape, dtype=dtype)).mode())
        module.train()
    q = module.distribution(torch.zeros(1, *module.event_shape, dtype=dtype, requires_grad=True))
    prepare_for(module.estimator, q)


def a_parameter(module: DiscreteVAEModule) -> nn.Parameter:
    """Some parameter of the networks, which says on what device and in what precision they work."""
    for parameter in chain(module.encoder.parameters(), module.decoder.parameters()):
        return parameter
    raise ValueError("neither the encoder nor the decoder has a parameter, so there is nothing to train")
