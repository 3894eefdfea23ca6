"""Find one text after which a language model goes on as wanted in two contexts.

Run: python examples/elicit.py
"""

from fuseprompt.tasks.elicit import elicit
from fuseprompt.tasks.settings import ElicitSettings

PAIRS = [("{} Its colour is", " red"), ("{} It tastes", " sweet")]

settings = ElicitSettings(max_tokens=8)
for found in elicit([PAIRS], settings):
    print(found.text)
    for model, ranks in found.rank.items():
        for (template, wanted), rank, nll in zip(PAIRS, ranks, found.nll[model], strict=True):
            print(f"  {template}{wanted}: choice {rank} of {model}, {nll:.2f} nats a token")
