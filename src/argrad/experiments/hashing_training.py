"""Training and measuring one encoder for the hashing experiment, on images that stay on the device."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from argrad.data import Images, load
from argrad.models.hashing.module import AT_ONCE, HashingModule, HashingTask
from argrad.models.hashing.retrieval import retrieval_by_bits, retrieval_by_cosine
from argrad.models.semi_supervised.augmentation import AUGMENTATIONS, Augmentation
from argrad.training.captured_step import CapturedStep

__all__ = [
    "Collection",
    "Search",
    "Trainer",
    "by_angle",
    "by_characters",
    "by_images",
    "by_sign",
    "components",
    "embed",
    "load_collection",
    "train",
]

CLOTHES = Augmentation(rotation=5, zoom=0.1, shift=0.08, mirror=True)
DRAWINGS = AUGMENTATIONS["digits"]
"""How images are changed each time they are seen, in every method."""

HELD_OUT = 0.1
"""The share of Omniglot's training characters that is for validation."""


@final
@dataclass(frozen=True)
class Search:
    """Who looks for what: queries among other images of known classes, or images among themselves."""

    queries: Tensor
    query_labels: Tensor
    images: Tensor
    labels: Tensor
    among_themselves: bool = False
    """Each image looks for its class in all the others."""

    def to(self, device: torch.device) -> Search:
        """A copy on a device."""
        return Search(
            self.queries.to(device),
            self.query_labels.to(device),
            self.images.to(device),
            self.labels.to(device),
            self.among_themselves,
        )


@final
@dataclass(frozen=True)
class Collection:
    """A data set for retrieval: values from 0 to 1 ``[N, H, W]`` and classes ``[N]``, on a device."""

    name: str
    train: Tensor
    labels: Tensor
    validation: Search
    """Chooses settings."""
    test: Search
    augmentation: Augmentation | None

    def to(self, device: torch.device) -> Collection:
        """A copy on a device."""
        train, labels = self.train.to(device), self.labels.to(device)
        return replace(
            self, train=train, labels=labels, validation=self.validation.to(device), test=self.test.to(device)
        )


def load_collection(name: str) -> Collection:
    """A data set of the catalogue: Omniglot by characters, any other by images."""
    images = load(name, binarize="none")
    return by_characters(images) if name == "omniglot" else by_images(images)


def by_images(images: Images) -> Collection:
    """The classes are the same everywhere: test images search the training and validation images.

    Validation images search the training images.
    """
    if images.train_labels is None or images.validation_labels is None or images.test_labels is None:
        raise ValueError(f"{images.name} has no labels, which retrieval is judged by; choose fashion-mnist or omniglot")
    train, validation, test = (images.values(part) for part in (images.train, images.validation, images.test))
    known = torch.cat([images.train_labels, images.validation_labels])
    return Collection(
        images.name,
        train,
        images.train_labels,
        Search(validation, images.validation_labels, train, images.train_labels),
        Search(test, images.test_labels, torch.cat([train, validation]), known),
        CLOTHES if images.name == "fashion-mnist" else None,
    )


def by_characters(images: Images) -> Collection:
    """Classes that training has not seen: drawings search each other, within validation and within test.

    Of the training characters a tenth, always the same, is for validation; those of the test set are of other
    alphabets.
    """
    assert images.train_labels is not None
    assert images.validation_labels is not None
    assert images.test_labels is not None
    drawings = images.values(torch.cat([images.train, images.validation]))
    labels = torch.cat([images.train_labels, images.validation_labels])
    characters = labels.unique()
    order = torch.randperm(len(characters), generator=torch.Generator().manual_seed(0))
    held_out = torch.isin(labels, characters[order[: round(HELD_OUT * len(characters))]])
    own, own_labels = drawings[held_out], labels[held_out]
    test, test_labels = images.values(images.test), images.test_labels
    return Collection(
        images.name,
        drawings[~held_out],
        labels[~held_out].unique(return_inverse=True)[1],
        Search(own, own_labels, own, own_labels, among_themselves=True),
        Search(test, test_labels, test, test_labels, among_themselves=True),
        DRAWINGS,
    )


@final
class Trainer:
    """Steps of one module through random pairs; on a GPU one captured graph.

    Args:
        module: on the device of the collection, in train mode.
        collection: what is trained on.
        batch_size: pairs per step.
        learning_rate: Adam's.
        graph: whether a GPU captures its step.
    """

    def __init__(
        self, module: HashingModule, collection: Collection, batch_size: int, learning_rate: float, *, graph: bool
    ) -> None:
        device = collection.train.device
        self.module, self.batch_size = module, batch_size
        nothing = collection.train[:0]
        self.task = HashingTask(module, collection.train, collection.labels, nothing, None, collection.augmentation)
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.optimiser = torch.optim.Adam(
            self.parameters, learning_rate, fused=True, capturable=device.type == "cuda" and graph
        )
        self.step = CapturedStep(self._one_step, self._tensors, device, capture=graph)
        """Some pairs, their losses, one move."""

    def _one_step(self) -> None:
        which = torch.randint(self.task.train_size, (self.batch_size,), device=self.task.device)
        loss = self.module.losses(*self.task.pairs(0, which, None)).mean()
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward()
        self.optimiser.step()

    def _tensors(self) -> list[Tensor]:
        memory = [tensor for state in self.optimiser.state.values() for tensor in state.values()]
        return [*self.module.parameters(), *self.module.buffers(), *memory]


def train(
    module: HashingModule,
    collection: Collection,
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
    graph: bool = True,
) -> float:
    """Train a module from its first weights and leave it in evaluation; returns the seconds it took."""
    device = collection.train.device
    began = time.monotonic()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        trainer = Trainer(module.train(), collection, batch_size, learning_rate, graph=graph)
        for _ in range(steps):
            trainer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        trainer.task.settle()
    return time.monotonic() - began


@torch.no_grad()
def embed(module: HashingModule, images: Tensor) -> Tensor:
    """Scores of all images, ``[N, n]``."""
    return torch.cat([module.scores(part) for part in images.split(AT_ONCE)])


def components(images: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """The mean image and the first principal directions ``[pixels, n]`` of images."""
    flat = images.flatten(1).double()
    mean = flat.mean(0)
    covariance = (flat - mean).T @ (flat - mean) / len(flat)
    if bits > len(mean):
        raise ValueError(f"images of {len(mean)} pixels have no {bits} principal components; give fewer bits")
    directions = torch.linalg.eigh(covariance).eigenvectors.flip(1)[:, :bits]
    return mean.float(), directions.float()


def by_sign(queries: Tensor, embeddings: Tensor, search: Search) -> dict[str, float]:
    """Recall and precision of the signs of embeddings, by Hamming distance."""
    return retrieval_by_bits(
        (queries > 0).float(),
        (embeddings > 0).float(),
        search.query_labels,
        search.labels,
        leave_one_out=search.among_themselves,
    )


def by_angle(queries: Tensor, embeddings: Tensor, search: Search) -> dict[str, float]:
    """Recall and precision of embeddings as they are, by their angles."""
    return retrieval_by_cosine(
        queries, embeddings, search.query_labels, search.labels, leave_one_out=search.among_themselves
    )
