"""Every figure of the book, in one style."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from .heads import Head
from .mixing.measures import shares
from .probe.head_scores import HeadScores

INTACT_COLOUR = "0.35"
PALETTE = "colorblind"
AXES = {"drop": "accuracy lost, answer scoring", "generated_drop": "accuracy lost, generation"}
POINTS = {"fmt": "o", "markersize": 5, "elinewidth": 1.4}


@contextmanager
def style() -> Iterator[None]:
    """The book's look, for the figures drawn inside."""
    with (
        sns.axes_style("ticks"),
        sns.plotting_context("notebook"),
        sns.color_palette(PALETTE),
        plt.rc_context({"figure.dpi": 110, "savefig.dpi": 160, "axes.spines.top": False, "axes.spines.right": False}),
    ):
        yield


def head_map(scores: HeadScores, name: int = 5) -> Figure:
    """Layers × heads; the colour is what the head's removal costs. The ``name`` costliest heads are labelled."""
    grid = scores.grid().T
    with style():
        figure, axes = plt.subplots(figsize=(0.22 * grid.shape[1] + 1.6, max(2.4, 0.21 * grid.shape[0] + 1.1)))
        limit = max(0.05, float(np.nanmax(np.abs(grid.to_numpy()))))
        colours = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit, "linewidths": 0.4, "linecolor": "white"}
        sns.heatmap(grid, ax=axes, square=True, **colours, cbar_kws={"label": "accuracy lost", "shrink": 0.8})
        for place, head in enumerate(scores.ranking[:name], start=1):
            colour = "white" if grid.loc[head.index, head.layer] > 0.6 * limit else "black"
            axes.text(head.layer + 0.5, head.index + 0.52, place, color=colour, ha="center", va="center", fontsize=8)
        named = ", ".join(f"{place} {head.label}" for place, head in enumerate(scores.ranking[:name], start=1))
        axes.set(xlabel="layer", ylabel="head")
        axes.set_title(f"{_title(scores)}\n{named}", loc="left", fontsize=10)
        axes.tick_params(axis="both", length=0, labelsize=7, labelrotation=0)
        figure.tight_layout()
    return _closed(figure)


def head_ranking(scores: HeadScores, count: int = 15) -> Figure:
    """The costliest heads as points with their 95 % intervals, costliest on top."""
    table = scores.table.head(count).iloc[::-1]
    labels = [head.label for head in scores.ranking[:count]][::-1]
    with style():
        figure, axes = plt.subplots(figsize=(7.4, 0.24 * count + 1.0))
        axes.errorbar(table["drop"], labels, xerr=_spread(table, "drop", "drop_low", "drop_high"), **POINTS)
        axes.axvline(0, color=INTACT_COLOUR, linewidth=0.8)
        axes.set_xlabel("accuracy lost without the head (95 % interval)")
        figure.tight_layout()
    return _closed(figure)


def curves(
    table: pd.DataFrame, x: str, chance: str | None = None, panel: str | None = None, columns: int | None = None
) -> Figure:
    """Accuracy against ``x``, one line a condition, with intervals; one panel, or one a value of ``panel``.

    Args:
        table: one row a point, with the columns of :func:`.compare`, ``x``, and ``chance`` and ``panel`` if named.
        columns: panels side by side, the others below; None is all of them.
    """
    parts = {"": table} if panel is None else dict(list(table.groupby(panel, sort=False)))
    columns = min(columns or len(parts), len(parts))
    rows = -(-len(parts) // columns)
    size = (6.8, 3.6) if panel is None else (2.9 * columns + 1.9, 2.7 * rows + 0.3)
    colours = {label: f"C{i}" for i, label in enumerate(table.condition.unique())}  # the same in every panel
    drawn = {}
    with style():
        figure, panels = plt.subplots(rows, columns, figsize=size, sharey=True, squeeze=False)
        for axes, (title, part) in zip(panels.flat, parts.items()):
            for label, line in part.groupby("condition", sort=False):
                points = {"marker": "o", "markersize": 4, "color": colours[label]}
                (drawn[label],) = axes.plot(line[x], line["value"], **points)
                axes.fill_between(line[x], line["low"], line["high"], alpha=0.15, color=colours[label], linewidth=0)
            if chance is not None:
                points = part.drop_duplicates(x)
                (guessing,) = axes.plot(points[x], points[chance], linestyle=":", color=INTACT_COLOUR)
            axes.set(xlabel=x, ylim=(0, 1.03), xticks=sorted(part[x].unique()))
            axes.set_title(title, loc="left", fontsize=10)
        for axes in panels[:, 0]:
            axes.set_ylabel(table.measure.iloc[0])
        for axes in panels.flat[len(parts) :]:
            axes.set_visible(False)
        if chance is not None:
            drawn["guessing"] = guessing  # last in the legend
        panels[0][-1].legend(drawn.values(), drawn, frameon=False, bbox_to_anchor=(1.01, 1), loc="upper left")
        figure.tight_layout()
    return _closed(figure)


def changes(table: pd.DataFrame) -> Figure:
    """What each condition changes from the first one: one panel a measure, one row a condition, with intervals.

    Args:
        table: what :func:`.compare` returns.
    """
    with style():
        names, measures = list(table.condition.unique())[1:], list(table.measure.unique())
        beside = max(1.6, 0.085 * max(map(len, names)))  # inches for the names
        size = (2.1 * len(measures) + beside, 0.3 * len(names) + 1.0)
        figure, panels = plt.subplots(1, len(measures), figsize=size, sharey=True, squeeze=False)
        for axes, measure in zip(panels[0], measures):
            rows = table[table.measure == measure].set_index("condition").loc[names[::-1]]
            axes.errorbar(
                rows["change"], rows.index, xerr=_spread(rows, "change", "change_low", "change_high"), **POINTS
            )
            axes.axvline(0, color=INTACT_COLOUR, linewidth=0.8, linestyle="--")
            axes.set_xlabel(f"{measure}, change")
        figure.tight_layout()
    return _closed(figure)


def bars(table: pd.DataFrame, panel: str = "model", columns: int | None = None) -> Figure:
    """A bar a measure and condition, with its interval, one panel a value of ``panel``.

    Args:
        table: what :func:`.compare` returns, with a column ``panel``.
        columns: panels side by side, the others below; None is all of them.
    """
    parts = dict(list(table.groupby(panel, sort=False)))
    conditions, measures = list(table.condition.unique()), list(table.measure.unique())
    width = 0.8 / len(conditions)
    columns = min(columns or len(parts), len(parts))
    rows = -(-len(parts) // columns)
    with style():
        size = (1.1 * len(measures) * columns * max(1, len(conditions) / 4) + 2.4, 2.7 * rows + 0.3)
        figure, panels = plt.subplots(rows, columns, figsize=size, sharey=True, squeeze=False)
        for axes, (title, part) in zip(panels.flat, parts.items()):
            for i, condition in enumerate(conditions):
                points = part[part.condition == condition].set_index("measure").loc[measures]
                places = np.arange(len(measures)) + (i - (len(conditions) - 1) / 2) * width
                reach = _spread(points, "value", "low", "high")
                axes.bar(places, points.value, width * 0.92, yerr=reach, label=condition, error_kw={"linewidth": 0.8})
            axes.set(xticks=range(len(measures)), xticklabels=measures, ylim=(0, 1.03))
            axes.set_title(title, loc="left", fontsize=10)
        for axes in panels[:, 0]:
            axes.set_ylabel("accuracy")
        for axes in panels.flat[len(parts) :]:
            axes.set_visible(False)
        panels[0][-1].legend(frameon=False, bbox_to_anchor=(1.01, 1), loc="upper left")
        figure.tight_layout()
    return _closed(figure)


def two_scores(
    table: pd.DataFrame, x: str, y: str, panel: str, name: Sequence[Head] = (), diagonal: bool = True
) -> Figure:
    """Every head by two measures of what it does, one panel a value of ``panel``; some heads named.

    Args:
        table: head scores (:attr:`.HeadScores.table`), several under one another, told apart by ``panel``.
        x, y: ``drop``, ``generated_drop``, or another of their columns.
        diagonal: draw where the two measures are equal, if they have one unit.
    """
    with style():
        values = list(table[panel].unique())
        size = (3.5 * len(values) + 0.6, 3.7)
        figure, panels = plt.subplots(1, len(values), figsize=size, sharex=True, sharey=True, squeeze=False)
        for axes, value in zip(panels[0], values):
            points = table[table[panel] == value]
            axes.scatter(points[x], points[y], s=14, alpha=0.6, linewidth=0)
            if diagonal:
                axes.axline((0, 0), slope=1, color=INTACT_COLOUR, linewidth=0.8, linestyle=":")
            places = points.set_index(["layer", "head"])[[x, y]]
            for head in name:
                place = tuple(places.loc[(head.layer, head.index)])
                axes.annotate(head.label, place, xytext=(4, 3), textcoords="offset points", fontsize=8)
            axes.set_title(value, loc="left", fontsize=10)
            axes.set_xlabel(AXES.get(x, x))
        panels[0][0].set_ylabel(AXES.get(y, y))
        figure.tight_layout()
    return _closed(figure)


def mixing_maps(
    maps: Mapping[str, ArrayLike], tokens: Sequence[str] | Mapping[str, Sequence[str]], columns: int | None = None
) -> Figure:
    """Mixing matrices side by side: row i is what token i's output is made of, as shares of its absolute weights.

    Thin lines part the text's own lines: each ends in a token that begins with a newline.

    Args:
        maps: a title for each matrix (tokens, tokens).
        tokens: the prompt's tokens, for both axes; by title if models cut the prompt into different tokens.
        columns: panels side by side, the others below; None is all of them.
    """
    texts = {title: tokens[title] if isinstance(tokens, Mapping) else tokens for title in maps}
    size = 0.155 * max(map(len, texts.values())) + 0.9
    columns = min(columns or len(maps), len(maps))
    rows = -(-len(maps) // columns)
    with style():
        figure, panels = plt.subplots(rows, columns, figsize=(size * columns, size * rows), squeeze=False)
        for axes, (title, matrix) in zip(panels.flat, maps.items()):
            names = [token.replace("\n", "⏎").strip() or "␣" for token in texts[title]]
            ends = [i + 1 for i, token in enumerate(texts[title][:-1]) if token.startswith("\n")]
            hidden = np.triu(np.ones((len(names), len(names)), dtype=bool), 1)
            grid = pd.DataFrame(shares(matrix), index=names, columns=names)
            sns.heatmap(grid, mask=hidden, ax=axes, cmap="rocket_r", vmin=0, vmax=1, square=True, cbar=False,
                        xticklabels=True, yticklabels=True)  # fmt: skip
            axes.hlines(ends, 0, ends, color="0.6", linewidth=0.6)
            axes.vlines(ends, ends, len(names), color="0.6", linewidth=0.6)
            axes.tick_params(length=0, labelsize=7)
            axes.tick_params(axis="x", labelrotation=90)
            axes.set_title(title, loc="left", fontsize=10)
        for axes in panels[-1]:
            axes.set_xlabel("reads")
        for axes in panels[:, 0]:
            axes.set_ylabel("token")
        for axes in panels.flat[len(maps) :]:
            axes.set_visible(False)
        figure.tight_layout()
    return _closed(figure)


def role_map(roles: pd.DataFrame) -> Figure:
    """Layers × heads, coloured by how strongly each head gathers (left) and aggregates (right).

    Args:
        roles: what :func:`.roles` returns; heads that it does not have stay white.
    """
    heads = [Head.parse(head) for head in roles["head"]]
    table = roles.assign(layer=[head.layer for head in heads], index=[head.index for head in heads])
    layers, indices = range(table["layer"].max() + 1), range(table["index"].max() + 1)
    with style():
        figure, panels = plt.subplots(1, 2, figsize=(0.5 * len(layers) + 3.2, 0.23 * len(indices) + 1.3), sharey=True)
        for axes, measure in zip(panels, ("gather", "aggregate")):
            grid = table.pivot(index="index", columns="layer", values=measure)
            grid = grid.reindex(index=indices, columns=layers)
            sns.heatmap(grid, ax=axes, cmap="crest", vmin=0, vmax=1, linewidths=0.4, cbar=measure == "aggregate",
                        cbar_kws={"label": "share of the row"})  # fmt: skip
            axes.set(xlabel="layer", ylabel="head" if measure == "gather" else None)
            axes.set_title(measure, loc="left", fontsize=10)
            axes.tick_params(axis="both", length=0, labelsize=8, labelrotation=0)
        figure.tight_layout()
    return _closed(figure)


def retrieval_maps(table: pd.DataFrame) -> Figure:
    """Prompt length × needle depth, one panel a condition, the score in each cell (paper B, Figs 4 and 5).

    Args:
        table: ``condition``, ``tokens``, ``depth`` (0, the end of the prompt, to 1, its start) and ``value``, 0 to 1.
    """
    conditions = list(table.condition.unique())
    with style():
        columns, rows = table.tokens.nunique(), table.depth.nunique()
        size = (0.48 * columns * len(conditions) + 2.2, 0.34 * rows + 1.3)
        figure, panels = plt.subplots(1, len(conditions), figsize=size, sharey=True, squeeze=False)
        for axes, condition in zip(panels[0], conditions):
            points = table[table.condition == condition]
            grid = points.pivot(index="depth", columns="tokens", values="value").sort_index(ascending=False)
            grid.index = [f"{depth:.0%}" for depth in grid.index]
            sns.heatmap(grid, ax=axes, annot=True, fmt=".2f", annot_kws={"fontsize": 8}, cmap="crest", vmin=0, vmax=1,
                        cbar=False, linewidths=0.5)  # fmt: skip
            axes.set_title(condition, loc="left", fontsize=10)
            axes.set(xlabel="tokens", ylabel=None)
            axes.tick_params(length=0, labelsize=8, labelrotation=0)
        panels[0][0].set_ylabel("depth of the needle")
        figure.tight_layout()
    return _closed(figure)


def loss_curves(table: pd.DataFrame) -> Figure:
    """Training loss against tokens seen, one line a model.

    Args:
        table: what :func:`.training_curve` returns, of several models under one another.
    """
    with style():
        figure, axes = plt.subplots(figsize=(6.8, 3.4))
        points = table.drop_duplicates(["model", "tokens"])
        sns.lineplot(points, x="tokens", y="loss", hue="model", ax=axes, linewidth=1.3)
        axes.set(xlabel="tokens read", ylabel="loss, nats a learned token", ylim=(0, None))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1e6:g} M")
        sns.move_legend(axes, "upper left", bbox_to_anchor=(1.01, 1), frameon=False, title=None)
        figure.tight_layout()
    return _closed(figure)


def emergence(table: pd.DataFrame, kinds: Sequence[str]) -> Figure:
    """The share that each model gets right while it trains, against tokens seen: one panel a kind of text.

    Args:
        table: what :func:`.training_curve` returns, of several models under one another.
        kinds: the panels, in their order.
    """
    with style():
        columns = min(4, len(kinds))
        rows = -(-len(kinds) // columns)
        figure, panels = plt.subplots(
            rows, columns, figsize=(2.5 * columns, 1.9 * rows + 0.5), sharex=True, sharey=True, squeeze=False
        )
        for axes, kind in zip(panels.flat, kinds):
            points = table[table["kind"] == kind]
            sns.lineplot(points, x="tokens", y="right", hue="model", ax=axes, linewidth=1.2, legend=kind == kinds[0])
            axes.set_title(kind.replace("_", " "), loc="left", fontsize=10)
            axes.set(xlabel="tokens read", ylabel="right while learning", ylim=(0, 1.02))
            axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1e6:g} M")
        for axes in panels.flat[len(kinds) :]:
            axes.set_visible(False)
        handles, labels = panels.flat[0].get_legend_handles_labels()
        panels.flat[0].get_legend().remove()
        figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False, fontsize=9)
        figure.tight_layout(rect=(0, 0.06, 1, 1))
    return _closed(figure)


def score_map(scores: pd.DataFrame, chance: pd.Series) -> Figure:
    """Models × tasks with the accuracy in each cell; the colour runs from guessing (pale) to all right.

    Args:
        scores: accuracy, one row a model, one column a task.
        chance: the accuracy of guessing, by task.
    """
    above = (scores - chance[scores.columns]) / (1 - chance[scores.columns])
    with style():
        figure, axes = plt.subplots(figsize=(0.62 * scores.shape[1] + 1.8, 0.42 * scores.shape[0] + 1.7))
        sns.heatmap(above, annot=scores, fmt=".2f", ax=axes, cmap="crest", vmin=0, vmax=1, cbar=False,
                    linewidths=0.6, annot_kws={"fontsize": 9})  # fmt: skip
        labels = [f"{task}  ({chance[task]:.2f})" for task in scores.columns]
        axes.set_xticklabels(labels, rotation=40, ha="right", fontsize=9)
        axes.set(xlabel="task (guessing)", ylabel=None)
        axes.tick_params(length=0)
        figure.tight_layout()
    return _closed(figure)


def _spread(table: pd.DataFrame, value: str, low: str, high: str) -> np.ndarray:
    """(2, rows) distances of an interval's ends from its value: matplotlib's error bars."""
    return np.abs(table[[low, high]].to_numpy().T - table[value].to_numpy())


def _title(scores: HeadScores) -> str:
    header = scores.header
    return f"{header['model']['name']} · {header['task']['task']} · {header['intact']['value']:.2f} intact"


def _closed(figure: Figure) -> Figure:
    """The figure, no longer held by pyplot: a notebook shows it once, as a cell's value."""
    plt.close(figure)
    return figure


__all__ = [
    "bars",
    "changes",
    "curves",
    "emergence",
    "head_map",
    "head_ranking",
    "loss_curves",
    "mixing_maps",
    "retrieval_maps",
    "role_map",
    "score_map",
    "style",
    "two_scores",
]
