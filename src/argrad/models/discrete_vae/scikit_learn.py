"""The discrete VAE as a scikit-learn estimator: fit, transform, inverse_transform, sample, score_samples."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, Literal, Self, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, DensityMixin, TransformerMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from argrad.estimators import Estimator
from argrad.estimators.by_name import EstimatorName
from argrad.models.discrete_vae.module import (
    DiscreteVAEModule,
    LatentKind,
    Likelihood,
    a_parameter,
    default_networks,
    prepare,
)
from argrad.models.discrete_vae.run import choose_device
from argrad.models.discrete_vae.task import Schedules, VAETask
from argrad.models.examples import check_examples, check_unit_interval, own_estimator
from argrad.training import Interrupted, LoopSettings, WarmUp, train

__all__ = ["DiscreteVAE"]

EXACT_UP_TO = 2**16
"""Up to this many structures log-likelihoods are exact: listing them all costs less than sampling."""
NUMBERS_AT_ONCE = 2**24
"""How many numbers scoring may hold at a time."""
EXAMPLES_AT_ONCE = 1000
"""How many examples are encoded or decoded at a time."""


@final
class DiscreteVAE(ClassNamePrefixFeaturesOutMixin, TransformerMixin, DensityMixin, BaseEstimator):  # type: ignore[misc]
    r"""A variational auto-encoder whose code is discrete: one of k, several of k, or bits.

    Maximises :math:`E_{q(z|x)}[\log p(x|z)] - \mathrm{KL}(q(z|x) \,\|\, p(z)) \le \log p(x)`; the gradient through the
    draw of z is what the ``estimator`` is for. The weights kept are those of the epoch with the best validation loss.

    Args:
        latent: "categorical" or "bits".
        variables: how many categorical variables or bits one code has.
        values: how many values each categorical variable takes.
        estimator: a name, such as "direct", "gumbel-softmax", "reinforce", or an estimator object, which is copied.
        epsilon: of "direct": a number, or "auto" to adapt it.
        temperature: of the relaxations, rebar and relax.
        encoder: any module that maps x ``[n, *shape]`` to scores ``[n, variables * values]`` (bits: ``[n,
            variables]``). It is copied, and training starts from its weights. None is one hidden layer.
        decoder: any module that maps z ``[n, values]``, ``[n, variables, values]`` or ``[n, variables]`` (bits) to
            logits or means ``[n, *shape]``. It is copied as well.
        hidden: width of the default networks.
        prior: "uniform" or "learnt".
        likelihood: "bernoulli" for X in [0, 1], or "gaussian".
        scale: the gaussian's standard deviation.
        kl_weight: weight of the KL term in training; 1 is the ELBO.
        revive_until: after each epoch up to this one, codes that no example uses are split off from busy ones.
        epochs: passes over the training data, at most.
        batch_size: examples per step.
        learning_rate: Adam's step size.
        validation_fraction: share of X that is held out to choose the best epoch; with 0 it is chosen on all of X.
        patience: stop after this many epochs without a better validation loss; 0 never stops early.
        random_state: as everywhere in scikit-learn; PyTorch's own random state is neither read nor changed.
        device: "cpu", "cuda", ..., or "auto" for a GPU where there is one.
        verbose: print a line after each epoch.

    Attributes:
        module_: the trained :class:`~argrad.models.DiscreteVAEModule`, a plain PyTorch module.
        history_: one dictionary per epoch: "epoch", "train_loss", "loss" (validation), "perplexity", "used_codes", ...
        best_epoch_: the epoch whose weights were kept.
        example_shape_: the shape of one example.
        n_features_in_: the numbers in one example.

    >>> from sklearn.datasets import load_digits
    >>> X = load_digits().data / 16
    >>> model = DiscreteVAE(values=5, epochs=3, random_state=0).fit(X)
    >>> model.transform(X).shape, model.encode(X).shape, model.sample(2)[0].shape
    ((1797, 5), (1797, 1), (2, 64))

    Reference: Lorberbom, Gane, Jaakkola & Hazan, 2019, "Direct optimization through arg max for discrete variational
    auto-encoder".
    """

    module_: DiscreteVAEModule
    history_: list[dict[str, Any]]
    best_epoch_: int
    example_shape_: tuple[int, ...]
    n_features_in_: int

    def __init__(
        self,
        *,
        latent: LatentKind = "categorical",
        variables: int = 1,
        values: int = 10,
        estimator: EstimatorName | Estimator = "direct",
        epsilon: float | Literal["auto"] = "auto",
        temperature: float = 0.5,
        encoder: nn.Module | None = None,
        decoder: nn.Module | None = None,
        hidden: int = 300,
        prior: Literal["uniform", "learnt"] = "uniform",
        likelihood: Likelihood = "bernoulli",
        scale: float = 1.0,
        kl_weight: float = 1.0,
        revive_until: int = 0,
        epochs: int = 100,
        batch_size: int = 100,
        learning_rate: float = 1e-3,
        validation_fraction: float = 0.1,
        patience: int = 0,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        self.latent = latent
        self.variables = variables
        self.values = values
        self.estimator = estimator
        self.epsilon = epsilon
        self.temperature = temperature
        self.encoder = encoder
        self.decoder = decoder
        self.hidden = hidden
        self.prior = prior
        self.likelihood = likelihood
        self.scale = scale
        self.kl_weight = kl_weight
        self.revive_until = revive_until
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Train on X.

        Args:
            X: ``[n, features]`` or ``[n, *shape]``, an array or a CPU or GPU tensor.
            y: ignored.
        """
        examples = self._check_examples(X, reset=True)
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must be at least 0 and below 1, got {self.validation_fraction}")
        if not 0 <= self.kl_weight < math.inf:
            raise ValueError(f"kl_weight must be a number that is not negative, got {self.kl_weight}")
        seed = self._draw_seed()
        loop = LoopSettings(self.epochs, self.batch_size, self.learning_rate, seed, self.patience)
        module = self._build(examples.shape[1:], seed).to(choose_device(self.device))
        held_out = min(len(examples) - 1, round(self.validation_fraction * len(examples)))
        order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed)).numpy()
        data = as_tensor(examples[order], module)
        task = VAETask(
            module,
            data[held_out:],
            data[:held_out],
            lambda stored, generator: stored,
            Schedules(kl_weight=WarmUp(self.kl_weight)),
            revive_until=self.revive_until,
        )
        try:
            trained = train(task, loop, progress=EpochPrinter(self.epochs) if self.verbose else None)
        except Interrupted:
            raise KeyboardInterrupt from None
        self.module_ = module.eval()
        self.history_ = trained.history
        self.best_epoch_ = trained.best_epoch
        self.example_shape_ = examples.shape[1:]
        self._n_features_out = math.prod(module.event_shape)
        return self

    def transform(self, X: ArrayLike) -> NDArray[np.floating[Any]]:
        """The posterior probabilities q(z|x): features for whatever comes next.

        Returns:
            ``[n, variables * values]``, the values of the first variable first; for bits ``[n, variables]``, the
            probability that each bit is 1.
        """
        examples = self._check_examples(X)
        means = self._encode(examples, lambda module, x: module.posterior(x).mean().flatten(1))
        return means.astype(examples.dtype, copy=False)

    def encode(self, X: ArrayLike) -> NDArray[np.int64]:
        """The most probable code of each example: whole numbers ``[n, variables]``, each from 0 to values − 1."""
        modes = self._encode(self._check_examples(X), lambda module, x: module.posterior(x).mode())
        return self._codes(modes)

    def inverse_transform(self, Z: ArrayLike) -> NDArray[np.floating[Any]]:
        """The mean of x given a code.

        Args:
            Z: codes ``[n, variables]``, as :meth:`encode` gives them, or probabilities ``[n, variables * values]``, as
                :meth:`transform` gives them, of which the most probable code is taken.

        Returns:
            ``[n, *shape]``, in the shape of X.
        """
        check_is_fitted(self, "module_")
        numbers = check_array(Z, dtype=[np.float64, np.float32])
        z = self._structures(numbers)
        return self._decode(z).astype(numbers.dtype, copy=False)

    def sample(self, n_samples: int = 1) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Draw codes from the prior and decode them.

        Returns:
            the mean of x under each code, ``[n_samples, *shape]`` (the noise of the likelihood is left out), and the
            codes, ``[n_samples, variables]``.
        """
        check_is_fitted(self, "module_")
        if n_samples < 1:
            raise ValueError(f"n_samples must be at least 1, got {n_samples}")
        generator = torch.Generator(a_parameter(self.module_).device).manual_seed(self._draw_seed())
        z, means = self.module_.sample(n_samples, generator=generator)
        return means.cpu().numpy().astype(np.float64), self._codes(z.cpu().numpy())

    def score_samples(self, X: ArrayLike, *, samples: int = 1000) -> NDArray[np.float64]:
        r"""The log-likelihood of each example, ``[n]``.

        Exact for up to 65536 structures, such as 16 bits. Beyond, the importance-weighted bound
        :math:`\log\frac1S\sum_s p(x, z_s)/q(z_s|x)` with z from q, which in expectation is not above log p(x) and rises
        towards it with S; it is computed with the same seed each time.

        Args:
            X: ``[n, features]`` or ``[n, *shape]``.
            samples: S.
        """
        examples = self._check_examples(X)
        if samples < 1:
            raise ValueError(f"samples must be at least 1, got {samples}")
        module = self.module_
        states = module.values**module.variables
        generator = torch.Generator(a_parameter(module).device).manual_seed(0)

        def log_likelihood(module: DiscreteVAEModule, x: Tensor) -> Tensor:
            return -module.negative_log_likelihood(x, samples=samples, generator=generator, exact_up_to=EXACT_UP_TO)

        widest = states if states <= EXACT_UP_TO else samples * max(self.n_features_in_, self._n_features_out)
        size = max(1, min(EXAMPLES_AT_ONCE, NUMBERS_AT_ONCE // widest))
        return self._encode(examples, log_likelihood, size).astype(np.float64)

    def score(self, X: ArrayLike, y: object = None) -> float:
        """The mean of :meth:`score_samples`: higher is better, as model selection expects."""
        return float(self.score_samples(X).mean())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _draw_seed(self) -> int:
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _build(self, shape: tuple[int, ...], seed: int) -> DiscreteVAEModule:
        for name in ("encoder", "decoder"):
            part = getattr(self, name)
            if part is not None and not isinstance(part, nn.Module):
                raise ValueError(f"{name} must be a torch.nn.Module or None, got {part!r}")
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # the GPU's is left alone
            codes = self.variables * (self.values if self.latent == "categorical" else 1)
            encoder, decoder = default_networks(shape, codes, self.hidden)
            module = DiscreteVAEModule(
                encoder if self.encoder is None else copy.deepcopy(self.encoder),
                decoder if self.decoder is None else copy.deepcopy(self.decoder),
                own_estimator(self),
                latent=self.latent,
                variables=self.variables,
                values=self.values,
                prior=self.prior,
                likelihood=self.likelihood,
                scale=self.scale,
            ).cpu()
            prepare(module, shape)
        return module

    def _check_examples(self, X: Any, *, reset: bool = False) -> NDArray[np.floating[Any]]:
        """X as an array of floats ``[n, *shape]`` that this model can read."""
        examples = check_examples(self, X, reset=reset)
        check_unit_interval(examples, self.likelihood if reset else self.module_.likelihood)
        return examples

    @torch.no_grad()
    def _encode(
        self,
        examples: NDArray[np.floating[Any]],
        function: Callable[[DiscreteVAEModule, Tensor], Tensor],
        size: int = EXAMPLES_AT_ONCE,
    ) -> NDArray[Any]:
        """``function(module, x)`` of all examples, in pieces.

        In float32 the last digit of a matrix product depends on a row's place in the matrix. X in float64 asks for
        better: on the CPU the default networks then work in float64; networks of the user's own work as they are.
        """
        module, own_networks = self.module_, self.encoder is not None or self.decoder is not None
        if examples.dtype == np.float64 and not own_networks and a_parameter(module).device.type == "cpu":
            module = copy.deepcopy(module).double()
        parts = [
            function(module, as_tensor(examples[start : start + size], module)).cpu()
            for start in range(0, len(examples), size)
        ]
        return torch.cat(parts).numpy()

    @torch.no_grad()
    def _decode(self, z: NDArray[Any]) -> NDArray[Any]:
        parts = [
            self.module_.decode(as_tensor(z[start : start + EXAMPLES_AT_ONCE], self.module_)).cpu()
            for start in range(0, len(z), EXAMPLES_AT_ONCE)
        ]
        return torch.cat(parts).numpy()

    def _codes(self, z: NDArray[Any]) -> NDArray[np.int64]:
        """Structures ``[n, *event]`` as whole numbers ``[n, variables]``."""
        if self.module_.latent == "bits":
            return z.astype(np.int64)
        codes: NDArray[np.int64] = z.argmax(-1).reshape(len(z), self.module_.variables).astype(np.int64)
        return codes

    def _structures(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Codes or probabilities as structures ``[n, *event]``."""
        module = self.module_
        wide = self._n_features_out
        if numbers.shape[1] not in (module.variables, wide):
            raise ValueError(
                f"Z has shape {numbers.shape}; give codes of shape (n, {module.variables})"
                f"{f' or probabilities of shape (n, {wide})' if wide != module.variables else ''}"
            )
        if module.latent == "bits":
            return (numbers > 0.5).astype(np.float64)
        if numbers.shape[1] == wide:
            codes = numbers.reshape(-1, module.variables, module.values).argmax(-1)
        else:
            codes = numbers.astype(np.int64)
            if (codes != numbers).any() or codes.min() < 0 or codes.max() >= module.values:
                raise ValueError(
                    f"codes must be whole numbers from 0 to {module.values - 1}, "
                    f"got values from {numbers.min():g} to {numbers.max():g}"
                )
        one_hot: NDArray[Any] = np.eye(module.values)[codes].reshape(-1, *module.event_shape)
        return one_hot


@final
class EpochPrinter:
    """Prints a line after each epoch."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def start(self, steps: int, done: int) -> None:
        """Nothing to say yet."""

    def step(self, done: int, epoch: int, loss: float) -> None:
        """Nothing to say yet."""

    def epoch(self, metrics: dict[str, Any]) -> None:
        """The losses, and how many codes are in use."""
        print(
            f"epoch {metrics['epoch']} of {self.epochs}: validation loss {metrics['loss']:.4f}, "
            f"training loss {metrics['train_loss']:.4f}, {metrics['used_codes']:.0%} of codes used",
            flush=True,
        )


def as_tensor(array: NDArray[Any], module: DiscreteVAEModule) -> Tensor:
    """A copy of an array, of the type and on the device of the networks."""
    parameter = a_parameter(module)
    return torch.tensor(array, dtype=parameter.dtype, device=parameter.device)
