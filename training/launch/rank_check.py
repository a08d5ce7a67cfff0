"""The rank check: before anything can hang, every rank reports itself, and a missing rank is named.

Each rank leaves a report (rank, host, process, device, versions, variables) in the job's store: torch.distributed's own
TCPStore at MASTER_ADDR:MASTER_PORT. Under torchrun the launcher keeps it; elsewhere rank 0 does, and
`init_process_group` finds it there later. Rank 0 waits for all reports, compares what must agree, and posts a verdict
that every rank reads. So a job with a rank that never came, two processes of one rank, other versions or other data
ends within the time limit, on every rank, with a sentence. torch's own rendezvous waits ten minutes, and names no rank.
"""

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from ...schemas.errors import LaunchError
from .environment import Launch, listed
from .rank_report import RankReport, absence, disagreement, doubled

Value = TypeVar("Value")
_LOG = logging.getLogger(__name__)
SECONDS = 60.0
"""Seconds that a rank may take, unless PACKTRAIN_RANK_CHECK_SECONDS is set."""
_GRACE = 10.0
"""Additional seconds that the others wait for rank 0's verdict."""
_PASSED = "passed"
_OPEN: list[Any] = []
"""Keeps rank 0's store alive: otherwise its server would end before the process group connects."""
_calls = 0


@dataclass(frozen=True, slots=True)
class Ranks:
    """All ranks reported."""

    world_size: int
    reports: tuple[RankReport, ...] = field(repr=False)
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
    mine = RankReport.of_this_process(launch, dict(agree or {}))
    if launch is None:
        return Ranks(1, (mine,))
    seconds = float(os.environ.get("PACKTRAIN_RANK_CHECK_SECONDS") or SECONDS) if timeout is None else timeout
    _LOG.info("%s: %s", mine, listed(mine.variables))
    ends = time.monotonic() + seconds
    store = _open_store(launch, mine, seconds)
    try:
        verdict, reports = within(seconds + 2 * _GRACE, lambda: _meet(store, mine, ends, seconds))
    except (RuntimeError, TimeoutError, OSError) as error:
        raise LaunchError(
            f"{mine}: the job's store at {launch.place} was lost during the rank check ({str(error).splitlines()[0]}): "
            f"{launch.keeper}, which keeps it, has ended or hangs; look at its output"
        ) from error
    if verdict != _PASSED:
        raise LaunchError(verdict)
    return Ranks(launch.world_size, tuple(reports))


def within(seconds: float, work: Callable[[], Value]) -> Value:
    """What `work` returns, or TimeoutError: calls to a store or a collective may never return if another rank hangs.

    A hanging thread is left running; it ends with the process.
    """
    result: Future[Value] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="packtrain-launch", daemon=True).start()
    if not wait([result], seconds).done:
        raise TimeoutError(f"no answer in {seconds:g} seconds")
    return result.result()


def _meet(store: Any, mine: RankReport, ends: float, seconds: float) -> tuple[str, list[RankReport]]:
    """Leave a report and wait for the verdict, which rank 0 makes. Returns it, with the reports that this rank read."""
    keys = [f"report/{rank}" for rank in range(mine.world_size)]
    text = json.dumps(asdict(mine))
    there = store.compare_set(keys[mine.rank], "", text).decode()  # writes only if there is none; returns what is there
    if there != text:
        fault = doubled(_parsed(there), mine)
        store.compare_set("verdict", "", fault)
        return fault, []
    if mine.rank == 0:
        while time.monotonic() < ends and not store.check(keys) and not store.check(["verdict"]):
            time.sleep(0.1)
        reports = [_parsed(store.get(key)) for key in keys if store.check([key])]
        found = disagreement(reports) if len(reports) == mine.world_size else absence(reports, mine.world_size, seconds)
        verdict = store.compare_set("verdict", "", found or _PASSED).decode()
        if verdict != _PASSED:
            time.sleep(2)  # the store may end with this process: let the others read it first
        return verdict, reports
    try:
        store.wait(["verdict"], timedelta(seconds=max(0.1, ends - time.monotonic()) + _GRACE))
    except RuntimeError:
        came = "has reported, but says nothing more: it hangs" if store.check(keys[:1]) else "has not reported in time"
        return f"{mine}: rank 0 {came}; look at its output. Here, {listed(mine.variables)}", [mine]
    verdict = store.get("verdict").decode()
    if verdict == _PASSED:  # by the reports of as many ranks as rank 0 knows of
        verdict = disagreement([_parsed(store.get(keys[0])), mine]) or _PASSED
    return verdict, [mine]


def _parsed(report: bytes | str) -> RankReport:
    return RankReport(**json.loads(report))


def _open_store(launch: Launch, mine: RankReport, seconds: float) -> Any:
    """The job's store, with keys under a prefix of this call's own.

    Raises:
        LaunchError: it cannot be reached in time; says who could not reach whom, and why.
    """
    import torch.distributed as dist

    global _calls
    _calls += 1

    def connect(serve: bool) -> Any:
        limit = timedelta(seconds=seconds)
        address = launch.master_addr, launch.master_port
        arguments = (*address, None, serve, limit)
        return within(seconds + 5, lambda: dist.TCPStore(*arguments, wait_for_workers=False, multi_tenant=True))

    serves = launch.rank == 0 and not launch.hosted
    try:
        try:
            store = connect(serves)
        except RuntimeError as error:
            # The port is taken: if by a store, then another process takes itself for rank 0.
            if not serves or "EADDRINUSE" not in str(error):
                raise
            store = connect(False)
    except (RuntimeError, TimeoutError, OSError) as error:
        raise LaunchError(_unreached(launch, mine, seconds, error)) from error
    _OPEN.append(store)
    return dist.PrefixStore(f"packtrain/ranks/{_calls}/{launch.attempt}", store)


def _unreached(launch: Launch, mine: RankReport, seconds: float, error: BaseException) -> str:
    saw = f"It saw {listed(mine.variables)}."
    try:
        found = sorted({str(info[4][0]) for info in socket.getaddrinfo(launch.master_addr, launch.master_port)})
    except OSError as unknown:
        return (
            f"{mine} cannot resolve MASTER_ADDR {launch.master_addr!r} ({unknown}). {saw} Give a name or address that "
            "every node can resolve; in a Slurm script the first of `scontrol show hostnames $SLURM_JOB_NODELIST`"
        )
    return (
        f"{mine} did not reach {launch.place} ({', '.join(found)}), where {launch.keeper} keeps the job's store, in "
        f"{seconds:g} seconds: {str(error).splitlines()[0]}. {saw} Check that rank 0 was started and still runs (see "
        "its output), that MASTER_ADDR is its node, that MASTER_PORT is free there and open between the nodes, and "
        "that no two jobs share the port"
    )
