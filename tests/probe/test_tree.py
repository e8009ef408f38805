"""The token tree: everything once, everything reachable, everything visible to its descendants only."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retrieval_heads.probe.encoding import Encoded
from retrieval_heads.probe.layout import lay_out
from retrieval_heads.probe.tree import TokenTree, grow

token = st.integers(0, 4)
encoded = st.builds(
    lambda prompt, candidates: Encoded(
        tuple(token for token, _ in prompt), tuple(map(tuple, candidates)), 0, tuple(mark for _, mark in prompt)
    ),
    st.lists(st.tuples(token, st.integers(0, 1)), min_size=1, max_size=6),  # tokens and their marks
    st.lists(st.lists(token, min_size=1, max_size=3), min_size=2, max_size=4),
)
some_items = st.lists(encoded, min_size=1, max_size=6)


def build(items):
    tree = TokenTree()
    for index, item in enumerate(items):
        tree.add(index, item)
    return tree


@given(some_items)
def test_every_read_stands_after_its_own_prompt_and_the_candidate_so_far(items):
    tree = build(items)
    reads = iter(zip(tree.slots, tree.nodes, tree.targets))
    for i, item in enumerate(items):
        for c, candidate in enumerate(item.candidates):
            for k, target in enumerate(candidate):
                slot, node, read = next(reads)
                assert (slot, read) == ((i, c), target)
                assert tuple(tree.tokens[n] for n in tree._path(node)) == item.prompt + candidate[:k]
                assert tuple(tree.marks[n] for n in tree._path(node)) == item.marks + (0,) * k
    assert next(reads, None) is None


@given(some_items)
def test_no_text_stands_in_the_tree_twice_in_the_same_stages_and_marks(items):
    tree = build(items)
    texts = [
        tuple((tree.stages[n], tree.tokens[n], tree.marks[n]) for n in tree._path(node)) for node in range(len(tree))
    ]
    assert len(set(texts)) == len(texts)


@given(some_items)
def test_a_node_sees_its_ancestors_and_itself(items):
    tree = build(items)
    for node, row in enumerate(tree.sees()):
        assert row.nonzero().flatten().tolist() == tree._path(node)
        assert tree.depths[node] == len(tree._path(node)) - 1


@given(some_items)
def test_packed_and_by_paths_the_reads_are_of_the_same_tokens(items):
    tree = build(items)
    for packed in (True, False):
        layout = lay_out(tree, packed)
        columns = layout.keep[layout.kept]
        for laid_out, of_nodes in ((layout.ids, tree.tokens), (layout.marks, tree.marks)):
            standing = laid_out[layout.rows, columns][layout.nodes]
            assert standing.tolist() == [of_nodes[node] for node in tree.nodes]


@given(some_items, st.integers(1, 8))
def test_trees_hold_every_item_once_in_order(items, branch_tokens):
    groups = ["" if i % 3 == 0 else "context" for i in range(len(items))]
    trees = grow(items, groups, branch_tokens)
    assert [index for tree in trees for index in tree.items] == list(range(len(items)))
    assert all(len({groups[i] for i in tree.items}) == 1 for tree in trees)


def test_a_dictionary_is_read_once_for_all_its_queries():
    context, queries = tuple(range(100, 180)), [(k, 7) for k in range(20)]
    items = [Encoded(context + query, ((1,), (2,)), 0, (0,) * 82) for query in queries]
    (tree,) = grow(items, ["dictionary"] * 20)
    assert len(tree) == 80 + 20 * 2
