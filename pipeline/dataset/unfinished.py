"""Describe an output folder without a manifest, for commands that need a finished dataset."""

import re
from pathlib import Path

import msgspec

from ...schemas.errors import InputError, StoreError
from ...schemas.jsontext import decode_note
from ...schemas.names import MANIFEST
from ...schemas.units import plural, size
from ..execute.checking import is_whole
from ..pack.shard import PackResult
from ..store.checksummed import unseal
from ..store.driver_lock import FAILED, Failure, Leases
from ..store.open import Store, StoredFile
from .manifests import open_output
from .output_folder import PLAN

EXPORT = "export.json"
"""The manifest of an export."""
_RECORD = re.compile(r"_run/(?:[a-z]+/)?shards/\d+\.json")


def refuse_unfinished(folder: str | Path, *, deep: bool) -> None:
    """Refuse an unfinished output. Does nothing if there is a manifest, or if no run has worked in the folder.

    Args:
        deep: check the existing shards against their hashes.

    Raises:
        InputError: the output is unfinished, and the message says how far the run got; or it is an export.
    """
    try:
        store = open_output(folder)
        if not store.exists(MANIFEST) and store.exists(EXPORT):
            raise InputError(f"{store.url} is an export, not a dataset; give the dataset that it was made from")
        if store.exists(MANIFEST) or not (store.exists(PLAN) or Leases(store).judge()):
            return
        raise InputError(f"{store.url} is not finished: it has no {MANIFEST}. {_state(store, deep)}")
    except StoreError:
        return  # opening the dataset will report the problem


def recorded(store: Store) -> list[StoredFile]:
    """Return the shards that a run has finished, from their records."""
    out = []
    for name in store.names("_run"):
        data = unseal(store.read(name), name) if _RECORD.fullmatch(name) else None
        try:
            shard = decode_note(data, PackResult).shard if data is not None else None
        except msgspec.MsgspecError:  # written by another version
            shard = None
        if shard is not None:
            out.append(StoredFile(shard.name, shard.bytes, shard.hash))
    return out


def _state(store: Store, deep: bool) -> str:
    shards = recorded(store)
    whole = [shard for shard in shards if store.size(shard.name) == shard.bytes]
    said = f"{plural(len(whole), 'shard is', 'shards are')} finished ({size(sum(shard.bytes for shard in whole))})"
    bad = sorted({shard.name for shard in shards} - {shard.name for shard in whole})
    if deep:
        bad = sorted({*bad, *(shard.name for shard in whole if not is_whole(store, shard))})
    if bad:
        said += f", of which {', '.join(bad[:3])}{' and others' if len(bad) > 3 else ''} are damaged"
    working = [str(lease) for lease, alive in Leases(store).judge().values() if alive is not False]
    if working:
        return f"{said}, and {working[0]} is working on it"
    try:
        failure = decode_note(store.read(FAILED), Failure)
        said += f"; the run ended with: {failure.message}"
    except msgspec.MsgspecError:
        pass
    return f"{said}. Run the same configuration again to continue where it stopped"
