"""What every structured latent promises: one contract, run on each family under both laws."""

import math

import pytest
import torch
from torch import Tensor

from argrad import Bits, Categorical, Chain, Latent, PairwiseBits, Permutation, SpanningTree, Subset, Unavailable
from argrad.latents import MAX_STATES, Factorised, Structured, Variables
from problems import assert_mean
from structured_latents import CASES, FILLED, PLAIN, listed, normal, spread
from structures import assert_law, assert_listed, capture

every_case = pytest.mark.parametrize("name", CASES)
filled = pytest.mark.parametrize("name", FILLED)
plain = pytest.mark.parametrize("name", PLAIN)
both_laws = pytest.mark.parametrize("law", ["gibbs", "perturb"])
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


@every_case
@both_laws
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shapes_and_precisions(name, law, dtype):
    q = CASES[name](*(parameter.to(dtype) for parameter in CASES[name].parameters), law=law)
    batch, event = q.batch_shape, q.event_shape
    assert q.scores.shape == (*batch, *event)
    noise = q.draw_noise((3,), generator=torch.Generator().manual_seed(0))
    assert noise.shape == (3, *q.noise_shape)
    z = q.sample(noise=noise)
    assert z.shape == (3, *batch, *event)
    assert q.sample((2, 1), generator=torch.Generator().manual_seed(0)).shape == (2, 1, *batch, *event)
    assert q.mode().shape == (*batch, *event)
    assert q.score(z).shape == (3, *batch)
    assert q.enumerate().shape == (q.num_states, *event)
    assert q.expand(4, 5).sample(generator=torch.Generator().manual_seed(0)).shape == (4, 5, *batch, *event)
    results = [z, q.mode(), q.score(z), q.enumerate()]
    if law == "gibbs":
        assert q.log_prob(z).shape == (3, *batch)
        assert q.entropy().shape == q.kl().shape == q.log_partition().shape == batch
        assert q.mean().shape == (*batch, *event)
        assert q.log_prob_all().shape == (*batch, q.num_states)
        results += [q.log_prob(z), q.entropy(), q.kl(), q.kl(q), q.log_partition(), q.mean(), q.log_prob_all()]
    assert all(result.dtype == dtype for result in results)
    assert not any(result.requires_grad for result in results)


@filled
def test_everything_by_enumeration(name):
    q = CASES[name]()
    states, log_p = q.enumerate(), listed(q)
    p = log_p.exp()
    assert_listed(states, states)
    assert len(states.unique(dim=0)) == q.num_states
    torch.testing.assert_close(q.log_prob_all(), log_p, **CLOSE)
    torch.testing.assert_close(q.log_prob(spread(q)).movedim(0, -1), log_p, **CLOSE)
    torch.testing.assert_close(q.log_prob_all().exp().sum(-1), torch.ones_like(q.entropy()), **CLOSE)
    total = torch.where(p > 0, p * log_p, 0.0).sum(-1)
    torch.testing.assert_close(q.entropy(), -total, **CLOSE)
    torch.testing.assert_close(q.kl(), total + math.log(q.num_states), **CLOSE)
    torch.testing.assert_close(q.kl(q), torch.zeros_like(total), **CLOSE)
    marginals = (p @ states.flatten(1)).reshape(*q.batch_shape, *q.event_shape)
    torch.testing.assert_close(q.mean(), marginals, **CLOSE)
    best = log_p.amax(-1)
    torch.testing.assert_close(q.log_prob(q.mode()), best, **CLOSE)
    torch.testing.assert_close(q.with_law("perturb").mode(), q.mode())


@filled
def test_kl_to_another_by_enumeration(name):
    case = CASES[name]
    q, prior = case(), case(*(0.5 * parameter.clamp_min(-9) + 0.3 for parameter in case.parameters))
    p, log_p = listed(q).exp(), listed(q)
    expected = torch.where(p > 0, p * (log_p - listed(prior)), 0.0).sum(-1)
    torch.testing.assert_close(q.kl(prior), expected, **CLOSE)


@filled
def test_gradients_for_all_parameters_by_enumeration(name):
    case = CASES[name]
    z = case().sample((3,), generator=torch.Generator().manual_seed(1))
    weights = normal(*case().event_shape, seed=2)
    prior = case(*(0.5 * parameter.clamp_min(-9) for parameter in case.parameters))

    def ours(q: Structured) -> list[Tensor]:
        return [q.log_prob(z), q.entropy(), q.kl(), q.kl(prior), (q.mean() * weights).sum()]

    def theirs(q: Structured) -> list[Tensor]:
        log_p = listed(q)
        p = log_p.exp()
        safe = torch.where(p > 0, log_p, 0.0)
        gap = torch.where(p > 0, log_p - listed(prior), 0.0)
        normaliser = q.score(spread(q)).movedim(0, -1).logsumexp(-1)
        entropy = -(p * safe).sum(-1)
        return [
            q.score(z) - normaliser,
            entropy,
            math.log(q.num_states) - entropy,
            (p * gap).sum(-1),
            (p @ (q.enumerate() * weights).flatten(1).sum(-1)).sum(),
        ]

    for index in range(5):
        results = []
        for function in (ours, theirs):
            leaves = case.leaves()
            value = function(case(*leaves))[index].sum()
            if not value.requires_grad:  # one structure, whatever the scores
                results.append(tuple(torch.zeros_like(leaf) for leaf in leaves))
                continue
            gradients = torch.autograd.grad(value, leaves, allow_unused=True)
            results.append(
                tuple(torch.zeros_like(x) if g is None else g for g, x in zip(gradients, leaves, strict=True))
            )
        for found, expected in zip(*results, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-8)


@plain
def test_finite_differences(name):
    case = CASES[name]
    z = case().sample(generator=torch.Generator().manual_seed(1))
    prior = case(*(0.5 * parameter for parameter in case.parameters))

    def function(*parameters: Tensor) -> tuple[Tensor, ...]:
        q = case(*parameters, validate=False)
        return q.score(z), q.log_prob(z), q.entropy(), q.kl(prior), q.mean(), q.log_prob_all()

    assert torch.autograd.gradcheck(function, case.leaves(), fast_mode=True)


SAMPLED = [name for name in FILLED if "batch of two" not in name]


@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exact_samples_follow_the_law(name, dtype):
    q = CASES[name](*(parameter.to(dtype) for parameter in CASES[name].parameters))
    z = q.sample((20_000,), generator=torch.Generator().manual_seed(3))
    total = listed(CASES[name]()).reshape(-1, q.num_states)
    z = z.reshape(20_000, -1, *q.event_shape)
    for example in range(len(total)):
        assert_law(z[:, example], total[example], q.enumerate(), comparisons=2 * 2 * len(SAMPLED))


@filled
@both_laws
def test_noise_decides_the_sample(name, law):
    q = CASES[name](law=law)
    noise = q.draw_noise((5,), generator=torch.Generator().manual_seed(4))
    z = q.sample(noise=noise)
    assert torch.equal(z, q.sample((5,), generator=torch.Generator().manual_seed(4)))
    for i in range(5):
        assert torch.equal(q.sample(noise=noise[i]), z[i])
    assert_listed(z, q.enumerate())
    assert bool((q.score(z) > -torch.inf).all())


@filled
def test_perturbed_samples_are_arg_maxes(name):
    q = CASES[name](law="perturb")
    noise = q.draw_noise((200,), generator=torch.Generator().manual_seed(5))
    assert noise.shape == (200, *q.scores.shape)
    perturbed = q.with_scores(q.scores + noise)
    best = perturbed.score(spread(perturbed)).amax(0)
    torch.testing.assert_close(perturbed.score(q.sample(noise=noise)), best, **CLOSE)
    torch.testing.assert_close(q.solve(q.scores + noise), q.sample(noise=noise))


@plain
def test_perturbed_samples_have_no_probabilities(name):
    q = CASES[name](law="perturb")
    z = q.mode()
    calls = {
        "log_prob": (lambda: q.log_prob(z), "bounds log Z"),
        "log_partition": (q.log_partition, "bounds log Z"),
        "kl": (q.kl, "bounds log Z"),
        "log_prob_all": (q.log_prob_all, "bounds log Z"),
        "entropy": (q.entropy, "bounds it"),
        "mean": (q.mean, "average samples"),
    }
    for what, (call, substitute) in calls.items():
        with pytest.raises(Unavailable, match=what) as error:
            call()
        message = str(error.value)
        assert substitute in message
        assert 'law="gibbs"' in message
        assert "\n" not in message
        assert len(message) < 260


@pytest.mark.parametrize("name", [name for name in CASES if "impossible" in name])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_impossible_parts_bring_no_nan(name, dtype):
    case = CASES[name]
    leaves = tuple(parameter.to(dtype, copy=True).requires_grad_() for parameter in case.parameters)
    q = case(*leaves)
    z = q.sample((50,), generator=torch.Generator().manual_seed(6))
    possible = case(*(parameter.to(dtype).clamp_min(-3) for parameter in case.parameters))
    values = [q.log_prob(z), q.entropy(), q.kl(), q.kl(possible), q.mean(), q.log_prob_all().exp()]
    for value in values:
        assert bool(value.isfinite().all())
        gradients = torch.autograd.grad(value.sum(), leaves, retain_graph=True, allow_unused=True)
        assert all(bool(gradient.isfinite().all()) for gradient in gradients if gradient is not None)
    never = possible.kl(q)
    assert bool((never == torch.inf).all())
    assert bool((q.log_prob_all() == -torch.inf).any())


@pytest.mark.parametrize("name", [name for name in CASES if "impossible" in name])
def test_impossible_parts_get_no_gradient(name):
    case = CASES[name]
    leaves = case.leaves()
    q = case(*leaves)
    z = q.sample((50,), generator=torch.Generator().manual_seed(6))
    (q.log_prob(z).sum() + q.entropy().sum() + q.mean().square().sum()).backward()
    for leaf in leaves:
        assert bool((leaf.grad[leaf == -torch.inf] == 0).all())


@plain
def test_huge_scores(name):
    case = CASES[name]
    q = case(*(1e4 * parameter.float() for parameter in case.parameters))
    z = q.sample((10,), generator=torch.Generator().manual_seed(7))
    assert torch.equal(z, q.mode().expand_as(z))
    for value in (q.entropy(), q.mean(), q.kl(), q.log_prob(z)):
        assert bool(value.isfinite().all())


@plain
def test_half_precision(name):
    case = CASES[name]
    q = case(*(parameter.bfloat16() for parameter in case.parameters))
    z = q.sample((4,), generator=torch.Generator().manual_seed(8))
    exact = case(*(parameter.bfloat16().double() for parameter in case.parameters))
    assert z.dtype == torch.bfloat16
    for half, full in ((q.entropy(), exact.entropy()), (q.mean(), exact.mean())):
        torch.testing.assert_close(half.double(), full, rtol=0.02, atol=0.02)
    noise = q.draw_noise(generator=torch.Generator().manual_seed(8))
    assert noise.dtype == torch.float32


@plain
def test_a_users_solver_is_asked(name):
    case = CASES[name]
    seen = []

    def solver(*scores: Tensor) -> Tensor:
        seen.append([tuple(given.shape) for given in scores])
        assert not any(given.requires_grad for given in scores)
        return case(scores[0], *case.parameters[1:], validate=False).mode()

    q = case(*case.leaves(), solver=solver, law="perturb")
    noise = q.draw_noise((3,), generator=torch.Generator().manual_seed(9))
    plain_q = case(law="perturb")
    assert torch.equal(q.sample(noise=noise), plain_q.sample(noise=noise))
    assert torch.equal(q.mode(), plain_q.mode())
    assert len(seen) == 2
    assert len(seen[0]) == len(case.parameters)
    with pytest.raises(ValueError, match="the solver must return a tensor of"):
        case(solver=lambda *scores: torch.zeros(1)).mode()


@plain
def test_with_scores_keeps_the_rest(name):
    q = CASES[name](law="perturb", solver=lambda *scores: torch.zeros_like(scores[0]))
    other = q.with_scores(q.scores.expand(3, *q.scores.shape))
    assert other.batch_shape == (3, *q.batch_shape)
    assert (other.law, other.solver) == (q.law, q.solver)
    assert repr(other.with_law("gibbs")) == repr(q).replace("batch=(2,)", "batch=(3, 2)").replace("perturb", "gibbs")
    assert len(other.parameters) == len(CASES[name].parameters)
    assert other.parameters[1:] == q.parameters[1:]


@plain
def test_requires_grad_looks_at_all_parameters(name):
    case = CASES[name]
    assert not case().requires_grad
    for index in range(len(case.parameters)):
        leaves = [x.clone().requires_grad_(i == index) for i, x in enumerate(case.parameters)]
        assert case(*leaves).requires_grad


TRANSFORMED = ["pairwise bits", "subset", "permutation", "chain"]


def everything(q: Structured, noise: Tensor) -> tuple[Tensor, ...]:
    z = q.sample(noise=noise)
    return z, q.score(z), q.log_prob(z), q.entropy(), q.kl(), q.mean(), q.log_prob_all()


@pytest.mark.parametrize("name", TRANSFORMED)
def test_vmap_over_the_batch(name):
    case = CASES[name]
    q = case()
    noise = q.draw_noise(generator=torch.Generator().manual_seed(10))
    in_dims = (0, tuple(0 if parameter.dim() > 2 or i == 0 else None for i, parameter in enumerate(case.parameters)))
    mapped = torch.vmap(lambda n, given: everything(case(*given), n), in_dims=in_dims)(noise, case.parameters)
    for ours, expected in zip(mapped, everything(q, noise), strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("name", ["pairwise bits", "subset", "chain"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
def test_compiles_without_graph_breaks(name):
    case = CASES[name]
    noise = case().draw_noise(generator=torch.Generator().manual_seed(11))

    def function(*parameters: Tensor) -> tuple[Tensor, ...]:
        return everything(case(*parameters, validate=False), noise)

    torch.compiler.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    for ours, expected in zip(compiled(*case.parameters), function(*case.parameters), strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", TRANSFORMED)
def test_cuda_graph_capture(name):
    case = CASES[name]
    others = [parameter.cuda() for parameter in case.parameters[1:]]
    noise = case(case.parameters[0].cuda(), *others).draw_noise()

    def function(scores: Tensor) -> Tensor:
        q = case(scores, *others, validate=False)
        return torch.cat([part.flatten() for part in everything(q, noise)])

    scores = case.parameters[0].cuda()
    torch.testing.assert_close(capture(function, scores), function(scores))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@plain
def test_same_numbers_on_gpu(name):
    case = CASES[name]
    q, there = case(), case(*(parameter.cuda() for parameter in case.parameters))
    noise = q.draw_noise((100,), generator=torch.Generator().manual_seed(12))
    for here, far in zip(everything(q, noise), everything(there, noise.cuda()), strict=True):
        torch.testing.assert_close(far.cpu(), here)
    torch.testing.assert_close(there.mode().cpu(), q.mode())


# ---------------------------------------------------------------------------------------------------------------- kinds


def test_kinds():
    assert issubclass(PairwiseBits, Variables)
    assert issubclass(Chain, Variables)
    for cls in (Subset, Permutation, SpanningTree):
        assert not issubclass(cls, Variables)
    for cls in (PairwiseBits, Chain, Subset, Permutation, SpanningTree):
        assert issubclass(cls, Structured)
        assert not issubclass(cls, Factorised)
    assert issubclass(Bits, Factorised)
    assert issubclass(Categorical, Factorised)


@pytest.mark.parametrize("cls", [Latent, Variables, Factorised, Structured])
def test_classes_are_abstract_or_final(cls):
    with pytest.raises(TypeError, match="abstract"):
        cls()


# ----------------------------------------------------------------------------------------------------------- validation

NAN, INF = float("nan"), torch.inf
ZEROS = torch.zeros(2, 3, 3)
BAD = {
    "NaN": (lambda: Subset(torch.tensor([0.0, NAN]), 1), ["Subset", "NaN", "(1,)"]),
    "+inf": (lambda: Permutation(torch.tensor([[0.0, INF], [0.0, 0.0]])), ["Permutation", "+inf", "(0, 1)"]),
    "NaN of a tree": (lambda: SpanningTree(torch.full((3, 3), NAN)), ["SpanningTree", "NaN"]),
    "NaN of a chain": (lambda: Chain(torch.zeros(2, 2), torch.full((2, 2), NAN)), ["Chain", "NaN"]),
    "NaN of pairwise bits": (lambda: PairwiseBits(torch.zeros(2), torch.full((2, 2), NAN)), ["pairwise", "nan"]),
    "too few possible items": (
        lambda: Subset(torch.tensor([[0.0, 0.0, 0.0], [0.0, -INF, -INF]]), 2),
        ["Subset", "no possible structure", "(1,)", "possible"],
    ),
    "no possible permutation": (
        lambda: Permutation(torch.tensor([[0.0, -INF], [0.0, -INF]])),
        ["Permutation", "no possible structure", "column of its own"],
    ),
    "no possible tree": (
        lambda: SpanningTree(torch.full((3, 3), -INF)),
        ["SpanningTree", "no possible structure", "join all nodes"],
    ),
    "no possible directed tree": (
        lambda: SpanningTree(torch.full((3, 3), -INF), directed=True),
        ["SpanningTree", "no possible structure", "reachable"],
    ),
    "no possible chain": (
        lambda: Chain(torch.zeros(2, 2), torch.full((2, 2), -INF)),
        ["Chain", "no possible structure", "possible steps"],
    ),
    "integers": (lambda: Subset(torch.zeros(3, dtype=torch.long), 1), ["Subset", "int64", ".float()"]),
    "not square": (lambda: Permutation(torch.zeros(2, 3)), ["Permutation", "[*batch, n, n]", "(2, 3)"]),
    "no items": (lambda: Subset(torch.zeros(2, 0), 0), ["Subset", "[*batch, n]", "(2, 0)"]),
    "a size too large": (lambda: Subset(torch.zeros(3), 4), ["size", "0", "n=3", "4"]),
    "half a size": (lambda: Subset(torch.zeros(3), 1.5), ["size", "1.5"]),
    "pairwise scores of another size": (
        lambda: PairwiseBits(torch.zeros(3), torch.zeros(2, 2)),
        ["[*batch, n, n]", "(3,)", "(2, 2)"],
    ),
    "batches that disagree": (lambda: PairwiseBits(torch.zeros(2, 3), torch.zeros(5, 3, 3)), ["(2,)", "(5,)"]),
    "chains that disagree": (lambda: Chain(ZEROS, torch.zeros(5, 2, 3, 3)), ["Chain", "(2, 3, 3)", "batch"]),
    "steps of another size": (lambda: Chain(ZEROS, torch.zeros(2, 2)), ["Chain", "[3, 3]", "(2, 2)"]),
    "a root out of range": (lambda: SpanningTree(ZEROS, directed=True, root=3), ["root", "n=3", "3"]),
    "a root without direction": (lambda: SpanningTree(ZEROS, root=1), ["root=1", "directed=True"]),
    "a law of another name": (lambda: Permutation(ZEROS, law="gumbel"), ["gibbs", "perturb", "gumbel"]),
    "a solver of another name": (lambda: Permutation(ZEROS, solver="hungarian"), ["auto", "function", "hungarian"]),
    "a pairwise solver of another name": (
        lambda: PairwiseBits(torch.zeros(2), torch.zeros(2, 2), solver="cplex").mode(),
        ["auto", "max-flow", "cplex"],
    ),
    "noise of another shape": (lambda: Permutation(ZEROS).sample(noise=torch.zeros(3, 3)), ["(3, 3)", "draw_noise"]),
    "noise of the other law": (
        lambda: PairwiseBits(torch.zeros(2, 3), torch.zeros(3, 3)).sample(noise=torch.zeros(2, 3)),
        ["(2, 3)", "[*extra, 2, 6]", "draw_noise"],
    ),
    "z of another shape": (lambda: Permutation(ZEROS).score(torch.zeros(2, 2)), ["(2, 2)", "Permutation"]),
    "a prior of another family": (lambda: Permutation(ZEROS).kl(SpanningTree(ZEROS)), ["same family", "SpanningTree"]),
    "a prior of another size": (
        lambda: Subset(torch.zeros(3), 1).kl(Subset(torch.zeros(3), 2)),
        ["same family", "size=1", "size=2"],
    ),
    "a prior of another law": (
        lambda: Permutation(ZEROS).kl(Permutation(ZEROS, law="perturb")),
        ["law", "'perturb'"],
    ),
    "too many to list": (lambda: Permutation(torch.zeros(30, 30)).enumerate(), ["over 2^107", f"{MAX_STATES:,}"]),
    "too many subsets": (lambda: Subset(torch.zeros(30), 15).log_prob_all(), ["155,117,520", "Direct"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_calls_are_one_clear_line(case):
    call, words = BAD[case]
    with pytest.raises(ValueError, match=r".") as error:
        call()
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 250
    for word in words:
        assert word in message, message


@pytest.mark.parametrize(
    ("call", "limit"),
    [
        (lambda: PairwiseBits(torch.zeros(21), torch.zeros(21, 21)).sample(), "20 bits"),
        (lambda: PairwiseBits(torch.zeros(21), torch.zeros(21, 21)).kl(), "20 bits"),
        (lambda: Permutation(torch.zeros(17, 17)).entropy(), "16 rows"),
        (lambda: Permutation(torch.zeros(17, 17)).sample(), "16 rows"),
    ],
)
def test_beyond_exact_inference(call, limit):
    with pytest.raises(Unavailable, match='use law="perturb"') as error:
        call()
    assert limit in str(error.value)
    assert "\n" not in str(error.value)


def test_beyond_exact_inference_the_other_law_works():
    big = PairwiseBits(normal(30), normal(30, 30, seed=1), law="perturb")
    assert big.sample((2,), generator=torch.Generator().manual_seed(0)).shape == (2, 30)
    assert Permutation(normal(20, 20), law="perturb").sample(generator=torch.Generator().manual_seed(0)).sum() == 20
    assert PairwiseBits(normal(30), normal(30, 30, seed=1)).mode().shape == (30,)


def test_validation_can_be_switched_off():
    for build in (
        lambda **options: Subset(torch.full((3,), NAN), 1, **options),
        lambda **options: Permutation(torch.full((2, 2), -INF), **options),
        lambda **options: SpanningTree(torch.full((3, 3), -INF), **options),
        lambda **options: Chain(torch.full((2, 2), -INF), torch.zeros(2, 2), **options),
        lambda **options: PairwiseBits(torch.full((2,), NAN), torch.zeros(2, 2), **options),
    ):
        with pytest.raises(ValueError, match=r"NaN|nan|no possible"):
            build()
        build(validate=False)


def test_names_without_numbers():
    assert repr(CASES["pairwise bits"]()) == "PairwiseBits(batch=(2,), variables=4, law='gibbs')"
    assert repr(CASES["subset"]()) == "Subset(batch=(2,), items=5, size=2, law='gibbs')"
    assert repr(CASES["permutation"]()) == "Permutation(batch=(2,), rows=4, law='gibbs')"
    assert repr(CASES["tree"]()) == "SpanningTree(batch=(2,), nodes=4, directed=False, law='gibbs')"
    assert repr(CASES["directed tree"]()) == "SpanningTree(batch=(2,), nodes=4, directed=True, root=1, law='gibbs')"
    assert repr(CASES["chain"](law="perturb")) == "Chain(batch=(2,), variables=3, values=3, law='perturb')"


@pytest.mark.parametrize("name", [name for name in PLAIN if issubclass(type(CASES[name]()), Variables)])
def test_single_changes(name):
    q = CASES[name]()
    z = q.sample(generator=torch.Generator().manual_seed(13))
    changed = q.change(z, torch.arange(q.num_changes))
    assert_listed(changed, q.enumerate())
    moved = (changed != z).flatten(2).any(-1)
    assert bool(moved.all())
    weights = normal(*q.event_shape, seed=14)
    event = tuple(range(-q.event_dims, 0))

    def cost(z: Tensor) -> Tensor:
        return (z * weights).sum(event)

    table = q.tabulate_changes(z, cost(z), cost(changed))
    assert table.shape == q.table_shape
    away = (q.linear(table) - weights).detach()
    if q.event_dims == 2:  # up to a constant for each variable
        away = away - away.mean(-1, keepdim=True)
    torch.testing.assert_close(away, torch.zeros_like(away))


def test_marginals_by_sampling_agree():
    for name in PLAIN:
        q = CASES[name]()
        assert_mean(q.sample((20_000,), generator=torch.Generator().manual_seed(15)), q.mean(), comparisons=len(PLAIN))


def test_every_edge_that_is_not_read_may_be_anything():
    scores = normal(4, 4)
    for q in (SpanningTree(scores), SpanningTree(scores, directed=True, root=2)):
        unread = torch.ones(4, 4, dtype=torch.bool).tril() if not q.directed else torch.eye(4, dtype=torch.bool)
        if q.directed:
            unread[:, 2] = True
        wild = scores.masked_fill(unread, NAN).requires_grad_()
        other = SpanningTree(wild, directed=q.directed, root=q.root)
        z = q.sample((3,), generator=torch.Generator().manual_seed(16))
        torch.testing.assert_close(other.log_prob(z), q.log_prob(z))
        torch.testing.assert_close(other.log_prob_all(), q.log_prob_all())
        torch.testing.assert_close(other.entropy(), q.entropy())
        (gradient,) = torch.autograd.grad(other.kl(q) + other.log_prob(z).sum(), wild)
        assert bool(gradient.isfinite().all())
        assert bool((gradient[unread] == 0).all())
