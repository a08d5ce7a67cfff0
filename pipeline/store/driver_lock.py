"""Lets only one driver at a time work on an output folder (or several that share the work), and shows others which.

The lock does not protect the data: every put is create-only, and two drivers of one run write the same bytes. It avoids
doing the work twice, and shows users and `packtrain wait` whether a driver is active.

1. A driver writes a lease, `_run/lease/run-{generation}.json`, by a create-only put: host, process and start time.
2. A thread rewrites it every few seconds with another number, until the driver ends.
3. A lease is dead if it says so; on the same machine, if its process is gone; on another machine, if it has not changed
for some beats, measured by the *reader's* clock. Clocks are never compared.
4. A dead lease is taken over by creating the next generation, which succeeds for only one driver. The newest lease is
never removed, so generations never repeat. When a suspended driver wakes up after it was replaced, it finds the newer
lease.

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
from ...schemas.units import duration
from .open import Store

FOLDER = "_run/lease"
FAILED = "_run/failed.json"
"""Name of the note that says why the last driver failed. Removed when the next driver begins."""
BEAT_SECONDS = 5.0
SILENT_BEATS = 5
"""After this many beats without a change, a driver of another machine counts as dead."""
_POLL_SECONDS = 0.25
_ended_here: set[str] = set()
"""The nonces of this process's drivers that ended, in case a full disk kept them from noting it in their leases."""


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
    """A unique text, so that a put whose answer was lost can be recognised by its content."""
    shard: str | None = None
    count: int = 0
    """Counter that changes at each beat."""
    released: bool = False
    """Whether the driver ended normally."""

    def __str__(self) -> str:
        what = f"shard {self.shard}" if self.shard else "a run"
        return f"{what} on {self.host}, process {self.pid}, since {self.since}"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a driver ended without a dataset."""

    message: str
    kind: str
    """Name of the error's class."""
    lease: Lease


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
        if lease is not None and (lease.released or lease.nonce in _ended_here):
            return False
        if lease is not None and lease.machine is not None and lease.machine == _machine():
            return process_runs(lease.pid, lease.began)
        if now - self._changed > SILENT_BEATS * (lease.beat_seconds if lease is not None else BEAT_SECONDS):
            return False
        return True if self._seen > 1 else None

    @property
    def silent(self) -> float:
        """Seconds since the lease last changed."""
        return time.monotonic() - self._changed


class Leases:
    """All leases on an output folder."""

    def __init__(self, out: Store) -> None:
        self._out = out
        self._pulses: dict[str, Pulse] = {}

    def judge(self) -> dict[str, tuple[Lease | None, bool | None]]:
        """Return (lease, whether it is alive, as `Pulse.look` returns it) of the newest lease of a whole run and of
        each shard's.
        """
        names = [name for name in self._out.names(FOLDER) if name.endswith(".json")]
        newest = max((name for name in names if generation(name)), default=None, key=generation)
        found: dict[str, tuple[Lease | None, bool | None]] = {}
        for name in names:
            if generation(name) and name != newest:
                continue
            data = self._out.read(name)
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
        self.replaced = False
        """Whether another driver took over, because this one stopped its heartbeat."""
        self._out = out
        self._shard = shard
        self._wait = wait
        self._name = ""
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
        _ended_here.add(self.lease.nonce)
        with suppress(PacktrainError):  # for example a full disk; others see that the process is gone
            self._give_up()

    def check(self) -> None:
        """Stop a driver that was suspended and replaced.

        Raises:
            BusyError: it was replaced.
        """
        if self.replaced:
            raise BusyError(
                f"out: another run has taken {self._out.url} over, because this one gave no sign of life for "
                f"{duration(SILENT_BEATS * self.lease.beat_seconds)}; let it finish"
            )

    def _others(self, leases: Leases) -> dict[str, tuple[Lease | None, bool | None]]:
        """Return the leases that conflict with this one."""
        found = leases.judge()
        if self._shard is not None:
            found = {name: one for name, one in found.items() if generation(name)}
        return {name: one for name, one in found.items() if name != self._name}

    def _take(self, leases: Leases, dead: list[str]) -> bool:
        """Write the lease, then check whether another driver also wrote one meanwhile."""
        if self._shard is not None:
            self._name = f"{FOLDER}/shard-{int(self._shard.partition('/')[0]):06d}.json"
            self._out.replace_bytes(self._name, msgspec.json.encode(self.lease))
        else:
            last = max(map(generation, dead), default=0)
            self._name = f"{FOLDER}/run-{last + 1:06d}.json"
            if not self._out.put_bytes(self._name, msgspec.json.encode(self.lease)):
                self._name = ""
                return False
        newer = [name for name, (_, lives) in self._others(leases).items() if lives is not False]
        if newer or self._newest() > generation(self._name) > 0:
            self._give_up()
            self._name = ""
            return False
        for name in dead if self._shard is None else ():
            self._out.remove(name)
        return True

    def _newest(self) -> int:
        return max(map(generation, self._out.names(FOLDER)), default=0)

    def _give_up(self) -> None:
        if self._out.read(self._name) is None:
            return  # the folder was removed: do not create it again
        if self._shard is not None:
            self._out.remove(self._name)
        else:
            self._out.replace_bytes(self._name, msgspec.json.encode(msgspec.structs.replace(self.lease, released=True)))

    def _beat(self) -> None:
        count = 0
        while not self._ended.wait(self.lease.beat_seconds):
            count += 1
            with suppress(PacktrainError, OSError):  # the run itself will report errors of the store
                names = self._out.names(FOLDER)
                if self._shard is None and max(map(generation, names), default=0) > generation(self._name):
                    self.replaced = True
                    return
                if self._name in names:
                    beat = msgspec.structs.replace(self.lease, count=count)
                    self._out.replace_bytes(self._name, msgspec.json.encode(beat))

    def _busy(self, lease: Lease | None) -> str:
        who = str(lease) if lease is not None else "a run of another version of packtrain"
        if self._shard is not None:
            fix = "Runs with --shard and a run without it cannot share a folder: let it finish, or stop it"
        elif lease is not None and lease.shard is not None:
            fix = "Let the runs with --shard finish or stop them, wait with --wait, or name another folder with --out"
        else:
            fix = "Let it finish (--wait waits for it), stop it, or name another folder with --out"
        return f"out: {who} works on {self._out.url}. {fix}"


@contextmanager
def driving(out: Store, *, shard: str | None = None, wait: float = 0.0) -> Iterator[DriverLock]:
    """Hold the lock, and leave a note if the work fails.

    Raises:
        BusyError: see `DriverLock`.
    """
    with DriverLock(out, shard=shard, wait=wait) as lock:
        out.remove(FAILED)
        try:
            yield lock
        except OutputError:
            raise  # the folder belongs to another run
        except (Exception, KeyboardInterrupt) as error:
            message = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
            failure = Failure(message=message, kind=type(error).__name__, lease=lock.lease)
            with suppress(PacktrainError):
                out.replace_bytes(FAILED, msgspec.json.encode(failure))
            raise


def generation(name: str) -> int:
    """Return the generation of a whole run's lease; 0 for a shard's lease."""
    number = name.rpartition("/")[2].removeprefix("run-").removesuffix(".json")
    return int(number) if number.isdecimal() else 0


@lru_cache(maxsize=1)
def _machine() -> str | None:
    """Identifies the running system and its process namespace: a container has its own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None
