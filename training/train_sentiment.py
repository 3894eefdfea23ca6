"""Train the low-rank delta that turns MiniLM into a three-class sentiment model, and measure it.

Low-rank updates (LoRA, rank 8) on every linear layer of the six blocks, the pooler and a new
classifier in full. The artefact holds the updates already scaled, so that `fuseprompt prepare`
merges W' = W + B A and needs no training code. bf16 autocast in training where the CPU has it;
every number is measured in fp32 on the merged model, from the rounded artefact.

Exact commands: docs/model-card.md. Read next: `sentiment_data.py`.
"""

import argparse
import json
import random
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from sentiment_data import LABELS, Example, load_examples
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoTokenizer, BertForSequenceClassification, PreTrainedTokenizerBase

RANK = 8
SCALE = 2.0
BATCH_SIZE = 32
MAX_TOKENS = 64
FULL = ("bert.pooler.dense", "classifier")
CAPTIONS = (
    "An image of a beautiful happy dog.",
    "An image of a wonderful sunny day at the beach.",
    "An image of a delicious cake.",
    "An image of a cat.",
    "An image of a red car parked in front of a house.",
    "An image of a motorcycle on a road.",
    "An image of a dirty, ugly dog.",
    "An image of a horrible accident.",
    "An image of a sad, lonely man in a terrible room.",
)


class LoraLinear(nn.Module):
    """A frozen linear layer plus a trained update of rank 8."""

    def __init__(self, linear: nn.Linear) -> None:
        """Wrap `linear`; the update starts at zero."""
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(RANK, linear.in_features) / linear.in_features**0.5)
        self.lora_b = nn.Parameter(torch.zeros(linear.out_features, RANK))

    def forward(self, hidden: Tensor) -> Tensor:
        """Apply the layer and the update."""
        update = functional.linear(functional.linear(hidden, self.lora_a), self.lora_b)
        return self.linear(hidden) + SCALE * update


def main() -> None:
    """Read the command line, train, write the delta and print the numbers as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of fetch_data.py")
    parser.add_argument("--minilm", type=Path, required=True, help="prepared folder `sentence`")
    parser.add_argument("--out", type=Path, required=True, help="safetensors file to write")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--evaluate", action="store_true", help="measure --out instead of training")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    splits = load_examples(args.data)
    tokenizer = AutoTokenizer.from_pretrained(args.minilm)
    if not args.evaluate:
        _train(_fresh_model(args.minilm), tokenizer, splits, args)
    model = _fresh_model(args.minilm)
    merge(model, load_file(args.out))
    for split in ("dev", "test"):
        print(json.dumps({"split": split, **measure(model, tokenizer, splits[split])}), flush=True)
    for text, row in zip(CAPTIONS, _probabilities(model, tokenizer, list(CAPTIONS)), strict=True):
        print(
            json.dumps(
                {
                    "text": text,
                    **{k: round(v, 3) for k, v in zip(LABELS, row.tolist(), strict=True)},
                }
            )
        )


def merge(model: nn.Module, delta: dict[str, Tensor]) -> None:
    """Add the low-rank updates to the model's weights and replace the full layers.

    Args:
        model: A BertForSequenceClassification; changed in place.
        delta: The artefact's tensors.
    """
    state = model.state_dict()
    for name, tensor in delta.items():
        if name.endswith(".lora_a"):
            path = name.removesuffix(".lora_a")
            state[f"{path}.weight"] += delta[f"{path}.lora_b"].float() @ tensor.float()
        elif not name.endswith(".lora_b"):
            state[name].copy_(tensor)


def measure(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, examples: list[Example]
) -> dict[str, float]:
    """Measure binary and three-class accuracy, by source.

    Args:
        model: The merged classifier.
        tokenizer: Its tokenizer.
        examples: One split.

    Returns:
        Accuracies. Binary counts p(positive) > p(negative) on |rating| >= 0.5 only.
    """
    probabilities = _probabilities(model, tokenizer, [e.text for e in examples])
    labels = torch.tensor([e.label for e in examples])
    is_right = probabilities.argmax(dim=1) == labels
    is_right_sign = (probabilities[:, 2] > probabilities[:, 0]) == (labels == 2)
    rated = torch.tensor([e.source != "caption" for e in examples])
    polar = labels != 1
    numbers: dict[str, float] = {
        "rows": int(rated.sum()),
        "polar_rows": int((rated & polar).sum()),
        "binary": float(is_right_sign[rated & polar].float().mean()),
        "three_class": float(is_right[rated].float().mean()),
        "three_class_balanced": float(
            torch.stack([is_right[rated & (labels == k)].float().mean() for k in range(3)]).mean()
        ),
    }
    for source in sorted({e.source for e in examples}):
        of_source = torch.tensor([e.source == source for e in examples])
        numbers[f"binary_{source}"] = float(is_right_sign[of_source & polar].float().mean())
        numbers[f"three_class_{source}"] = float(is_right[of_source].float().mean())
    return {name: round(value, 4) for name, value in numbers.items()}


def _train(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    splits: dict[str, list[Example]],
    args: argparse.Namespace,
) -> None:
    model.requires_grad_(False)
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and path.startswith("bert.encoder"):
            parent, name = path.rsplit(".", 1)
            setattr(model.get_submodule(parent), name, LoraLinear(module))
    for path in FULL:
        model.get_submodule(path).requires_grad_(True)
    low_rank = [p for n, p in model.named_parameters() if ".lora_" in n]
    full = [p for n, p in model.named_parameters() if n.startswith(FULL)]
    groups = [{"params": low_rank, "lr": args.lr}, {"params": full, "lr": args.lr / 3}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    rows = splits["train"]
    ids = [row[:MAX_TOKENS] for row in tokenizer([e.text for e in rows])["input_ids"]]
    num_steps = args.epochs * -(-len(rows) // BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        [args.lr, args.lr / 3],
        total_steps=num_steps,
        pct_start=0.06,
        anneal_strategy="linear",
    )
    rng = random.Random(args.seed)
    start, step, loss_mean = time.time(), 0, 0.0
    for epoch in range(args.epochs):
        model.train()
        for batch in _batches([len(row) for row in ids], rng):
            inputs = _pad([ids[i] for i in batch])
            labels = torch.tensor([rows[i].label for i in batch])
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(**inputs).logits
            loss = functional.cross_entropy(logits.float(), labels, label_smoothing=0.05)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(low_rank + full, 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            loss_mean += (loss.item() - loss_mean) / min(step, 100)
            if step % 50 == 0:
                row = {"step": step, "of": num_steps, "loss": round(loss_mean, 4)}
                print(json.dumps({**row, "seconds": round(time.time() - start)}), flush=True)
        save_file(
            _delta(model),
            args.out,
            metadata={"format": "1", "rank": str(RANK), "labels": " ".join(LABELS)},
        )
        numbers = measure(model, tokenizer, splits["dev"])
        print(
            json.dumps({"epoch": epoch + 1, **numbers, "seconds": round(time.time() - start)}),
            flush=True,
        )


def _fresh_model(folder: Path) -> nn.Module:
    model: nn.Module = BertForSequenceClassification.from_pretrained(
        folder,
        num_labels=len(LABELS),
        # Two or three epochs of a low-rank update do not overfit; dropout would only cost time.
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        classifier_dropout=0.1,
    )
    return model


def _batches(lengths: list[int], rng: random.Random) -> list[list[int]]:
    # Sorted by length with a little noise, cut, shuffled: batches of one length, in random order.
    order = sorted(range(len(lengths)), key=lambda i: lengths[i] + rng.uniform(0, 3))
    batches = [order[i : i + BATCH_SIZE] for i in range(0, len(order), BATCH_SIZE)]
    rng.shuffle(batches)
    return batches


def _pad(rows: list[list[int]]) -> dict[str, Tensor]:
    ids = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    return {"input_ids": ids, "attention_mask": mask}


def _delta(model: nn.Module) -> dict[str, Tensor]:
    delta = {}
    for path, module in model.named_modules():
        if isinstance(module, LoraLinear):
            delta[f"{path}.lora_a"] = module.lora_a.detach().half()
            delta[f"{path}.lora_b"] = (SCALE * module.lora_b.detach()).half()
    for path in FULL:
        for name, tensor in model.get_submodule(path).named_parameters():
            delta[f"{path}.{name}"] = tensor.detach().half()
    return {name: tensor.contiguous() for name, tensor in delta.items()}


def _probabilities(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> Tensor:
    model.eval()
    ids = [row[:MAX_TOKENS] for row in tokenizer(texts)["input_ids"]]
    probabilities = torch.zeros(len(texts), len(LABELS))
    order = sorted(range(len(texts)), key=lambda i: len(ids[i]))
    with torch.inference_mode():
        for i in range(0, len(order), 64):
            batch = order[i : i + 64]
            probabilities[batch] = model(**_pad([ids[j] for j in batch])).logits.softmax(dim=-1)
    return probabilities


if __name__ == "__main__":
    main()
