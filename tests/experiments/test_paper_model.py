"""Weights go into a population and come out again; a quick run changes only what nobody set."""

from dataclasses import dataclass

import torch

from argrad.experiments.paper_model import as_bits, networks, networks_of, quickly
from argrad.training.population import Member, Population, stack_networks
from tiny_images import tiny_images


def test_networks_of_is_the_way_back():
    members, seeds = [Member(3, "exact"), Member(5, "exact")], [4, 9]
    make = networks(12)
    weights = stack_networks(make, members, seeds)
    x = tiny_images()[0].float()
    scores = Population(weights, members).scores(x.expand(2, -1, -1))
    for s, seed in enumerate(seeds):
        for g, member in enumerate(members):
            encoder, decoder = networks_of(weights, member.values, seed=s, member=g)
            first_encoder, first_decoder = make(member.values, seed)
            torch.testing.assert_close(encoder(x), scores[s, g, :, : member.values])
            for found, expected in ((encoder, first_encoder), (decoder, first_decoder)):
                for one, other in zip(found.parameters(), expected.parameters(), strict=True):
                    assert torch.equal(one, other)


def test_first_weights_depend_on_the_seed_alone():
    state = torch.get_rng_state()
    first, again, other = (next(networks(6)(3, seed)[0].parameters()) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_bits_are_rounded():
    assert as_bits(torch.tensor([[[0.0, 0.49], [0.5, 1.0]]])).tolist() == [[0, 0, 1, 1]]


def test_quickly_leaves_what_was_set():
    @dataclass(frozen=True)
    class Settings:
        epochs: int = 300
        draws: int = 10

    assert quickly(Settings(draws=7), epochs=2, draws=3) == Settings(2, 7)
