"""`python -m benchmarks.memory`: memory of a model of 1.7 billion random weights, by dtype.

The model has the shape of SmolLM2-1.7B and the offline language model's tokenizer. Each type is
loaded in a process of its own and searches two steps of AutoDAN for fluency. Needs 12 GB of memory
and 4 GB on disk for some minutes.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.speed.process import peak_mb, resident_mb, run_in_child
from fuseprompt import AutoDAN, Fluency, Objective, Problem, load
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.offline.manifest import offline_folder
from fuseprompt.proposals import LanguageModelOnly
from fuseprompt.search.minimize import minimize

SHAPE = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "vocab_size": 49152,
}


def make_model(folder: str, layers: int) -> dict[str, float]:
    """Write a model of random weights in bfloat16; return how many it has, in billions."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    config = LlamaConfig(**{**SHAPE, "num_hidden_layers": layers}, eos_token_id=2, bos_token_id=1)
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(offline_folder("offline:lm") / name, folder)
    return {"billions": sum(w.numel() for w in model.parameters()) / 1e9}


def measure(folder: str, dtype: str) -> dict[str, Any]:
    """Return memory beyond the imported libraries, in MiB, and seconds, of a search."""
    before = resident_mb()
    lm = load(folder, device="cpu", dtype=dtype)
    assert isinstance(lm, CausalLM)
    loaded = resident_mb() - before
    objective = Objective([Fluency(lm)])
    problem = Problem("0", prefix="An image of")
    method = AutoDAN(steps=2, proposal=LanguageModelOnly())
    started = time.perf_counter()
    state = method.init(objective.bind([problem]))
    while not method.is_done(state):
        state = method.step(state)
    searched, seconds = peak_mb() - before, time.perf_counter() - started
    (result,) = minimize(objective, method, problem)
    return {
        "dtype": dtype,
        "loaded_mb": round(loaded),
        "search_peak_mb": round(searched),
        "search_s": round(seconds, 1),
        "peak_with_losses_mb": round(peak_mb() - before),
        "loss_dtype": result.settings.get("loss_dtype", {}).get("fluency", "float32"),
    }


def main() -> int:
    """Measure both types; return 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--layers", type=int, default=SHAPE["num_hidden_layers"])
    layers = parser.parse_args().layers
    with tempfile.TemporaryDirectory() as folder:
        made = run_in_child(
            "benchmarks.memory", f"make_model({folder!r}, {layers})", what="A model"
        )
        size = sum(f.stat().st_size for f in Path(folder).iterdir()) / 2**20
        print(f"{made['billions']:.2f} billion weights, {size:.0f} MiB on disk", file=sys.stderr)
        for dtype in ("float32", "bfloat16"):
            call = f"measure({folder!r}, {dtype!r})"
            print(json.dumps(run_in_child("benchmarks.memory", call, what=dtype)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
