"""The rank check: before anything can hang, every rank reports itself, and a missing rank is named.

Each rank leaves a report (rank, host, process, device, versions, variables) in the job's store. Rank 0 waits for all of
them, compares what must agree, and posts a verdict that every rank reads. So a job with a rank that never came, two
processes of one rank, other versions or other data ends within the time limit, on every rank, with a sentence.
torch's own rendezvous waits ten minutes, and names no rank.
"""

import json
import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata

from ...schemas.errors import LaunchError
from .environment import Launch, compared, launcher_variables, listed, machine, named, ranks_by, route
from .rank_store import RankStore, until

_LOG = logging.getLogger(__name__)
SECONDS = 60.0
"""Seconds that a rank may take, unless PACKTRAIN_RANK_CHECK_SECONDS is set."""
_GRACE = 10.0
"""Additional seconds that the others wait for rank 0's verdict."""
_REPEAT = 15.0
"""Seconds between rank 0's messages about the ranks it waits for."""
_PACKAGES = ("packtrain", "torch", "transformers", "accelerate")
_FIXES = {
    "WORLD_SIZE": "give every node the number of processes of all nodes",
    **dict.fromkeys(_PACKAGES, "install the same version on every node"),
}
_PASSED = "passed"
_calls = 0


@dataclass(frozen=True, slots=True)
class Report:
    """One rank, as it describes itself."""

    rank: int
    world_size: int
    host: str
    machine: str
    """Host and boot id. Containers may share a host name; machines never share a boot id."""
    pid: int
    device: str
    """Device, such as `cuda:3 of 0,1,2,3` or `cpu`."""
    agree: dict[str, str]
    """Values that must be equal on all ranks: versions, and what the caller adds (data, configuration)."""
    variables: dict[str, str]
    """The launcher's."""
    address: str = ""
    """This machine's own, on the way to MASTER_ADDR."""
    interface: str = ""

    def __str__(self) -> str:
        over = f", interface {self.interface} ({self.address})" if self.interface else ""
        return f"rank {self.rank} of {self.world_size} on {self.host}{over}, process {self.pid}, {self.device}"


@dataclass(frozen=True, slots=True)
class Ranks:
    """All ranks reported."""

    world_size: int
    reports: tuple[Report, ...] = field(repr=False)
    """Reports of all ranks on rank 0; on other ranks, only their own."""


def rank_check(timeout: float | None = None, *, agree: Mapping[str, str] | None = None) -> Ranks:
    """Wait until every rank has reported, or say which has not. A single process returns at once.

    Call it before `init_process_group` and before anything collective; as often on every rank. The store stays open
    for the process group.

    Args:
        timeout: seconds that a rank may come after this one; PACKTRAIN_RANK_CHECK_SECONDS, else 60.
        agree: name → value that all ranks must have, such as `{"dataset": fingerprint}`. Short strings.

    Raises:
        ConfigError: the launcher's variables are incomplete or contradict each other.
        LaunchError: a rank is missing, one came twice, or they do not agree; on every rank that is there.
    """
    launch = Launch.read()
    mine = _report(launch, dict(agree or {}))
    if launch is None:
        return Ranks(1, (mine,))
    given = os.environ.get("PACKTRAIN_RANK_CHECK_SECONDS") or os.environ.get("PACKTRAIN_ROLL_CALL_SECONDS")
    seconds = float(given or SECONDS) if timeout is None else timeout
    _LOG.info("%s: %s", mine, listed(mine.variables))
    global _calls
    _calls += 1
    began = time.monotonic()
    store = RankStore(launch, f"ranks/{_calls}", seconds, _GRACE)
    reports = [mine]
    try:
        number = store.add(f"claims/{mine.rank}")
        store.set(f"report/{mine.rank}/{number}", json.dumps(asdict(mine)))
        if number > 1:
            verdict = store.first("verdict", _twice(_read(store, mine.rank), mine))
        elif launch.rank == 0:
            verdict, reports = _preside(store, launch.world_size, began, seconds)
        else:
            verdict = _await_verdict(store, mine, began + seconds + _GRACE)
    except (RuntimeError, TimeoutError, OSError) as error:
        raise LaunchError(
            f"{mine}: the job's store at {launch.place} was lost during the rank check ({str(error).splitlines()[0]}): "
            f"{launch.keeper}, which keeps it, has ended or hangs; look at its output"
        ) from error
    if verdict != _PASSED:
        raise LaunchError(verdict)
    return Ranks(launch.world_size, tuple(reports))


def _preside(store: RankStore, size: int, began: float, seconds: float) -> tuple[str, list[Report]]:
    """Rank 0: wait for all, compare, post the verdict. Returns it, with the reports of all that came."""
    reports = [f"report/{rank}/1" for rank in range(size)]

    def decided() -> bool:
        return store.has("verdict") or store.has(*reports)

    while not until(min(time.monotonic() + _REPEAT, began + seconds), decided):
        if time.monotonic() >= began + seconds:
            break
        missing = [rank for rank, key in enumerate(reports) if not store.has(key)]
        _LOG.warning("rank check: %s of %d missing after %.0f s", named(missing), size, time.monotonic() - began)
    there = [rank for rank, key in enumerate(reports) if store.has(key)]
    known = [_read(store, rank) for rank in there]
    found = disagreement(known) if len(known) == size else absence(known, size, seconds)
    verdict = store.first("verdict", found or _PASSED)
    if verdict != _PASSED:  # the store may end with this process: let the others read it first
        until(time.monotonic() + _GRACE / 2, lambda: store.add("seen", 0) >= len(known) - 1)
    return verdict, known


def _await_verdict(store: RankStore, mine: Report, deadline: float) -> str:
    if until(deadline, lambda: store.has("verdict")):
        store.add("seen")
        return store.get("verdict")
    if store.has("report/0/1"):
        return f"{mine}: rank 0 ({_read(store, 0)}) has reported, but says nothing more: it hangs; look at it"
    return (
        f"{mine}: rank 0 has not reported in time. The store is there, so the launcher of the first node is, but its "
        f"first process is not: look at its output. Here, {listed(mine.variables)}"
    )


def _read(store: RankStore, rank: int) -> Report:
    return Report(**json.loads(store.get(f"report/{rank}/1")))


def absence(present: Sequence[Report], world_size: int, seconds: float) -> str:
    """The message about missing ranks."""
    there = {report.rank: report for report in present}
    missing = [rank for rank in range(world_size) if rank not in there]
    hosts = ranks_by({rank: report.host for rank, report in there.items()})
    where = "; ".join(f"{named(ranks)} on {host}" for host, ranks in hosts.items())
    saw = compared({rank: report.variables for rank, report in there.items()})
    local = {report.variables.get("LOCAL_WORLD_SIZE", "") for report in present}
    per_node = int(local.pop() or 0) if len(local) == 1 else 0
    nodes = sorted({rank // per_node for rank in missing}) if 0 < per_node < world_size else []
    if nodes and not any(rank // per_node in nodes for rank in there):
        advice = (
            f"With {per_node} processes a node these are all of {'node' if len(nodes) == 1 else 'nodes'} "
            f"{', '.join(map(str, nodes))}: check that it was started, that its machine rank was expanded there and "
            "is its own, and that it resolves and reaches MASTER_ADDR:MASTER_PORT"
        )
    else:
        advice = "Others of their node may be here: look at the output of the missing ranks, which ended or hang"
    return (
        f"{len(missing)} of {world_size} ranks did not report in {seconds:g} seconds: {named(missing)}. "
        f"Present: {where}. These saw {saw}. {advice}; and that WORLD_SIZE={world_size}, the processes of all nodes "
        "together, is what was meant"
    )


def disagreement(reports: Sequence[Report]) -> str:
    """The sentence about what differs where nothing may; empty if nothing does."""
    faults = []
    claims = {report.rank: {"WORLD_SIZE": str(report.world_size), **report.agree} for report in reports}
    for name in dict.fromkeys(name for claim in claims.values() for name in claim):
        ranks_of = ranks_by({rank: claim.get(name, "nothing") for rank, claim in claims.items()})
        if len(ranks_of) > 1:
            differ = ", ".join(f"{value} on {named(ranks)}" for value, ranks in ranks_of.items())
            fix = _FIXES.get(name, "give every rank the same")
            faults.append(f"the ranks do not agree on {name}: {differ}; {fix}")
    devices = ranks_by({report.rank: (report.machine, report.device) for report in reports})
    for (where, device), ranks in devices.items():
        if device != "cpu" and len(ranks) > 1:
            faults.append(
                f"{named(ranks)} on {where.partition('/')[0]} would all use {device}: LOCAL_RANK must count the "
                "processes of one node, and a node must not start more than it has devices"
            )
    return "; ".join(faults)


def _twice(first: Report, second: Report) -> str:
    where = "the same host" if first.machine == second.machine else "another host"
    return (
        f"two processes are rank {first.rank}: process {first.pid} on {first.host}, and process {second.pid} on "
        f"{second.host}, {where}. The first saw {listed(first.variables)}; the second {listed(second.variables)}. If "
        "two nodes have one machine rank, it was expanded before the script reached them: write $SLURM_NODEID inside "
        "the quotes of srun's bash -c '…'. If two jobs share a node, give each a MASTER_PORT of its own"
    )


def _report(launch: Launch | None, agree: dict[str, str]) -> Report:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    rank, size = (launch.rank, launch.world_size) if launch else (0, 1)
    who = socket.gethostname(), machine(), os.getpid(), _device(launch.local_rank if launch else 0)
    way = route(launch.master_addr, launch.master_port) if launch else ("", "")
    return Report(rank, size, *who, {**versions, **agree}, launcher_variables(), *way)


def _device(local_rank: int) -> str:
    """The device that this rank will use. Does not initialise it, because that would already take memory."""
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{local_rank} of {os.environ.get('CUDA_VISIBLE_DEVICES') or 'all'}"
