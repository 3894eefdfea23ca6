"""Name groups of texts: what does each have in common that no other has?

Run it with `python examples/name.py`, after `fuseprompt prepare`.
"""

from fuseprompt.tasks.name import GroupName, name

MESSAGES = {
    "1": [
        "I forgot my password and the reset link does not work.",
        "The login page says that my account is locked.",
        "How can I change the password of my account?",
        "I cannot log in on my new phone.",
    ],
    "2": [
        "My parcel has not arrived yet.",
        "The package came a week late.",
        "Where is my order? The tracking page shows nothing.",
        "The courier left the parcel at the wrong house.",
    ],
    "3": [
        "I was charged twice for the same invoice.",
        "Please refund the money for my last payment.",
        "Why is the amount on my bill higher than last month?",
        "My credit card was declined at the checkout.",
    ],
}

for one in name(MESSAGES):
    if isinstance(one, GroupName):
        print(f"{one.group}: {one.label} ({one.auroc:.2f})")
    else:
        print(f"{one.item}: {one.error}")
