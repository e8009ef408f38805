"""How well gradients rank the heads, and at what cost: ``python benchmarks/attribution.py``.

The exact sweep of SmolLM2-135M on three dictionaries of twenty pairs, and both estimates on the same
questions, in one run.
"""

from __future__ import annotations

import argparse
import time

import torch

import retrieval_heads as rh


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dictionaries", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = rh.load("smollm2-135m", dtype="float32", device="cpu")
    words = {"template": "continuation", "values": "words", "single_token": True}
    task = rh.KVRetrieval(**words, dictionaries=arguments.dictionaries)

    start = time.perf_counter()
    exact = rh.sweep(model, task)
    print(f"{'method':<12}{'seconds':>9}{'rank correlation':>18}{'top-20 recall':>15}{'top 5 in its top 20':>21}")
    print(f"{'knockout':<12}{time.perf_counter() - start:>9.1f}{1:>18.2f}{1:>15.2f}{5:>21}")
    for method in ("gradient", "midpoint"):
        start = time.perf_counter()
        estimates = rh.attribute(model, task, method)
        seconds = time.perf_counter() - start
        found = rh.agreement(estimates, exact)
        line = f"{method:<12}{seconds:>9.1f}{found['rank correlation']:>18.2f}"
        print(f"{line}{found['recall']:>15.2f}{found['kept']:>21.0f}")


if __name__ == "__main__":
    main()
