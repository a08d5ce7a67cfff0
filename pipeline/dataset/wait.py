"""What becomes of a dataset that is not finished: its lock shows who is at work, until a manifest appears."""

import time
from pathlib import Path

from ...schemas.dataset.manifest import Manifest, read_manifest
from ...schemas.dataset.names import MANIFEST
from ...schemas.errors import InputError, RunDiedError, StalledError, StoreError
from ...schemas.units import duration
from ..store.local import LocalStore
from ..store.open_store import open_store, resolve_place
from ..store.run_lock import read_run_lock

_POLL_SECONDS = 0.5
_GRACE_SECONDS = 300.0
"""If no process is at work for so long, the run counts as dead. Within that time it may start, or start again."""


def wait(out: str | Path, timeout: float = 3600.0) -> Manifest:
    """Wait for a dataset, and return its manifest when it is finished.

    Used by the ranks of a training job while one of them, or another job, runs packtrain. An object store does not show
    whether a run is at work: there, only the timeout ends a wait in vain.

    Args:
        out: the folder or URL that the run writes.
        timeout: longest wait, in seconds.

    Raises:
        RunDiedError: no process is at work; the message says whether the run failed, died, or never started.
        StalledError: the timeout has passed.
        InputError, ConfigError: `out` is a file, or not a valid place.
        IntegrityError: the manifest is damaged.
    """
    store = open_store(resolve_place(str(out), Path.cwd()))
    if isinstance(store, LocalStore) and store.root.is_file():
        raise InputError(f"{store.url} is a file; give the folder that `packtrain run` writes")
    began = busy = time.monotonic()
    begun = False
    while True:
        now = time.monotonic()
        try:
            if (manifest := read_manifest(store) if store.exists(MANIFEST) else None) is not None:
                return manifest
            holder, working = read_run_lock(store)
            begun, busy = begun or holder is not None, now if working is not False else busy
            state = f"no run has been at work for {duration(now - busy)}"
            if working is None:
                state = "it does not show whether a run is at work"
            elif working:
                state = f"{holder or 'a run'}, is still at work"
            elif holder is not None:
                state = f"{holder}, has died" if holder.error is None else f"{holder}, failed: {holder.error}"
        except StoreError as error:  # which does not tell anything about the run
            busy, state = now, f"the store does not answer ({error})"
        if now - began >= timeout:
            raise StalledError(
                f"{store.url} is not finished after {duration(timeout)}: {state}. Check the run, or wait longer"
            )
        if now - busy >= _GRACE_SECONDS:
            again = "Run the same command again: it continues where it stopped"
            start = "No run was ever started there: check the path, or start a run with `packtrain run`"
            raise RunDiedError(f"{store.url} will not be finished: {state}. {again if begun else start}")
        time.sleep(max(0.0, min(_POLL_SECONDS, began + timeout - now)))
