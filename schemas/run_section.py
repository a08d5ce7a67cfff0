"""The part of the configuration that says where and how fast a run works, and changes nothing in what it writes."""

import re
from typing import Literal

from pydantic import Field, model_validator

from .section import Duration, Section, Size


class RunSection(Section):
    """Where and how fast: never part of the identity."""

    workers: int | None = Field(default=None, ge=1)
    """Worker processes. Null: one for each core."""
    executor: Literal["local", "ray", "static"] = "local"
    """Who runs the tasks. `local`: processes on this machine. `ray`: a Ray cluster, or Ray on this machine; needs
    `out`, `cache` and the inputs where all its machines see them. `static`: this run is one of several that share the
    work without knowing each other; give each its `shard`."""
    shard: str | None = None
    """`i/N`: which of N runs this is, counted from 0, such as `3/8`. Each does its own share first, then whatever the
    others have not done; any of them can be left out or started again. Means `executor: static`."""
    address: str | None = None
    """Of the Ray cluster, `host:port`, or `auto` for the one of this machine. Null: Ray is started here, and ended
    with the run."""
    task_seconds: Duration | None = Field(default=None, gt=0, allow_inf_nan=False)
    """A task that runs longer, in seconds or as `15min`, is killed, and counts as one that has killed its worker. Null:
    there is no limit."""
    on_dead_task: Literal["stop", "continue"] = "stop"
    """What happens when a task has killed its worker three times over. `stop` ends the run and names its input.
    `continue` does everything else first, names them all at the end, and fails; what is done is kept."""
    wait: Duration = Field(default=0.0, ge=0)
    """Seconds, or `15min`, to wait for another run that works on the same `out`; `.inf` waits for ever. 0 says at once
    who it is."""
    scratch: str | None = None
    """Where `out` or `cache` is a URL: the folder of this machine for drafts and copies, which may be deleted when no
    run is at work. Null: `$PACKTRAIN_CACHE`, else `~/.cache/packtrain`."""
    memory: Size | None = Field(default=None, gt=0)
    """What all processes of this machine may hold together, mapped files apart, such as `8GiB`. It limits how much runs
    at once, and nothing else: more workers than fit are not started, and where the longest row or the largest window
    does not fit, the run is refused with what would do. Null: half of the machine's."""

    report: bool = True
    """Write report.html and report.json beside the data at the end of the run. They are for people and no part of the
    dataset: they show some rows, and paths of this machine."""

    @model_validator(mode="after")
    def _one_backend(self) -> "RunSection":
        if self.shard is not None:
            index, _, count = self.shard.partition("/")
            if re.fullmatch(r"[0-9]+/0*[1-9][0-9]*", self.shard) is None:
                raise ValueError(f"shard {self.shard!r}: write which of how many this is, from 0/8 to 7/8 for eight")
            if int(index) >= int(count):
                raise ValueError(
                    f"shard {self.shard}: shards count from 0; of {count} the last one is {int(count) - 1}/{count}"
                )
            if self.executor == "ray":
                raise ValueError("shard is for executor static, not for ray, which shares the work by itself")
        elif self.executor == "static":
            raise ValueError("executor static needs a shard: which of how many runs this is, such as 0/8 (--shard)")
        if self.address is not None and self.executor != "ray":
            raise ValueError("address is of a Ray cluster, for executor ray; leave one of them out")
        return self
