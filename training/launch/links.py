"""Whether tensors get from every rank to every other: `packtrain doctor --ranks`, under a launcher.

The rank check proves that every rank reaches one port of the first node. Training connects the ranks with each other,
on ports of the system's choice and often over another network; where that is closed, torch hangs or fails with an
address at most. So this all-reduces a tensor before hours are spent.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from ...schemas.errors import ConfigError, LaunchError
from ...schemas.units import plural, rate
from .environment import Launch
from .rank_check import rank_check, within
from .rank_report import RankReport

_NUMBERS = 1 << 20
"""Numbers in the tensor of the bandwidth test: 4 MiB."""


@dataclass(frozen=True, slots=True)
class Links:
    """All ranks answered."""

    backend: str
    ranks: tuple[RankReport, ...]
    """Of all ranks, on rank 0; this rank's own elsewhere."""
    bytes_per_second: float
    """Bandwidth of the all-reduce of 4 MiB per rank: the median of five."""


def check_links(timeout: float = 60.0) -> Links:
    """All-reduce a tensor over all ranks, by NCCL where there are GPUs, or say what failed and what to try.

    Args:
        timeout: seconds that each of rank check, connecting and all-reduce may take.

    Raises:
        ConfigError: there is no launcher, or its variables contradict each other.
        LaunchError: a rank does not answer, or the sum is wrong; on every rank that still can say so.
    """
    launch = Launch.read()
    if launch is None:
        raise ConfigError(
            "--ranks needs several: start it with what starts the training, such as "
            "`torchrun --nproc-per-node 8 -m packtrain.pipeline.cli doctor --ranks`"
        )
    reports = rank_check(timeout).reports
    import torch
    import torch.distributed as dist

    backend, device = "gloo", "cpu"
    if torch.cuda.is_available():
        backend, device = "nccl", f"cuda:{launch.local_rank}"
        torch.cuda.set_device(device)
    limit = timedelta(seconds=timeout)

    def connect() -> None:
        dist.init_process_group("gloo", timeout=limit)
        dist.monitored_barrier(timeout=limit, wait_all_ranks=True)  # names ranks that do not answer

    try:
        within(2 * timeout + 5, connect)
        speed = within(timeout + 5, lambda: _all_reduce(backend, device))
        within(timeout, dist.destroy_process_group)
    except LaunchError:
        raise
    except (RuntimeError, TimeoutError, OSError, ValueError) as error:
        mine = next(report for report in reports if report.rank == launch.rank)
        why = str(error).splitlines()[0].rstrip(".")
        raise LaunchError(
            f"{mine}: the ranks do not reach each other over {backend}: {why}. If a rank is named, its process has "
            "ended or hangs: see its output. Otherwise what they send does not arrive: training connects ranks on "
            "ports of the system's choice, so open them between the nodes, or choose the interface that connects "
            f"them with NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME (`ip route get {launch.master_addr}` names it); for "
            "NCCL look again with NCCL_DEBUG=INFO, then with NCCL_IB_DISABLE=1, and on one node with "
            "NCCL_P2P_DISABLE=1"
        ) from error
    return Links(backend, reports, speed)


def _all_reduce(backend: str, device: str) -> float:
    """Sum over all ranks, check and time it. Returns bytes a second of 4 MiB."""
    import torch
    import torch.distributed as dist

    group = dist.new_group(backend=backend)
    size = dist.get_world_size()
    expected = size * (size + 1) / 2

    def timed() -> float:
        tensor = torch.full((_NUMBERS,), dist.get_rank() + 1.0, device=device)
        dist.barrier(group)
        began = time.perf_counter()
        dist.all_reduce(tensor, group=group)
        damaged = tensor[tensor != expected].tolist()  # waits for the device
        seconds = time.perf_counter() - began
        if damaged:
            raise LaunchError(
                f"the sum of 1 to {size} over {size} ranks came out as {damaged[0]:g}: "
                "memory or network damages data: leave that machine out"
            )
        return seconds

    return 4 * _NUMBERS / sorted(timed() for _ in range(6))[2]


def report_ranks(*, timeout: float, as_json: bool, say: Callable[[str], None]) -> None:
    """Check the links between the ranks of a launcher; rank 0 prints.

    Raises:
        ConfigError, LaunchError: see `check_links`.
    """
    found = check_links(timeout)
    if int(os.environ["RANK"]) != 0:
        return
    if as_json:
        ranks = [{"rank": one.rank, "host": one.host, "device": one.device.partition(" ")[0]} for one in found.ranks]
        whole = {"backend": found.backend, "bytes_per_second": found.bytes_per_second, "ranks": ranks}
        say(json.dumps(whole, indent=2))
        return
    for one in found.ranks:
        say(str(one))
    speed = rate(found.bytes_per_second, "bytes")
    every = "All " if len(found.ranks) > 1 else ""
    say(f"{every}{plural(len(found.ranks), 'rank')} answered over {found.backend}: {speed} when summing 4 MiB")
