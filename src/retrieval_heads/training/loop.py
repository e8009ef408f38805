"""The training loop of the zoo: one model, one mixture of texts, AdamW, warm-up-stable-decay."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import torch
import transformers
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..models.scans import install
from ..models.sources import quiet
from ..progress import bar
from ..tasks.world import world
from .mixture import IGNORED, Mixture
from .recipes import Recipe
from .records import write_record

WEIGHTS = "model.safetensors"


def rate(recipe: Recipe, step: int) -> float:
    """The share of the learning rate at a step: up linearly, level, down linearly (warm-up-stable-decay)."""
    up, down = recipe.warmup * recipe.steps, recipe.decay * recipe.steps
    return max(0.0, min(1.0, (step + 1) / max(up, 1), (recipe.steps - step) / max(down, 1)))


@dataclass
class Progress:
    """What has happened so far; written beside every checkpoint."""

    step: int = 0
    tokens: int = 0
    learned: int = 0
    seconds: float = 0.0
    # Since the entry before: the mean loss in nats a learned token; of every kind of document, the share of its
    # learned tokens that the model found most probable.
    curve: list[tuple[int, float, dict[str, float]]] = field(default_factory=list)  # (step, loss, right)


def train(
    recipe: Recipe, folder: Path, *, every: int = 25, until: int | None = None, progress: bool | None = None
) -> dict:
    """Train ``recipe`` and write weights, tokenizer and a record into ``folder``.

    Stopped, it goes on from its last checkpoint, to the same weights: a batch depends on the seed and
    its step alone, and nothing else is drawn.

    Args:
        folder: gets the model (float16 weights), its tokenizer, and ``record.json``; and, until the
            training is done, ``checkpoint.safetensors``.
        every: steps between two checkpoints and two points of the loss curve.
        until: stop after this step, with a checkpoint to go on from; None trains to the end.
        progress: show a bar; None shows it on a terminal only.

    Returns:
        The record: recipe, versions, tokens, seconds, loss curve, sha256 of the weights.

    Raises:
        ValueError: the folder's checkpoint is of another recipe.
    """
    install()
    # One process, one device: accelerate's choice of device and its mixed precision, nothing else of it.
    accelerator = Accelerator()
    tokenizer = world(recipe.world_seed).tokenizer()
    mixture = Mixture(world(recipe.world_seed), tokenizer, recipe.tokens_per_step, recipe.seed)
    model = recipe.build(tokenizer)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=recipe.betas)
    model, optimizer = accelerator.prepare(model, optimizer)
    checkpoint, done = folder / "checkpoint.safetensors", Progress()
    if checkpoint.exists():
        done = _resume(checkpoint, recipe, model, optimizer)
    model.train()
    last, losses, counts = until or recipe.steps, [], {}
    steps = bar(
        range(done.step, last),
        progress=progress,
        initial=done.step,
        total=recipe.steps,
        desc=recipe.name,
        unit="step",
    )
    started = time.monotonic()
    for step in steps:
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * rate(recipe, step)
        batch = mixture.batch(step, step / recipe.steps)
        ids, labels = batch.ids.to(accelerator.device), batch.labels.to(accelerator.device)
        output = model(input_ids=ids, labels=labels, use_cache=False)
        accelerator.backward(output.loss)
        accelerator.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        optimizer.zero_grad()
        done.step, done.tokens = step + 1, done.tokens + ids.numel()
        done.learned += int((labels != IGNORED).sum())
        losses.append(output.loss.item())
        _count(counts, batch.kinds, output.logits, labels)
        if done.step % every == 0 or done.step == last:
            shares = {kind: round(right / learned, 3) for kind, (right, learned) in sorted(counts.items())}
            done.curve.append((done.step, round(sum(losses) / len(losses), 4), shares))
            done.seconds, started = done.seconds + time.monotonic() - started, time.monotonic()
            losses, counts = [], {}
            steps.set_postfix(loss=done.curve[-1][1])
            _save_checkpoint(checkpoint, recipe, model, optimizer, done)
    if done.step < recipe.steps:
        return _record(recipe, model, done)
    return _finish(folder, recipe, accelerator.unwrap_model(model), tokenizer, done)


def _count(counts: dict[str, tuple[int, int]], kinds: tuple[str, ...], logits: Tensor, labels: Tensor) -> None:
    """Add to every kind's count of learned tokens that were the most probable ones, and of learned tokens."""
    learned = labels[:, 1:] != IGNORED
    hits = (logits[:, :-1].argmax(-1) == labels[:, 1:]) & learned
    for kind, hit, of in zip(kinds, hits.sum(1).tolist(), learned.sum(1).tolist()):
        before = counts.get(kind, (0, 0))
        counts[kind] = before[0] + hit, before[1] + of


def _save_checkpoint(path: Path, recipe: Recipe, model, optimizer, done: Progress) -> None:
    """Weights and AdamW's two moments as safetensors, with recipe and progress in the file's header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, parameter in model.named_parameters():
        state = optimizer.state[parameter]
        tensors |= {name: parameter.detach(), f"{name}/mean": state["exp_avg"], f"{name}/square": state["exp_avg_sq"]}
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    header = {"recipe": json.dumps(recipe.describe()), "progress": json.dumps(vars(done))}
    unfinished = path.with_suffix(".unfinished")
    save_file(tensors, unfinished, metadata=header)
    unfinished.replace(path)


def _resume(path: Path, recipe: Recipe, model, optimizer) -> Progress:
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        header = file.metadata()
    if json.loads(header["recipe"]) != json.loads(json.dumps(recipe.describe())):
        raise ValueError(f"{path} is a checkpoint of another recipe; delete it, or train into another folder")
    tensors = load_file(path)
    done = Progress(**json.loads(header["progress"]))
    for name, parameter in model.named_parameters():
        parameter.data.copy_(tensors[name])
        optimizer.state[parameter] = {
            "step": torch.tensor(float(done.step)),
            "exp_avg": tensors[f"{name}/mean"].to(parameter.device),
            "exp_avg_sq": tensors[f"{name}/square"].to(parameter.device),
        }
    return done


def _record(recipe: Recipe, model, done: Progress) -> dict:
    return {
        "recipe": recipe.describe(),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "tokens": done.tokens,
        "learned_tokens": done.learned,
        "seconds": round(done.seconds),
        "threads": torch.get_num_threads(),
        "device": str(next(model.parameters()).device.type),
        "versions": {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__},
        "date": datetime.now(UTC).date().isoformat(),
        "curve": done.curve,
    }


def _finish(folder: Path, recipe: Recipe, model, tokenizer, done: Progress) -> dict:
    """Write the model, its tokenizer and its record; the checkpoint goes."""
    record = _record(recipe, model, done)
    with quiet():
        model.eval().to(torch.float16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    record["sha256"] = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    write_record(folder, record)
    (folder / "checkpoint.safetensors").unlink(missing_ok=True)
    return record
