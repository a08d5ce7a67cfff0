"""One rank as it describes itself, and the sentences about ranks that are missing, doubled or different."""

import os
import socket
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from .environment import Launch, launcher_variables, listed

Value = TypeVar("Value")
_PACKAGES = ("packtrain", "torch", "transformers", "accelerate")


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank, as it describes itself."""

    rank: int
    world_size: int
    host: str
    machine: str
    """Host and boot id. Containers may share a boot id, and machines a host name, but not both."""
    pid: int
    device: str
    """Device, such as `cuda:3 of 0,1,2,3` or `cpu`."""
    agree: dict[str, str]
    """Values that must be equal on all ranks: versions, and what the caller adds (data, configuration)."""
    variables: dict[str, str]
    """The launcher's."""

    @classmethod
    def of_this_process(cls, launch: Launch | None, agree: dict[str, str]) -> "RankReport":
        """This process's own report.

        Args:
            launch: None for a process alone.
            agree: further values that must be equal on all ranks.
        """
        import torch

        versions = {}
        for package in _PACKAGES:
            try:
                versions[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                versions[package] = "not installed"
        boot = Path("/proc/sys/kernel/random/boot_id")
        device = "cpu"
        if torch.cuda.is_available():  # not initialised here, because that would already take memory
            local_rank = launch.local_rank if launch else 0
            device = f"cuda:{local_rank} of {os.environ.get('CUDA_VISIBLE_DEVICES') or 'all'}"
        return cls(
            rank=launch.rank if launch else 0,
            world_size=launch.world_size if launch else 1,
            host=socket.gethostname(),
            machine=f"{socket.gethostname()}/{boot.read_text().strip() if boot.exists() else ''}",
            pid=os.getpid(),
            device=device,
            agree={**versions, **agree},
            variables=launcher_variables(),
        )

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size} on {self.host}, process {self.pid}, {self.device}"


def absence(present: Sequence[RankReport], world_size: int, seconds: float) -> str:
    """The message about missing ranks."""
    there = {report.rank: report for report in present}
    missing = [rank for rank in range(world_size) if rank not in there]
    hosts = _ranks_by({rank: report.host for rank, report in there.items()})
    where = "; ".join(f"{named(ranks)} on {host}" for host, ranks in hosts.items())
    return (
        f"{len(missing)} of {world_size} ranks did not report in {seconds:g} seconds: {named(missing)}. "
        f"Present: {where}. {named([present[0].rank]).capitalize()} saw {listed(present[0].variables)}. Check that the "
        "missing ranks were started and still run (see their output), each node under a machine rank of its own; that "
        f"their nodes resolve and reach MASTER_ADDR:MASTER_PORT; and that WORLD_SIZE={world_size}, the processes of "
        "all nodes together, is what was meant"
    )


def disagreement(reports: Sequence[RankReport]) -> str:
    """The sentence about what differs where nothing may; empty if nothing does."""
    faults = []
    claims = {report.rank: {"WORLD_SIZE": str(report.world_size), **report.agree} for report in reports}
    for name in dict.fromkeys(name for claim in claims.values() for name in claim):
        ranks_of = _ranks_by({rank: claim.get(name, "nothing") for rank, claim in claims.items()})
        if len(ranks_of) > 1:
            differ = ", ".join(f"{value} on {named(ranks)}" for value, ranks in ranks_of.items())
            faults.append(f"the ranks do not agree on {name}: {differ}; give every rank the same")
    devices = _ranks_by({report.rank: (report.machine, report.device) for report in reports})
    for (where, device), ranks in devices.items():
        if device != "cpu" and len(ranks) > 1:
            faults.append(
                f"{named(ranks)} on {where.partition('/')[0]} would all use {device}: LOCAL_RANK must count the "
                "processes of one node, and a node must not start more than it has devices"
            )
    return "; ".join(faults)


def doubled(first: RankReport, second: RankReport) -> str:
    """The message about two processes of one rank."""
    where = "the same host" if first.machine == second.machine else "another host"
    return (
        f"two processes are rank {first.rank}: process {first.pid} on {first.host}, and process {second.pid} on "
        f"{second.host}, {where}. The first saw {listed(first.variables)}; the second {listed(second.variables)}. If "
        "two nodes have one machine rank, it was expanded before the script reached them: write $SLURM_NODEID inside "
        "the quotes of srun's bash -c '…'. If two jobs share a node, give each a MASTER_PORT of its own"
    )


def named(ranks: Sequence[int]) -> str:
    """`rank 3`, or `ranks 0-2, 5`."""
    spans = []
    for _, group in groupby(enumerate(sorted(ranks)), key=lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in group]
        spans.append(f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0]))
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(spans)}"


def _ranks_by(values: Mapping[int, Value]) -> dict[Value, list[int]]:
    """Each value, with the ranks that have it."""
    ranks_of: dict[Value, list[int]] = defaultdict(list)
    for rank, value in values.items():
        ranks_of[value].append(rank)
    return ranks_of
