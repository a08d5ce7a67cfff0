"""Parallelism that would break packed rows, and a launcher's settings that accelerate ignores."""

import logging
import os
from typing import Any

from ...schemas.errors import ConfigError

_LOG = logging.getLogger(__name__)


def refuse_parallelism(accelerator: Any) -> None:
    """Refuse what splits a sequence, or shows several ranks the same rows.

    Args:
        accelerator: accelerate's, whose settings may come from a launcher.

    Raises:
        ConfigError: context, sequence or tensor parallelism is on.
    """
    found = getattr(accelerator, "parallelism_config", None)
    for name, what in (
        ("cp", "context parallelism cuts rows across ranks, and drops the bounds between documents"),
        ("sp", "sequence parallelism cuts rows across ranks, and drops the bounds between documents"),
        ("tp", "under tensor parallelism ranks must get the same rows, and the loader gives each its own"),
    ):
        if found is not None and getattr(found, f"{name}_enabled", False):
            raise ConfigError(
                f"parallelism_config.{name}_size={getattr(found, f'{name}_size')}: {what}. Leave it out; to save "
                "memory take FSDP, gradient checkpointing or a smaller truncate.max_length"
            )


def warn_of_ignored_launcher(accelerator: Any) -> None:
    """Warn that accelerate ignores FSDP and DeepSpeed on a CPU and trains with DDP."""
    kind = str(accelerator.distributed_type).rpartition(".")[2]
    for name in ("FSDP", "DEEPSPEED"):
        if os.environ.get(f"ACCELERATE_USE_{name}", "").lower() in ("1", "true", "yes") and kind != name:
            _LOG.warning(
                "ACCELERATE_USE_%s is set, but accelerate trains with %s: on a CPU it ignores the others. Every "
                "rank holds the whole model",
                name,
                kind,
            )
