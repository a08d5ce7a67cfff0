"""The machine itself: limits, shared memory, room on disks. What is too small here ends in a hang or a crash."""

import os
import resource
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ...schemas.units import size
from .findings import Finding, broken, good, note, slow

GIB = 1 << 30
LEAST_SHARED = 1 * GIB
"""Of /dev/shm: NCCL's buffers of eight processes, and a DataLoader's workers. Docker gives 64 MiB by default."""
LEAST_FILES = 4096
"""Open files: sockets to all ranks, shards, workers."""
LEAST_DISK = 10 * GIB


def machine_findings(environ: Mapping[str, str]) -> list[Finding]:
    """Cores, memory, shared memory, limits, disks."""
    return [_cores(), _memory(), _shared(Path("/dev/shm")), _files(), _locked(), *_disks(environ)]


def _cores() -> Finding:
    usable, all_cores = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    if usable < all_cores:
        return note("cores", f"{usable} of {all_cores}: this process is kept on some of them")
    return good("cores", str(usable))


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")]
    for path in limits:
        try:
            limit = int(path.read_text())
        except (OSError, ValueError):  # not there, or `max`
            continue
        if limit < total:
            return note("memory", f"{size(limit)}, by this container's limit, of the machine's {size(total)}")
    return good("memory", size(total))


def _shared(folder: Path, least: int = LEAST_SHARED) -> Finding:
    try:
        total, _, free = shutil.disk_usage(folder)
    except OSError as error:
        return slow(
            "/dev/shm", f"not there ({error.strerror})", "mount it: NCCL and DataLoader workers talk through it"
        )
    if free < least:
        return slow(
            "/dev/shm",
            f"{size(free)} of {size(total)} free: NCCL and DataLoader workers talk through it; they die of a bus error",
            "give the container more: docker run --shm-size=8g, or an emptyDir of medium Memory on Kubernetes",
        )
    return good("/dev/shm", f"{size(free)} free")


def _files(limit: int | None = None) -> Finding:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if limit is None else limit
    if limit == resource.RLIM_INFINITY or limit >= LEAST_FILES:
        return good("open files", "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}")
    return slow(
        "open files",
        f"at most {limit:,}: sockets to many ranks and many shards can use them up",
        f"ulimit -n {LEAST_FILES * 16}, or the limit of the batch system",
    )


def _locked(limit: int | None = None, infiniband: bool | None = None) -> Finding:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] if limit is None else limit
    infiniband = Path("/dev/infiniband").exists() if infiniband is None else infiniband
    said = "unlimited" if limit == resource.RLIM_INFINITY else size(limit)
    if infiniband and limit != resource.RLIM_INFINITY:
        return broken(
            "locked memory",
            f"at most {said}: InfiniBand locks its buffers, and NCCL ends with 'failed to register memory'",
            "ulimit -l unlimited; docker run --ulimit memlock=-1; in Slurm, PropagateResourceLimitsExcept=MEMLOCK",
        )
    return good("locked memory", said)


def _disks(environ: Mapping[str, str]) -> list[Finding]:
    home = Path(environ.get("HOME") or Path.home())
    caches = {
        "shard cache": Path(environ.get("PACKTRAIN_CACHE") or home / ".cache" / "packtrain"),
        "hub cache": Path(environ.get("HF_HOME") or home / ".cache" / "huggingface"),
        "temporary": Path(environ.get("TMPDIR") or tempfile.gettempdir()),
        "here": Path.cwd(),
    }
    return [disk(name, path) for name, path in caches.items()]


def disk(name: str, path: Path, least: int = LEAST_DISK) -> Finding:
    """How much room there is where a folder is, or would be made."""
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    if not os.access(there, os.W_OK):
        return broken(name, f"{path} cannot be written", "choose another folder, or change its rights")
    free = shutil.disk_usage(there).free
    if free < least:
        mends = {
            "shard cache": "point PACKTRAIN_CACHE at a larger disk",
            "hub cache": "point HF_HOME at a larger disk",
            "temporary": "point TMPDIR at a larger disk",
        }
        mend = mends.get(name, "checkpoints of a 7B model take 80 GB each: write them elsewhere, or make room")
        return slow(name, f"{path}: only {size(free)} free", mend)
    return good(name, f"{path}: {size(free)} free")
