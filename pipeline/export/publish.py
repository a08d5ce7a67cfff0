"""`packtrain export --to hf://…`: the shards of a dataset and its card on the Hugging Face Hub, and nothing else.

What goes is made from the manifest: the list of the shards, and the card. Reports, rejects, documents and the manifest
name inputs and hold rows as text, so they stay. Everything appears in one commit; the Hub keeps large files by their
hash, so what a killed upload has sent is not sent again.
"""

import os
import re
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...schemas.errors import ConfigError, OutputError, PacktrainError, StoreError
from ...schemas.fingerprint import version
from ...schemas.notebook import Shown, Table
from ...schemas.units import plural, size
from ..observer import Observer
from ..report.card import NAME as CARD
from ..report.card import dataset_card
from .export import open_sound

_REPOSITORY_TYPE = "dataset"
_TARGET = re.compile(r"hf://(?:datasets/)?([\w.-]+/[\w.-]+)/?")
"""A repository on the Hub; group 1 is its owner and name."""


@dataclass(frozen=True, slots=True, repr=False)
class Published(Shown):
    """What goes to the Hub, and what became of it."""

    card: str
    """The dataset's README.md."""
    files: dict[str, int]
    """Name → bytes of every file, the card among them."""
    commit: str | None = None
    """The commit that holds it; None after a dry run."""
    url: str = ""
    """The repository; "" after a dry run."""

    def summary(self) -> str:
        state = "nothing was published: a dry run"
        if self.commit is not None:
            state = f"{self.url}, commit {self.commit[:12]}"
        return f"{state}; {plural(len(self.files), 'file')}, {size(sum(self.files.values()))}"

    def tables(self) -> Iterator[Table]:
        yield Table("", ("file", "bytes"), self.files.items())


def publish(
    dataset: str | Path,
    target: str,
    *,
    private: bool = False,
    dry_run: bool = False,
    observer: Observer | None = None,
) -> Published:
    """Publish a finished dataset.

    Args:
        dataset: its folder or URL.
        target: `hf://owner/name`.
        private: make a new repository private; a public one that is there already is refused.
        dry_run: only return what would go, without asking the Hub.

    Raises:
        ConfigError: the target or the token cannot be used.
        InputError: the dataset is unfinished or damaged.
        OutputError: the repository is there, and public where a private one is wanted.
        StoreError: the Hub failed, or cannot be reached.
    """
    observer = observer or Observer()
    match = _TARGET.fullmatch(target)
    if match is None:
        raise ConfigError(f"{target[:200]}: write hf://owner/name")
    repository = match[1]
    source = open_sound(dataset, observer)
    card = dataset_card(source.manifest, repository)
    shards = {shard.name: shard for split in source.manifest.splits.values() for shard in split.shards}
    sizes = {name: shard.bytes for name, shard in shards.items()}
    sizes[CARD] = len(card)
    plan = Published(card=card.decode(), files=dict(sorted(sizes.items())))
    if dry_run:
        return plan
    with _hub_client(target) as hub:
        api = hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
        url = _make_repository(api, repository, target, private=private)
        # Progress bars are for terminals; in a log they are noise.
        if not sys.stderr.isatty():
            hub.utils.disable_progress_bars()
        stale_names = _stale_names(api, repository, shards)
        changes: list[Any] = [hub.CommitOperationDelete(name) for name in stale_names]
        changes.append(hub.CommitOperationAdd(CARD, card))
        for name, shard in shards.items():
            changes.append(hub.CommitOperationAdd(name, source.store.local(shard)))
        observer.note(f"uploading {len(sizes):,} files to {url}")
        # In one commit: a program that loads the dataset meanwhile gets the old one or the new one, and no mixture.
        commit = api.create_commit(
            repo_id=repository,
            repo_type=_REPOSITORY_TYPE,
            operations=changes,
            commit_message=f"Dataset {source.manifest.hash[:16]}, by packtrain {version('packtrain')}",
        )
    return replace(plan, commit=str(commit.oid), url=url)


def _make_repository(api: Any, repository: str, target: str, *, private: bool) -> str:
    """Make the repository, unless it is there; returns its URL.

    Args:
        api: a `huggingface_hub.HfApi`.

    Raises:
        OutputError: it is there, and public where a private one is wanted.
    """
    # Not False: None leaves a repository of an organisation to the organisation's own default.
    visibility = True if private else None
    url = api.create_repo(repo_id=repository, repo_type=_REPOSITORY_TYPE, private=visibility, exist_ok=True)
    # Asked again: a repository that was there keeps what it is, and rows that went out cannot be taken back.
    if private and not api.repo_info(repo_id=repository, repo_type=_REPOSITORY_TYPE).private:
        raise OutputError(
            f"{target} is there already, and public; make it private in its settings, or leave --private out"
        )
    return str(url)


def _stale_names(api: Any, repository: str, shards: Collection[str]) -> list[str]:
    """Files of the repository that `datasets` would read as rows besides these shards: those of an earlier dataset.

    Args:
        api: a `huggingface_hub.HfApi`.
        shards: names of the new shards. The card asks for all files of their folders.
    """
    folders = {name.rpartition("/")[0] for name in shards}
    published_names = api.list_repo_files(repo_id=repository, repo_type=_REPOSITORY_TYPE)
    return [name for name in published_names if name not in shards and name.rpartition("/")[0] in folders]


@contextmanager
def _hub_client(target: str) -> Iterator[Any]:
    """Give the module huggingface_hub, and raise its errors as errors that say what to do. It takes its token from
    HF_TOKEN, or from `hf auth login`.

    Raises:
        ConfigError: huggingface_hub or a token is missing, or the Hub refuses the name or the token.
        StoreError: the Hub failed, or cannot be reached.
    """
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
    except Exception as error:  # of the Hub, or of the network, in whatever package it speaks HTTP by
        # Errors of HTTP have the Hub's response; others have none, and 0 stands for its status.
        response = getattr(error, "response", None)
        status = getattr(response, "status_code", 0)
        words = str(getattr(error, "server_message", None) or error).split()
        message = " ".join(words)[:300]  # in one line
        problem = f"the Hub answers {status} ({message})" if status else f"the upload failed ({message})"
        # 429: too many requests, which passes; other such codes are about the name or the token.
        is_refused = 400 <= status < 500 and status != 429
        is_users_mistake = is_refused or isinstance(error, hub.errors.HFValidationError)
        kind = ConfigError if is_users_mistake else StoreError
        raise kind(
            f"{target}: {problem}; check the name, and that the token may write there, then run the same command again"
        ) from error
