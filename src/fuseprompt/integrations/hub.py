"""Fitted maps and word tables on the Hugging Face Hub, with a card and checked hashes."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fuseprompt.cache import is_intact
from fuseprompt.errors import FingerprintError, FuseError
from fuseprompt.fuse.table import JacobianTable, fingerprint_models
from fuseprompt.models.base import HasVocabulary, TextModel
from fuseprompt.proposals.fuse import Fuse
from fuseprompt.proposals.word_table import WordTable, fingerprint, load_or_make
from fuseprompt.search.minimize import versions
from fuseprompt.text.retokenize import RetokenizationTable

_CARD: Final = """---
library_name: fuseprompt
tags: [fuseprompt, prompt-optimization, {tag}]
---

# {title}

For texts that `{primary}` writes and `{secondary}` reads; made by fuseprompt {version}. It loads
for no other tokenizers and embeddings than those of these hashes:

| sha256 of | |
|---|---|
{hashes}

```python
from fuseprompt import AutoDAN, load
from fuseprompt.integrations.hub import from_pretrained

primary, secondary = load("{primary}"), load("{secondary}")
method = AutoDAN(proposal=from_pretrained("{repo}", primary, secondary))
```
{more}"""

_CASES: Final = """
| tokens there and here | words | R2 on words held out | cosine |
|---|---|---|---|
"""


def push_to_hub(
    made: JacobianTable | WordTable,
    repo_id: str,
    primary: HasVocabulary,
    secondary: TextModel,
    *,
    private: bool | None = None,
) -> str:
    """Upload maps, or the word table of two models, with a card.

    Args:
        made: Maps from `fit_adapter`; or `WordTable()`, whose vectors are made first if need be.
        repo_id: Repository, "user/name"; it is made if there is none.
        primary: Language model that it is for.
        secondary: The other model.
        private: Whether a new repository is private; by default what the account says.

    Returns:
        Address of the commit.

    Raises:
        FingerprintError: If the maps were fitted to other models.
        FuseError: If the Hub cannot be reached, or refuses.
    """
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if isinstance(made, JacobianTable):
            made.check(fingerprint_models(primary, secondary))
            made.save(folder)
            facts = {"title": "FUSE maps", "tag": "fuse", "more": _describe_cases(made)}
            hashes = dict(made.fingerprint)
        else:
            table = RetokenizationTable(primary.tokenizer, secondary.tokenizer)
            load_or_make(secondary, table, folder, on_progress=made.on_progress)
            facts = {"title": "Word table", "tag": "word-table", "more": ""}
            hashes = {"names, tokenizers and embeddings": fingerprint(secondary, table)}
        rows = [f"| {part.replace('_', ' ')} | `{value}` |" for part, value in hashes.items()]
        names = {"primary": primary.name, "secondary": secondary.name, "repo": repo_id}
        version = versions()["fuseprompt"]
        card = _CARD.format(**facts, **names, version=version, hashes="\n".join(rows))
        (folder / "README.md").write_text(card, encoding="utf-8")
        with _asking_for(repo_id):
            api, message = HfApi(), f"Upload {facts['title']}"
            api.create_repo(repo_id, private=private, exist_ok=True)
            done = api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=message)
    return str(done.commit_url)


def from_pretrained(
    repo_id: str, primary: HasVocabulary, secondary: TextModel, *, revision: str | None = None
) -> Fuse | WordTable:
    """Return the proposal that a repository holds for two models.

    An adapter of maps is `FuseAdapter(primary, secondary, table=proposal.maps[0])`.

    Args:
        repo_id: Repository, "user/name".
        primary: Language model that writes.
        secondary: The other model.
        revision: Branch, tag or commit; by default what is newest.

    Returns:
        `Fuse` with the maps, or `WordTable` with a folder in the Hub's cache.

    Raises:
        FingerprintError: If what is there was made for other models, or is damaged.
        FuseError: If the Hub cannot be reached, or has no such repository.
    """
    from huggingface_hub import snapshot_download

    table = RetokenizationTable(primary.tokenizer, secondary.tokenizer)
    name = f"{fingerprint(secondary, table)}.safetensors"
    with _asking_for(repo_id):
        wanted = ["table.json", "table.safetensors", name]
        folder = Path(snapshot_download(repo_id, revision=revision, allow_patterns=wanted))
    if (folder / "table.json").exists():
        return Fuse(maps=(JacobianTable.load(folder, fingerprint_models(primary, secondary)),))
    if is_intact(folder / name):
        return WordTable(folder=folder)
    raise FingerprintError(
        f"{repo_id} holds no maps, and no whole word table for {secondary.name} with "
        f"{primary.name} (sha256 {name[:12]}). Load both models by the ids on its card, or make "
        "one for these."
    )


@contextmanager
def _asking_for(repo_id: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # The HTTP library, and so the class of its errors, varies.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise FuseError(
            f"{repo_id}: the Hugging Face Hub cannot be reached, or refuses ({reason}). See that "
            'the name is "user/name"; `hf auth login` lets you in.'
        ) from None


def _describe_cases(table: JacobianTable) -> str:
    """Return how good each map is, as a table of the card."""
    rows = [
        f"| {k or 'any'}, {n} | {r.words:,} | {r.r2:.3f} | {r.cosine:.3f} |\n"
        for (k, n), r in sorted(table.reports.items())
    ]
    return _CASES + "".join(rows)
