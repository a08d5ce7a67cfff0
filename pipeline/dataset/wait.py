"""What becomes of a dataset that is not finished: leases show which processes are at work, until a manifest appears."""

import time
from pathlib import Path

import msgspec

from ...schemas.errors import InputError, RunDiedError, StalledError, StoreError
from ...schemas.jsontext import decode_note
from ...schemas.manifest import Manifest
from ...schemas.names import MANIFEST, PLAN
from ...schemas.units import duration
from ..store.driver_lock import FAILED, Failure, Lease, Leases
from ..store.local import LocalStore
from ..store.open import Store, open_store, resolve_place
from .manifests import open_output, read_manifest

EXPORT = "export.json"
"""The manifest of an export."""
_POLL_SECONDS = 0.25
_SLOWEST_SECONDS = 2.0
"""Longest pause between polls. Pauses grow to it, because remote stores charge for requests."""


def wait(out: str | Path, timeout: float = 3600.0, *, grace: float = 60.0) -> Manifest:
    """Wait for a dataset, and return its manifest when it is finished.

    Used by the ranks of a training job while one of them, or another job, runs packtrain. Clocks of different machines
    are never compared.

    Args:
        out: the folder or URL that the run writes.
        timeout: longest wait, in seconds.
        grace: if no process is at work for this many seconds, the run counts as dead. Within that time it may start, or
        start again.

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
    watch = _Watch(store)
    pause = _POLL_SECONDS
    while True:
        try:
            manifest = read_manifest(store) if store.exists(MANIFEST) else None
            if manifest is not None:
                return manifest
            watch.look()
        except StoreError as error:
            watch.troubled(error)
        now = time.monotonic()
        if now - began >= timeout:
            raise StalledError(
                f"{store.url} is not finished after {duration(timeout)}: {watch.state()}. Check the run, or wait longer"
            )
        if watch.idle() >= grace:
            raise RunDiedError(f"{store.url} will not be finished: {watch.state()}. {watch.advice()}")
        time.sleep(max(0.0, min(pause, began + timeout - now)))
        pause = min(pause * 1.1, _SLOWEST_SECONDS)


class _Watch:
    """Tracks which processes are at work, and how long there has been none."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._leases = Leases(store)
        self._busy = time.monotonic()
        """When a process last was at work, or may have been."""
        self._working: list[Lease] = []
        self._dead: list[Lease] = []
        self._failure: Failure | None = None
        self._trouble: StoreError | None = None
        self._begun = False
        """Whether a run has ever written a lease."""

    def look(self) -> None:
        """Check the leases once."""
        self._trouble = None
        found = self._leases.judge().values()
        self._begun = self._begun or bool(found)
        self._working = [lease for lease, alive in found if alive is not False and lease is not None]
        self._dead = [lease for lease, alive in found if alive is False and lease is not None and not lease.released]
        if any(alive is not False for _, alive in found):
            self._busy = time.monotonic()
            self._failure = None
            return
        note = self._store.read(FAILED)
        try:
            self._failure = decode_note(note, Failure) if note is not None else None
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self._failure = None

    def troubled(self, error: StoreError) -> None:
        """Record that the store does not answer, which does not tell anything about the run."""
        self._trouble = error
        self._busy = time.monotonic()

    def idle(self) -> float:
        """Seconds since a process was last at work."""
        return time.monotonic() - self._busy

    def state(self) -> str:
        """Describe the run's state."""
        if self._trouble is not None:
            return f"the store does not answer ({self._trouble})"
        if self._working:
            return f"{self._working[0]}, is still at work"
        if self._failure is not None:
            return f"{self._failure.lease}, failed: {self._failure.message}"
        if self._dead:
            return f"{self._dead[0]}, has died"
        return f"no run has been at work for {duration(self.idle())}"

    def advice(self) -> str:
        """Say what to do when no process is at work."""
        if self._begun:
            return "Run the same command again: it continues where it stopped"
        return "No run was ever started there: check the path, or start a run with `packtrain run`"


def refuse_unfinished(folder: str | Path) -> None:
    """Refuse an unfinished output. Does nothing if there is a manifest, or if no run has worked in the folder.

    Raises:
        InputError: the output is unfinished, and the message says what works on it or how the run ended; or it is an
        export.
    """
    try:
        store = open_output(folder)
        if store.exists(MANIFEST):
            return
        if store.exists(EXPORT):
            raise InputError(f"{store.url} is an export, not a dataset; give the dataset that it was made from")
        leases = Leases(store).judge()
        if leases or store.exists(PLAN):
            working = [str(lease) for lease, alive in leases.values() if alive is not False]
            state = f"{working[0]} is working on it" if working else _ended(store)
            raise InputError(f"{store.url} is not finished: it has no {MANIFEST}. {state}")
    except StoreError:
        return  # opening the dataset will report the problem


def _ended(store: Store) -> str:
    again = "Run the same configuration again to continue where it stopped"
    try:
        return f"The run ended with: {decode_note(store.read(FAILED), Failure).message}. {again}"
    except msgspec.MsgspecError:
        return again
