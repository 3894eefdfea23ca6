"""nanoGCG and TROPT on the targets of `benchmarks.jobs.elicit`, in an environment of their own.

Run by that script as a file: python elicit_rivals.py METHOD MODEL TOKENS SECONDS TARGET...
It prints a JSON line a target. Their texts follow the end-of-text token, as ours do, and each is
stopped when its CPU seconds are used up; the best text so far is its result.
"""

import argparse
import dataclasses
import json
import sys
import time
from contextlib import suppress

import torch


class OutOfTimeError(Exception):
    """The seconds are used up."""


class Best:
    """The best text so far, and the clock; raises when the time is over."""

    def __init__(self, seconds: float) -> None:
        """Start the clock."""
        self.loss, self.text, self.steps = float("inf"), "", 0
        self.started, self.seconds = time.process_time(), seconds

    def add(self, loss: float, text: str) -> None:
        """Keep a text if it is better."""
        self.steps += 1
        if loss < self.loss:
            self.loss, self.text = loss, text
        if self.used > self.seconds:
            raise OutOfTimeError

    @property
    def used(self) -> float:
        """CPU seconds since the start."""
        return time.process_time() - self.started


#: Candidates of a step of GCG: the papers' 512 take a minute a step here, one step in all.
WIDTH = 64
INITIAL = " x"


def nanogcg(path: str, tokens: int, seconds: float, targets: list[str]) -> None:
    """NanoGCG 0.3.0, its defaults but for the width, the length and the prefix cache."""
    import nanogcg.gcg as module
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    for target in targets:
        best = Best(seconds)
        config = module.GCGConfig(
            num_steps=10_000,
            optim_str_init="x" + INITIAL * (tokens - 1),
            search_width=WIDTH,
            use_prefix_cache=False,
            seed=0,
            verbosity="ERROR",
        )
        run = module.GCG(model, tokenizer, config)

        def log_buffer(self: object, tokenizer: object, best: Best = best) -> None:
            loss, ids = self.buffer[0]
            best.add(loss, tokenizer.batch_decode(ids)[0])

        module.AttackBuffer.log_buffer = log_buffer
        with suppress(OutOfTimeError):
            run.run("<|endoftext|>{optim_str}", target)
        show(target, best)


def tropt(method: str, path: str, tokens: int, seconds: float, targets: list[str]) -> None:
    """TROPT 0.1.1: GCG and BEAST as its recipes have them, but for width, length and beam."""
    allow_slices()
    from tropt.common import Targets
    from tropt.loss import PrefillCELoss
    from tropt.model.huggingface.lm import LMHFModel
    from tropt.optimizer.beamsearch_optimizer import BeamSearchOptimizer
    from tropt.optimizer.gcg_optimizer import GCGOptimizer
    from tropt.optimizer.utils.token_constraints import TokenConstraints
    from tropt.tracker import BaseTracker

    class Tracker(BaseTracker):
        def __init__(self, best: Best) -> None:
            super().__init__()
            self.best = best

        def _init(self, config: dict | None = None) -> None:
            pass

        def _log(self, data: dict) -> None:
            self.best.add(data["loss"], data["trigger_str"])

        def _finish(self, summary: dict | None = None) -> None:
            pass

    model = LMHFModel(model_name=path, device="cpu", dtype="float32", use_prefix_cache=False)
    plain = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    model._tokenizer.chat_template = plain
    for target in targets:
        best = Best(seconds)
        options = {"model": model, "loss": PrefillCELoss(), "tracker": Tracker(best), "seed": 0}
        if method == "gcg":
            constraints = TokenConstraints(disallow_non_ascii=True, disallow_special_tokens=True)
            optimizer = GCGOptimizer(
                num_steps=10_000,
                n_candidates=WIDTH,
                sample_topk=256,
                sample_n_replace=1,
                token_constraints=constraints,
                use_retokenize=True,
                **options,
            )
        else:
            # 8 x 8 and not 15 x 15, so that 12 tokens fit into the time; what is left of it goes
            # to another search with new draws.
            optimizer = BeamSearchOptimizer(
                num_steps=tokens, beam_size=8, branching_factor=8, **options
            )
        more = {} if method == "beast" else {"initial_trigger": "x" + INITIAL * (tokens - 1)}
        with suppress(OutOfTimeError):
            while True:
                optimizer.optimize_trigger(
                    templates=["<|endoftext|>{{OPTIMIZED_TRIGGER}}"],
                    targets=Targets(target_response_strs=[target]),
                    **more,
                )
        show(target, best)


def allow_slices() -> None:
    """Let dataclasses have slices as defaults, as TROPT's have; Python 3.11 refuses them."""
    get = dataclasses._get_field

    def get_field(cls: type, name: str, *rest: object) -> object:
        if isinstance(default := getattr(cls, name, None), slice):
            setattr(cls, name, dataclasses.field(default_factory=lambda: default))
        return get(cls, name, *rest)

    if sys.version_info < (3, 12):
        dataclasses._get_field = get_field


def show(target: str, best: Best) -> None:
    """Print the result of a target."""
    row = {"target": target, "text": best.text, "seconds": best.used, "steps": best.steps}
    print(json.dumps({"row": row}), flush=True)


def main() -> None:
    """Run a method on targets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method", choices=("nanogcg", "tropt-gcg", "tropt-beast"))
    parser.add_argument("model", help="folder of the model")
    parser.add_argument("tokens", type=int, help="tokens of a text")
    parser.add_argument("seconds", type=float, help="CPU seconds a target")
    parser.add_argument("targets", nargs="+")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rest = given.model, given.tokens, given.seconds, given.targets
    if given.method == "nanogcg":
        nanogcg(*rest)
    else:
        tropt(given.method.removeprefix("tropt-"), *rest)


if __name__ == "__main__":
    main()
