"""How a token tree is laid out for one model: the rows, mask and positions of a forward pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .tree import TokenTree


@dataclass(frozen=True)
class Layout:
    """The inputs of one pass over a tree, and where in its logits each read is.

    Attributes:
        ids: (rows, columns) token ids; padding, where there is any, is on the right.
        stages, marks: (rows, columns) the stage and the mark of each token, as in :class:`.tree.TokenTree`.
        mask: (1, 1, columns, columns) bool, which column sees which; None for the ordinary causal mask.
        positions: (1, columns), or None for 0, 1, 2, …
        keep: (kept,) the columns whose logits any read needs, ascending.
        rows, kept: one entry a node that is read: its row and its index into ``keep``.
        nodes: one entry a read: which of those nodes.
        targets: one entry a read: the token whose log-probability is read there.
        slots: one entry a read: the flat index, item × width + candidate, of the score that it adds to.
        shape: (items, width) of the scores; an item with fewer than ``width`` candidates leaves NaN.
    """

    ids: Tensor
    stages: Tensor
    marks: Tensor
    mask: Tensor | None
    positions: Tensor | None
    keep: Tensor
    rows: Tensor
    kept: Tensor
    nodes: Tensor
    targets: Tensor
    slots: Tensor
    shape: tuple[int, int]

    def read(self, logits: Tensor, copies: int) -> tuple[Tensor, Tensor]:
        """Answer scores, and what greedy generation would do.

        Args:
            logits: (copies × rows, kept, vocabulary), every copy of the rows under one intervention.

        Returns:
            Two tensors (copies, items, width): float64, each candidate's log-probability in nats
            (NaN where there is no candidate); and bool, whether greedy decoding after the prompt
            writes this candidate: whether each of its tokens is the most probable one after those before.
        """
        # A model spread over several devices gives its logits on the last one.
        rows, kept, nodes, targets, slots = (
            index.to(logits.device) for index in (self.rows, self.kept, self.nodes, self.targets, self.slots)
        )
        logits = logits.unflatten(0, (copies, -1))[:, rows, kept].float()  # (copies, nodes, vocabulary)
        reads = (logits[:, nodes, targets] - logits.logsumexp(-1)[:, nodes]).double()
        missed = (logits.argmax(-1)[:, nodes] != targets).double()
        size = self.shape[0] * self.shape[1]
        total = torch.full((copies, size), torch.nan, dtype=torch.float64, device=reads.device)
        total[:, slots] = 0.0
        misses = total.clone()  # NaN, which is not 0, where there is no candidate
        total.index_add_(1, slots, reads)
        misses.index_add_(1, slots, missed)
        return total.unflatten(1, self.shape), (misses == 0).unflatten(1, self.shape)


def lay_out(tree: TokenTree, packed: bool) -> Layout:
    """Lay the tree out as one packed row, or as one row a path."""
    if packed:
        row_of, column_of = [0] * len(tree), list(range(len(tree)))
        ids, stages, marks = (torch.tensor([each]) for each in (tree.tokens, tree.stages, tree.marks))
    else:
        paths = tree.paths()
        row_of, column_of = [0] * len(tree), list(tree.depths)
        ids = torch.zeros(len(paths), max(map(len, paths)), dtype=torch.long)
        stages, marks = torch.zeros_like(ids), torch.zeros_like(ids)
        for row, path in enumerate(paths):
            for whole, of_nodes in ((ids, tree.tokens), (stages, tree.stages), (marks, tree.marks)):
                whole[row, : len(path)] = torch.tensor([of_nodes[node] for node in path])
            for node in path:
                row_of[node] = row
    branches = packed and not tree.is_chain()
    read, nodes = torch.tensor(tree.nodes).unique(return_inverse=True)
    keep, kept = torch.tensor(column_of)[read].unique(return_inverse=True)
    width = 1 + max(candidate for _, candidate in tree.slots)
    return Layout(
        ids=ids,
        stages=stages,
        marks=marks,
        mask=tree.sees()[None, None] if branches else None,
        positions=torch.tensor([tree.depths]) if branches else None,
        keep=keep,
        rows=torch.tensor(row_of)[read],
        kept=kept,
        nodes=nodes,
        targets=torch.tensor(tree.targets),
        slots=torch.tensor([item * width + candidate for item, candidate in tree.slots]),
        shape=(len(tree.items), width),
    )
