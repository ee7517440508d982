"""Costs against naive element-by-element losses, the decoder work they share, and their errors."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from argrad import Bits, Categorical, Latent, Reconstruction, TableCost
from argrad.costs import all_costs, check_shape, evaluate, has_table, in_chunks, single_changes, table
from argrad.latents import Variables
from structured_latents import CASES, PLAIN, spread

LIKELIHOODS = ["bernoulli", "gaussian", "categorical"]
CLASSES = 3
CLOSE = {"rtol": 1e-10, "atol": 1e-10}
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Decoder(nn.Module):
    """A small decoder of any structure into ``[N, *output]`` that counts the rows of each call."""

    def __init__(self, event: tuple[int, ...], output: tuple[int, ...], convolution: bool = False) -> None:
        super().__init__()
        self.output, self.calls = output, []
        generator = torch.Generator().manual_seed(1)
        self.inner = nn.Linear(math.prod(event), 6, dtype=torch.float64)
        self.outer = nn.Linear(6, math.prod(output), dtype=torch.float64)
        channels = output[0] if convolution else 1
        self.convolution = nn.Conv2d(channels, channels, 3, padding=1, dtype=torch.float64) if convolution else None
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.7, generator=generator)

    def forward(self, z: Tensor) -> Tensor:
        self.calls.append(len(z))
        output = self.outer(self.inner(z.flatten(1)).tanh()).reshape(len(z), *self.output)
        return output if self.convolution is None else self.convolution(output)


def data(likelihood: str, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    if likelihood == "categorical":
        return torch.randint(CLASSES, shape, generator=generator)
    if likelihood == "bernoulli":
        return torch.rand(shape, generator=generator, dtype=torch.float64)
    return normal(*shape, seed=2)


def output_shape(likelihood: str, *x_event: int) -> tuple[int, ...]:
    return (CLASSES, *x_event) if likelihood == "categorical" else x_event


def naive(likelihood: str, x: Tensor, output: Tensor, scale: float = 1.0) -> Tensor:
    """The negative log-likelihood of one example under the decoder's output for one code, by PyTorch's own losses."""
    if likelihood == "bernoulli":
        return binary_cross_entropy_with_logits(output, x, reduction="sum")
    if likelihood == "gaussian":
        return -torch.distributions.Normal(output, scale).log_prob(x).sum()
    return cross_entropy(output.unsqueeze(0), x.unsqueeze(0), reduction="sum")


def naive_all(
    likelihood: str, x: Tensor, decoder: nn.Module, codes: Tensor, batch_dims: int, scale: float = 1.0
) -> Tensor:
    """Every example with every code, one pair at a time, ``[*batch, S]``."""
    batch = x.shape[:batch_dims]
    rows = x.reshape(-1, *x.shape[batch_dims:])
    outputs = [decoder(code.unsqueeze(0))[0] for code in codes]
    costs = [torch.stack([naive(likelihood, row, output, scale) for output in outputs]) for row in rows]
    return torch.stack(costs).reshape(*batch, len(codes))


LATENTS: dict[str, Callable[..., Latent]] = {
    "categorical": lambda *batch: Categorical(normal(*batch, 4)),
    "categoricals": lambda *batch: Categorical(normal(*batch, 2, 3), event_dims=2),
    "bits": lambda *batch: Bits(normal(*batch, 3)),
}


# --------------------------------------------------------------------------------------------------- Reconstruction


@pytest.mark.parametrize("batch", [(), (1,), (5,), (2, 3)])
@pytest.mark.parametrize("name", LATENTS)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_every_question_has_the_naive_answer(likelihood, name, batch):
    q = LATENTS[name](*batch)
    x = data(likelihood, *batch, 7)
    decoder = Decoder(q.event_shape, output_shape(likelihood, 7))
    scale = 0.3 if likelihood == "gaussian" else 1.0
    cost = Reconstruction(x, decoder, likelihood, batch_dims=len(batch), scale=scale)
    expected = naive_all(likelihood, x, decoder, q.enumerate(), len(batch), scale)
    torch.testing.assert_close(cost.all(q), expected, **CLOSE)
    torch.testing.assert_close(all_costs(cost, q), expected, **CLOSE)
    states = q.enumerate().reshape(q.num_states, *(1,) * len(batch), *q.event_shape)
    plain = evaluate(cost, q, states.expand(q.num_states, *batch, *q.event_shape))
    torch.testing.assert_close(plain.movedim(0, -1), expected, **CLOSE)
    if q.is_one_of_k:
        torch.testing.assert_close(table(cost, q), expected, **CLOSE)
    # Single changes: the same numbers as a plain function of z gives.
    z = q.sample(generator=torch.Generator().manual_seed(3))
    by_function = single_changes(lambda z: cost(z, event_dims=q.event_dims), q, z)
    assert by_function.shape == q.table_shape
    for value in (None, evaluate(cost, q, z)):
        changes = single_changes(cost, q, z, value)
        torch.testing.assert_close(changes, by_function, **CLOSE)
        assert not changes.requires_grad


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_convolutional_decoder(likelihood):
    x = data(likelihood, 3, 4, 5) if likelihood == "categorical" else data(likelihood, 3, 2, 4, 5)
    q = LATENTS["categoricals"](3)
    output = (CLASSES, 4, 5) if likelihood == "categorical" else (2, 4, 5)
    decoder = Decoder(q.event_shape, output, convolution=True)
    cost = Reconstruction(x, decoder, likelihood)
    expected = naive_all(likelihood, x, decoder, q.enumerate(), 1)
    torch.testing.assert_close(cost.all(q), expected, **CLOSE)
    z = q.sample((2, 4), generator=torch.Generator().manual_seed(4))
    found = evaluate(cost, q, z)
    assert found.shape == (2, 4, 3)
    torch.testing.assert_close(found[1, 2], _at(expected, q, z[1, 2]), **CLOSE)


def _at(costs: Tensor, q: Latent, z: Tensor) -> Tensor:
    """Entries of ``[*batch, S]`` at the structures z ``[*batch, *event]``."""
    which = (q.enumerate() == z.unsqueeze(-1 - q.event_dims)).flatten(-q.event_dims).all(-1)
    return (costs * which).sum(-1)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_gradient_of_the_table_for_the_decoder(likelihood):
    q = LATENTS["categorical"](5)
    x = data(likelihood, 5, 7)
    decoder = Decoder(q.event_shape, output_shape(likelihood, 7))
    parameters = list(decoder.parameters())[:4]
    weights = normal(5, 4, seed=6)
    ours = torch.autograd.grad((table(Reconstruction(x, decoder, likelihood), q) * weights).sum(), parameters)
    slow = (naive_all(likelihood, x, decoder, q.enumerate(), 1) * weights).sum()
    for a, b in zip(ours, torch.autograd.grad(slow, parameters), strict=True):
        torch.testing.assert_close(a, b, **CLOSE)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_gradient_for_z(likelihood):
    """Relaxed structures are decoded too, and the cost is differentiable in them."""
    x, z = data(likelihood, 2, 3), normal(2, 4).softmax(-1).requires_grad_()
    cost = Reconstruction(x, Decoder((4,), output_shape(likelihood, 3)), likelihood)
    assert torch.autograd.gradcheck(cost, (z,))


def test_gaussian_includes_its_constant_and_scale():
    """At x = mean the cost is D (log σ + ½ log 2π)."""
    x = torch.zeros(1, 6, dtype=torch.float64)
    cost = Reconstruction(x, lambda z: torch.zeros(len(z), 6, dtype=torch.float64), "gaussian", scale=0.5)
    expected = 6 * (math.log(0.5) + 0.5 * math.log(2 * math.pi))
    assert cost(torch.ones(1, 2)).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_one_number_per_example(likelihood):
    """x may have no event dimensions at all."""
    q = LATENTS["bits"](4)
    x = data(likelihood, 4)
    decoder = Decoder(q.event_shape, output_shape(likelihood))
    cost = Reconstruction(x, decoder, likelihood)
    torch.testing.assert_close(cost.all(q), naive_all(likelihood, x, decoder, q.enumerate(), 1), **CLOSE)
    assert cost(q.sample()).shape == (4,)


@pytest.mark.parametrize("name", LATENTS)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_empty_batch(likelihood, name):
    q = LATENTS[name](0)
    x = data(likelihood, 0, 7)
    cost = Reconstruction(x, Decoder(q.event_shape, output_shape(likelihood, 7)), likelihood)
    z = q.sample()
    assert evaluate(cost, q, z).shape == (0,)
    assert evaluate(cost, q, q.sample((3,))).shape == (3, 0)
    assert all_costs(cost, q).shape == (0, q.num_states)
    assert single_changes(cost, q, z).shape == q.table_shape


def test_a_latent_with_extra_batch_dimensions_shares_the_table():
    q = LATENTS["categorical"](5)
    decoder = Decoder((4,), (7,))
    cost = Reconstruction(data("bernoulli", 5, 7), decoder)
    torch.testing.assert_close(table(cost, q.expand(6)), table(cost, q).expand(6, 5, 4))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int32])
def test_integer_data(dtype):
    decoder = Decoder((4,), (7,))
    x = (data("bernoulli", 5, 7) > 0.5).to(dtype)
    z = torch.eye(4, dtype=torch.float64)[[0, 1, 2, 3, 0]]
    torch.testing.assert_close(Reconstruction(x, decoder)(z), Reconstruction(x.double(), decoder)(z))
    classes = Decoder((4,), (CLASSES, 7))
    as_classes = Reconstruction(x, classes, "categorical")(z)
    torch.testing.assert_close(as_classes, Reconstruction(x.long(), classes, "categorical")(z))


@pytest.mark.parametrize("logit", [-200.0, -30.0, 0.0, 30.0, 200.0])
def test_extreme_logits(logit):
    x = torch.tensor([[0.0, 1.0, 0.3]], dtype=torch.float64)
    output = torch.full((1, 3), logit, dtype=torch.float64)
    expected = binary_cross_entropy_with_logits(output, x, reduction="sum")
    cost = Reconstruction(x, lambda z: output.expand(len(z), 3))
    torch.testing.assert_close(cost(torch.ones(1, 2)), expected.reshape(1), rtol=1e-12, atol=1e-12)


def test_small_costs_of_sure_decoders_keep_their_digits():
    """A pixel of 1 under a logit of 22 costs e⁻²², which the default threshold of softplus would call 0."""
    cost = Reconstruction(torch.ones(1, 1), lambda z: torch.full((len(z), 1), 22.0, dtype=torch.float64))
    assert cost(torch.ones(1, 2)).item() == pytest.approx(math.exp(-22), rel=1e-4, abs=0)


@pytest.mark.parametrize("device", DEVICES)
def test_float32_on_any_device(device):
    x = (data("bernoulli", 16, 784) > 0.5).float().to(device)
    decoder = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 784)).to(device)
    q = Categorical(torch.zeros(16, 10, device=device))
    exact = naive_all("bernoulli", x.double().cpu(), decoder.double().cpu(), torch.eye(10).double(), 1)
    found = table(Reconstruction(x, decoder.float().to(device)), q)
    torch.testing.assert_close(found.double().cpu(), exact, rtol=1e-5, atol=1e-2)


def test_event_dims_are_found_from_the_batch_shape():
    decoder = Decoder((2, 3), (7,))
    cost = Reconstruction(data("bernoulli", 5, 7), decoder)
    q = LATENTS["categoricals"](5)
    z = q.sample((4,))
    torch.testing.assert_close(cost(z), cost(z, event_dims=2))
    torch.testing.assert_close(cost(z[0]), cost(z[0], event_dims=2))


# ---------------------------------------------------------------------------------------------- work that is shared


def test_the_table_decodes_k_codes_not_batch_times_k():
    decoder = Decoder((4,), (7,))
    table(Reconstruction(data("bernoulli", 100, 7), decoder), LATENTS["categorical"](100))
    assert decoder.calls == [4]


def test_the_table_serves_single_changes_of_one_variable():
    decoder = Decoder((4,), (7,))
    q = LATENTS["categorical"](100)
    single_changes(Reconstruction(data("bernoulli", 100, 7), decoder), q, q.mode())
    assert decoder.calls == [4]


def test_enumeration_is_shared_by_the_batch():
    decoder = Decoder((3,), (7,))
    all_costs(Reconstruction(data("bernoulli", 100, 7), decoder), LATENTS["bits"](100))
    assert decoder.calls == [2**3]


def test_single_changes_are_batched_and_use_a_known_value():
    decoder = Decoder((2, 3), (7,))
    q = LATENTS["categoricals"](5)
    cost, z = Reconstruction(data("bernoulli", 5, 7), decoder), q.mode()
    value = evaluate(cost, q, z)
    decoder.calls.clear()
    single_changes(cost, q, z, value)
    assert decoder.calls == [5 * 4]  # two variables, two other values each
    decoder.calls.clear()
    single_changes(cost, q, z)
    assert sorted(decoder.calls) == [5, 5 * 4]


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_chunks_change_neither_values_nor_gradients(likelihood):
    q = Bits(normal(3, 5))
    x = data(likelihood, 3, 7)
    decoder = Decoder((5,), output_shape(likelihood, 7))
    parameters = list(decoder.parameters())[:4]
    weights = normal(3, 32, seed=8)
    results = []
    for memory_limit in (2**28, 500):
        decoder.calls.clear()
        cost = Reconstruction(x, decoder, likelihood, memory_limit=memory_limit)
        costs = all_costs(cost, q)
        forward = list(decoder.calls)
        results.append((costs, torch.autograd.grad((costs * weights).sum(), parameters), forward))
    (whole, whole_gradient, once), (chunked, chunked_gradient, many) = results
    assert once == [32]
    assert sum(many) == 32
    assert max(many) <= 500 // (4 * 4 * 7)
    torch.testing.assert_close(chunked, whole, **CLOSE)
    for a, b in zip(chunked_gradient, whole_gradient, strict=True):
        torch.testing.assert_close(a, b, **CLOSE)


def test_chunks_of_single_changes():
    q = Bits(normal(3, 9))
    decoder = Decoder((9,), (7,))
    x, z = data("bernoulli", 3, 7), q.mode()
    whole = single_changes(Reconstruction(x, decoder), q, z)
    decoder.calls.clear()
    limit = 2 * 4 * 4 * 27  # two changes of the whole batch
    chunked = single_changes(Reconstruction(x, decoder, memory_limit=limit), q, z)
    assert max(decoder.calls) <= 2 * 3
    torch.testing.assert_close(chunked, whole, **CLOSE)


def test_a_limit_below_one_row_still_works():
    q, decoder = LATENTS["bits"](2), Decoder((3,), (7,))
    x = data("bernoulli", 2, 7)
    found = all_costs(Reconstruction(x, decoder, memory_limit=1), q)
    assert decoder.calls == [1] * 8
    torch.testing.assert_close(found, all_costs(Reconstruction(x, decoder), q), **CLOSE)


def test_chunks_without_gradient():
    q, decoder = LATENTS["bits"](2), Decoder((3,), (7,))
    cost = Reconstruction(data("bernoulli", 2, 7), decoder, memory_limit=1)
    with torch.no_grad():
        assert not all_costs(cost, q).requires_grad


def test_in_chunks_joins_in_order():
    sizes = []

    def function(rows: Tensor) -> Tensor:
        sizes.append(len(rows))
        return rows.unsqueeze(0) * torch.ones(2, 1)

    rows = torch.arange(10.0)
    assert torch.equal(in_chunks(function, rows, bytes_per_row=1, memory_limit=4), rows.expand(2, 10))
    assert sizes == [4, 4, 2]


# --------------------------------------------------------------------------------------------------- random layers

ROW_MIXING = {
    "BatchNorm1d": nn.BatchNorm1d(6),
    "Dropout": nn.Dropout(0.5),
    "AlphaDropout": nn.AlphaDropout(0.1),
    "RReLU": nn.RReLU(),
    "SyncBatchNorm": nn.SyncBatchNorm(6),
}


@pytest.mark.parametrize("layer", ROW_MIXING)
def test_layers_that_make_the_table_lie_are_refused_in_train_mode(layer):
    decoder = nn.Sequential(nn.Linear(4, 6), ROW_MIXING[layer], nn.Linear(6, 7)).train()
    q = Categorical(torch.zeros(5, 4))
    cost = Reconstruction(torch.zeros(5, 7), decoder)
    z = torch.eye(4)[[0, 1, 2, 3, 0]]
    for ask in (lambda: table(cost, q), lambda: cost.all(q), lambda: cost.single_changes(q, z)):
        with pytest.raises(ValueError, match=layer) as error:
            ask()
        message = str(error.value)
        assert "\n" not in message
        for words in ("train mode", "eval()", "GroupNorm", "Reinforce"):
            assert words in message
    if layer != "SyncBatchNorm":
        assert cost(z).shape == (5,)  # samples may still be decoded
        decoder.eval()
        assert table(cost, q).shape == (5, 4)


def test_only_the_layer_itself_needs_eval():
    decoder = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 7)).train()
    decoder[1].eval()
    assert table(Reconstruction(torch.zeros(5, 7), decoder), Categorical(torch.zeros(5, 4))).shape == (5, 4)


def test_batch_norm_without_running_statistics_mixes_rows_in_eval_mode_too():
    decoder = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 7)).eval()
    with pytest.raises(ValueError, match="without running statistics"):
        table(Reconstruction(torch.zeros(5, 7), decoder), Categorical(torch.zeros(5, 4)))


@pytest.mark.parametrize("layer", [nn.LayerNorm(6), nn.GroupNorm(2, 6), nn.Dropout(0.0), nn.Identity()])
def test_harmless_layers_are_accepted(layer):
    decoder = nn.Sequential(nn.Linear(4, 6), layer, nn.Linear(6, 7)).train()
    assert table(Reconstruction(torch.zeros(5, 7), decoder), Categorical(torch.zeros(5, 4))).shape == (5, 4)


def test_dropout_inside_recurrent_and_attention_layers_is_seen():
    class Reader(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, z: Tensor) -> Tensor:
            return z

    for layer in (nn.GRU(4, 4, num_layers=2, dropout=0.1), nn.MultiheadAttention(4, 2, dropout=0.1)):
        with pytest.raises(ValueError, match=type(layer).__name__):
            table(Reconstruction(torch.zeros(5, 4), Reader(layer)), Categorical(torch.zeros(5, 4)))


# ----------------------------------------------------------------------------------- plain functions, tables, sums


@pytest.mark.parametrize("batch", [(), (0,), (1,), (2, 3)])
@pytest.mark.parametrize("name", LATENTS)
def test_plain_functions(name, batch):
    q = LATENTS[name](*batch)
    weights = normal(*q.event_shape, seed=9).requires_grad_()
    event = tuple(range(-q.event_dims, 0))

    def cost(z: Tensor) -> Tensor:
        return (z * weights).sum(event).square()

    assert not has_table(cost, q)
    expected = (q.enumerate() * weights).sum(event).square()
    found = all_costs(cost, q)
    torch.testing.assert_close(found, expected.expand(*batch, q.num_states))
    torch.testing.assert_close(
        torch.autograd.grad(found.sum(), weights)[0],
        torch.autograd.grad(expected.sum() * math.prod(batch), weights)[0],
    )
    if q.is_one_of_k:
        torch.testing.assert_close(table(cost, q), found)
    changes = single_changes(cost, q, q.mode())
    assert changes.shape == q.table_shape
    assert not changes.requires_grad


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("kind", ["function", "reconstruction", "sum"])
def test_structures(name, kind):
    q = CASES[name]()
    event = tuple(range(-q.event_dims, 0))
    weights = torch.randn(q.event_shape, generator=torch.Generator().manual_seed(0)).double()

    def function(z: Tensor) -> Tensor:
        return (z * weights).sum(event).square()

    x = torch.rand(2, 7, generator=torch.Generator().manual_seed(1)).double()
    torch.manual_seed(0)
    decoder = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(q.event_shape), 7)).double()
    shared = Reconstruction(x, decoder)
    cost = {"function": function, "reconstruction": shared, "sum": shared + function}[kind]
    naive = evaluate(cost, q, spread(q)).movedim(0, -1)
    torch.testing.assert_close(all_costs(cost, q), naive)
    z = q.sample(generator=torch.Generator().manual_seed(2))
    if not isinstance(q, Variables):
        with pytest.raises(ValueError, match="has no single changes") as error:
            single_changes(cost, q, z)
        assert "\n" not in str(error.value)
        return
    table = single_changes(cost, q, z)
    assert table.shape == q.table_shape
    one_hot = z if q.event_dims == 2 else torch.stack([1 - z, z], -1)
    for variable, value in itertools.product(range(q.variables), range(q.values)):
        changed = one_hot.clone()
        changed[:, variable] = torch.eye(q.values)[value].double()
        changed = changed if q.event_dims == 2 else changed[..., 1]
        torch.testing.assert_close(table[:, variable, value], evaluate(cost, q, changed).detach())


def test_one_value_has_no_changes():
    q = Categorical(torch.zeros(3, 2, 1), event_dims=2)
    z = q.mode()
    assert torch.equal(single_changes(lambda z: z.sum((-2, -1)), q, z), torch.full((3, 2, 1), 2.0))


def test_a_cost_of_ones_own_with_better_answers_is_asked_for_them():
    class Own:
        def __call__(self, z: Tensor) -> Tensor:
            raise AssertionError("not asked")

        def table(self, latent: Latent) -> Tensor:
            return torch.ones(*latent.batch_shape, latent.values)

        def all(self, latent: Latent) -> Tensor:
            return 2 * torch.ones(*latent.batch_shape, latent.num_states)

        def single_changes(self, latent: Latent, z: Tensor) -> Tensor:
            return 3 * torch.ones(latent.table_shape)

    one, bits = LATENTS["categorical"](5), LATENTS["bits"](5)
    assert bool((table(Own(), one) == 1).all())
    assert bool((all_costs(Own(), one) == 1).all())
    assert bool((single_changes(Own(), one, one.mode()) == 1).all())
    assert bool((all_costs(Own(), bits) == 2).all())
    assert bool((single_changes(Own(), bits, bits.mode()) == 3).all())


@pytest.mark.parametrize("batch", [(), (0,), (5,), (2, 3)])
def test_table_cost(batch):
    values = normal(*batch, 4).requires_grad_()
    q, cost = LATENTS["categorical"](*batch), TableCost(values)
    for found in (table(cost, q), all_costs(cost, q)):
        assert torch.equal(found, values)
    assert torch.equal(single_changes(cost, q, q.mode()), values.detach())
    assert not single_changes(cost, q, q.mode()).requires_grad
    z = q.sample((3,), generator=torch.Generator().manual_seed(10))
    torch.testing.assert_close(evaluate(cost, q, z), (values * z).sum(-1))
    assert torch.equal(torch.autograd.grad(table(cost, q).sum(), values)[0], torch.ones_like(values))


def test_one_table_for_the_whole_batch():
    q, values = LATENTS["categorical"](2, 5), normal(4)
    assert torch.equal(table(TableCost(values), q), values.expand(2, 5, 4))
    assert torch.equal(table(TableCost(values.expand(1, 4)), q), values.expand(2, 5, 4))


@pytest.mark.parametrize("name", LATENTS)
def test_costs_add(name):
    q = LATENTS[name](5)
    decoder = Decoder(q.event_shape, (7,))
    likelihood = Reconstruction(data("bernoulli", 5, 7), decoder)
    weights = normal(*q.event_shape, seed=11)
    event = tuple(range(-q.event_dims, 0))

    def penalty(z: Tensor) -> Tensor:
        return (z * weights).sum(event).cos()

    z = q.sample((2,), generator=torch.Generator().manual_seed(12))
    sums = (likelihood + penalty, penalty + likelihood, likelihood + penalty + penalty + likelihood)
    for total, copies in zip(sums, (1, 1, 2), strict=True):
        for ask in (
            lambda cost: evaluate(cost, q, z),
            lambda cost: all_costs(cost, q),
            lambda cost: single_changes(cost, q, z[0]),
        ):
            torch.testing.assert_close(ask(total), copies * (ask(likelihood) + ask(penalty)))
    if q.is_one_of_k:
        both = likelihood + TableCost(normal(5, 4))
        decoder.calls.clear()
        torch.testing.assert_close(table(both, q), table(likelihood, q) + normal(5, 4))
        assert decoder.calls == [4, 4]


# ----------------------------------------------------------------------------------------------------------- errors

Q = Categorical(torch.zeros(5, 4))
TABLE = TableCost(torch.zeros(5, 4))
IMAGES = torch.zeros(5, 7)


def linear(z: Tensor) -> Tensor:
    return torch.zeros(len(z), 7)


ERRORS = {
    "a cost that sums the batch": (lambda: evaluate(lambda z: z.sum(), Q, Q.mode()), ["(5,)", "()", "per structure"]),
    "a cost that keeps the event": (lambda: evaluate(lambda z: z, Q, Q.mode()), ["(5,)", "(5, 4)", "event"]),
    "a cost that returns a number": (lambda: evaluate(lambda z: 1.0, Q, Q.mode()), ["float", "tensor"]),
    "while enumerating": (lambda: all_costs(lambda z: z.sum(-1)[0], Q), ["(4, 5)", "(5,)"]),
    "while changing": (
        lambda: single_changes(lambda z: z.sum(), Bits(torch.zeros(5, 4)), torch.zeros(5, 4)),
        ["()", "(5,)"],
    ),
    "in a sum": (lambda: evaluate(TABLE + (lambda z: z.mean()), Q, Q.mode()), ["(5,)", "()", "per structure"]),
    "too many to enumerate": (lambda: all_costs(lambda z: z.sum(-1), Bits(torch.zeros(40))), ["2^40", "Reinforce"]),
    "unknown likelihood": (
        lambda: Reconstruction(IMAGES, linear, "poisson"),
        ["'poisson'", '"bernoulli"'],
    ),
    "too many batch dimensions": (lambda: Reconstruction(IMAGES, linear, batch_dims=3), ["batch_dims=3", "(5, 7)"]),
    "negative batch dimensions": (lambda: Reconstruction(IMAGES, linear, batch_dims=-1), ["batch_dims=-1"]),
    "no scale": (lambda: Reconstruction(IMAGES, linear, "gaussian", scale=0.0), ["scale", "> 0", "0.0"]),
    "NaN scale": (lambda: Reconstruction(IMAGES, linear, "gaussian", scale=math.nan), ["scale", "nan"]),
    "a scale for bernoulli": (lambda: Reconstruction(IMAGES, linear, scale=2.0), ["gaussian", "2.0", "bernoulli"]),
    "classes as floats": (lambda: Reconstruction(IMAGES, linear, "categorical"), ["float32", ".long()"]),
    "a decoder of another size": (
        lambda: Reconstruction(torch.zeros(5, 8), linear)(Q.mode()),
        ["5 codes", "(5, 7)", "(5, 8)", "[N, 8]"],
    ),
    "a decoder without classes": (
        lambda: Reconstruction(IMAGES.long(), linear, "categorical")(Q.mode()),
        ["(5, 7)", "[N, classes, 7]"],
    ),
    "another decoder in a table": (lambda: table(Reconstruction(torch.zeros(5, 8), linear), Q), ["4 codes", "[N, 8]"]),
    "z of another batch": (lambda: evaluate(Reconstruction(IMAGES, linear), Q, torch.zeros(6, 4)), ["(6,)", "(5,)"]),
    "z without the batch": (lambda: Reconstruction(IMAGES, linear)(torch.zeros(6, 4)), ["(6, 4)", "(5,)"]),
    "a latent of another batch": (
        lambda: table(Reconstruction(IMAGES, linear), Categorical(torch.zeros(6, 4))),
        ["(6,)", "(5,)"],
    ),
    "one example for a batch of latents": (
        lambda: table(Reconstruction(IMAGES[:1], linear), Q),
        ["(5,)", "(1,)"],
    ),
    "TableCost of integers": (lambda: TableCost(torch.zeros(3).long()), ["int64", "[*batch, k]"]),
    "TableCost of a number": (lambda: TableCost(torch.tensor(1.0)), ["()", "[*batch, k]"]),
    "TableCost of another k": (lambda: TABLE(torch.zeros(5, 3)), ["4 codes", "3 values"]),
    "TableCost for another k": (lambda: table(TABLE, Categorical(torch.zeros(5, 3))), ["4 codes", "3 values"]),
    "TableCost for several variables": (
        lambda: all_costs(TABLE, Categorical(torch.zeros(5, 2, 4), event_dims=2)),
        ["4 codes", "several variables", "function of z"],
    ),
    "TableCost for bits": (
        lambda: single_changes(TableCost(torch.zeros(5, 2)), Bits(torch.zeros(5, 2)), torch.zeros(5, 2)),
        ["several variables", "function of z"],
    ),
    "TableCost of one bit": (lambda: all_costs(TableCost(torch.zeros(5, 1)), Bits(torch.zeros(5, 1))), ["1 codes"]),
    "TableCost of another batch": (lambda: table(TABLE, Categorical(torch.zeros(6, 4))), ["(5, 4)", "batch=(6,)"]),
    "TableCost with a bigger batch": (lambda: table(TABLE, Categorical(torch.zeros(1, 4))), ["(5, 4)", "batch=(1,)"]),
    "TableCost with more dimensions": (lambda: table(TABLE, Categorical(torch.zeros(4))), ["(5, 4)", "batch=()"]),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_one_clear_line(case):
    call, words = ERRORS[case]
    with pytest.raises(ValueError, match=r".") as error:
        call()
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 300
    for word in words:
        assert word in message, message


def test_a_wrong_answer_of_ones_own_cost_is_caught():
    class Own:
        def __call__(self, z: Tensor) -> Tensor:
            return z.sum(-1)

        def table(self, latent: Latent) -> Tensor:
            return torch.zeros(latent.values)

        def single_changes(self, latent: Latent, z: Tensor) -> Tensor:
            return torch.zeros(latent.values)

    with pytest.raises(ValueError, match=r"cost\.table\(latent\).*\(5, 4\).*\(4,\)"):
        table(Own(), Q)
    bits = Bits(torch.zeros(5, 3))
    with pytest.raises(ValueError, match=r"cost\.single_changes.*\(5, 3, 2\)"):
        single_changes(Own(), bits, bits.mode())


def test_only_costs_are_added():
    for other in (0, 1.5, None):
        with pytest.raises(TypeError, match="unsupported operand"):
            TABLE + other
        with pytest.raises(TypeError, match="unsupported operand"):
            other + TABLE


def test_check_shape_returns_what_fits():
    value = torch.zeros(2, 3)
    assert check_shape(value, (2, 3), "it") is value


@pytest.mark.parametrize(("scale", "offset"), [(0.01, 0.0), (1.0, 1000.0)])
def test_gaussian_costs_keep_their_digits_in_float32(scale, offset):
    """Means near x with a small scale, or data far from zero: the expanded square would lose nats."""
    generator = torch.Generator().manual_seed(0)
    x = offset + torch.rand(4, 784, generator=generator)
    means = x[:3] + scale * torch.randn(3, 784, generator=generator)
    cost = Reconstruction(x, lambda codes: codes @ means, "gaussian", scale=scale)
    exact = Reconstruction(x.double(), lambda codes: codes @ means.double(), "gaussian", scale=scale)
    latent = Categorical(torch.zeros(4, 3))
    z = torch.eye(3)[[0, 1, 2, 0]]
    near = torch.arange(3), torch.arange(3)
    torch.testing.assert_close(cost(z).double(), exact(z.double()), rtol=1e-4, atol=0.1)
    table = cost.table(latent).double(), exact.table(Categorical(torch.zeros(4, 3, dtype=torch.float64)))
    torch.testing.assert_close(table[0][near], table[1][near], rtol=1e-3, atol=1.0)
