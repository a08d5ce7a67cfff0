"""The machine itself: shared memory, limits, room on disks. What is too small here ends in a hang or a crash."""

import os
import resource
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ...schemas.files.user_folder import user_folder
from ...schemas.units import size
from .findings import BROKEN, GOOD, SLOW, Finding

LEAST_SHARED = 1 << 30
"""Least size of /dev/shm, for the NCCL buffers of eight processes and a DataLoader's workers. Docker gives 64 MiB by
default.
"""
LEAST_FILES = 4096
"""Least limit of open files, for sockets to all ranks, shards and workers."""
LEAST_DISK = 10 << 30


def machine_findings(environ: Mapping[str, str]) -> list[Finding]:
    """Shared memory, limits, disks."""
    home = Path(environ.get("HOME") or Path.home())
    hub = Path(environ.get("HF_HOME") or home / ".cache" / "huggingface")
    temporary = Path(environ.get("TMPDIR") or tempfile.gettempdir())
    return [
        _shared(Path("/dev/shm")),
        _files(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        _locked(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], infiniband=Path("/dev/infiniband").exists()),
        disk("shard cache", user_folder(environ), "point PACKTRAIN_CACHE at a larger disk"),
        disk("hub cache", hub, "point HF_HOME at a larger disk"),
        disk("temporary", temporary, "point TMPDIR at a larger disk"),
        disk("here", Path.cwd(), "checkpoints of a 7B model take 80 GB each: write them elsewhere, or make room"),
    ]


def _shared(folder: Path, least: int = LEAST_SHARED) -> Finding:
    uses = "NCCL and DataLoader workers talk through it"
    try:
        total, _, free = shutil.disk_usage(folder)
    except OSError as error:
        return Finding("/dev/shm", SLOW, f"not there ({error.strerror})", f"mount it: {uses}")
    if free >= least:
        return Finding("/dev/shm", GOOD, f"{size(free)} free")
    return Finding(
        "/dev/shm",
        SLOW,
        f"{size(free)} of {size(total)} free: {uses}, and die of a bus error",
        "give the container more: docker run --shm-size=8g, or an emptyDir of medium Memory on Kubernetes",
    )


def _files(limit: int) -> Finding:
    if limit == resource.RLIM_INFINITY or limit >= LEAST_FILES:
        return Finding("open files", GOOD, "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}")
    said = f"at most {limit:,}: sockets to many ranks and many shards can use them up"
    return Finding("open files", SLOW, said, f"ulimit -n {LEAST_FILES * 16}, or the limit of the batch system")


def _locked(limit: int, *, infiniband: bool) -> Finding:
    said = "unlimited" if limit == resource.RLIM_INFINITY else size(limit)
    if not infiniband or limit == resource.RLIM_INFINITY:
        return Finding("locked memory", GOOD, said)
    return Finding(
        "locked memory",
        BROKEN,
        f"at most {said}: InfiniBand locks its buffers, and NCCL ends with 'failed to register memory'",
        "ulimit -l unlimited; docker run --ulimit memlock=-1; in Slurm, PropagateResourceLimitsExcept=MEMLOCK",
    )


def disk(name: str, path: Path, fix: str, least: int = LEAST_DISK) -> Finding:
    """Check the free space of the disk that holds a folder, or will hold it."""
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    if not os.access(there, os.W_OK):
        return Finding(name, BROKEN, f"{path} cannot be written", "choose another folder, or make this one writable")
    free = shutil.disk_usage(there).free
    if free < least:
        return Finding(name, SLOW, f"{path}: only {size(free)} free", fix)
    return Finding(name, GOOD, f"{path}: {size(free)} free")
