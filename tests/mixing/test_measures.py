"""Laws that measures of any mixing matrix obey, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from retrieval_heads.mixing import measures
from retrieval_heads.mixing.measures import (
    entropy,
    largest_on,
    leaked_mass,
    mass,
    mass_around,
    own_mass,
    shares,
    sink_mass,
)


@st.composite
def segmented(draw):
    """A stack of two lower-triangular matrices with weights of both signs, some rows zero, and a segmentation."""
    tokens, rng = draw(st.integers(1, 9)), np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    matrix = np.tril(rng.normal(size=(2, tokens, tokens)) * 10.0 ** rng.integers(-6, 6, size=(2, tokens, 1)))
    matrix[rng.random((2, tokens)) < 0.2] = 0
    return matrix, rng.integers(0, 4, tokens)


@given(segmented())
def test_own_leak_and_sink_share_out_the_row(case):
    matrix, segments = case
    own, leak, sink = own_mass(matrix, segments), leaked_mass(matrix, segments), sink_mass(matrix)
    for part in (own, leak, sink):
        assert part.shape == matrix.shape[:-1] and np.all((part >= 0) & (part <= 1 + 1e-12))
    np.testing.assert_allclose(own + leak + sink, np.abs(matrix).sum(-1) > 0, atol=1e-12)


@given(segmented())
def test_masses_are_what_a_loop_over_the_tokens_counts(case):
    matrix, segments = case
    tokens = len(segments)
    for m, own, leak, around in zip(
        matrix, own_mass(matrix, segments), leaked_mass(matrix, segments), mass_around(matrix, np.arange(tokens))
    ):
        for i in range(tokens):
            total = sum(abs(m[i])) or 1
            inside = [j for j in range(1, tokens) if segments[j] == segments[i]]
            assert own[i] == pytest.approx(sum(abs(m[i, j]) for j in inside) / total, abs=1e-12)
            outside = [j for j in range(1, tokens) if segments[j] != segments[i]]
            assert leak[i] == pytest.approx(sum(abs(m[i, j]) for j in outside) / total, abs=1e-12)
            near = [abs(m[i, j]) / total if 0 <= j < tokens else 0 for j in range(i - 2, i + 3)]
            np.testing.assert_allclose(around[i], near, atol=1e-12)


@given(segmented(), st.floats(0.01, 100), st.sampled_from([-1, 1]))
def test_size_and_sign_of_a_matrix_do_not_matter(case, size, sign):
    matrix, segments = case
    other = matrix * size * sign
    for measure in (entropy, sink_mass, lambda m: own_mass(m, segments), lambda m: leaked_mass(m, segments)):
        np.testing.assert_allclose(measure(other), measure(matrix), atol=1e-9)


@given(segmented())
def test_the_largest_weight_is_on_one_token_of_all(case):
    matrix, _ = case
    tokens = matrix.shape[-1]
    hits = np.stack([largest_on(matrix, np.arange(tokens) == j) for j in range(tokens)])
    some = np.abs(matrix).sum(-1) > 0
    np.testing.assert_array_equal(hits.sum(0), some)
    np.testing.assert_array_equal(hits.argmax(0)[some], np.abs(matrix).argmax(-1)[some])


@given(segmented())
def test_entropy_lies_between_one_token_and_all(case):
    matrix, _ = case
    found = entropy(matrix)
    assert np.all((found >= 0) & (found <= np.log(np.arange(1, matrix.shape[-1] + 1)) + 1e-12))


@given(st.integers(1, 50))
def test_entropy_of_uniform_rows_is_log_n_and_of_one_hot_rows_zero(tokens):
    uniform = np.tril(np.ones((tokens, tokens))) * -2
    np.testing.assert_allclose(entropy(uniform), np.log(np.arange(1, tokens + 1)), atol=1e-12)
    np.testing.assert_array_equal(entropy(np.eye(tokens)), 0)


def test_rows_of_attention_are_their_own_shares_and_tensors_are_read():
    attention = torch.tril(torch.rand(3, 7, 7)).add(1e-3).tril()
    attention /= attention.sum(-1, keepdim=True)
    np.testing.assert_allclose(shares(attention), attention.numpy(), atol=1e-6)
    np.testing.assert_allclose(mass(attention, np.arange(7) == 2), attention[..., 2], atol=1e-6)


LOWER = np.tril(np.ones((3, 3)))


@pytest.mark.parametrize(
    ("measure", "arguments", "message"),
    [
        ("entropy", [np.ones((2, 3))], r"\(…, tokens, tokens\), got the shape \(2, 3\)"),
        ("entropy", [np.ones(3)], "got the shape"),
        ("sink_mass", [np.ones((3, 3))], "lower triangular"),
        ("shares", [LOWER * np.nan], "not finite"),
        ("own_mass", [LOWER, [0, 1]], r"each of the matrix's 3 tokens, got int64 \(2,\)"),
        ("leaked_mass", [LOWER, [0.0, 1.0, 1.0]], "one integer for each"),
        ("mass", [LOWER, [0, 2]], "on is bool"),
        ("mass", [LOWER, [True, False]], r"on is bool, \(3,\) or \(3, 3\)"),
        ("largest_on", [LOWER, [1, 2, 0]], "on is bool"),
        ("mass_around", [LOWER, 3], "target=3 is not among the tokens 0 to 2"),
        ("mass_around", [LOWER, [-1, 0, 0]], "not among the tokens"),
        ("mass_around", [LOWER, [0, 1]], "one for each of the 3 rows"),
        ("mass_around", [LOWER, 0.5], "one token or one for each"),
        ("mass_around", [LOWER, 0, -1], "reach=-1 is negative"),
    ],
)
def test_what_cannot_be_measured_is_refused(measure, arguments, message):
    with pytest.raises(ValueError, match=message):
        getattr(measures, measure)(*arguments)
