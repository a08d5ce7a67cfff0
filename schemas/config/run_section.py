"""The part of the configuration that says where and how fast a run works. It does not affect what is written."""

import re
from typing import Literal

from pydantic import Field, model_validator

from .section import ConfigModel, Duration, Size


class RunSection(ConfigModel):
    """Where and how fast: never part of the identity."""

    workers: int | None = Field(default=None, ge=1)
    """Worker processes. Null: one for each core."""
    executor: Literal["local", "ray", "static"] = "local"
    """What runs the tasks. `local`: processes on this machine. `ray`: a Ray cluster, or Ray on this machine; all its
    machines must see `out`, `cache` and the inputs. `static`: several independent runs share the work; give each its
    `shard`."""
    shard: str | None = None
    """`i/N`: which of N runs this is, counted from 0, such as `3/8`. Each does its own share first, then what the
    others have not done; any of them can be left out or restarted. Means `executor: static`."""
    address: str | None = None
    """Address of the Ray cluster, `host:port`, or `auto` for the one of this machine. Null starts Ray here, and ends it
    with the run."""
    task_seconds: Duration | None = Field(default=900.0, gt=0, allow_inf_nan=False)
    """Time limit of a task, which is one block of an input or one shard, in seconds or as `15min`. A task that runs
    longer is killed, and counts as one that killed its worker. Null: no limit."""
    wait: Duration = Field(default=0.0, ge=0)
    """Seconds, or `15min`, to wait for another run that works on the same `out`; `.inf` waits for ever. 0 fails at once
    and names the other run."""
    scratch: str | None = None
    """If `out` or `cache` is a URL: a local folder for drafts and copies, which may be deleted while no run is active.
    Null: `$PACKTRAIN_CACHE`, else `~/.cache/packtrain`."""
    memory: Size | None = Field(default=None, gt=0)
    """Memory limit for all processes of this machine together, without mapped files, such as `8GiB`. It only limits how
    much runs at once: no more workers are started than fit, and if the longest row or the largest window does not fit,
    the run is refused with advice. Null: half of the machine's memory."""

    report: bool = True
    """Write report.html and report.json beside the data at the end of the run. They are not part of the dataset, and
    show some rows and paths of this machine."""

    @model_validator(mode="after")
    def _one_backend(self) -> "RunSection":
        if self.shard is not None:
            index, _, count = self.shard.partition("/")
            if re.fullmatch(r"[0-9]+/0*[1-9][0-9]*", self.shard) is None:
                raise ValueError(f"shard {self.shard!r}: write I/N for run I, from 0, of N, such as 0/8")
            if int(index) >= int(count):
                raise ValueError(
                    f"shard {self.shard}: shards count from 0; of {count} the last one is {int(count) - 1}/{count}"
                )
            if self.executor == "ray":
                raise ValueError("shard is for executor static, not for ray, which shares the work by itself")
        elif self.executor == "static":
            raise ValueError("executor static needs a shard: which of how many runs this is, such as 0/8 (--shard)")
        if self.address is not None and self.executor != "ray":
            raise ValueError("address names a Ray cluster, and needs executor ray; leave address out, or choose ray")
        return self
