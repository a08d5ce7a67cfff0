"""One driver at a time on an output folder, or several that share the work; and who it is, for everybody else.

Nothing here protects the data: every put is create-only, and two drivers of one run write the same bytes. The lock
spares them doing the work twice, and tells people and `packtrain wait` whether anybody is at work.

1. A driver writes a lease, `_run/lease/run-{generation}.json`, by a create-only put: its host, process, beginning.
2. A thread rewrites it every few seconds with another number, and stops at once when the driver ends, however it ends.
3. A lease is dead when it says so; when its process is gone, on the same machine; or, anywhere else, when it has not
   changed for some beats of the *reader's* clock. No two clocks are compared.
4. A dead lease is taken over by creating the next generation, which one of several takers manages. The newest lease is
   never removed, so generations never repeat. A driver that slept through its own burial finds the newer lease.

Drivers with a share (`--shard`) write `_run/lease/shard-{i}.json` and disturb nobody but a driver without one. It is
the same on a disk, on a network file system without working locks, and on an object store.
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

from ..schemas.errors import BusyError, OutputError, PacktrainError
from ..schemas.jsontext import decode_note
from ..schemas.units import duration
from .stores import Store

FOLDER = "_run/lease"
FAILED = "_run/failed.json"
"""Why the last driver ended without a dataset. Gone as soon as the next one begins."""
BEAT_SECONDS = 5.0
SILENT_BEATS = 5
"""So many beats without news, and a driver of another machine counts as dead."""
_POLL_SECONDS = 0.25
_CLOCK_ERROR = 5.0
"""Seconds by which a process may seem to have begun elsewhen: the system's idea of its boot moves with its clock."""


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver says of itself."""

    host: str
    pid: int
    since: str
    """When it began, by its own clock: for people."""
    machine: str | None
    """Of the running system and its process numbers; None where it cannot be told."""
    began: float
    """When its process began, by that system: process numbers are used again."""
    beat_seconds: float
    nonce: str
    """Unlike any other's: a put whose answer was lost is known by its content."""
    shard: str | None = None
    count: int = 0
    """Another one at each beat."""
    released: bool = False
    """Whether it has ended in order."""

    def __str__(self) -> str:
        what = f"shard {self.shard}" if self.shard else "a run"
        return f"{what} on {self.host}, process {self.pid}, since {self.since}"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a driver ended without a dataset."""

    message: str
    kind: str
    """The error's class."""
    lease: Lease


class Pulse:
    """Whether the driver of one lease is alive, judged by looking at it again and again."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self._data = b""
        self._changed = 0.0
        self._seen = 0

    def look(self, data: bytes) -> bool | None:
        """True: it is alive. False: it is not. None: not known yet, look again.

        Args:
            data: what the lease holds now.
        """
        now = time.monotonic()
        if data != self._data:
            self._data, self._changed = data, now
            self._seen += 1
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):  # a lease of another version: its changes count
                self.lease = decode_note(data, Lease)
        lease = self.lease
        if lease is not None and lease.released:
            return False
        if lease is not None and lease.machine is not None and lease.machine == _machine():
            return _runs(lease.pid, lease.began)
        if now - self._changed > SILENT_BEATS * (lease.beat_seconds if lease is not None else BEAT_SECONDS):
            return False
        return True if self._seen > 1 else None

    @property
    def silent(self) -> float:
        """Seconds without a change."""
        return time.monotonic() - self._changed


class Leases:
    """All leases on an output folder."""

    def __init__(self, out: Store) -> None:
        self._out = out
        self._pulses: dict[str, Pulse] = {}

    def judge(self) -> dict[str, tuple[Lease | None, bool | None]]:
        """(what it says, whether it is alive as `Pulse.look` has it) of the newest lease and those of shards."""
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
        shard: `i/N` of a driver that shares the work; others with a share do not stand in its way.
        wait: seconds to wait for whoever holds it.
        beat: seconds between two signs of life.

    Raises:
        BusyError: another holds it; says who, and since when.
        StoreError: the folder cannot be written.
    """

    def __init__(self, out: Store, *, shard: str | None = None, wait: float = 0.0, beat: float = BEAT_SECONDS) -> None:
        self.waited = False
        """Whether somebody else was at work meanwhile."""
        self.replaced = False
        """Whether another driver took over, because this one gave no sign of life."""
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
        with suppress(PacktrainError):  # a full disk: whoever comes next sees that the process is gone
            self._give_up()

    def check(self) -> None:
        """Stop a driver that slept, and was replaced.

        Raises:
            BusyError: it was.
        """
        if self.replaced:
            raise BusyError(
                f"out: another run has taken {self._out.url} over, because this one gave no sign of life for "
                f"{duration(SILENT_BEATS * self.lease.beat_seconds)}; let it finish"
            )

    def _others(self, leases: Leases) -> dict[str, tuple[Lease | None, bool | None]]:
        """Leases that stand in the way."""
        found = leases.judge()
        if self._shard is not None:
            found = {name: one for name, one in found.items() if generation(name)}
        return {name: one for name, one in found.items() if name != self._name}

    def _take(self, leases: Leases, dead: list[str]) -> bool:
        """Write the lease, then look whether somebody else did meanwhile."""
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
            return  # the folder was taken away: do not make it again
        if self._shard is not None:
            self._out.remove(self._name)
        else:
            self._out.replace_bytes(self._name, msgspec.json.encode(msgspec.structs.replace(self.lease, released=True)))

    def _beat(self) -> None:
        count = 0
        while not self._ended.wait(self.lease.beat_seconds):
            count += 1
            with suppress(PacktrainError, OSError):  # the run itself meets what is wrong with the store, and says it
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
            mend = "Shards and a whole run do not share a folder: let it finish, or stop it"
        elif lease is not None and lease.shard is not None:
            mend = "Let the shards finish or stop them, wait for them with --wait, or name another folder with --out"
        else:
            mend = "Let it finish (--wait waits for it), stop it, or name another folder with --out"
        return f"out: {who} works on {self._out.url}. {mend}"


@contextmanager
def driving(out: Store, *, shard: str | None = None, wait: float = 0.0) -> Iterator[DriverLock]:
    """Hold the lock, and leave a note where the work fails.

    Raises:
        BusyError: see `DriverLock`.
    """
    with DriverLock(out, shard=shard, wait=wait) as lock:
        out.remove(FAILED)
        try:
            yield lock
        except OutputError:
            raise  # the folder belongs to another run, of which nothing is known here
        except (Exception, KeyboardInterrupt) as error:
            message = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
            failure = Failure(message=message, kind=type(error).__name__, lease=lock.lease)
            with suppress(PacktrainError):
                out.replace_bytes(FAILED, msgspec.json.encode(failure))
            raise


def generation(name: str) -> int:
    """The number of a whole run's lease; 0 for a shard's."""
    number = name.rpartition("/")[2].removeprefix("run-").removesuffix(".json")
    return int(number) if number.isdecimal() else 0


@lru_cache(maxsize=1)
def _machine() -> str | None:
    """Names the running system, and whose process numbers these are: a container has its own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _runs(pid: int, began: float) -> bool:
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - began) < _CLOCK_ERROR and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
