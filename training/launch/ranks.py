"""Starting on many devices: every rank reports itself before anything can hang, and a missing rank is named.

Each rank leaves a report (host, process, variables) in the job's store: torch.distributed's own TCPStore at
MASTER_ADDR:MASTER_PORT. Under torchrun the launcher keeps it; elsewhere rank 0 does, and `init_process_group` finds it
there later. Rank 0 waits for all reports, and posts one verdict that every rank reads. torch's own rendezvous waits ten
minutes, and names no rank.
"""

import ctypes
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from itertools import groupby
from threading import Thread
from typing import Any

from ...schemas.errors import ConfigError, PacktrainError

_LOG = logging.getLogger(__name__)
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that `env://` of torch.distributed requires."""
VARIABLES = (*NEEDED, "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "SLURM_PROCID", "SLURM_NODEID", "SLURM_NNODES")
"""Variables that identify a process, in display order."""
SECONDS = 60.0
"""For how many seconds rank 0 waits for the reports of the others."""
_GRACE = 10.0
"""Additional seconds that the others wait for rank 0's verdict."""
_OPEN: list[Any] = []
"""The stores of all calls of `rank_check` in this process. They keep rank 0's server alive, which would end before the
process group connects; and their number tells calls apart."""


def read_launch(environ: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """Rank and number of ranks, from the environment; None for a process alone.

    Raises:
        ConfigError: only some of the variables are set, one is not a number, or Slurm started several tasks without
            them. Each process would silently train by itself.
    """
    if "RANK" not in environ and "WORLD_SIZE" not in environ:
        if (tasks := environ.get("SLURM_STEP_NUM_TASKS") or "1") != "1":
            raise ConfigError(
                f"Slurm started {tasks} tasks, but {', '.join(NEEDED)} are not set: each task would train alone. Start "
                "one task a node and let it run torchrun or accelerate launch; `packtrain train --recipe slurm` "
                "prints a script that does"
            )
        return None
    # torchrun sets the variables for one process as well.
    if environ.get("WORLD_SIZE") == "1":
        return None
    variables = ", ".join(f"{name}={environ[name]}" for name in NEEDED if environ.get(name))
    if missing := [name for name in NEEDED if not environ.get(name)]:
        raise ConfigError(
            f"{variables}, but {', '.join(missing)} not set: start with torchrun or accelerate launch, which set all "
            "of them, or unset them to train with one process"
        )
    rank, size, port = (environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    if not all(number.isdecimal() for number in (rank, size, port)) or int(rank) >= int(size):
        raise ConfigError(
            f"{variables}: ranks count from 0 over all nodes, and WORLD_SIZE is the number of processes of all nodes "
            "together. In a Slurm script they must be expanded on each node: inside the quotes of srun's bash -c '…', "
            "not before"
        )
    return int(rank), int(size)


def rank_check() -> None:
    """Wait until every rank has reported, or say which has not. A single process returns at once.

    Call it before `init_process_group` and before anything collective; as often on every rank. The store stays open
    for the process group. A rank may come `SECONDS` after this one, or PACKTRAIN_RANK_CHECK_SECONDS.

    Raises:
        ConfigError: the launcher's variables are incomplete or contradict each other.
        PacktrainError: a rank is missing, or ranks disagree on how many there are. Every rank that is there raises it.
    """
    launch = read_launch()
    if launch is None:
        return
    rank, ranks = launch
    seconds = float(os.environ.get("PACKTRAIN_RANK_CHECK_SECONDS") or SECONDS)
    this_rank = f"rank {rank} of {ranks} on {socket.gethostname()}, process {os.getpid()}"
    saw = ", ".join(f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ)
    # Before anything can wait: a log with these lines shows which ranks came at all.
    _LOG.info("%s: %s", this_rank, saw)
    deadline = time.monotonic() + seconds
    try:
        # Longer than `_meet` waits by itself (seconds + _GRACE), so that its own error, which says more, comes first.
        verdict = _within(seconds + 1.2 * _GRACE, lambda: _meet(rank, ranks, saw, deadline, seconds))
    except (RuntimeError, TimeoutError, OSError) as error:
        raise PacktrainError(
            f"{this_rank} did not reach the job's store at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}, "
            f"which rank 0 or its launcher keeps, in {seconds:g} seconds, or lost it: {str(error).splitlines()[0]}. It "
            f"saw {saw}. Check that rank 0 was started and still runs (see its output), that MASTER_ADDR is its node "
            "and every node can resolve it, that MASTER_PORT is free there and open between the nodes, and that no two "
            "jobs share the port"
        ) from error
    if verdict != _passed(ranks):
        raise PacktrainError(f"{verdict}. This is {this_rank}")


def _passed(ranks: int) -> str:
    """The verdict if no rank is missing. It says how many there are, so that a rank whose WORLD_SIZE is another one
    expects another text, and fails.
    """
    return f"all {ranks} ranks are there"


def _within(seconds: float, work: Callable[[], str]) -> str:
    """What `work` returns, or TimeoutError: calls to a store or a collective may never return if another rank hangs."""
    answer: Future[str] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except Exception as error:
            answer.set_exception(error)

    Thread(target=run, daemon=True).start()
    try:
        return answer.result(timeout=seconds)
    except TimeoutError as error:  # of `work` itself, or, without a text, of waiting for it
        raise TimeoutError(str(error) or f"no answer in {seconds:g} seconds") from None


def _meet(rank: int, ranks: int, saw: str, deadline: float, seconds: float) -> str:
    """Leave a report and wait for the verdict, which rank 0 makes: the text of `_passed`, or which ranks are missing.

    Keys have a prefix of this call and of the launcher's attempt: the store outlives both, and what an earlier attempt
    left in it says nothing of this one.

    Args:
        saw: this rank's variables, for the verdict.
        deadline: when rank 0 ends waiting for reports, by `time.monotonic`.
        seconds: how long that is altogether, also for connecting to the store.
    """
    import torch.distributed as dist

    environ = os.environ
    # torchrun's agent keeps a store on the first node already; a second one could not have its port.
    serves = rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    shared_store = dist.TCPStore(
        environ["MASTER_ADDR"],
        int(environ["MASTER_PORT"]),
        is_master=serves,
        timeout=timedelta(seconds=seconds),
        wait_for_workers=False,
        multi_tenant=True,  # rank 0 may make a store at this port again, in a later call or for the process group
    )
    _OPEN.append(shared_store)
    attempt = f"{environ.get('TORCHELASTIC_RUN_ID', '')}/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    # Every rank calls this as often, so the number of the call is the same on all.
    store = dist.PrefixStore(f"packtrain/ranks/{len(_OPEN)}/{attempt}", shared_store)
    store.set(f"host/{rank}", socket.gethostname())
    if rank != 0:
        # Longer than rank 0 waits for reports, so that its verdict comes, and not a timeout of its own.
        store.wait(["verdict"], timedelta(seconds=max(0.1, deadline - time.monotonic()) + _GRACE))
        verdict: str = store.get("verdict").decode()
        store.set(f"read/{rank}", "")
        return verdict
    keys = [f"host/{number}" for number in range(ranks)]
    while time.monotonic() < deadline and not store.check(keys):
        time.sleep(0.1)
    hosts = {number: store.get(key).decode() for number, key in enumerate(keys) if store.check([key])}
    verdict = _passed(ranks) if len(hosts) == ranks else _missing(hosts, ranks, saw, seconds)
    store.set("verdict", verdict)
    with suppress(RuntimeError):  # the store may end with this process: the others read it first
        others = [number for number in hosts if number != 0]
        store.wait([f"read/{number}" for number in others], timedelta(seconds=_GRACE))
    return verdict


def _missing(hosts: Mapping[int, str], ranks: int, saw: str, seconds: float) -> str:
    """Which ranks are missing, in one sentence.

    Args:
        hosts: rank → its host, of the ranks that are there.
        saw: the variables of rank 0, as text.
        seconds: for how long it waited.
    """
    missing = [rank for rank in range(ranks) if rank not in hosts]
    present = [
        f"{_format_ranks([rank for rank in hosts if hosts[rank] == host])} on {host}"
        for host in dict.fromkeys(hosts.values())
    ]
    return (
        f"{len(missing)} of {ranks} ranks did not report in {seconds:g} seconds: {_format_ranks(missing)}. Present: "
        f"{'; '.join(present)}. "
        f"Rank 0 saw {saw}. Check that the missing ranks were started and still run (see their output), each node "
        "under a machine rank of its own; that their nodes resolve and reach MASTER_ADDR:MASTER_PORT; and that "
        f"WORLD_SIZE={ranks}, the processes of all nodes together, is meant"
    )


def _format_ranks(ranks: list[int]) -> str:
    """`rank 3`, or `ranks 0-2, 5`; of ascending ranks."""
    # Neighbours have the same difference of rank and place: of 0, 1, 2, 5 it is 0, 0, 0, 2.
    groups = groupby(enumerate(ranks), lambda pair: pair[1] - pair[0])
    spans = [[rank for _, rank in group] for _, group in groups]
    texts = [f"{span[0]}-{span[-1]}" if len(span) > 1 else str(span[0]) for span in spans]
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(texts)}"


def end_with_launcher() -> None:
    """Have the kernel end this process when the torchrun or accelerate that started it is gone: otherwise workers of a
    killed launcher go on, hold devices and write checkpoints.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        launcher = os.getppid()
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        if os.getppid() != launcher:  # it ended before the kernel was asked
            os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":  # in a batch script, on each node before its launcher
    try:
        rank_check()
    except PacktrainError as error:
        sys.exit(f"packtrain: {error}")
