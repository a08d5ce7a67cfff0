"""`packtrain export --to hf://…`: the shards of a dataset and its card on the Hugging Face Hub, and nothing else.

What goes is a list made from the manifest: the files of the splits, then README.md. Reports, rejects, documents and the
manifest name inputs and hold rows as text, so they stay. Everything appears in one commit; the Hub keeps large files by
their hash, so what a killed upload has sent is not sent again.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...schemas.errors import ConfigError, InputError, OutputError, PacktrainError, StoreError
from ..dataset.open_dataset import Finished
from ..observer import Observer, Silent
from ..report.card import NAME as CARD
from ..report.card import dataset_card
from ..run.run import packtrain_version
from .export import open_finished, refuse_damaged

_TARGET = re.compile(r"hf://(?:datasets/)?([\w.-]+/[\w.-]+)/?")
_SECRET = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{30,}|sk-[\w-]{20,}|A[KS]IA[0-9A-Z]{16})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
)
"""Tokens of the Hub, GitHub, model providers and AWS, and private keys."""
_MOST_CARD = 16 << 20


@dataclass(frozen=True, slots=True)
class Published:
    """What goes, and what became of it."""

    repository: str
    dataset: str
    """The hash of the dataset's manifest."""
    card: str
    files: dict[str, int]
    """Name → bytes of every file, the card among them."""
    commit: str | None = None
    """The commit that holds it; None after a dry run."""
    url: str = ""


def publish(
    dataset: str | Path,
    target: str,
    *,
    private: bool = False,
    dry_run: bool = False,
    observer: Observer | None = None,
) -> Published:
    """Publish a finished dataset, or a list of what would go.

    Args:
        dataset: its folder or URL.
        target: `hf://owner/name`.
        private: make the repository private, if it is made.

    Raises:
        ConfigError: the target or the token cannot be used.
        InputError: the dataset is unfinished or damaged, or its card cannot be published.
        OutputError: the repository is there, and public where a private one is wanted.
        StoreError: the Hub failed, or cannot be reached.
    """
    observer = observer or Silent()
    match = _TARGET.fullmatch(target)
    if match is None:
        raise ConfigError(f"{target[:200]}: write hf://owner/name")
    repository = match[1]
    source = open_finished(dataset)
    card = _card(source, repository)
    shards = {shard.name: shard for split in source.manifest.splits.values() for shard in split.shards}
    sizes = {name: shard.bytes for name, shard in shards.items()} | {CARD: len(card)}
    listed = Published(repository, source.manifest.hash, card.decode(), dict(sorted(sizes.items())))
    refuse_damaged(source, observer)
    if dry_run:
        return listed
    with _explained(target) as hub:
        api = hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
        names = {"repo_id": repository, "repo_type": "dataset"}
        if not sys.stderr.isatty():
            hub.utils.disable_progress_bars()
        url = api.create_repo(**names, private=private or None, exist_ok=True)
        if private and not api.repo_info(**names).private:
            raise OutputError(
                f"{target} is there already, and public; make it private in its settings, or leave --private out"
            )
        # What else would be read as rows of a split: shards of an earlier dataset.
        folders = {name.rpartition("/")[0] for name in shards}
        held = api.list_repo_files(**names)
        stale = [name for name in held if name not in shards and name.rpartition("/")[0] in folders]
        changes: list[Any] = [hub.CommitOperationDelete(name) for name in stale]
        changes.append(hub.CommitOperationAdd(CARD, card))
        for name, shard in shards.items():
            path = source.store.local(name, bytes=shard.bytes, hash=shard.hash)
            changes.append(hub.CommitOperationAdd(name, path))
        observer.note(f"uploading {len(sizes):,} files to {url}")
        made = api.create_commit(
            **names,
            operations=changes,
            commit_message=f"Dataset {source.manifest.hash[:16]}, by packtrain {packtrain_version()}",
        )
    return replace(listed, commit=str(made.oid), url=str(url))


def _card(source: Finished, repository: str) -> bytes:
    """The card to publish: packtrain's, with the address on the Hub; or the user's own, as it is.

    Raises:
        InputError: the user's card cannot be read, or names a path of this machine or a secret.
    """
    where = source.store.where(CARD)
    held = source.store.read(CARD) if (source.store.size(CARD) or 0) <= _MOST_CARD else b"\xff"
    if held is None or held == dataset_card(source.manifest):
        return dataset_card(source.manifest, repository)
    try:
        text = held.decode()
    except UnicodeDecodeError:
        raise InputError(
            f"{where} is not a text in UTF-8 of at most {_MOST_CARD >> 20} MiB; fix it, or delete it, and packtrain "
            "writes a new one"
        ) from None
    private = f"{_SECRET.pattern}|{re.escape(str(Path.home()))}/|{re.escape(source.store.url)}"
    if found := re.search(private, text):
        line = text.count("\n", 0, found.start()) + 1
        raise InputError(
            f"{where}, line {line}: holds what looks like a secret, or a path of this machine ({found[0][:6]}…); take "
            "it out, because everybody could read it"
        )
    return held


@contextmanager
def _explained(target: str) -> Iterator[Any]:
    """huggingface_hub, and what its failures mean. The token is its own: HF_TOKEN, or that of `hf auth login`."""
    try:
        import huggingface_hub as hub
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError:
        raise ConfigError("publishing needs huggingface_hub; pip install huggingface_hub") from None
    if not hub.get_token():
        raise ConfigError("there is no token for the Hub; run `hf auth login`, or set HF_TOKEN to one that may write")
    try:
        yield hub
    except PacktrainError:
        raise
    except hub.errors.HfHubHTTPError as error:
        said, status = " ".join(str(error.server_message or error).split())[:300], error.response.status_code
        kind = ConfigError if status in (400, 401, 402, 403, 404) else StoreError
        raise kind(
            f"{target}: the Hub answers {status} ({said}); check the name, and that the token may write there, then "
            "run the same command again"
        ) from error
    except hub.errors.HFValidationError as error:
        raise ConfigError(f"{target}: the Hub does not accept this name ({error}); write hf://owner/name") from error
    except Exception as error:  # of the network, in whatever package it speaks HTTP by
        raise StoreError(f"{target}: the upload failed ({error}); run the same command again") from error
