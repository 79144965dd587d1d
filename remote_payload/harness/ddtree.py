"""DDTree: the draft tree of a node budget that a block's own probabilities make most worth verifying.

Source: Algorithm 1 of "DDTree" (arXiv 2604.12989): nodes are prefixes of drafted tokens, ranked by the product of their
positions' probabilities; the best `budget` of them are prefix-closed by themselves. The root, the anchor, is not
counted.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from acceptance import Round


@dataclass(frozen=True, slots=True)
class Tree:
    """Nodes in the order they were found, best first. Node 0 is the root; node i + 1 has tokens[i], depths[i]."""

    tokens: tuple[int, ...]
    depths: tuple[int, ...]
    parents: tuple[int, ...]
    """Parent node of node i + 1."""
    log_probs: tuple[float, ...]

    def children(self) -> list[dict[int, int]]:
        """For each node, token -> child node."""
        children: list[dict[int, int]] = [{} for _ in range(len(self.tokens) + 1)]
        for index, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
            children[parent][token] = index + 1
        return children

    def prefixes(self) -> list[tuple[int, ...]]:
        """Each node as the tokens from the root to it."""
        found: list[tuple[int, ...]] = [()]
        for token, parent in zip(self.tokens, self.parents, strict=True):
            found.append((*found[parent], token))
        return found[1:]


def build_tree(log_probs_LK: Sequence[Sequence[float]], ids_LK: Sequence[Sequence[int]], budget: int) -> Tree:
    """The `budget` most probable prefixes of a block of L positions.

    Rows hold each position's best tokens, best first; K = min(budget, V) of them are enough, since a node's better
    siblings come before it. Equal prefixes are taken in lexicographic order of their ranks, as the public code does.
    """
    depth_limit = len(log_probs_LK)
    width = min(budget, len(log_probs_LK[0])) if depth_limit else 0
    tokens: list[int] = []
    depths: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    # An entry: (-log probability, ranks from the root, parent node, log probability of the parent).
    heap = [(-log_probs_LK[0][0], (0,), 0, 0.0)] if width else []
    while heap and len(tokens) < budget:
        negative, ranks, parent, above = heapq.heappop(heap)
        depth, rank = len(ranks), ranks[-1]
        tokens.append(ids_LK[depth - 1][rank])
        depths.append(depth)
        parents.append(parent)
        scores.append(-negative)
        if rank + 1 < width:
            sibling = (*ranks[:-1], rank + 1)
            heapq.heappush(heap, (-(above + log_probs_LK[depth - 1][rank + 1]), sibling, parent, above))
        if depth < depth_limit:
            heapq.heappush(heap, (negative - log_probs_LK[depth][0], (*ranks, 0), len(tokens), -negative))
    return Tree(tuple(tokens), tuple(depths), tuple(parents), tuple(scores))


def tree_round(anchor: int, tree: Tree, known: Sequence[int]) -> Round:
    """Follow the known tokens down from the root. Censored if they run out at a node that has children."""
    return tree_rounds(anchor, tree, (len(tree.tokens),), known)[0]


def tree_rounds(anchor: int, tree: Tree, budgets: Sequence[int], known: Sequence[int]) -> tuple[Round, ...]:
    """The round of each budget. Nodes come best first, so the tree of a smaller budget is the first of them.

    (K of the smaller tree leaves nothing out: a node's better siblings all come before it.)
    """
    children = tree.children()
    path = [0]
    for token in known:
        if token not in children[path[-1]]:
            break
        path.append(children[path[-1]][token])
    return tuple(_round(anchor, path, children, budget, len(known)) for budget in budgets)


def _round(anchor: int, path: list[int], children: list[dict[int, int]], budget: int, known: int) -> Round:
    accepted = sum(node <= budget for node in path) - 1
    goes_on = any(child <= budget for child in children[path[accepted]].values())
    return Round(anchor, accepted, censored=accepted == known and goes_on)
