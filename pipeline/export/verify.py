"""Checks a finished export against its manifest."""

from pathlib import Path

from ...schemas.errors import InputError
from ..dataset.manifests import open_output
from ..dataset.verify import Finding, Verification, check_file
from ..observer import Observer, Silent
from ..store.local import LocalStore
from .driver import CLAIM
from .manifest import NAME, read_export


def is_export(folder: str | Path) -> bool:
    """Whether a folder holds an export, finished or not."""
    store = open_output(folder)
    if isinstance(store, LocalStore) and not store.root.is_dir():
        return False
    return store.exists(NAME) or store.exists(CLAIM)


def verify_export(folder: str | Path, *, deep: bool = False, observer: Observer | None = None) -> Verification:
    """Check that every file is there with its size; with `deep`, every byte against its hash.

    Raises:
        InputError: the export is not finished.
        IntegrityError: its manifest is damaged.
    """
    observer = observer or Silent()
    store = open_output(folder)
    manifest = read_export(store)
    if manifest is None:
        raise InputError(
            f"{store.url} is not finished: it has no {NAME}. Run the same packtrain export again to continue where it "
            "stopped"
        )
    findings: list[Finding] = []
    observer.begin("verify", sum(file.bytes for file in manifest.files), "B")
    for file in manifest.files:
        findings += check_file(store, file, deep)
        observer.advance(file.bytes)
    observer.end()
    folders = {file.name.rpartition("/")[0] for file in manifest.files} - {""}
    known = {file.name for file in manifest.files}
    for name in store.names():
        if name not in known and name.rpartition("/")[0] in folders:
            findings.append(Finding(name, "is not in the manifest; remove it, because a reader might take it for data"))
    splits = manifest.splits.values()
    return Verification(
        len(manifest.files),
        sum(split.rows for split in splits),
        sum(split.tokens for split in splits),
        tuple(findings),
    )
