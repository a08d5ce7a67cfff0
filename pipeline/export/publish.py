"""Publish a dataset on the Hugging Face Hub: exported to Parquet, with its card, and nothing that is private.

1. Ask the Hub what the repository holds. If it is this dataset, nothing is left to do.
2. Verify the dataset, and export it into a staging folder, where an interrupted command finds it again.
3. List what goes. Only the export's own files, its manifest and the card go; everything else only if it is asked for.
4. Upload, and compare what the Hub then has.
"""

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...schemas.config.hints import did_you_mean
from ...schemas.errors import ConfigError, InputError, IntegrityError, OutputError, StoreError
from ...schemas.files.user_folder import user_folder
from ...schemas.fingerprint import fingerprint
from ...schemas.units import plural
from ..dataset.open import Finished
from ..dataset.verify import verify
from ..observer import Observer, Silent
from ..report.card import NAME as CARD
from ..report.card import card_front, dataset_card, is_untouched, own_place, seal_card
from ..report.markdown import split_front, with_front
from ..run.steps import packtrain_version
from ..store.local import LocalStore
from ..store.open import is_url
from .driver import export, export_plan, open_source
from .hub import AGAIN, GITATTRIBUTES, Held, Hub, Outgoing, Target, parse_target
from .manifest import NAME, ExportManifest, parse_export
from .options import export_options
from .reader_files import hub_place
from .verify import verify_export

EXTRAS = {
    "report": ("report.html", "report.json"),
    "rejects": ("rejects.jsonl", "contamination.jsonl"),
    "documents": ("documents.parquet",),
    "manifest": ("manifest.json",),
}
"""What can be published besides, and its files: rows as text and paths of the machine; rows that were left out; ids and
files of documents; names and hashes of the inputs, and the code of own readers."""
_OPTIONS = export_options("trl")
_MOST_CARD = 16 << 20
"""Bytes that a card can have."""
_SECRET = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{30,}|sk-[\w-]{20,}|A[KS]IA[0-9A-Z]{16})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
)
"""Tokens of the Hub, GitHub, model providers and AWS, and private keys."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What a publication consists of."""

    target: Target
    dataset: str
    """The manifest's hash."""
    files: tuple[Outgoing, ...]
    kept: tuple[str, ...]
    """Files of the dataset that stay here because they may hold something private."""
    removed: tuple[str, ...] = ()
    """Files of the repository that are removed."""


@dataclass(frozen=True, slots=True)
class Published:
    """What became of it."""

    listing: Listing
    sent: tuple[Outgoing, ...] = ()
    """Files that were not there before."""
    commit: str | None = None
    """The commit that holds it; None if nothing was published."""
    url: str = ""
    """The repository's page."""


def publish(
    dataset: str | Path,
    target: str,
    *,
    extras: Sequence[str] = (),
    private: bool = False,
    replace: bool = False,
    staging: Path | None = None,
    dry_run: bool = False,
    workers: int | None = None,
    observer: Observer | None = None,
    show: Callable[[Listing], None] = lambda listing: None,
) -> Published:
    """Publish a finished dataset.

    Args:
        dataset: its folder or URL.
        target: `hf://owner/name`, or `hf://owner/name@branch`.
        extras: keys of `EXTRAS`: what goes besides.
        private: make the repository private, if it is made.
        replace: remove what else the repository holds, in the same commit.
        staging: a folder for the export, which is kept; None for one in the user's cache, removed after the upload, and
            after a dry run that has made it.
        dry_run: list what would go, without asking the Hub.
        show: gets the list before anything is uploaded.

    Raises:
        ConfigError: the target, the token or an option cannot be used.
        InputError: the dataset is unfinished or damaged, or its card cannot be published.
        OutputError: the repository holds something else, or is public.
        StoreError: the Hub failed, or cannot be reached.
    """
    observer, place = observer or Silent(), parse_target(target)
    source = open_source(dataset)
    with _nothing_left(own_staging(source)) if dry_run and staging is None else nullcontext():
        return _publish(source, place, extras, private, replace, staging, dry_run, workers, observer, show)


@contextmanager
def _nothing_left(folder: Path) -> Iterator[None]:
    """Remove the folder afterwards, unless an interrupted upload had left it."""
    there = folder.exists()
    try:
        yield
    finally:
        if not there:
            shutil.rmtree(folder, ignore_errors=True)


def _publish(
    source: Finished,
    place: Target,
    extras: Sequence[str],
    private: bool,
    replace: bool,
    staging: Path | None,
    dry_run: bool,
    workers: int | None,
    observer: Observer,
    show: Callable[[Listing], None],
) -> Published:
    asked, own = _extras(source, extras), _own_card(source)
    hub = None if dry_run else Hub(place)
    there = _look(hub, source) if hub is not None else None
    if there is not None:
        _check_repository(place, there, private=private, replace=replace)
    if hub is not None and (there is None or not there.whole):
        hub.check_rights(there.held if there is not None else None)
    found = there.ours if there is not None and there.whole else None
    folder = (staging or own_staging(source)) if found is None else None
    exported = _export(source, folder, workers, observer) if folder is not None else found
    assert exported is not None
    files = [Outgoing(file.name, folder and folder / file.name, file.bytes) for file in exported.files]
    files += [_small(NAME, exported.to_bytes()), _small(CARD, _card(source, exported, place, own)), *asked]
    names = {file.name for file in files}
    removed = tuple(name for name in there.others if name not in names) if there is not None else ()
    kept = [name for extra in EXTRAS.values() for name in extra if name not in names and source.store.exists(name)]
    files.sort(key=lambda file: file.name)
    listing = Listing(place, source.manifest.hash, tuple(files), (*kept, "_run/"), removed)
    show(listing)
    if hub is None:
        return Published(listing)
    left = {CARD} if there is not None and not replace and _card_is_edited(hub, there, observer) else set[str]()
    held = there.held if there is not None else hub.create(private=private)
    sent = tuple(file for file in files if file.name not in left and not file.is_in(held))
    if not sent and not removed:
        observer.note(f"{place} already holds this dataset; nothing to do")
        return Published(listing, (), held.head, hub.url)
    observer.note(f"uploading {plural(len(sent), 'file')} to {hub.url}")
    message = f"Dataset {source.manifest.hash[:16]}, by packtrain {packtrain_version()}"
    commit = hub.commit(held, sent, removed, message)
    _check_arrived(hub, sent)
    if folder is not None and staging is None:
        shutil.rmtree(folder, ignore_errors=True)
    return Published(listing, sent, commit, hub.url)


@dataclass(frozen=True, slots=True)
class _There:
    """A repository that exists."""

    held: Held
    ours: ExportManifest | None
    """The manifest of the export that it holds, if that is of the same dataset."""

    @property
    def whole(self) -> bool:
        """Whether all files of that export are there."""
        return self.ours is not None and all(
            (one := self.held.files.get(file.name)) is not None and (one.bytes, one.sha256) == (file.bytes, file.sha256)
            for file in self.ours.files
        )

    @property
    def others(self) -> list[str]:
        """Files that are in the way: other content, or what would be read as rows of this dataset."""
        if self.ours is None:
            return sorted(self.held.files.keys() - {GITATTRIBUTES})
        known = {file.name for file in self.ours.files}
        return sorted(name for name in self.held.files if name.startswith("data/") and name not in known)


def _look(hub: Hub, source: Finished) -> _There | None:
    held = hub.look()
    if held is None:
        return None
    data = hub.read(held, NAME)
    try:
        ours = parse_export(data, f"{hub.target}/{NAME}") if data is not None else None
    except IntegrityError:  # another program's, or damaged
        ours = None
    # Versions may differ: they decide the bytes of the files, but not the rows.
    if ours is not None and (ours.plan.get("dataset"), ours.plan.get("to")) != (source.manifest.hash, _OPTIONS.to):
        ours = None
    return _There(held, ours)


def _check_repository(target: Target, there: _There, *, private: bool, replace: bool) -> None:
    """Refuse a repository that holds something else, or that everybody can read where that is not wanted.

    Raises:
        OutputError: it does.
    """
    if private and not there.held.private:
        raise OutputError(
            f"{target} is there already, and public; make it private in its settings, or leave --private out"
        )
    if there.others and not replace:
        some = ", ".join(there.others[:5]) + (", …" if len(there.others) > 5 else "")
        raise OutputError(
            f"{target} holds something else ({some}); name another repository, or add --replace, which removes that "
            "from the branch in the same commit (its history keeps it)"
        )


def _extras(source: Finished, extras: Sequence[str]) -> list[Outgoing]:
    """The files that are asked for besides.

    Raises:
        ConfigError: there is no such word, or none of its files.
    """
    found = []
    for word in dict.fromkeys(extras):
        if word not in EXTRAS:
            raise ConfigError(f"--with {word}: choose one of {', '.join(EXTRAS)}{did_you_mean(word, EXTRAS)}")
        names = [name for name in EXTRAS[word] if source.store.exists(name)]
        if not names:
            hint = "packtrain report writes it" if word == "report" else "leave it out"
            raise ConfigError(f"--with {word}: {source.store.url} has no {EXTRAS[word][0]}; {hint}")
        for name in names:
            path = source.store.local(name)
            found.append(Outgoing(name, path, path.stat().st_size))
    return found


def own_staging(source: Finished) -> Path:
    """A folder in the user's cache whose name says what is exported, so that the next attempt finds it."""
    return user_folder() / "publish" / fingerprint(export_plan(source, _OPTIONS))[:32]


def _export(source: Finished, folder: Path, workers: int | None, observer: Observer) -> ExportManifest:
    """Verify the dataset and export it, if that is not done yet; then read every byte of the export.

    Raises:
        ConfigError: the staging folder is a URL.
        InputError: the dataset is damaged.
        IntegrityError: the export is.
    """
    if is_url(str(folder)):
        raise ConfigError(f"--staging {folder}: give a folder of this machine")
    findings = verify(source.store.url, observer=observer).findings
    if findings:
        raise InputError(
            f"{source.store.url} is damaged: {findings[0]}; packtrain repair {source.store.url} rebuilds it"
        )
    manifest = export(source.store.url, folder, _OPTIONS, workers=workers, observer=observer).manifest
    found = verify_export(folder, deep=True, observer=observer).findings
    if found:
        raise IntegrityError(f"{folder} is damaged: {found[0]}; delete it, and {AGAIN}")
    return manifest


def _small(name: str, data: bytes) -> Outgoing:
    return Outgoing(name, data, len(data))


def _own_card(source: Finished) -> tuple[dict[str, Any], str] | None:
    """The head and the text of the user's own card; None if packtrain's is published.

    Raises:
        InputError: the card cannot be read, or names a path of this machine or a secret, which may stand in the
            configuration.
    """
    where = source.store.where(CARD)
    if isinstance(source.store, LocalStore) and Path(where).is_dir():
        raise InputError(f"{where} is a folder, but the card has this name; move the folder away")
    if (source.store.size(CARD) or 0) > _MOST_CARD:
        raise InputError(f"{where} has more than {_MOST_CARD >> 20} MiB; shorten it, or delete it")
    held = source.store.read(CARD)
    own = held if held is not None and not is_untouched(held) else None
    try:
        text = (dataset_card(source.manifest, own_place(source.manifest)) if own is None else own).decode()
        front, body = split_front(text)
    except ValueError as error:
        raise InputError(f"{where}: {error}; fix it, or delete it, and packtrain writes a new one") from None
    for number, line in enumerate(text.splitlines(), start=1):
        found = [f"names a path of this machine ({path})" for path in _private_paths(source) if _names(path, line)]
        found += [f"holds what looks like a secret ({one[0][:6]}…)" for one in _SECRET.finditer(line)]
        if found:
            raise InputError(f"{where}, line {number}: {found[0]}; take it out, because everybody could read it")
    return (front, body) if own is not None else None


def _card(source: Finished, exported: ExportManifest, target: Target, own: tuple[dict[str, Any], str] | None) -> bytes:
    """The card to publish: packtrain's, or the user's own with the files of the export at its head."""
    place = hub_place(exported, target.repository)
    if own is None:
        return dataset_card(source.manifest, place)
    (front, body), ours = own, card_front(source.manifest, place)
    front = front | {key: ours[key] for key in ("configs", "dataset_info")}
    return seal_card(with_front(front, body if body.endswith("\n") else f"{body}\n"))


def _names(path: str, line: str) -> bool:
    return re.search(rf"{re.escape(path)}(?![\w-])", line) is not None


def _private_paths(source: Finished) -> list[str]:
    places = [Path.home(), Path.cwd()]
    if isinstance(source.store, LocalStore):
        places.append(source.store.root)
    return sorted({str(place) for place in places if len(place.parts) > 1})


def _card_is_edited(hub: Hub, there: _There, observer: Observer) -> bool:
    """Whether someone has edited the card in the repository."""
    card = hub.read(there.held, CARD) if there.ours is not None else None
    if card is None or is_untouched(card):
        return False
    observer.note(f"{CARD} was edited in the repository, and stays; --replace writes a new one")
    return True


def _check_arrived(hub: Hub, sent: Sequence[Outgoing]) -> None:
    """Compare what was sent with what the repository now has.

    Raises:
        StoreError: something is missing or different.
    """
    held = hub.look()
    wrong = [file.name for file in sent if held is None or not file.is_in(held)]
    if wrong:
        raise StoreError(f"{hub.target}: {wrong[0]} is not there as it was sent; run the same command again")
