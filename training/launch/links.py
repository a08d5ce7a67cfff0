"""Whether tensors get from every rank to every other: `packtrain doctor --ranks`, under a launcher.

    rank check ──► process group ──► all-reduce

Each phase has a time limit, and every rank notes in the job's store that it begins one. When a phase does not end, the
notes say which ranks never began it; if all did, the network between them fails.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ...schemas.errors import ConfigError, LaunchError
from .environment import Launch
from .rank_check import Report, rank_check
from .rank_store import RankStore, until, within

_GRACE = 10.0
"""How long a rank that has finished waits for the others."""
_NUMBERS = 1 << 20
"""Numbers in the large tensor of the bandwidth test: 4 MiB."""


@dataclass(frozen=True, slots=True)
class Links:
    """All ranks answered."""

    backend: str
    ranks: tuple[Report, ...]
    """Of all ranks, on rank 0; this rank's own elsewhere."""
    seconds: float
    """Time of one all-reduce of a single number: the median of five."""
    bytes_per_second: float
    """Bandwidth of the all-reduce of 4 MiB per rank."""


def check_links(timeout: float = 60.0, *, on_phase: Callable[[str], None] = lambda name: None) -> Links:
    """All-reduce a tensor over all ranks, or name the rank, host and interface that did not answer.

    Args:
        timeout: seconds that each phase may take.
        on_phase: called with the name of each phase before this rank begins it.

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
    mine = next(report for report in reports if report.rank == launch.rank)
    store = RankStore(launch, "links", timeout, limit=5)

    def phase(name: str, work: Callable[[], Any]) -> Any:
        on_phase(name)
        try:
            store.set(f"{name}/{mine.rank}", "")
            return within(timeout, work)
        except LaunchError:
            raise
        except (TimeoutError, RuntimeError, OSError, ValueError) as error:
            failed = f"{mine}: the {name} did not end in {timeout:g} seconds ({str(error).splitlines()[0]})"
            raise LaunchError(f"{failed}. {_blame(store, launch, name)}") from error

    import torch
    import torch.distributed as dist

    device = mine.device.partition(" ")[0]
    backend, options = "gloo", dict[str, Any]()
    if device != "cpu":
        torch.cuda.set_device(launch.local_rank)
        backend, options = "nccl", {"device_id": torch.device(device)}
    limit = timedelta(seconds=timeout + 60)  # ours ends first, and names a rank
    try:
        store.set(f"rank/{mine.rank}", str(mine))
        phase("process group", lambda: dist.init_process_group(backend, timeout=limit, **options))
        seconds, rate = phase("all-reduce", lambda: _reduce(mine.rank, launch.world_size, device))
    finally:  # the store ends with rank 0, and no rank may leave while others still measure
        with suppress(RuntimeError, TimeoutError, OSError):
            store.add("finished")
            until(time.monotonic() + _GRACE, lambda: store.add("finished", 0) >= launch.world_size)
    within(timeout, dist.destroy_process_group)
    return Links(backend, reports, seconds, rate)


def _blame(store: RankStore, launch: Launch, phase: str) -> str:
    """Which ranks are to blame for a phase that did not end, and what to do."""
    try:
        late = [rank for rank in range(launch.world_size) if not store.has(f"{phase}/{rank}")]
        names = [store.get(f"rank/{rank}") if store.has(f"rank/{rank}") else f"rank {rank}" for rank in late]
    except (TimeoutError, RuntimeError, OSError):
        return (
            f"The job's store at {launch.place} does not answer any more: {launch.keeper}, which keeps it, hangs or "
            "has ended; look at its output"
        )
    if names:
        return f"These never began it: {'; '.join(names)}. That process has ended, is stopped or hangs: see its output"
    return (
        "Every rank began it, so what they send each other does not arrive. Training connects ranks on ports of the "
        "system's choice: open them between the nodes, or choose the interface that connects them with "
        "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME; for NCCL look again with NCCL_DEBUG=INFO, then with "
        "NCCL_IB_DISABLE=1, and on one node with NCCL_P2P_DISABLE=1"
    )


def _reduce(rank: int, size: int, device: str) -> tuple[float, float]:
    """Sum over all ranks, check and time it. Seconds of one number, bytes a second of 4 MiB."""
    import torch
    import torch.distributed as dist

    def timed(tensor: Any) -> float:
        settle = torch.cuda.synchronize if device != "cpu" else lambda: None
        settle()
        began = time.perf_counter()
        dist.all_reduce(tensor)
        settle()
        return time.perf_counter() - began

    total = torch.full((1,), float(rank + 1), device=device)
    timed(total)
    if total.item() != size * (size + 1) / 2:
        raise LaunchError(
            f"the sum of 1 to {size} over {size} ranks came out as {total.item():g}: "
            "memory or network damages data: leave that machine out"
        )
    small = sorted(timed(torch.ones(1, device=device)) for _ in range(5))[2]
    large = sorted(timed(torch.ones(_NUMBERS, device=device)) for _ in range(5))[2]
    return small, 4 * _NUMBERS / large
