"""Many prompts as one tree of tokens, so that what they share is computed once.

The queries of a dictionary share the dictionary; a query's candidates share the query. Written
as a tree, every token appears once::

    Memorize … lord:wage⏎ ─┬─ tooth ─ :  ─┬─ 1 ─ 7
                           │              └─ 4
                           └─ lord ─ :  ─── …

A model whose mixers all obey an attention mask reads the whole tree in one forward pass: every
token sees exactly its ancestors and stands at its depth, so each branch gets the numbers that
it would get alone. A recurrent model reads the tree's paths as rows instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..interventions.edits import GENERATED, PROMPT, TARGET
from .encoding import Encoded


class TokenTree:
    """The token tree of some encoded items.

    Attributes:
        items: positions, in the caller's list, of the items in this tree.
        tokens, parents, depths: one entry a node; a root's parent is -1.
        stages: one entry a node: inside a prompt, its last token (the target), or after it. Where one
            prompt begins another, its last token is a node of its own: an intervention may treat it apart.
        marks: one entry a node: what its token is marked as (:class:`.encoding.Encoded`).
        slots: one entry a read: the (item of this tree, candidate) whose score it adds to.
        nodes, targets: one entry a read: the log-probability of ``target`` after ``node``.
    """

    def __init__(self) -> None:
        self.items: list[int] = []
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.stages: list[int] = []
        self.marks: list[int] = []
        self.slots: list[tuple[int, int]] = []
        self.nodes: list[int] = []
        self.targets: list[int] = []
        self._children: dict[tuple[int, int, int, int], int] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, index: int, item: Encoded) -> None:
        """Add item number ``index`` of the caller's list."""
        before = self._walk(-1, item.prompt[:-1], PROMPT, item.marks[:-1])
        end_of_prompt = self._walk(before, item.prompt[-1:], TARGET, item.marks[-1:])
        for candidate, tokens in enumerate(item.candidates):
            node = end_of_prompt
            for i, target in enumerate(tokens):
                self.slots.append((len(self.items), candidate))
                self.nodes.append(node)
                self.targets.append(target)
                if i + 1 < len(tokens):  # nothing is read after a candidate's last token
                    node = self._walk(node, [target], GENERATED, [0])
        self.items.append(index)

    def _walk(self, node: int, tokens: Sequence[int], stage: int, marks: Sequence[int]) -> int:
        """The node reached from ``node`` along ``tokens``, made where it does not exist."""
        for token, mark in zip(tokens, marks):
            step = node, token, stage, mark
            if step not in self._children:
                self._children[step] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(node)
                self.depths.append(0 if node < 0 else self.depths[node] + 1)
                self.stages.append(stage)
                self.marks.append(mark)
            node = self._children[step]
        return node

    def longest(self) -> int:
        """Tokens of the longest branch, from its root to its leaf."""
        return 1 + max(self.depths)

    def is_chain(self) -> bool:
        """Whether the tree is one path, for which the ordinary causal mask is the right one."""
        return self.parents == list(range(-1, len(self) - 1))

    def sees(self) -> Tensor:
        """(nodes, nodes) bool: row i is true at i and at the ancestors of i."""
        visible = torch.zeros(len(self), len(self), dtype=torch.bool)
        for node, parent in enumerate(self.parents):  # a parent comes before its children
            if parent >= 0:
                visible[node] = visible[parent]
            visible[node, node] = True
        return visible

    def paths(self) -> list[list[int]]:
        """The nodes from root to leaf, for each leaf: what a recurrent model reads, row by row."""
        leaves = sorted(set(range(len(self))) - set(self.parents))
        return [self._path(leaf) for leaf in leaves]

    def _path(self, node: int) -> list[int]:
        path = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]


def grow(encoded: Sequence[Encoded], groups: Sequence[str], branch_tokens: int = 512) -> list[TokenTree]:
    """Trees for all items. Neighbouring items of one group (one context) share a tree.

    A tree is closed when its branches outgrow both ``branch_tokens`` and the context that they
    share: beyond that a longer attention row costs more than reading the context again.
    """
    trees: list[TokenTree] = []
    group, shared = None, 0
    for index, item in enumerate(encoded):
        if not trees or groups[index] != group or len(trees[-1]) - shared > max(branch_tokens, shared):
            trees.append(TokenTree())
            group, shared = groups[index], len(item.prompt) if groups[index] else 0
        trees[-1].add(index, item)
    return trees
