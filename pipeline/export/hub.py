"""A dataset's repository on the Hugging Face Hub: what it holds, and a commit that changes it. By huggingface_hub.

Everything goes up with `create_commit`: first the contents of large files, which the Hub keeps by their hash, then one
commit that shows all changes at once. So a reader never sees half of a dataset, and what a killed upload has sent is
not sent again. `upload_large_folder` would make many commits, and write notes into the folder; `upload_folder` would
send what it finds in a folder, where a checked list is wanted.
"""

import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...schemas.errors import ConfigError, OutputError, PacktrainError, StoreError

GITATTRIBUTES = ".gitattributes"
"""The file that the Hub puts into every repository."""
_TARGET = re.compile(r"hf://(?:datasets/)?([^/@\s]+/[^/@\s]+?)/?(?:@(\S+))?")
_MOST_READ = 64 << 20
"""Larger files of a repository are not read."""
_NETWORK = ("httpx", "httpx2", "httpcore", "requests", "urllib3")
"""Packages by which versions of huggingface_hub ask."""
AGAIN = "run the same command again to continue"


@dataclass(frozen=True, slots=True)
class Target:
    """A repository, and the branch that is changed."""

    repository: str
    """`owner/name`."""
    revision: str | None = None
    """None for the main branch."""

    def __str__(self) -> str:
        return f"hf://{self.repository}{f'@{self.revision}' if self.revision else ''}"


@dataclass(frozen=True, slots=True)
class HeldFile:
    """A file of a repository."""

    bytes: int
    git_hash: str
    """Of its content as a git object, if it is small."""
    sha256: str | None
    """Of its content, if the Hub keeps it as a large file."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a branch holds."""

    head: str
    """Its last commit."""
    private: bool
    files: dict[str, HeldFile]
    branch_missing: bool = False
    """The branch does not exist; what is said is of the main branch, from which it will start."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A file to be in the repository."""

    name: str
    content: Path | bytes | None
    """None if it need not be sent, because the repository has it."""
    bytes: int

    def is_in(self, held: Held) -> bool:
        """Whether the repository has it, with this content."""
        there = held.files.get(self.name)
        if there is None or there.bytes != self.bytes or self.content is None:
            return self.content is None
        if there.sha256 is not None:
            return there.sha256 == _digest(self.content, hashlib.sha256())
        return there.git_hash == _digest(self.content, hashlib.sha1(f"blob {self.bytes}\0".encode()))


def parse_target(text: str) -> Target:
    """Read `hf://owner/name` or `hf://owner/name@revision`.

    Raises:
        ConfigError: it is something else, or not a name that the Hub accepts.
    """
    match = _TARGET.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text}: write hf://owner/name, or hf://owner/name@revision for a branch")
    library = _library()
    try:
        library.utils.validate_repo_id(match[1])
    except library.errors.HFValidationError as error:
        raise ConfigError(
            f"{text}: the Hub does not accept this name ({str(error).rstrip('.')}); write hf://owner/name"
        ) from None
    return Target(match[1], match[2])


class Hub:
    """A client for one repository. The token is huggingface_hub's own: HF_TOKEN, or that of `hf auth login`.

    Raises:
        ConfigError: there is no token.
    """

    def __init__(self, target: Target) -> None:
        library = _library()
        self.target = target
        with self._explained():
            if not library.get_token():
                raise ConfigError(
                    "the Hub wants to know who publishes, and there is no token; run `hf auth login`, or set HF_TOKEN "
                    "to a token that may write"
                )
        self._api = library.HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
        self._names = {"repo_id": target.repository, "repo_type": "dataset"}
        if not sys.stderr.isatty():
            library.utils.disable_progress_bars()

    @property
    def url(self) -> str:
        """The page of the repository."""
        return f"{self._api.endpoint}/datasets/{self.target.repository}"

    def check_rights(self, held: Held | None) -> None:
        """Find out before any work whether the token may not write there, as far as the Hub says so.

        Raises:
            ConfigError: it may only read; or the repository is missing, and its owner is someone else.
        """
        errors = _library().errors
        with self._explained():
            try:
                user = self._api.whoami()
            except errors.HfHubHTTPError as error:
                if error.response.status_code == 401:
                    raise
                return  # tokens of other kinds have no user; the upload tells
        role = user.get("auth", {}).get("accessToken", {}).get("role")
        owners = [user.get("name"), *(one.get("name") for one in user.get("orgs", ()))]
        owner = self.target.repository.partition("/")[0]
        if role == "read" or (held is None and owner not in owners):
            what = (
                "may only read" if role == "read" else f"is of {user.get('name')}, who cannot make repositories there"
            )
            raise ConfigError(
                f"{self.target}: the token {what}; take a token with write access, or another owner: "
                f"{', '.join(map(str, owners))}"
            )

    def look(self) -> Held | None:
        """What the repository holds; None if there is none, or none that the token may see."""
        errors = _library().errors
        with self._explained():
            missing = False
            try:
                info = self._api.repo_info(**self._names, revision=self.target.revision)
            except errors.RepositoryNotFoundError:
                return None
            except errors.RevisionNotFoundError:
                info, missing = self._api.repo_info(**self._names), True
            tree = self._api.list_repo_tree(**self._names, recursive=True, revision=info.sha)
            files = {
                one.path: HeldFile(one.size, one.blob_id, one.lfs.sha256 if one.lfs is not None else None)
                for one in tree
                if hasattr(one, "blob_id")  # folders have a tree id
            }
        return Held(info.sha, bool(info.private), files, missing)

    def read(self, held: Held, name: str) -> bytes | None:
        """The content of a small file; None if there is no such file, or it is not small."""
        if name not in held.files or held.files[name].bytes > _MOST_READ:
            return None
        with self._explained(), tempfile.TemporaryDirectory(prefix="packtrain-") as folder:
            place = self._api.hf_hub_download(**self._names, filename=name, revision=held.head, local_dir=folder)
            return Path(place).read_bytes()

    def create(self, *, private: bool) -> Held:
        """Make the repository."""
        with self._explained():
            self._api.create_repo(**self._names, private=private or None, exist_ok=True)
        held = self.look()
        if held is None:
            raise StoreError(f"{self.target} was made, but the Hub does not show it yet; {AGAIN}")
        return held

    def commit(self, held: Held, add: Sequence[Outgoing], remove: Sequence[str], message: str) -> str:
        """Change all files in one commit, and return its hash. Nothing is changed if someone else was quicker."""
        library = _library()
        changes: list[Any] = [library.CommitOperationAdd(one.name, one.content) for one in add]
        changes += [library.CommitOperationDelete(name) for name in remove]
        with self._explained():
            if held.branch_missing:
                self._api.create_branch(**self._names, branch=self.target.revision, revision=held.head, exist_ok=True)
            made = self._api.create_commit(
                **self._names,
                operations=changes,
                commit_message=message,
                revision=self.target.revision,
                parent_commit=held.head,
            )
        return str(made.oid)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say what a failure of the Hub, of the network or of the token means."""
        try:
            yield
        except PacktrainError:
            raise
        except Exception as error:
            found = _explain(error, self.target)
            if found is None:
                raise
            raise found from error


def _explain(error: BaseException, target: Target) -> PacktrainError | None:
    """The error for users; None for an error that is not of the Hub."""
    errors = _library().errors
    chain: list[BaseException] = []
    while error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__ or error
    for one in chain:
        if isinstance(one, errors.OfflineModeIsEnabled):
            return ConfigError("HF_HUB_OFFLINE is set, so nothing can be published; unset it")
        if isinstance(one, errors.HfHubHTTPError):
            return _refused(one, target)
    network = any(type(one).__module__.partition(".")[0] in _NETWORK for one in chain)
    if network or any(isinstance(one, ConnectionError | TimeoutError) for one in chain):
        return StoreError(f"{target}: the Hub cannot be reached ({chain[-1]}); {AGAIN}")
    if isinstance(chain[0], OSError | RuntimeError | ValueError):
        return StoreError(f"{target}: the upload failed ({chain[0]}); {AGAIN}")
    return None


def _refused(error: Any, target: Target) -> PacktrainError:
    """What an HTTP status means here."""
    status = error.response.status_code
    said = " ".join(str(error.server_message or error).split())[:300]
    if status == 401:
        return ConfigError(
            f"{target}: the Hub does not accept the token ({said}); run `hf auth login`, or set HF_TOKEN"
        )
    if status in (402, 403):
        return ConfigError(
            f"{target}: the token may not write there ({said}); take a token with write access, or another owner"
        )
    if status == 404:
        return ConfigError(f"{target}: the Hub has no such owner or repository ({said}); check the name")
    if status == 412:
        return StoreError(f"{target}: someone else committed first, and nothing was changed; {AGAIN}")
    if status == 429:
        return StoreError(f"{target}: the Hub limits how often it is asked ({said}); wait, and {AGAIN}")
    if status >= 500:
        return StoreError(f"{target}: the Hub failed with status {status} ({said}); {AGAIN}")
    return OutputError(
        f"{target}: the Hub refused with status {status} ({said}); fix that, or choose another repository"
    )


def _digest(content: Path | bytes, hash: Any) -> str:
    if isinstance(content, bytes):
        hash.update(content)
        return str(hash.hexdigest())
    with content.open("rb") as file:
        while block := file.read(1 << 20):
            hash.update(block)
    return str(hash.hexdigest())


def _library() -> Any:
    """huggingface_hub, imported late because it takes time, and few commands need it."""
    try:
        import huggingface_hub
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError:
        raise ConfigError("publishing needs huggingface_hub; pip install huggingface_hub") from None
    return huggingface_hub
