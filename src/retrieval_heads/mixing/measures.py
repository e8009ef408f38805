"""What a mixing matrix says about its head: where each token's output comes from, and how sharply.

A matrix is (…, tokens, tokens), one or a stack, array or CPU tensor; every measure gives one number
for each row, (…, tokens). Weights of state-space heads may be negative and a row need not sum to 1, so
all measures are of :func:`shares`: the row's absolute weights, divided by their sum. An attention
head's rows are their own shares. The first token is the sink: what heads put there when they have
nothing to read counts as :func:`sink_mass`, never as a segment's.

>>> matrix = [[2, 0, 0, 0], [1, 1, 0, 0], [1, -2, 1, 0], [1, 1, 1, -5]]
>>> segments = [0, 0, 1, 1]  # two lines of two tokens
>>> sink_mass(matrix), own_mass(matrix, segments), leaked_mass(matrix, segments)
(array([1. , 0.5 , 0.25 , 0.125]), array([0. , 0.5 , 0.25, 0.75]), array([0. , 0. , 0.5 , 0.125]))
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def shares(matrix: ArrayLike) -> np.ndarray:
    """Each row's absolute weights over their sum, float64; a row of zeros stays zeros.

    >>> shares([[3, 0], [-1, 3]])
    array([[1.  , 0.  ],
           [0.25, 0.75]])

    Raises:
        ValueError: not square, not finite, or a token that mixes in a later one.
    """
    weights = np.abs(np.asarray(matrix, dtype=np.float64))
    if weights.ndim < 2 or weights.shape[-1] != weights.shape[-2]:
        raise ValueError(f"a mixing matrix is (…, tokens, tokens), got the shape {weights.shape}")
    if not np.isfinite(weights).all():
        raise ValueError("the mixing matrix has weights that are not finite; compute it in float32")
    if np.triu(weights, 1).any():
        raise ValueError("a mixing matrix is lower triangular; here a token has a weight on a later one")
    sums = weights.sum(-1, keepdims=True)
    return np.divide(weights, sums, out=np.zeros_like(weights), where=sums > 0)


def mass(matrix: ArrayLike, on: ArrayLike) -> np.ndarray:
    """How much of each row is on the tokens ``on``, 0 to 1.

    >>> mass([[1, 0, 0], [1, 3, 0], [2, 1, 1]], on=[True, False, True])
    array([1.  , 0.25, 0.75])

    Args:
        on: bool, (tokens,) for all rows alike, or (tokens, tokens) with a row for each row.

    Raises:
        ValueError: another shape, or a matrix that :func:`shares` refuses.
    """
    weights = shares(matrix)
    return np.where(_on(on, weights), weights, 0).sum(-1)


def own_mass(matrix: ArrayLike, segments: ArrayLike) -> np.ndarray:
    """How much of each row is on its own segment, the token itself included and the sink not.

    >>> own_mass([[1, 0, 0], [1, 3, 0], [2, 1, 1]], segments=[0, 1, 1])
    array([0.  , 0.75, 0.5 ])

    Args:
        segments: (tokens,) int, which segment each token is part of, such as its line.

    Raises:
        ValueError: ``segments`` is not one integer a token, or a matrix that :func:`shares` refuses.
    """
    same = _same(segments, matrix)
    same[:, 0] = False
    return mass(matrix, same)


def leaked_mass(matrix: ArrayLike, segments: ArrayLike) -> np.ndarray:
    """How much of each row is past its segment's boundary, on earlier segments; the sink does not count.

    With :func:`own_mass` and :func:`sink_mass` it makes 1, or 0 for a row of zeros. Arguments and
    errors are those of :func:`own_mass`.

    >>> leaked_mass([[1, 0, 0], [1, 3, 0], [2, 1, 1]], segments=[0, 1, 2])
    array([0.  , 0.  , 0.25])
    """
    other = ~_same(segments, matrix)
    other[:, 0] = False
    return mass(matrix, other)


def sink_mass(matrix: ArrayLike) -> np.ndarray:
    """How much of each row is on the first token, where heads rest (Xiao et al., 2023, 'attention sinks').

    >>> sink_mass([[1, 0], [1, 3]])
    array([1.  , 0.25])

    Raises:
        ValueError: a matrix that :func:`shares` refuses.
    """
    return shares(matrix)[..., 0]


def mass_around(matrix: ArrayLike, target: ArrayLike, reach: int = 2) -> np.ndarray:
    """How much of each row is on a token, such as a segment's summary, and on each of its neighbours.

    >>> mass_around([[1, 0, 0], [1, 3, 0], [1, 2, 1]], target=1, reach=1)  # before, on, after token 1
    array([[1.  , 0.  , 0.  ],
           [0.25, 0.75, 0.  ],
           [0.25, 0.5 , 0.25]])

    Args:
        target: the token, one for all rows or (tokens,), counted from 0.
        reach: how many neighbours on either side.

    Returns:
        (…, tokens, 2 × reach + 1): columns from ``-reach`` to ``+reach``, the target in the middle;
        0 where there is no such token.

    Raises:
        ValueError: a target that is not a token, a negative reach, or a matrix that :func:`shares` refuses.
    """
    weights = shares(matrix)
    tokens, target = weights.shape[-1], np.asarray(target)
    if target.dtype.kind not in "iu" or target.shape not in ((), (tokens,)):
        raise ValueError(f"target is one token or one for each of the {tokens} rows, got {target.dtype} {target.shape}")
    if target.min() < 0 or target.max() >= tokens:
        raise ValueError(f"target={target.tolist()} is not among the tokens 0 to {tokens - 1}")
    if reach < 0:
        raise ValueError(f"reach={reach} is negative")
    places = np.broadcast_to(target, tokens)[:, None] + np.arange(-reach, reach + 1)
    found = weights[..., np.arange(tokens)[:, None], places.clip(0, tokens - 1)]
    return np.where((places >= 0) & (places < tokens), found, 0)


def entropy(matrix: ArrayLike) -> np.ndarray:
    """How spread out each row is, in nats: 0 for all on one token, log n for n tokens alike; 0 for a row of zeros.

    >>> entropy([[1, 0], [1, 1]]).round(3)
    array([0.   , 0.693])

    Raises:
        ValueError: a matrix that :func:`shares` refuses.
    """
    weights = shares(matrix)
    logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    return np.abs(weights * logs).sum(-1)  # abs: each term is at most 0, and no row is -0.0


def largest_on(matrix: ArrayLike, on: ArrayLike) -> np.ndarray:
    """Whether each row's largest weight is on the tokens ``on``; bool, False for a row of zeros.

    >>> largest_on([[1, 0, 0], [1, 3, 0], [1, 2, -4]], on=[False, True, False])
    array([False,  True, False])

    Arguments and errors are those of :func:`mass`; of equal weights the earliest token's counts.
    """
    weights = shares(matrix)
    on = np.broadcast_to(_on(on, weights), weights.shape)
    largest = weights.argmax(-1)[..., None]
    return (np.take_along_axis(on, largest, -1) & (np.take_along_axis(weights, largest, -1) > 0))[..., 0]


def _on(on: ArrayLike, weights: np.ndarray) -> np.ndarray:
    on, tokens = np.asarray(on), weights.shape[-1]
    if on.dtype != bool or on.shape not in ((tokens,), (tokens, tokens)):
        raise ValueError(f"on is bool, ({tokens},) or ({tokens}, {tokens}) as the matrix is, got {on.dtype} {on.shape}")
    return on


def _same(segments: ArrayLike, matrix: ArrayLike) -> np.ndarray:
    """(tokens, tokens) bool: which tokens are of the same segment."""
    segments, tokens = np.asarray(segments), np.shape(matrix)[-1]
    if segments.dtype.kind not in "iu" or segments.shape != (tokens,):
        raise ValueError(
            f"segments is one integer for each of the matrix's {tokens} tokens, got {segments.dtype} {segments.shape}"
        )
    return segments[:, None] == segments
