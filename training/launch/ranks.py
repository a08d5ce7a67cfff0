"""Starting on many devices: every rank reports itself before anything can hang, and a missing rank is named.

Each rank leaves a report (host, process, variables) in the job's store: torch.distributed's own TCPStore at
MASTER_ADDR:MASTER_PORT. Under torchrun the launcher keeps it; elsewhere rank 0 does, and `init_process_group` finds it
there later. Rank 0 waits for all reports, and posts one verdict that every rank reads. torch's own rendezvous waits ten
minutes, and names no rank.
"""

import ctypes
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from importlib import metadata
from itertools import groupby
from typing import Any

from ...schemas.errors import ConfigError, LaunchError, PacktrainError
from ..ahead import Threads

_LOG = logging.getLogger(__name__)
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that `env://` of torch.distributed requires."""
VARIABLES = (
    *NEEDED, "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "TORCHELASTIC_RUN_ID", "SLURM_PROCID",
    "SLURM_NTASKS", "SLURM_NODEID", "SLURM_NNODES", "CUDA_VISIBLE_DEVICES", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME",
)  # fmt: skip
"""Variables that identify a process and say how it reaches the others, in display order."""
SECONDS = 60.0
"""Seconds that a rank may take, unless PACKTRAIN_RANK_CHECK_SECONDS is set."""
_GRACE = 10.0
"""Additional seconds that the others wait for rank 0's verdict."""
_OPEN: list[Any] = []
"""Keeps rank 0's stores alive: otherwise its server would end before the process group connects."""


def read_launch(environ: Mapping[str, str] | None = None) -> tuple[int, int] | None:
    """Rank and number of ranks, from the environment; None for a process alone.

    Raises:
        ConfigError: half of the variables are set, one is not a number, or Slurm started several tasks without them:
            each process would silently train by itself.
    """
    environ = os.environ if environ is None else environ
    if "RANK" not in environ and "WORLD_SIZE" not in environ:
        if (tasks := environ.get("SLURM_STEP_NUM_TASKS") or "1") != "1":
            raise ConfigError(
                f"Slurm started {tasks} tasks, but {', '.join(NEEDED)} are not set: each task would train alone. Start "
                "one task a node and let it run torchrun or accelerate launch; `packtrain train --recipe slurm-nodes` "
                "prints a script that does"
            )
        return None
    if environ.get("WORLD_SIZE") == "1":
        return None
    said = ", ".join(f"{name}={environ[name]}" for name in NEEDED if environ.get(name))
    if missing := [name for name in NEEDED if not environ.get(name)]:
        raise ConfigError(
            f"{said}, but {', '.join(missing)} not set: start with torchrun or accelerate launch, which set all of "
            "them, or unset them to train with one process"
        )
    rank, size, port, local = (environ.get(name, "0") for name in ("RANK", "WORLD_SIZE", "MASTER_PORT", "LOCAL_RANK"))
    if not all(number.isdecimal() for number in (rank, size, port, local)) or int(rank) >= int(size):
        raise ConfigError(
            f"{said}: ranks count from 0 over all nodes, and WORLD_SIZE is the number of processes of all nodes "
            "together. In a Slurm script they must be expanded on each node: inside the quotes of srun's bash -c '…', "
            "not before"
        )
    return int(rank), int(size)


def installed(package: str) -> str | None:
    """The version of a package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank, as it describes itself."""

    rank: int
    world_size: int
    host: str
    pid: int
    variables: dict[str, str]
    """The launcher's."""

    @classmethod
    def of_this_process(cls) -> "RankReport":
        """This process's own report. Raises ConfigError as `read_launch`."""
        rank, world_size = read_launch() or (0, 1)
        variables = {name: os.environ[name] for name in VARIABLES if name in os.environ}
        return cls(rank, world_size, socket.gethostname(), os.getpid(), variables)

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size} on {self.host}, process {self.pid}"

    @property
    def saw(self) -> str:
        """The launcher's variables, for a message."""
        return ", ".join(f"{name}={value}" for name, value in self.variables.items())


def rank_check(timeout: float | None = None) -> None:
    """Wait until every rank has reported, or say which has not. A single process returns at once.

    Call it before `init_process_group` and before anything collective; as often on every rank. The store stays open
    for the process group.

    Args:
        timeout: seconds that a rank may come after this one; PACKTRAIN_RANK_CHECK_SECONDS, else 60.

    Raises:
        ConfigError: the launcher's variables are incomplete or contradict each other.
        LaunchError: a rank is missing, one came twice, or they count differently many; on every rank that is there.
    """
    mine = RankReport.of_this_process()
    if mine.world_size == 1:
        return
    seconds = float(os.environ.get("PACKTRAIN_RANK_CHECK_SECONDS") or SECONDS) if timeout is None else timeout
    _LOG.info("%s: %s", mine, mine.saw)
    ends = time.monotonic() + seconds
    try:
        verdict = _within(seconds + 1.2 * _GRACE, lambda: _meet(mine, ends, seconds))
    except (RuntimeError, TimeoutError, OSError) as error:
        raise LaunchError(
            f"{mine} did not reach the job's store at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}, which "
            f"rank 0 or its launcher keeps, in {seconds:g} seconds, or lost it: {str(error).splitlines()[0]}. It saw "
            f"{mine.saw}. Check that rank 0 was started and still runs (see its output), that MASTER_ADDR is its node "
            "and every node can resolve it, that MASTER_PORT is free there and open between the nodes, and that no two "
            "jobs share the port"
        ) from error
    if verdict != _passed(mine.world_size):
        raise LaunchError(f"{verdict}. This is {mine}")


def _passed(ranks: int) -> str:
    return f"all {ranks} ranks are there"


def _within(seconds: float, work: Callable[[], str]) -> str:
    """What `work` returns, or TimeoutError: calls to a store or a collective may never return if another rank hangs."""
    threads = Threads(1)
    try:
        result = threads.submit(work)
        if not wait([result], seconds).done:
            raise TimeoutError(f"no answer in {seconds:g} seconds")
        return result.result()
    finally:
        threads.close()


def _open_store(rank: int, seconds: float) -> Any:
    """The job's store, with keys under a prefix of this call's own, and of the launcher's attempt."""
    import torch.distributed as dist

    environ = os.environ

    def connect(serve: bool) -> Any:
        where = (environ["MASTER_ADDR"], int(environ["MASTER_PORT"]), None, serve, timedelta(seconds=seconds))
        return dist.TCPStore(*where, wait_for_workers=False, multi_tenant=True)

    serves = rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = connect(serves)
    except RuntimeError as error:
        if not serves or "EADDRINUSE" not in str(error):
            raise
        store = connect(False)  # another process takes itself for rank 0: its report is there
    _OPEN.append(store)
    attempt = f"{environ.get('TORCHELASTIC_RUN_ID', '')}/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    return dist.PrefixStore(f"packtrain/ranks/{len(_OPEN)}/{attempt}", store)


def _meet(mine: RankReport, ends: float, seconds: float) -> str:
    """Leave a report and wait for the verdict, which rank 0 makes."""
    store = _open_store(mine.rank, seconds)
    keys = [f"report/{rank}" for rank in range(mine.world_size)]
    text = json.dumps(asdict(mine))
    there = store.compare_set(keys[mine.rank], "", text).decode()  # writes only if there is none; returns what is there
    if there != text:
        first = RankReport(**json.loads(there))
        fault = (
            f"two processes are rank {mine.rank}: {first}, which saw {first.saw}; and {mine}, which saw {mine.saw}. If "
            "two nodes have one machine rank, it was expanded before the script reached them: write $SLURM_NODEID "
            "inside the quotes of srun's bash -c '…'. If two jobs share a node, give each a MASTER_PORT of its own"
        )
        store.compare_set("verdict", "", fault)
        return fault
    if mine.rank != 0:
        store.wait(["verdict"], timedelta(seconds=max(0.1, ends - time.monotonic()) + _GRACE))
        verdict: str = store.get("verdict").decode()
        store.set(f"read/{mine.rank}", "")
        return verdict
    while time.monotonic() < ends and not store.check(keys) and not store.check(["verdict"]):
        time.sleep(0.1)
    reports = [RankReport(**json.loads(store.get(key))) for key in keys if store.check([key])]
    found = _missing(reports, mine.world_size, seconds) or _passed(mine.world_size)
    verdict = store.compare_set("verdict", "", found).decode()
    with suppress(RuntimeError):  # the store may end with this process: the others read it first
        store.wait([f"read/{one.rank}" for one in reports if one.rank], timedelta(seconds=_GRACE))
    return verdict


def _missing(reports: list[RankReport], world_size: int, seconds: float) -> str:
    """Which ranks are missing, in one sentence; empty if none is."""
    there = [report.rank for report in reports]
    missing = sorted(set(range(world_size)) - set(there))
    if not missing:
        return ""
    by_host: dict[str, list[int]] = {}
    for report in reports:
        by_host.setdefault(report.host, []).append(report.rank)
    hosts = "; ".join(f"{_named(ranks)} on {host}" for host, ranks in by_host.items())
    return (
        f"{len(missing)} of {world_size} ranks did not report in {seconds:g} seconds: {_named(missing)}. Present: "
        f"{hosts}. Rank {there[0]} saw {reports[0].saw}. Check that the missing ranks were started and still run (see "
        "their output), each node under a machine rank of its own; that their nodes resolve and reach "
        f"MASTER_ADDR:MASTER_PORT; and that WORLD_SIZE={world_size}, the processes of all nodes together, is meant"
    )


def _named(ranks: list[int]) -> str:
    """`rank 3`, or `ranks 0-2, 5`; of ascending ranks."""
    spans = [[number for _, number in group] for _, group in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0])]
    texts = [f"{span[0]}-{span[-1]}" if len(span) > 1 else str(span[0]) for span in spans]
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(texts)}"


def end_with_launcher() -> None:
    """Have the kernel end this process when the torchrun or accelerate that started it is gone: otherwise workers of a
    killed launcher go on, hold devices and write checkpoints.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        launcher = os.getppid()
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        if os.getppid() != launcher:
            os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":  # in a batch script, on each node before its launcher
    try:
        rank_check()
    except PacktrainError as error:
        sys.exit(f"packtrain: {error}")
