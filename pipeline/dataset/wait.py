"""What becomes of a dataset that is not finished: its lock shows who is at work, until a manifest appears."""

import time
from pathlib import Path

from ...schemas.dataset.manifest import Manifest, read_manifest
from ...schemas.dataset.names import MANIFEST
from ...schemas.errors import InputError, RunDiedError, StalledError, StoreError
from ...schemas.units import duration
from ..store.local import LocalStore
from ..store.open_store import open_store, resolve_place
from ..store.run_lock import Activity, RunLock, read_run_lock

_POLL_SECONDS = 0.5
"""How long to wait until the store is asked again."""
_GRACE_SECONDS = 300.0
"""If no process is at work for so long, the run counts as dead. Within that time it may start, or start again after a
failure."""


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
    began = time.monotonic()
    last_busy = began  # when a run was last seen at work, or may have been
    has_begun = False  # whether some run ever had the lock
    while True:
        now = time.monotonic()
        try:
            # Asked first, because a store far away answers that sooner than it sends the content.
            manifest = read_manifest(store) if store.exists(MANIFEST) else None
            if manifest is not None:
                return manifest
            run_lock = read_run_lock(store)
            has_begun = has_begun or run_lock.holder is not None
            if run_lock.activity is not Activity.IDLE:  # where it is unknown, only the timeout ends a wait in vain
                last_busy = now
            state = _describe_state(run_lock, now - last_busy)
        except StoreError as error:  # a store that does not answer says nothing about the run
            last_busy = now
            state = f"the store does not answer ({error})"
        if now - began >= timeout:
            raise StalledError(
                f"{store.url} is not finished after {duration(timeout)}: {state}. Check the run, or wait longer"
            )
        if now - last_busy >= _GRACE_SECONDS:
            fix = "No run was ever started there: check the path, or start a run with `packtrain run`"
            if has_begun:
                fix = "Run the same command again: it continues where it stopped"
            raise RunDiedError(f"{store.url} will not be finished: {state}. {fix}")
        time.sleep(max(0.0, min(_POLL_SECONDS, began + timeout - now)))


def _describe_state(run_lock: RunLock, idle_seconds: float) -> str:
    """What is known of the run that would finish a dataset, as a clause.

    Args:
        idle_seconds: how long no run has been at work.
    """
    holder = run_lock.holder
    if run_lock.activity is Activity.UNKNOWN:
        return "it does not show whether a run is at work"
    if run_lock.activity is Activity.WORKING:
        return f"{holder or 'a run'}, is still at work"
    if holder is None:
        return f"no run has been at work for {duration(idle_seconds)}"
    return f"{holder}, has died" if holder.error is None else f"{holder}, failed: {holder.error}"
