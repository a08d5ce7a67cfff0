"""Roll call: before anything can hang, every rank says that it is there, and a rank that is missing is named.

Each rank leaves a report (rank, host, process, device, versions, variables) in the job's store. Rank 0 waits for all of
them, compares what must agree, and posts a verdict that every rank reads. So a job with a rank that never came, two
processes of one rank, other versions or other data ends within the time limit, on every rank, with a sentence.
"""

import json
import logging
import os
import socket
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any

from ...schemas.errors import LaunchError
from .environment import Launch, machine, named, shared, shown, told
from .meeting import join, within

_LOG = logging.getLogger(__name__)
SECONDS = 60.0
"""How long a rank may take, unless PACKTRAIN_ROLL_CALL_SECONDS says otherwise."""
_GRACE = 10.0
"""How much longer the others wait for rank 0's verdict."""
_REPEAT = 15.0
"""Rank 0 says every so many seconds whom it waits for."""
_PACKAGES = ("packtrain", "torch", "transformers", "accelerate")
_calls = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What one rank says of itself."""

    rank: int
    world_size: int
    host: str
    machine: str
    """Host and boot: containers share a host name, machines a boot never."""
    pid: int
    device: str
    """Such as `cuda:3 of 0,1,2,3`, or `cpu`."""
    agree: dict[str, str]
    """What must be the same on every rank: versions, and what the caller adds (data, configuration)."""
    told: dict[str, str]
    """The launcher's variables."""

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size} on {self.host}, process {self.pid}, {self.device}"


@dataclass(frozen=True, slots=True)
class Roll:
    """Everybody was there."""

    world_size: int
    reports: tuple[Report, ...] = field(repr=False)
    """Of all ranks, on rank 0; this rank's own elsewhere."""


def roll_call(timeout: float | None = None, *, agree: Mapping[str, str] | None = None) -> Roll:
    """Wait until every rank has reported, or say who has not. Alone, it returns at once.

    Call it before `init_process_group` and before anything collective; as often on every rank. It leaves the store
    that it meets in open, for the process group.

    Args:
        timeout: seconds that a rank may come after this one; PACKTRAIN_ROLL_CALL_SECONDS, else 60.
        agree: name → value that all ranks must have, such as `{"dataset": fingerprint}`. Short strings.

    Raises:
        ConfigError: the launcher's variables are incomplete or contradict each other.
        LaunchError: a rank is missing, one came twice, or they do not agree; on every rank that is there.
    """
    launch = Launch.read()
    mine = _report(launch, dict(agree or {}))
    if launch is None:
        return Roll(1, (mine,))
    seconds = float(os.environ.get("PACKTRAIN_ROLL_CALL_SECONDS") or SECONDS) if timeout is None else timeout
    _LOG.info("%s: %s", mine, shown(mine.told))
    global _calls
    _calls += 1
    began = time.monotonic()
    book = _Book(join(launch, seconds), f"packtrain/roll/{launch.attempt}/{_calls}")
    try:
        twin = book.sign(mine)
        if twin is not None:
            text = _twice(twin, mine)
            book.post(text)
            raise LaunchError(text)
        verdict = _preside(book, mine, began, seconds) if launch.rank == 0 else _attend(book, mine, began, seconds)
    except (RuntimeError, TimeoutError, OSError) as error:
        if isinstance(error, LaunchError):
            raise
        raise LaunchError(
            f"{mine}: the job's store at {launch.master_addr}:{launch.master_port} was lost during the roll call "
            f"({str(error).splitlines()[0]}): the process that keeps it, rank 0 or its launcher, has ended or hangs; "
            "look at its output"
        ) from error
    if verdict:
        raise LaunchError(verdict)
    return Roll(launch.world_size, tuple(book.reports(launch.world_size)) if launch.rank == 0 else (mine,))


class _Book:
    """The roll in the store. No call takes longer than its limit, whatever has become of the store's keeper."""

    def __init__(self, store: Any, name: str) -> None:
        self._store, self._name = store, name

    def sign(self, report: Report) -> Report | None:
        """Write a report down. The one that stood there already, if another process has the same rank."""
        number = self._add(f"claims/{report.rank}")
        self._set(f"report/{report.rank}/{number}", json.dumps(asdict(report)))
        if number > 1:
            return self.read(report.rank)
        self._add("present")
        return None

    def present(self) -> int:
        return within(_GRACE, lambda: int(self._store.add(self._key("present"), 0)))

    def has(self, rank: int) -> bool:
        return self._check(f"report/{rank}/1")

    def read(self, rank: int) -> Report:
        text = within(_GRACE, lambda: self._store.get(self._key(f"report/{rank}/1")))
        return Report(**json.loads(text))

    def reports(self, world_size: int) -> list[Report]:
        return [self.read(rank) for rank in range(world_size)]

    def post(self, verdict: str) -> None:
        """The first verdict stands; the empty one means that all is well."""
        if self._add("verdicts") == 1:
            self._set("verdict", verdict)

    def verdict(self) -> str | None:
        if not self._check("verdict"):
            return None
        text = within(_GRACE, lambda: self._store.get(self._key("verdict")))
        return str(text.decode())

    def seen(self, more: int = 1) -> int:
        """How many ranks have read the verdict."""
        return within(_GRACE, lambda: int(self._store.add(self._key("seen"), more)))

    def _key(self, name: str) -> str:
        return f"{self._name}/{name}"

    def _add(self, name: str) -> int:
        return within(_GRACE, lambda: int(self._store.add(self._key(name), 1)))

    def _set(self, name: str, value: str) -> None:
        within(_GRACE, lambda: self._store.set(self._key(name), value) or True)

    def _check(self, name: str) -> bool:
        return within(_GRACE, lambda: bool(self._store.check([self._key(name)])))


def _preside(book: _Book, mine: Report, began: float, seconds: float) -> str:
    """Rank 0: wait for all, compare, post the verdict."""
    size, said, pause = mine.world_size, began, 0.02
    while (verdict := book.verdict()) is None:
        now = time.monotonic()
        if book.present() >= size:
            book.post(disagreement(book.reports(size)))
        elif now - began > seconds:
            there = [rank for rank in range(size) if book.has(rank)]
            book.post(absence([book.read(rank) for rank in there], size, seconds))
        else:
            if now - said > _REPEAT:
                missing = [rank for rank in range(size) if not book.has(rank)]
                _LOG.warning("roll call: %s of %d not here after %.0f s", named(missing), size, now - began)
                said = now
            time.sleep(pause)
            pause = min(2 * pause, 0.5)
    if verdict:
        # The store may go with this process: let those who are there read it first.
        ends = time.monotonic() + _GRACE / 2
        while book.seen(0) < book.present() - 1 and time.monotonic() < ends:
            time.sleep(0.05)
    return verdict


def _attend(book: _Book, mine: Report, began: float, seconds: float) -> str:
    """Any other rank: wait for the verdict."""
    pause = 0.02
    while (verdict := book.verdict()) is None:
        if time.monotonic() - began > seconds + _GRACE:
            if book.has(0):
                return f"{mine}: rank 0 ({book.read(0)}) has reported, but says nothing more: it hangs; look at it"
            return (
                f"{mine}: rank 0 has not reported in {seconds + _GRACE:g} seconds. The store is there, so the launcher "
                f"of the first node is, but its first process is not: look at its output. Here, {shown(mine.told)}"
            )
        time.sleep(pause)
        pause = min(2 * pause, 0.5)
    book.seen()
    return verdict


def absence(present: Sequence[Report], world_size: int, seconds: float) -> str:
    """The sentence about the ranks that did not come."""
    there = {report.rank: report for report in present}
    missing = [rank for rank in range(world_size) if rank not in there]
    hosts: dict[str, list[int]] = defaultdict(list)
    for report in present:
        hosts[report.host].append(report.rank)
    where = "; ".join(f"{named(ranks)} on {host}" for host, ranks in hosts.items())
    saw = shared({rank: report.told for rank, report in there.items()})
    return (
        f"{len(missing)} of {world_size} ranks did not report in {seconds:g} seconds: {named(missing)}. "
        f"Present: {where}. These saw {saw}. {_advice(there, missing, world_size)}"
    )


def _advice(there: Mapping[int, Report], missing: Sequence[int], world_size: int) -> str:
    local = {report.told.get("LOCAL_WORLD_SIZE", "") for report in there.values()}
    per_node = int(local.pop()) if len(local) == 1 and "" not in local else 0
    nodes = sorted({rank // per_node for rank in missing}) if 0 < per_node < world_size else []
    whole = [n for n in nodes if not any(rank // per_node == n for rank in there)]
    if nodes and whole == nodes:
        text = (
            f"With {per_node} processes a node these are all of {'node' if len(nodes) == 1 else 'nodes'} "
            f"{', '.join(map(str, nodes))}: check that it was started, that its machine rank was expanded there and "
            "is its own, and that it resolves and reaches MASTER_ADDR:MASTER_PORT"
        )
    else:
        text = "Others of their node may be here: look at the output of the missing ranks, which ended or hang"
    return f"{text}; and that WORLD_SIZE={world_size}, the processes of all nodes together, is what was meant"


def disagreement(reports: Sequence[Report]) -> str:
    """The sentence about what differs where nothing may; empty if nothing does."""
    faults: list[str] = []
    sizes: dict[str, list[int]] = defaultdict(list)
    for report in reports:
        sizes[str(report.world_size)].append(report.rank)
    _add_fault(faults, "WORLD_SIZE", sizes, "give every node the number of processes of all nodes")
    for name in dict.fromkeys(name for report in reports for name in report.agree):
        values: dict[str, list[int]] = defaultdict(list)
        for report in reports:
            values[report.agree.get(name, "nothing")].append(report.rank)
        mend = "install the same version on every node" if name in _PACKAGES else "give every rank the same"
        _add_fault(faults, name, values, mend)
    devices: dict[tuple[str, str], list[int]] = defaultdict(list)
    for report in reports:
        if report.device != "cpu":
            devices[report.machine, report.device].append(report.rank)
    for (where, device), ranks in devices.items():
        if len(ranks) > 1:
            faults.append(
                f"{named(ranks)} on {where.partition('/')[0]} would all use {device}: LOCAL_RANK must count the "
                "processes of one node, and a node must not start more than it has devices"
            )
    return "; ".join(faults)


def _add_fault(faults: list[str], name: str, values: Mapping[str, list[int]], mend: str) -> None:
    if len(values) > 1:
        differ = ", ".join(f"{value} on {named(ranks)}" for value, ranks in values.items())
        faults.append(f"the ranks do not agree on {name}: {differ}; {mend}")


def _twice(first: Report, second: Report) -> str:
    where = "the same host" if first.machine == second.machine else "another host"
    return (
        f"two processes are rank {first.rank}: process {first.pid} on {first.host}, and process {second.pid} on "
        f"{second.host}, {where}. The first saw {shown(first.told)}; the second {shown(second.told)}. If two nodes "
        "have one machine rank, it was expanded before the script reached them: write $SLURM_NODEID inside the quotes "
        "of srun's bash -c '…'. If two jobs share a node, give each a MASTER_PORT of its own"
    )


def _report(launch: Launch | None, agree: dict[str, str]) -> Report:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    rank, size = (launch.rank, launch.world_size) if launch else (0, 1)
    device = _device(launch.local_rank if launch else 0)
    return Report(rank, size, socket.gethostname(), machine(), os.getpid(), device, {**versions, **agree}, told())


def _device(local_rank: int) -> str:
    """Where this rank will compute, without starting the device: that would take memory before anything is decided."""
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{local_rank} of {os.environ.get('CUDA_VISIBLE_DEVICES') or 'all'}"
