"""Trees one problem at a time, as :mod:`argrad.solvers.compiled` compiles them: Prim, Chu-Liu/Edmonds, exact sampling.

:mod:`argrad.solvers.spanning_tree` says what they compute, and has the references.
"""

import numpy as np
from numpy.typing import NDArray

from argrad.solvers.compiled import prange

__all__ = ["choose_all_heads", "choose_heads", "edmonds", "edmonds_all", "prim", "prim_all"]

Array = NDArray[np.float64]


def prim_all(scores: Array, z: Array) -> None:
    """:func:`prim` for each problem."""
    for problem in prange(len(z)):
        prim(scores[problem], z[problem])


def prim(scores: Array, z: Array) -> None:
    """Prim's algorithm for a dense graph, O(n²); z is left at 0 where nothing is possible."""
    n = scores.shape[0]
    key, source, inside = np.full(n, -np.inf), np.zeros(n, np.int64), np.zeros(n, np.bool_)
    z[:] = 0.0
    node = 0
    for _ in range(n - 1):
        inside[node] = True
        following, best = -1, -np.inf
        for other in range(n):
            if not inside[other]:
                offered = scores[min(node, other), max(node, other)]
                if offered > key[other]:
                    key[other] = offered
                    source[other] = node
                if key[other] > best:
                    best = key[other]
                    following = other
        if following < 0:
            z[:] = 0.0
            return
        node = following
        z[min(node, source[node]), max(node, source[node])] = 1.0


def edmonds_all(scores: Array, z: Array) -> None:
    """:func:`edmonds` for each problem."""
    for problem in prange(len(z)):
        edmonds(scores[problem], z[problem])


def edmonds(scores: Array, z: Array) -> None:
    """Chu-Liu/Edmonds with root 0 for a dense graph, O(n²) (Tarjan); z is left at 0 where nothing is possible.

    From a node follow best heads backwards. The path either meets the root, or a node whose own path does, and is
    finished; or it meets itself, and the cycle is merged into one node. An edge into the cycle replaces the cycle's
    edge into the same node, so it is scored by the difference. In the end merged nodes are opened again, the last one
    first: the member that the edge from outside enters takes that edge, the others keep those of the cycle.

    A merged node lives on in the place of one of its members; numbers n and up name it as what it is.
    """
    n = scores.shape[0]
    score = scores.copy()  # by places: the best edge from one to the other, and below its ends in the graph as given
    tail, tip = np.empty((n, n), np.int64), np.empty((n, n), np.int64)
    for h in range(n):
        for m in range(n):
            tail[h, m] = h
            tip[h, m] = m
    name = np.arange(n)  # of the node in a place
    alive, finished, on_path = np.ones(n, np.bool_), np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    path = np.empty(n, np.int64)
    merged_into = np.full(2 * n, -1)
    edge_tail, edge_tip, entry = np.empty(2 * n, np.int64), np.empty(2 * n, np.int64), np.empty(n)  # best edges into
    names = n
    z[:] = 0.0
    finished[0] = True
    for start in range(1, n):
        if finished[start] or not alive[start]:
            continue
        length = 1
        path[0] = start
        on_path[start] = True
        while length > 0:
            place = path[length - 1]
            head, best = -1, -np.inf
            for h in range(n):
                if alive[h] and h != place and score[h, place] > best:
                    best = score[h, place]
                    head = h
            if head < 0:
                return
            entry[place] = best
            edge_tail[name[place]] = tail[head, place]
            edge_tip[name[place]] = tip[head, place]
            if finished[head]:
                for i in range(length):
                    finished[path[i]] = True
                    on_path[path[i]] = False
                length = 0
            elif not on_path[head]:
                path[length] = head
                on_path[head] = True
                length += 1
            else:
                first = length - 1  # the cycle is path[first:length], and is merged into the place of its first
                while path[first] != head:
                    first -= 1
                for i in range(first, length):
                    merged_into[name[path[i]]] = names
                    alive[path[i]] = False
                for other in range(n):
                    if not alive[other]:
                        continue
                    into, out, into_from, out_from = -np.inf, -np.inf, head, head
                    for i in range(first, length):
                        member = path[i]
                        if score[other, member] - entry[member] > into:
                            into = score[other, member] - entry[member]
                            into_from = member
                        if score[member, other] > out:
                            out = score[member, other]
                            out_from = member
                    score[other, head], score[head, other] = into, out
                    tail[other, head], tip[other, head] = tail[other, into_from], tip[other, into_from]
                    tail[head, other], tip[head, other] = tail[out_from, other], tip[out_from, other]
                for i in range(first + 1, length):
                    on_path[path[i]] = False
                alive[head] = True
                name[head] = names
                names += 1
                length = first + 1
    for merged in range(names - 1, n - 1, -1):
        member = edge_tip[merged]
        while merged_into[member] != merged:
            member = merged_into[member]
        edge_tail[member] = edge_tail[merged]
        edge_tip[member] = edge_tip[merged]
    for m in range(1, n):
        z[edge_tail[m], m] = 1.0


def choose_all_heads(scores: Array, noise: Array, z: Array) -> None:
    """:func:`choose_heads` for each problem."""
    for problem in prange(len(z)):
        choose_heads(scores[problem], noise[problem], z[problem])


def choose_heads(scores: Array, noise: Array, z: Array) -> None:
    """One draw of a directed tree with root 0; z is left at 0 where nothing is possible.

    When node m gets its head, the nodes before it have been merged into theirs: only the root and the nodes from m on
    are left, ``leader`` tells into which of them a node has been merged, and ``weight`` has their edges summed.
    """
    n = scores.shape[0]
    weight = scores.copy()
    left, total, escape = np.empty((n, n)), np.empty(n), np.empty(n)
    leader = np.arange(n)
    states = np.empty(n, np.int64)
    z[:] = 0.0
    for m in range(1, n):
        # The nodes that are left, the root first, then m.
        states[0] = 0
        for i in range(1, n - m + 1):
            states[i] = m + i - 1
        count = n - m + 1
        for i in range(count):
            for j in range(1, count):
                left[i, j] = weight[states[i], states[j]]
        # Eliminate all but the root and m.
        for k in range(count - 1, 1, -1):
            top = -np.inf
            for i in range(k):
                top = max(top, left[i, k])
            if top == -np.inf:
                z[:] = 0.0
                return
            amount = 0.0
            for i in range(k):
                amount += np.exp(left[i, k] - top)
            total[k] = top + np.log(amount)
            for i in range(k):
                step = left[i, k] - total[k]
                if step == -np.inf:
                    continue
                for j in range(1, k):
                    if i != j and left[k, j] > -np.inf:
                        detour = step + left[k, j]
                        high, low = max(detour, left[i, j]), min(detour, left[i, j])
                        left[i, j] = high + np.log1p(np.exp(low - high))
        # The log-probability that the walk along heads from each of them meets the root before m.
        escape[0] = 0.0
        escape[1] = -np.inf
        for k in range(2, count):
            top = -np.inf
            for i in range(k):
                top = max(top, left[i, k] + escape[i])
            escape[k] = -np.inf
            if top > -np.inf:
                amount = 0.0
                for i in range(k):
                    amount += np.exp(left[i, k] + escape[i] - top)
                escape[k] = top + np.log(amount) - total[k]
        head, best = -1, -np.inf
        for h in range(n):
            if h != m:
                place = 0 if leader[h] == 0 else leader[h] - m + 1
                value = scores[h, m] + escape[place] + noise[h, m]
                if value > best:
                    best = value
                    head = h
        if head < 0:
            z[:] = 0.0
            return
        z[head, m] = 1.0
        target = leader[head]
        for other in range(n):
            if leader[other] == m:
                leader[other] = target
        for other in range(m + 1, n):
            if weight[m, other] > -np.inf:
                high = max(weight[target, other], weight[m, other])
                low = min(weight[target, other], weight[m, other])
                weight[target, other] = high + np.log1p(np.exp(low - high))
