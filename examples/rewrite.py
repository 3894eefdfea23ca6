"""Turn reviews around: the same sentences with the other label, and what was changed.

Needs the offline models (`fuseprompt prepare`).
"""

from fuseprompt.tasks.job import Failure
from fuseprompt.tasks.rewrite import objective_of, rewrite
from fuseprompt.tasks.settings import RewriteSettings

REVIEWS = ("The soup was cold and the waiter rude.", "The hotel room was dirty and loud.")

settings = RewriteSettings(label="positive", keep=0.75)
objective = objective_of(settings)  # The models, loaded once.
for one in rewrite(REVIEWS, settings, objective=objective):
    if isinstance(one, Failure):
        print(one.error)
        continue
    print(one.text if one.found else f"not found, nearest: {one.text}")
    print(*(f"  {old} -> {new}" for _, old, new in one.changes), sep="\n")
