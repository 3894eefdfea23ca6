"""The benchmark of memory measures both types of a model and says what losses are of."""

from pathlib import Path

from benchmarks.memory import measure
from tests.tiny import gpt2_module, gpt2_tokenizer, save_folder


def test_both_types_are_measured(tmp_path: Path) -> None:
    folder = str(save_folder(tmp_path, gpt2_module(), gpt2_tokenizer()))
    for dtype in ("float32", "bfloat16"):
        found = measure(folder, dtype)
        assert (found["dtype"], found["loss_dtype"]) == (dtype, "float32")
        assert found["peak_with_losses_mb"] >= found["search_peak_mb"] >= 0
