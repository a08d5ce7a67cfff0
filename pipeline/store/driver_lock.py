"""Lets only one driver at a time work on an output folder (or several that share the work), and shows others which.

The lock does not protect the data: two drivers of one run write the same bytes. It avoids doing the work twice, and
shows users and `packtrain wait` whether a driver is active.

1. A driver creates a lease, `_run/lease/run.json`: host, process and start time. It removes it when it ends, but if it
fails, it leaves it, with the error.
2. A thread rewrites it every few seconds with another number, as long as it is this driver's.
3. A lease is dead if it has an error or cannot be read; on the same machine, if its process is gone; on another
machine, if it has not changed for some beats, measured by the *reader's* clock. Clocks are never compared.
4. Dead leases are removed before a new one is created. Two drivers that do so at once may both go on.

Drivers with a share of the work (`--shard`) write `_run/lease/shard-{i}.json`, and conflict only with drivers without a
share. This works the same on local disks, network file systems without locks, and object stores.
"""

import os
import secrets
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import psutil

from ...schemas.errors import BusyError, OutputError, PacktrainError
from ...schemas.files.lock import process_runs
from ...schemas.jsontext import decode_note
from .store import Store

FOLDER = "_run/lease"
RUN = f"{FOLDER}/run.json"
"""Name of the lease of a driver that does all the work."""
BEAT_SECONDS = 5.0
SILENT_BEATS = 5
"""After this many beats without a change, a driver of another machine counts as dead."""
_POLL_SECONDS = 0.25
_ended_here: set[str] = set()
"""The nonces of this process's drivers that ended, in case a failing store kept them from removing their leases."""


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A driver's description of itself."""

    host: str
    pid: int
    since: str
    """When the driver began, by its own clock, for messages."""
    machine: str | None
    """Identifies the running system and its process namespace; None if unknown."""
    began: float
    """When the driver's process began, according to its system; needed because process numbers are reused."""
    beat_seconds: float
    nonce: str
    """A unique text, by which a driver knows its own lease."""
    shard: str | None = None
    count: int = 0
    """Counter that changes at each beat."""
    error: str | None = None
    """What the driver failed of."""

    def __str__(self) -> str:
        what = f"shard {self.shard}" if self.shard else "a run"
        return f"{what} on {self.host}, process {self.pid}, since {self.since}"


class Leases:
    """All leases on an output folder, and what repeated reads show of their drivers."""

    def __init__(self, out: Store) -> None:
        self._out = out
        self._seen: dict[str, tuple[bytes, float, int]] = {}
        """By name: the content, when it was first seen, and how many contents were seen."""

    def judge(self) -> dict[str, tuple[Lease | None, bool | None]]:
        """Return (lease, whether its driver is alive) by the lease's name. The lease is None if it cannot be read, the
        answer if it needs another read.
        """
        found: dict[str, tuple[Lease | None, bool | None]] = {}
        for name in dict.fromkeys([RUN, *self._out.names(FOLDER)]):  # a listing may be outdated
            if (data := self._out.read(name)) is not None:
                try:
                    lease = decode_note(data, Lease)
                    found[name] = lease, self._lives(name, data, lease)
                except msgspec.MsgspecError:
                    found[name] = None, False
        return found

    def _lives(self, name: str, data: bytes, lease: Lease) -> bool | None:
        now = time.monotonic()
        before, changed, contents = self._seen.get(name, (b"", now, 0))
        if data != before:
            changed, contents = now, contents + 1
        self._seen[name] = data, changed, contents
        if lease.error is not None or lease.nonce in _ended_here:
            return False
        if lease.machine is not None and lease.machine == _machine():
            return process_runs(lease.pid, lease.began)
        if now - changed > SILENT_BEATS * lease.beat_seconds:
            return False
        return True if contents > 1 else None


class DriverLock:
    """A lease on an output folder, held while the context lasts; if the work fails, it stays, and says so.

    Args:
        shard: `i/N` for a driver that shares the work; it does not conflict with other shares.
        beat: seconds between heartbeats.

    Raises:
        BusyError: another driver holds the lease; the message says which, and since when.
        StoreError: the folder cannot be written.
    """

    def __init__(self, out: Store, *, shard: str | None = None, beat: float = BEAT_SECONDS) -> None:
        self._out = out
        self._name = RUN if shard is None else f"{FOLDER}/shard-{int(shard.partition('/')[0]):06d}.json"
        me = psutil.Process()
        self.lease = Lease(
            host=os.uname().nodename,
            pid=me.pid,
            since=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=_machine(),
            began=me.create_time(),
            beat_seconds=beat,
            nonce=secrets.token_hex(8),
            shard=shard,
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="packtrain-lease", daemon=True)

    def __enter__(self) -> Self:
        leases, shard = Leases(self._out), self.lease.shard
        while True:
            others = {name: one for name, one in leases.judge().items() if shard is None or name == RUN}
            for lease, lives in others.values():
                if lives:
                    raise BusyError(
                        f"out: {lease} works on {self._out.url}. Let it finish, stop it, or name another folder with "
                        "--out; only runs that all have --shard share a folder"
                    )
            if all(lives is False for _, lives in others.values()) and self._take(list(others)):
                break
            time.sleep(min(_POLL_SECONDS, self.lease.beat_seconds))
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        failed = isinstance(error, Exception | KeyboardInterrupt) and not isinstance(error, OutputError)
        with suppress(PacktrainError):  # others see that the process is gone
            if self._is_mine() and failed:  # an OutputError says that the folder belongs to another run
                said = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
                self._write(error=said)
            elif self._is_mine():
                self._out.remove(self._name)
        _ended_here.add(self.lease.nonce)

    def _take(self, dead: list[str]) -> bool:
        """Write the lease. False if another driver was faster."""
        if self.lease.shard is not None:
            self._write()
            return True
        for name in dead:
            self._out.remove(name)
        return self._out.put_bytes(self._name, msgspec.json.encode(self.lease))

    def _write(self, **changes: Any) -> None:
        lease = msgspec.structs.replace(self.lease, **changes)
        self._out.replace_bytes(self._name, msgspec.json.encode(lease))

    def _is_mine(self) -> bool:
        return self.lease.nonce.encode() in (self._out.read(self._name) or b"")

    def _beat(self) -> None:
        count = 0
        while not self._ended.wait(self.lease.beat_seconds):
            count += 1
            with suppress(PacktrainError, OSError):  # the run itself will report errors of the store
                if self._is_mine():  # it was not taken over, and the folder is there
                    self._write(count=count)


@lru_cache(maxsize=1)
def _machine() -> str | None:
    """Identifies the running system and its process namespace: a container has its own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None
