"""The engine at a large model's true shape, with random weights: ``python benchmarks/large.py``.

No weights are needed: what a pass costs depends on shapes alone. By default Llama-3.1-8B's shape in
bfloat16 on a GPU, every head, 240 questions about dictionaries of 20 pairs; beside it one nnsight trace
a head, timed on a few heads. ``--layers 2 --dictionaries 1`` makes it small enough for a CPU.
"""

from __future__ import annotations

import argparse
import time

import torch
from nnsight import TransformersModel
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

import retrieval_heads as rh
from retrieval_heads.models.catalog import CATALOG
from retrieval_heads.models.families import mixers
from retrieval_heads.models.sources import converted_folder

LLAMA_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


def random_model(layers: int, device: str) -> TransformersModel:
    """Llama-3.1-8B's shape; the tokenizer is SmolLM2's, whose ids all exist in the larger vocabulary."""
    tokenizer = AutoTokenizer.from_pretrained(converted_folder(CATALOG["smollm2-135m"]))
    torch.manual_seed(0)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        module = LlamaForCausalLM(LlamaConfig(**{**LLAMA_8B, "num_hidden_layers": layers}))
    torch.set_default_dtype(default)
    module = module.eval().requires_grad_(False)
    return TransformersModel(module, task="text-generation", tokenizer=tokenizer, device=torch.device(device))


def seconds(work) -> float:
    """How long ``work()`` takes, the device's queue included."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


@torch.no_grad()
def one_trace_a_head(model: TransformersModel, heads: list[rh.Head], item: rh.Item) -> None:
    paths = {mixer.layer: mixer for mixer in mixers(model)}
    for head in heads:
        mixer = paths[head.layer]
        with model.trace(item.prompt):
            model.get(mixer.path).input[:, :, mixer.columns(head)] = 0
            model.output.logits[0, -1].save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=LLAMA_8B["num_hidden_layers"])
    parser.add_argument("--dictionaries", type=int, default=12)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    model = random_model(arguments.layers, arguments.device)
    words = {"template": "continuation", "values": "words", "single_token": True}
    items = rh.KVRetrieval(**words, dictionaries=arguments.dictionaries).items(model.tokenizer)
    heads = list(rh.heads_of(model))
    alone = [rh.Knockout(rh.HeadSet([head])) for head in heads]

    rh.score(model, items[:20], alone[: model.config.num_attention_heads])  # warm up
    whole = seconds(lambda: rh.score(model, items, alone))
    some = heads[:: max(1, len(heads) // 16)]
    one_trace_a_head(model, some[:1], items[0])
    each = seconds(lambda: one_trace_a_head(model, some, items[0])) / len(some)
    print(f"{len(heads)} heads × {len(items)} questions: {whole:.1f} s, {len(heads) / whole:.1f} heads a second")
    print(
        f"one head and question: engine {1000 * whole / len(heads) / len(items):.2f} ms, one trace {1000 * each:.1f} ms"
    )
    if arguments.device.startswith("cuda"):
        print(f"{torch.cuda.get_device_name()}: peak {torch.cuda.max_memory_allocated() / 1e9:.1f} GB")


if __name__ == "__main__":
    main()
