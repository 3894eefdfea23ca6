"""What do hidden units of a sentence encoder answer to? Another model writes texts that show it.

Run me after `fuseprompt prepare`; arguments are a model, a layer, a writer and units.
"""

import sys

from fuseprompt.tasks.dream import Dream, dream
from fuseprompt.tasks.settings import DreamSettings

given = sys.argv[1:] or ["offline:sentence", "4", "offline:lm", "17", "18"]
model, layer, writer, *units = given
settings = DreamSettings(model=model, layer=layer, lm=writer)
for one in dream([int(unit) for unit in units], settings):
    if isinstance(one, Dream):
        token, most = max(one.tokens, key=lambda each: each[1])
        print(f"unit {one.unit}: {one.activation:.2f} {one.result.text}")
        print(f"  most at {token!r}: {most:.2f}")
    else:
        print(f"unit {one.item}: {one.error}")
