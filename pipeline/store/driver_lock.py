"""Lets only one driver at a time work on an output folder (or several that share the work), and shows others which.

The lock does not protect the data: two drivers of one run write the same bytes. It avoids doing the work twice, and
shows users and `packtrain wait` whether a driver is active.

1. A driver creates a lease, `_run/lease/run.json`: host, process and start time. It removes it when it ends, but if it
fails, it leaves it, with the error.
2. A thread rewrites it every few seconds with another number, as long as it is this driver's.
3. A lease is dead if it has an error; on the same machine, if its process is gone; on another machine, if it has not
changed for some beats, measured by the *reader's* clock. Clocks are never compared.
4. A dead lease is overwritten, and read again a moment later. Two drivers that do so at once may both go on.

Drivers with a share of the work (`--shard`) write `_run/lease/shard-{i}.json`, and conflict only with drivers without a
share. This works the same on local disks, network file systems without locks, and object stores.
"""

import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import msgspec
import psutil

from ...schemas.errors import BusyError, OutputError, PacktrainError
from ...schemas.files.lock import process_runs
from ...schemas.jsontext import decode_note
from .open import Store

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


class Pulse:
    """Finds out, by repeated reads of a lease, whether its driver is alive."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self._data = b""
        self._changed = 0.0
        self._seen = 0

    def look(self, data: bytes) -> bool | None:
        """Return True if the driver is alive, False if it is dead, None if that is not known yet and needs another
        read.

        Args:
            data: the current content of the lease.
        """
        now = time.monotonic()
        if data != self._data:
            self._data, self._changed = data, now
            self._seen += 1
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):  # from another version: only changes matter
                self.lease = decode_note(data, Lease)
        lease = self.lease
        if lease is not None and (lease.error is not None or lease.nonce in _ended_here):
            return False
        if lease is not None and lease.machine is not None and lease.machine == _machine():
            return process_runs(lease.pid, lease.began)
        if now - self._changed > SILENT_BEATS * (lease.beat_seconds if lease is not None else BEAT_SECONDS):
            return False
        return True if self._seen > 1 else None


class Leases:
    """All leases on an output folder."""

    def __init__(self, out: Store) -> None:
        self._out = out
        self._pulses: dict[str, Pulse] = {}

    def judge(self) -> dict[str, tuple[Lease | None, bool | None]]:
        """Return (lease, whether it is alive, as `Pulse.look` returns it) of each driver, by its lease's name."""
        found: dict[str, tuple[Lease | None, bool | None]] = {}
        for name in self._out.names(FOLDER):
            data = self._out.read(name) if name.endswith(".json") else None
            if data is not None:
                pulse = self._pulses.setdefault(name, Pulse())
                alive = pulse.look(data)
                found[name] = (pulse.lease, alive)
        return found


class DriverLock:
    """A lease on an output folder, held while the context lasts.

    Args:
        shard: `i/N` for a driver that shares the work; it does not conflict with other shares.
        wait: seconds to wait for the current holder.
        beat: seconds between heartbeats.

    Raises:
        BusyError: another driver holds the lease; the message says which, and since when.
        StoreError: the folder cannot be written.
    """

    def __init__(self, out: Store, *, shard: str | None = None, wait: float = 0.0, beat: float = BEAT_SECONDS) -> None:
        self.waited = False
        """Whether another driver was active while this one waited."""
        self._out = out
        self._shard = shard
        self._wait = wait
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

    def __enter__(self) -> "DriverLock":
        leases = Leases(self._out)
        until = time.monotonic() + self._wait
        while True:
            found = self._others(leases)
            alive = [lease for lease, lives in found.values() if lives]
            if alive:
                self.waited = True
                if time.monotonic() >= until:
                    raise BusyError(self._busy(alive[0]))
            elif all(lives is False for _, lives in found.values()) and self._take(leases, list(found)):
                break
            time.sleep(min(_POLL_SECONDS, self.lease.beat_seconds))
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()
        with suppress(PacktrainError):  # others see that the process is gone
            self._give_up()
        _ended_here.add(self.lease.nonce)

    def fail(self, message: str) -> None:
        """Leave the lease when the driver ends, with what it failed of."""
        self.lease = msgspec.structs.replace(self.lease, error=message)

    def _others(self, leases: Leases) -> dict[str, tuple[Lease | None, bool | None]]:
        """Return the leases that conflict with this one."""
        found = leases.judge()
        return {name: one for name, one in found.items() if self._shard is None or name == RUN}

    def _take(self, leases: Leases, dead: list[str]) -> bool:
        """Write the lease, then check whether another driver also wrote one meanwhile."""
        mine = msgspec.json.encode(self.lease)
        if self._shard is not None or self._name in dead:
            self._out.replace_bytes(self._name, mine)
        elif not self._out.put_bytes(self._name, mine):
            return False
        if self._name in dead:
            time.sleep(min(_POLL_SECONDS, self.lease.beat_seconds))
            if self._out.read(self._name) != mine:
                return False
        others = {name: lives for name, (_, lives) in self._others(leases).items() if name != self._name}
        if any(lives is not False for lives in others.values()):
            self._give_up()
            return False
        for name in others if self._shard is None else ():
            self._out.remove(name)
        return True

    def _is_mine(self) -> bool:
        data = self._out.read(self._name)
        return data is not None and self.lease.nonce.encode() in data

    def _give_up(self) -> None:
        if self._is_mine() and self.lease.error is not None:
            self._out.replace_bytes(self._name, msgspec.json.encode(self.lease))
        elif self._is_mine():
            self._out.remove(self._name)

    def _beat(self) -> None:
        count = 0
        while not self._ended.wait(self.lease.beat_seconds):
            count += 1
            with suppress(PacktrainError, OSError):  # the run itself will report errors of the store
                if self._is_mine():  # it was not taken over, and the folder is there
                    beat = msgspec.structs.replace(self.lease, count=count)
                    self._out.replace_bytes(self._name, msgspec.json.encode(beat))

    def _busy(self, lease: Lease | None) -> str:
        who = str(lease) if lease is not None else "a run of another version of packtrain"
        if self._shard is not None:
            fix = "Runs with --shard and a run without it cannot share a folder: let it finish, or stop it"
        elif lease is not None and lease.shard is not None:
            fix = "Let the runs with --shard finish (run.wait=1h waits), stop them, or name another folder with --out"
        else:
            fix = "Let it finish (run.wait=1h waits for it), stop it, or name another folder with --out"
        return f"out: {who} works on {self._out.url}. {fix}"


@contextmanager
def driving(out: Store, *, shard: str | None = None, wait: float = 0.0) -> Iterator[DriverLock]:
    """Hold the lock, and note in the lease if the work fails.

    Raises:
        BusyError: see `DriverLock`.
    """
    with DriverLock(out, shard=shard, wait=wait) as lock:
        try:
            yield lock
        except OutputError:
            raise  # the folder belongs to another run
        except (Exception, KeyboardInterrupt) as error:
            lock.fail("interrupted" if isinstance(error, KeyboardInterrupt) else str(error))
            raise


@lru_cache(maxsize=1)
def _machine() -> str | None:
    """Identifies the running system and its process namespace: a container has its own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None
