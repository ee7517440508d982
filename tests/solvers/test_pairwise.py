"""What all pairwise solvers have in common, and how "auto" chooses."""

import sys

import pytest
import torch

from argrad.solvers import (
    compiled,
    matching,
    pairwise_branch_and_bound,
    pairwise_by_branch_and_bound,
    pairwise_by_enumeration,
    pairwise_by_local_search,
    pairwise_by_max_flow,
    pairwise_score,
    solve_pairwise,
)
from argrad.solvers.pairwise import NAMED, choose_pairwise_solver
from pairwise_problems import assert_optimal, make, score

pytestmark = pytest.mark.xdist_group("compiled pairwise solvers")

SOLVERS = {
    "auto": solve_pairwise,
    "enumeration": pairwise_by_enumeration,
    "branch-and-bound": pairwise_by_branch_and_bound,
    "max-flow": pairwise_by_max_flow,
    "local-search": pairwise_by_local_search,
}


@pytest.fixture(params=SOLVERS)
def solve(request):
    return SOLVERS[request.param]


class TestEverySolver:
    @pytest.mark.parametrize("batch", [(), (0,), (1,), (4,), (2, 3), (2, 0, 3), (2, 1, 3)])
    @pytest.mark.parametrize("n", [1, 6])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_shapes(self, solve, batch, n, dtype):
        number = torch.Size(batch).numel()
        unary, pairwise = make("normal", number, n, attractive=True)
        unary, pairwise = unary.reshape(*batch, n).to(dtype), pairwise.reshape(*batch, n, n).to(dtype)
        z = solve(unary.requires_grad_(), pairwise)
        assert z.shape == (*batch, n)
        assert z.dtype == dtype
        assert not z.requires_grad
        if number:
            assert_optimal(
                lambda u, w: solve(u.reshape(unary.shape), w.reshape(pairwise.shape)).reshape(number, n),
                unary.detach().reshape(number, n),
                pairwise.reshape(number, n, n),
                rounding=1e-6,
            )

    @pytest.mark.parametrize(
        ("of_unary", "of_pairwise"), [((7, 3), (3,)), ((7, 3), ()), ((), (3,)), ((2, 1), (3,)), ((1, 3), (2, 1))]
    )
    def test_batches_broadcast(self, solve, of_unary, of_pairwise):
        unary, pairwise = make("normal", 30, 6, attractive=True)
        unary = unary[: torch.Size(of_unary).numel()].reshape(*of_unary, 6)
        pairwise = pairwise[: torch.Size(of_pairwise).numel()].reshape(*of_pairwise, 6, 6)
        batch = torch.broadcast_shapes(of_unary, of_pairwise)
        z = solve(unary, pairwise)
        assert z.shape == (*batch, 6)
        full = solve(unary.expand(*batch, 6).clone(), pairwise.expand(*batch, 6, 6).clone())
        torch.testing.assert_close(score(unary, pairwise, z), score(unary, pairwise, full), rtol=1e-12, atol=1e-12)

    def test_bits_ruled_out_are_zero(self, solve):
        unary, pairwise = make("normal", 20, 6, attractive=True)
        unary[:, 2] = -torch.inf
        unary[0] = -torch.inf
        z = solve(unary, pairwise)
        assert bool((z[:, 2] == 0).all())
        assert bool((z[0] == 0).all())
        rest = [0, 1, 3, 4, 5]
        short = solve(unary[1:, rest], pairwise[1:][:, rest][:, :, rest])
        torch.testing.assert_close(
            score(unary[1:], pairwise[1:], z[1:]), score(unary[1:, rest], pairwise[1:][:, rest][:, :, rest], short)
        )

    @pytest.mark.parametrize("bad", [torch.nan, torch.inf])
    def test_bad_unary_scores(self, solve, bad):
        unary = torch.zeros(3, 2)
        unary[1, 0] = bad
        with pytest.raises(ValueError, match=rf"unary scores hold {bad} in 1 of 6 places, first at index \(1, 0\)"):
            solve(unary, torch.zeros(3, 2, 2))

    @pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
    def test_bad_pairwise_scores(self, solve, bad):
        pairwise = torch.zeros(3, 2, 2)
        pairwise[1, 0, 1] = bad
        with pytest.raises(ValueError, match=rf"pairwise scores hold {bad} .* first at index \(1, 0, 1\)"):
            solve(torch.zeros(3, 2), pairwise)
        solve(torch.zeros(3, 2), pairwise.mT)  # below the diagonal nothing is read

    @pytest.mark.parametrize(
        ("unary", "pairwise", "message"),
        [
            (torch.zeros(2, dtype=torch.int64), torch.zeros(2, 2), "unary scores must be a floating-point tensor"),
            (torch.zeros(2), [[0, 1], [0, 0]], "pairwise scores must be a floating-point tensor, got list"),
            (torch.zeros(2), torch.zeros(3, 3), r"got shapes \(2,\) and \(3, 3\)"),
            (torch.zeros(0), torch.zeros(0, 0), "n at least 1"),
            (torch.tensor(1.0), torch.zeros(1, 1), "n at least 1"),
            (torch.zeros(2, 3), torch.zeros(4, 3, 3), r"do not broadcast: \(2,\) against \(4,\)"),
        ],
    )
    def test_wrong_shapes(self, solve, unary, pairwise, message):
        with pytest.raises(ValueError, match=message):
            solve(unary, pairwise)


class TestAuto:
    @pytest.mark.parametrize(
        ("n", "attractive", "chosen"),
        [
            (1, False, "enumeration"),
            (3, True, "enumeration"),
            (8, False, "branch-and-bound"),
            (8, True, "max-flow"),
            (40, False, "branch-and-bound"),
            (40, True, "max-flow"),
        ],
    )
    def test_chooses_by_signs_and_size(self, n, attractive, chosen):
        assert choose_pairwise_solver(*make("normal", 2, n, attractive=attractive)) == chosen

    @pytest.mark.parametrize("attractive", [False, True])
    @pytest.mark.parametrize("n", [1, 4, 5, 9])
    def test_is_exact(self, n, attractive):
        assert_optimal(solve_pairwise, *make("normal", 50, n, attractive=attractive))

    def test_enumerates_where_numbers_cannot_be_read(self):
        unary, pairwise = make("normal", 3, 8)
        expected = solve_pairwise(unary, pairwise)
        assert torch.equal(torch.compile(solve_pairwise, backend="eager", fullgraph=True)(unary, pairwise), expected)
        assert torch.equal(torch.vmap(solve_pairwise)(unary, pairwise), expected)
        assert (
            choose_pairwise_solver(torch.zeros(20, device="meta"), torch.zeros(20, 20, device="meta")) == "enumeration"
        )
        with pytest.raises(ValueError, match=r"40 bits cannot be solved exactly while compiling.*local-search"):
            choose_pairwise_solver(torch.zeros(40, device="meta"), torch.zeros(40, 40, device="meta"))

    def test_without_numba(self, monkeypatch):
        monkeypatch.setattr("argrad.solvers.pairwise.has_numba", lambda: False)
        assert choose_pairwise_solver(*make("normal", 2, 8)) == "enumeration"
        with pytest.raises(ImportError, match="pip install numba, or use solver='local-search'"):
            choose_pairwise_solver(*make("normal", 2, 40))

    def test_warns_where_it_cannot_prove(self, monkeypatch):
        def hurried(unary, pairwise, *, validate):
            return pairwise_by_branch_and_bound(unary, pairwise, node_limit=5, validate=validate)

        monkeypatch.setitem(NAMED, "branch-and-bound", hurried)
        with pytest.warns(UserWarning, match="stopped after 5 nodes"):
            solve_pairwise(*make("normal", 2, 30))

    @pytest.mark.parametrize("name", NAMED)
    def test_named(self, name):
        unary, pairwise = make("normal", 10, 6, attractive=True)
        assert_optimal(lambda u, w: solve_pairwise(u, w, name), unary, pairwise)

    def test_named_max_flow_refuses_negative_scores(self):
        with pytest.raises(ValueError, match="max-flow needs pairwise scores of at least 0"):
            solve_pairwise(*make("normal", 2, 6), "max-flow")

    def test_unknown_name(self):
        with pytest.raises(ValueError, match=r"'auto', 'enumeration', .* or a function, got 'cplex'"):
            solve_pairwise(torch.zeros(2), torch.zeros(2, 2), "cplex")


class TestOwnSolver:
    def test_is_called(self):
        unary, pairwise = make("normal", 4, 5)
        given = []

        def own(u, w):
            given.append((u, w))
            assert not torch.is_grad_enabled()
            return pairwise_by_enumeration(u, w).bool()

        z = solve_pairwise(unary.clone().requires_grad_(), pairwise, own)
        assert torch.equal(z, pairwise_by_enumeration(unary, pairwise))
        assert not given[0][0].requires_grad

    @pytest.mark.parametrize(
        ("returned", "message"),
        [
            (torch.zeros(4, 3), r"of shape \(4, 5\), got \(4, 3\)"),
            ([0] * 5, "got list"),
            (torch.full((4, 5), 0.5), "must return bits, 0 or 1"),
        ],
    )
    def test_is_checked(self, returned, message):
        with pytest.raises(ValueError, match=message):
            solve_pairwise(*make("normal", 4, 5), lambda u, w: returned)


def test_compiled_solvers_say_that_numba_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(ImportError, match="pip install numba"):
        pairwise_branch_and_bound.compiled_kernel.__wrapped__()
    with pytest.raises(ImportError, match="numba"):
        compiled.has_numba.__wrapped__() or compiled.compile_function(lambda: None)


@pytest.mark.parametrize("impossible", [False, True])
def test_score(impossible):
    unary, pairwise = make("impossible" if impossible else "normal", 4, 6)
    z = torch.randint(2, (5, 4, 6), generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(pairwise_score(unary, pairwise, z), score(unary, pairwise, z))
    inputs = unary.clone().requires_grad_(), pairwise.triu(1).requires_grad_()
    kept = pairwise_score(*inputs, z) > -torch.inf
    gradients = torch.autograd.grad(pairwise_score(*inputs, z)[kept].sum(), inputs)
    assert torch.equal(gradients[0], (z * kept[..., None]).sum(0))
    pairs = (z[..., :, None] * z[..., None, :] * kept[..., None, None]).sum(0).triu(1)
    torch.testing.assert_close(gradients[1], pairs)


def solve_compiled_pairwise():
    pairwise_by_branch_and_bound(torch.randn(8, 6), torch.randn(8, 6, 6))


def solve_compiled_matching():
    matching(torch.randn(8, 4, 4), method="numba")


def test_threads_are_those_of_pytorch():
    numba = pytest.importorskip("numba")
    before = torch.get_num_threads()  # asking numba sets it
    threads, inside = numba.get_num_threads(), []
    try:
        torch.set_num_threads(1)
        from argrad.solvers.pairwise_compiled import run

        run(lambda: inside.append(numba.get_num_threads()), 1)
        for solve in (solve_compiled_pairwise, solve_compiled_matching):  # the OpenMP layer sets the process's number
            solve()
            assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    assert inside == [1]
    assert numba.get_num_threads() == threads
