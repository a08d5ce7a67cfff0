"""Whether tensors get from every rank to every other: `packtrain doctor --ranks`, under a launcher.

Four phases, each under a time limit, each marked by every rank in the job's store before it begins:

    roll call ──► sockets: each rank connects to the next one's address ──► process group ──► all-reduce

A thread of each rank lets its pulse beat in the store. When a phase does not end, the marks say who never began it and
the pulses whether that process is frozen or gone, or alive while the network between hosts fails: so the ranks that
are left name the one that did not answer, with its host and network interface.
"""

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from ...schemas.errors import LaunchError
from .environment import Launch, named, route
from .meeting import join, until, within
from .rollcall import roll_call

_LOG = logging.getLogger(__name__)
PHASES = ("sockets", "process group", "all-reduce")
_BEAT = 0.5
_FROZEN = 4 * _BEAT
"""Seconds without a beat after which a process counts as frozen or gone."""
_WORDS = 1 << 20
"""Numbers in the tensor that is measured with: 4 MiB."""


@dataclass(frozen=True, slots=True)
class Wire:
    """One rank's way to the others."""

    rank: int
    host: str
    pid: int
    address: str
    interface: str
    """On the way to MASTER_ADDR."""
    port: int
    """Where this rank listens for its neighbour."""
    device: str

    def __str__(self) -> str:
        interface = f", interface {self.interface} ({self.address})" if self.interface else f", {self.address}"
        return f"rank {self.rank} on {self.host}{interface}, process {self.pid}"


@dataclass(frozen=True, slots=True)
class Wired:
    """All answered."""

    backend: str
    wires: tuple[Wire, ...]
    seconds: float
    """Of one all-reduce of a single number: the median of five."""
    bytes_per_second: float
    """Of a rank's tensor of 4 MiB."""


def check_wires(timeout: float = 60.0, *, on_phase: Callable[[str], None] | None = None) -> Wired:
    """All-reduce a tensor over all ranks, or name the rank, host and interface that did not answer.

    Args:
        timeout: seconds that each phase may take.
        on_phase: told the name of each phase before this rank begins it.

    Raises:
        ConfigError: there is no launcher, or its variables contradict each other.
        LaunchError: a rank does not answer, or the sum is wrong; on every rank that still can say so.
    """
    launch = Launch.read()
    if launch is None:
        from ...schemas.errors import ConfigError

        raise ConfigError(
            "--ranks needs several: start it with what starts the training, such as "
            "`torchrun --nproc-per-node 8 -m packtrain.pipeline.cli doctor --ranks`"
        )
    roll_call(timeout)
    with socket.create_server(("", 0), backlog=8) as ear:
        mine = _wire(launch, ear.getsockname()[1])
        board = _Board(launch, mine, timeout)
        answering = threading.Thread(target=_answer, args=(ear, launch.rank), daemon=True, name="packtrain-ear")
        answering.start()
        try:
            return _phases(launch, board, on_phase or (lambda _: None))
        except LaunchError:
            board.linger()
            raise
        finally:
            board.close()


class _Board:
    """Marks and pulses of all ranks, in the store."""

    def __init__(self, launch: Launch, mine: Wire, timeout: float) -> None:
        self.launch, self.mine, self.timeout = launch, mine, timeout
        self._name = f"packtrain/wires/{launch.attempt}"
        self._store = join(launch, timeout)
        self._set(f"wire/{mine.rank}", json.dumps(asdict(mine)))
        self._ended = threading.Event()
        self._living = launch.world_size
        # A store of its own: while one call waits, no other of the same store gets through.
        threading.Thread(target=self._beat, args=(join(launch, timeout),), daemon=True, name="packtrain-pulse").start()

    def wires(self) -> list[Wire]:
        keys = [f"{self._name}/wire/{rank}" for rank in range(self.launch.world_size)]
        ends = time.monotonic() + self.timeout
        until(ends, lambda: within(self.timeout, lambda: bool(self._store.check(keys))))
        known = self._known()
        if len(known) < self.launch.world_size:
            missing = sorted(set(range(self.launch.world_size)) - {wire.rank for wire in known})
            raise LaunchError(f"{self.mine}: {named(missing)} answered the roll call, but said nothing after it")
        return known

    def mark(self, phase: str) -> None:
        """This rank begins a phase."""
        self._set(f"{phase}/{self.launch.rank}", "begun")

    def finished(self, phase: str) -> bool:
        """Whether all ranks have begun a phase."""
        keys = [f"{self._name}/{phase}/{rank}" for rank in range(self.launch.world_size)]
        return within(self.timeout, lambda: bool(self._store.check(keys)))

    def accuse(self, phase: str, error: str) -> LaunchError:
        """Who is to blame for a phase that did not end."""
        place = f"{self.launch.master_addr}:{self.launch.master_port}"
        began = f"{self.mine}: the {phase} did not end in {self.timeout:g} seconds"
        try:
            known = self._known()
            before = self._pulses(known)
            time.sleep(_FROZEN)
            after = self._pulses(known)
            marked = {wire.rank for wire in known if self._check(f"{phase}/{wire.rank}")}
        except (TimeoutError, RuntimeError, OSError):
            keeper = "the launcher of the first node" if self.launch.hosted else "rank 0"
            return LaunchError(
                f"{began}, and the job's store at {place} does not answer any more: {keeper}, which keeps it, hangs "
                f"or has ended; this rank reaches it over interface {self.mine.interface or 'unknown'}"
            )
        dead = [wire for wire in known if wire.rank not in marked or after[wire.rank] == before[wire.rank]]
        silent = [wire for wire in dead if after[wire.rank] == before[wire.rank]]
        late = [wire for wire in dead if wire not in silent]
        self._living = len(known) - len(silent)
        if silent:
            return LaunchError(
                f"{began}. These do not answer, and have stopped: {'; '.join(map(str, silent))}. Look at that process: "
                "it has ended, is stopped, or its machine hangs"
            )
        if late:
            return LaunchError(
                f"{began}. These live but never began it: {'; '.join(map(str, late))}. Look at their output"
            )
        return LaunchError(
            f"{began}, though every rank lives and began it: {'; '.join(map(str, known))}. What they send each other "
            f"does not arrive ({error}). Choose the interface that connects the nodes with NCCL_SOCKET_IFNAME and "
            "GLOO_SOCKET_IFNAME, open its ports between them, and for NCCL look again with NCCL_DEBUG=INFO, then with "
            "NCCL_IB_DISABLE=1, and on one node with NCCL_P2P_DISABLE=1"
        )

    def linger(self) -> None:
        """Where this rank keeps the store, stay until the others that live have come to their own conclusion."""
        name = f"{self._name}/concluded"
        with suppress(RuntimeError, TimeoutError, OSError):
            concluded = within(5, lambda: int(self._store.add(name, 1)))
            if self.launch.rank == 0 and not self.launch.hosted and concluded < self._living:
                ends = time.monotonic() + self.timeout
                until(ends, lambda: within(5, lambda: int(self._store.add(name, 0))) >= self._living)

    def close(self) -> None:
        """End the pulse."""
        self._ended.set()

    def _known(self) -> list[Wire]:
        found = []
        for rank in range(self.launch.world_size):
            if self._check(f"wire/{rank}"):
                found.append(Wire(**json.loads(self._get(f"wire/{rank}"))))
        return found

    def _pulses(self, wires: list[Wire]) -> dict[int, int]:
        def read(rank: int) -> int:
            return int(self._store.add(f"{self._name}/pulse/{rank}", 0))

        return {wire.rank: within(5, lambda rank=wire.rank: read(rank)) for wire in wires}  # type: ignore[misc]

    def _beat(self, store: Any) -> None:
        with suppress(RuntimeError):  # the store has gone; others say so
            while not self._ended.wait(_BEAT):
                store.add(f"{self._name}/pulse/{self.launch.rank}", 1)

    def _set(self, name: str, value: str) -> None:
        within(self.timeout, lambda: self._store.set(f"{self._name}/{name}", value) or True)

    def _get(self, name: str) -> str:
        return within(5, lambda: str(self._store.get(f"{self._name}/{name}").decode()))

    def _check(self, name: str) -> bool:
        return within(5, lambda: bool(self._store.check([f"{self._name}/{name}"])))


def _phases(launch: Launch, board: _Board, on_phase: Callable[[str], None]) -> Wired:
    wires = board.wires()
    backend = "gloo" if board.mine.device == "cpu" else "nccl"

    def phase(name: str, work: Callable[[], Any]) -> Any:
        on_phase(name)
        try:
            board.mark(name)
            return within(board.timeout, work)
        except LaunchError:
            raise
        except (TimeoutError, RuntimeError, OSError, ValueError) as error:
            raise board.accuse(name, str(error).splitlines()[0]) from error

    phase("sockets", lambda: _ring(launch, wires, board.timeout))
    import torch
    import torch.distributed as dist

    options: dict[str, Any] = {}
    if backend == "nccl":
        torch.cuda.set_device(launch.local_rank)
        options["device_id"] = torch.device("cuda", launch.local_rank)
    limit = timedelta(seconds=board.timeout + 60)  # ours comes first, and names somebody
    phase("process group", lambda: dist.init_process_group(backend, timeout=limit, **options))
    seconds, rate = phase("all-reduce", lambda: _reduce(launch, board.mine.device))
    # Nobody may leave while others still measure; a rank that cannot see this has its own limit.
    board.mark("done")
    with suppress(RuntimeError):  # the store goes with rank 0, which has seen that all are done
        until(time.monotonic() + board.timeout, lambda: board.finished("done"))
    within(board.timeout, lambda: dist.destroy_process_group() or True)
    return Wired(backend, tuple(wires), seconds, rate)


def _ring(launch: Launch, wires: list[Wire], timeout: float) -> None:
    """Connect to the next rank's address, and have it say who it is."""
    following = wires[(launch.rank + 1) % len(wires)]
    mine = wires[launch.rank]
    patience = min(10.0, timeout / 2)
    try:
        wire = socket.create_connection((following.address, following.port), timeout=patience)
    except OSError as error:
        raise LaunchError(
            f"{mine} cannot connect to {following}, port {following.port}: {error}. Training opens such connections "
            "on ports of the system's choice: open them between the nodes, or choose the interface that connects them "
            "with NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME"
        ) from error
    with wire:
        wire.settimeout(patience)
        answer = wire.recv(64).decode()  # connected, but no answer: the process is not running
    if answer != f"rank {following.rank}":
        raise LaunchError(
            f"{mine} connected to {following.address}:{following.port} for {following}, but {answer or 'nobody'!r} "
            "answered: several machines share that address, or something between them answers. Give each its own"
        )


def _answer(ear: socket.socket, rank: int) -> None:
    """Say who this is to all who connect, until the socket is closed."""
    with suppress(OSError):
        while True:
            wire, _ = ear.accept()
            with wire:
                wire.sendall(f"rank {rank}".encode())


def _reduce(launch: Launch, device: str) -> tuple[float, float]:
    """Sum something over all ranks, and check and time it. Seconds of a small one, bytes a second of a large one."""
    import torch
    import torch.distributed as dist

    place = torch.device(device)

    def timed(tensor: Any) -> float:
        _settle(place)
        began = time.perf_counter()
        dist.all_reduce(tensor)
        _settle(place)
        return time.perf_counter() - began

    size = launch.world_size
    total = torch.full((1,), float(launch.rank + 1), device=place)
    timed(total)
    if total.item() != size * (size + 1) / 2:
        raise LaunchError(
            f"the sum of 1 to {size} over {size} ranks came out as {total.item():g}: "
            "memory or network damages data: leave that machine out"
        )
    small = sorted(timed(torch.ones(1, device=place)) for _ in range(5))[2]
    large = sorted(timed(torch.ones(_WORDS, device=place)) for _ in range(5))[2]
    return small, 4 * _WORDS / large


def _settle(device: Any) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def _wire(launch: Launch, port: int) -> Wire:
    import torch

    address, interface = route(launch.master_addr, launch.master_port)
    device = f"cuda:{launch.local_rank}" if torch.cuda.is_available() else "cpu"
    return Wire(launch.rank, socket.gethostname(), os.getpid(), address, interface, port, device)
