"""What a single process can show: shares, and that a world of one changes nothing. Several: test_torchrun.py."""

import pytest
import torch
from torch import nn

from argrad.training import World


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("examples", [0, 1, 2, 7, 12])
def test_shares_are_disjoint_complete_and_as_equal_as_can_be(size, examples):
    whole = torch.arange(2 * examples).reshape(2, examples)
    shares = [World(rank, size).share(whole, 1) for rank in range(size)]
    assert torch.equal(torch.cat(shares, 1), whole)
    lengths = [share.shape[1] for share in shares]
    assert max(lengths) - min(lengths) <= 1


def test_rank_0_leads():
    assert [World(rank, 3).leads for rank in range(3)] == [True, False, False]


def test_a_world_of_one_changes_nothing():
    world, module = World(), nn.Linear(2, 1)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    world.copy_from_leader(module)
    module.weight.grad = torch.ones(1, 2)
    world.add_up_gradients(module.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert torch.equal(module.weight.grad, torch.ones(1, 2))
    assert module.bias.grad is None
    assert torch.equal(world.sum(torch.tensor(3.0)), torch.tensor(3.0))
    assert world.sum_numbers(1, 2.5) == [1, 2.5]
    assert (world.any(True), world.any(False)) == (True, False)
    assert world.bytes_from_leader(b"abc") == b"abc"
    world.wait()
    world.leave()


@pytest.mark.parametrize("environment", [{}, {"RANK": "0", "WORLD_SIZE": "1"}])
def test_alone_no_group_is_joined(monkeypatch, environment):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert World.join(torch.device("cpu")) == World()
    assert not torch.distributed.is_initialized()
