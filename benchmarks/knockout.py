"""Speed of a knockout, four ways, side by side in one run: ``python benchmarks/knockout.py``.

The same model, heads and questions in each way, the scores compared, and then a table: seconds for one
head and question, the ratio to the slowest, peak memory. Each way runs in a process of its own, so that
the peaks do not add up. The slow ways get few heads and questions: their cost is the same for each.

- *released*: the way of the papers' code: the head's weights zeroed, a full forward pass a candidate;
- *trace*: one nnsight trace a head and question, which scores all one-token candidates;
- *hook*: the same with a raw PyTorch hook instead of nnsight (the only place in this repository with one);
- *engine*: ``retrieval_heads.score``.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

import retrieval_heads as rh
from retrieval_heads.models.families import mixers

# Heads at the start, in the middle and at the end of the network: the engine's cost depends on the layer.
LAYERS = (0, 7, 15, 22, 29)
SIZES = {"released": (2, 1), "trace": (5, 4), "hook": (5, 4), "engine": (270, 60)}  # heads, questions


def chosen_heads(model, count: int) -> list[rh.Head]:
    """All heads, or one for each of ``LAYERS``, as far as ``count`` goes."""
    everything = list(rh.heads_of(model))
    return everything if count >= len(everything) else [rh.Head(layer, layer % 9) for layer in LAYERS][:count]


def chosen_items(model, count: int) -> list[rh.Item]:
    words = {"template": "continuation", "values": "words", "single_token": True}
    return rh.KVRetrieval(**words, pairs=20, dictionaries=-(-count // 20)).items(model.tokenizer)[:count]


def released(model, heads: list[rh.Head], items: list[rh.Item]) -> np.ndarray:
    module, tokenizer = model._module, model.tokenizer
    scores = np.empty((len(heads), len(items), len(items[0].candidates)))
    for h, (mixer, head) in enumerate(with_mixers(model, heads)):
        weight = module.get_submodule(mixer.path).weight
        saved = weight[:, mixer.columns(head)].clone()
        weight[:, mixer.columns(head)] = 0
        for i, item in enumerate(items):
            prompt = len(tokenizer(item.prompt).input_ids)
            for c, candidate in enumerate(item.candidates):
                ids = tokenizer(item.prompt + candidate, return_tensors="pt").input_ids
                logprobs = module(ids).logits[0, prompt - 1 : -1].log_softmax(-1)
                scores[h, i, c] = logprobs.gather(1, ids[0, prompt:, None]).sum().item()
        weight[:, mixer.columns(head)] = saved
    return scores


def trace(model, heads: list[rh.Head], items: list[rh.Item]) -> np.ndarray:
    def run(mixer, head, prompt):
        with model.trace(prompt):
            model.get(mixer.path).input[:, :, mixer.columns(head)] = 0
            logits = model.output.logits[0, -1].save()
        return logits

    return one_pass_each(model, heads, items, run)


def hook(model, heads: list[rh.Head], items: list[rh.Item]) -> np.ndarray:
    def run(mixer, head, prompt):
        def zero(module, arguments):
            arguments[0][:, :, mixer.columns(head)] = 0

        handle = model._module.get_submodule(mixer.path).register_forward_pre_hook(zero)
        logits = model._module(**model.tokenizer(prompt, return_tensors="pt")).logits[0, -1]
        handle.remove()
        return logits

    return one_pass_each(model, heads, items, run)


def one_pass_each(model, heads: list[rh.Head], items: list[rh.Item], run: Callable) -> np.ndarray:
    scores = np.empty((len(heads), len(items), len(items[0].candidates)))
    for h, (mixer, head) in enumerate(with_mixers(model, heads)):
        for i, item in enumerate(items):
            start = len(model.tokenizer(item.prompt).input_ids)
            tokens = [model.tokenizer(item.prompt + text).input_ids[start] for text in item.candidates]
            scores[h, i] = run(mixer, head, item.prompt).log_softmax(-1)[tokens]
    return scores


def with_mixers(model, heads: list[rh.Head]):
    by_layer = {mixer.layer: mixer for mixer in mixers(model)}
    return [(by_layer[head.layer], head) for head in heads]


def engine(model, heads: list[rh.Head], items: list[rh.Item]) -> np.ndarray:
    answers = rh.score(model, items, [rh.Knockout(rh.HeadSet([head])) for head in heads])
    return np.stack([each.scores for each in answers])


def engine_flops(model, items: list[rh.Item]) -> float:
    """Floating-point operations of the engine for all heads and these items, by the shapes of its matrix products.

    A multiplication and an addition are two. Attention counts the full square of the tree, as the kernel does it.
    """
    from retrieval_heads.probe.engine import Run

    config, run = model.config, Run(model, items, [])
    width, inner = config.hidden_size, config.intermediate_size
    keys = config.num_key_value_heads * config.head_dim
    total = 0
    for tree in run.trees:
        tokens, read = len(tree), len(set(tree.nodes))
        projections = 2 * tokens * (2 * width * width + 2 * width * keys + 3 * width * inner)
        layer = projections + 2 * 2 * tokens * tokens * width
        for start in range(config.num_hidden_layers):
            passes = config.num_attention_heads * (config.num_hidden_layers - start) * layer
            total += passes + config.num_attention_heads * 2 * read * width * config.vocab_size
    return total


def matrix_product_rate(size: int = 1024, seconds: float = 3.0) -> float:
    """Operations a second of this machine's matrix product, by the fastest of many."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    fastest, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        a @ b
        fastest = min(fastest, time.perf_counter() - start)
    return 2 * size**3 / fastest


@torch.no_grad()
def measure(way: str, threads: int) -> dict:
    torch.set_num_threads(threads)
    model = rh.load("smollm2-135m", dtype="float32", device="cpu")
    count, questions = SIZES[way]
    heads, items = chosen_heads(model, count), chosen_items(model, questions)
    globals()[way](model, heads[:1], items[:1])  # warm up
    rate = matrix_product_rate() if way == "engine" else None
    start = time.perf_counter()
    scores = globals()[way](model, heads, items)
    elapsed = time.perf_counter() - start
    result = {"way": way, "heads": len(heads), "questions": len(items), "seconds": elapsed}
    result["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    if rate is not None:
        result |= {"rate": rate, "flops": engine_flops(model, items)}
    kept = [heads.index(head) for head in chosen_heads(model, 5) if head in heads]
    return {**result, "scores": scores[kept][:, :4].tolist()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--way", choices=list(SIZES), help="measure one way only and print JSON")
    arguments = parser.parse_args()
    if arguments.way:
        print(json.dumps(measure(arguments.way, arguments.threads)))
        return
    results = []
    for way in SIZES:
        print(f"measuring {way} …", file=sys.stderr)
        command = [sys.executable, __file__, "--way", way, "--threads", str(arguments.threads)]
        results.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    reference = np.array(results[-1]["scores"])
    slowest = results[0]["seconds"] / results[0]["heads"] / results[0]["questions"]
    print(f"{'way':<10}{'heads × questions':>19}{'ms each':>10}{'ratio':>9}{'peak GB':>9}{'largest difference':>20}")
    for result in results:
        each = result["seconds"] / result["heads"] / result["questions"]
        scores = np.array(result["scores"])
        difference = np.abs(scores - reference[: scores.shape[0], : scores.shape[1]]).max()
        size = f"{result['heads']} × {result['questions']}"
        line = f"{result['way']:<10}{size:>19}{1000 * each:>10.1f}{slowest / each:>9.0f}{result['peak_gb']:>9.2f}"
        print(f"{line}{difference:>20.1e}")
    last = results[-1]
    achieved = last["flops"] / last["seconds"]
    print(f"\nengine: {last['flops'] / 1e12:.1f} TFLOP in {last['seconds']:.0f} s = {achieved / 1e9:.0f} GFLOP/s,")
    print(f"{achieved / last['rate']:.0%} of this machine's matrix product ({last['rate'] / 1e9:.0f} GFLOP/s)")


if __name__ == "__main__":
    main()
