"""What stands in an output folder that has no manifest: for whoever asks whether it is a dataset."""

import re
from pathlib import Path

import msgspec

from ..schemas.errors import InputError, StoreError
from ..schemas.jsontext import decode_note
from .checking import CheckTask, check_files
from .driver_lock import FAILED, Failure, Leases
from .manifests import MANIFEST, open_output
from .outfolder import PLAN
from .pack import PackResult
from .parts import PartFile
from .sealed import unseal
from .stores import Store

_RECORD = re.compile(r"_run/(?:[a-z]+/)?shards/\d+\.json")


def refuse_unfinished(folder: str | Path, *, deep: bool) -> None:
    """Say what an unfinished run has left. Does nothing where there is a manifest, or nothing of packtrain's.

    Args:
        deep: hold what is there against its hashes.

    Raises:
        InputError: it is unfinished.
    """
    try:
        store = open_output(folder)
        if store.exists(MANIFEST) or not (store.exists(PLAN) or Leases(store).judge()):
            return
        raise InputError(f"{store.url} is not finished: it has no {MANIFEST}. {_state(store, deep)}")
    except StoreError:
        return  # whoever opens it says what is wrong


def recorded(store: Store) -> list[PartFile]:
    """The shards that a run has put, by their records."""
    out = []
    for name in store.names("_run"):
        data = unseal(store.read(name)) if _RECORD.fullmatch(name) else None
        try:
            shard = decode_note(data, PackResult).shard if data is not None else None
        except msgspec.MsgspecError:  # of another version
            shard = None
        if shard is not None:
            out.append(PartFile(shard.name, shard.bytes, shard.hash))
    return out


def _state(store: Store, deep: bool) -> str:
    shards = recorded(store)
    whole = [shard for shard in shards if store.size(shard.name) == shard.bytes]
    said = f"{len(whole):,} shards are there ({sum(shard.bytes for shard in whole):,} bytes)"
    bad = sorted({shard.name for shard in shards} - {shard.name for shard in whole})
    if deep:
        bad = sorted({*bad, *check_files(CheckTask(store, tuple(whole))).damaged})
    if bad:
        said += f", of which {', '.join(bad[:3])}{' and others' if len(bad) > 3 else ''} are damaged"
    working = [str(lease) for lease, alive in Leases(store).judge().values() if alive is not False]
    if working:
        return f"{said}, and {working[0]} works on it"
    try:
        failure = decode_note(store.read(FAILED), Failure)
        said += f"; the run ended with: {failure.message}"
    except msgspec.MsgspecError:
        pass
    return f"{said}. Run the same configuration again to go on where it stopped"
