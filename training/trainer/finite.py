"""Whether weights are numbers. A finite loss can have a gradient of NaN: its step spoils the weights, and no later step
repairs them.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open

from ...schemas.errors import ConfigError


def not_finite(tensors: Iterable[tuple[str, Any]]) -> str | None:
    """The name of the first tensor with NaN or infinity; None if all are finite. Of sharded tensors, this rank's part
    is looked at.
    """
    for name, tensor in tensors:
        if not tensor.is_floating_point():
            continue  # quantised to integers
        part = getattr(tensor, "ds_tensor", tensor)  # of ZeRO-3
        if hasattr(part, "to_local"):  # of FSDP 2
            part = part.to_local()
        part = part.detach()
        if part.element_size() < 2:  # float8 has no isfinite
            part = part.float()
        if not bool(part.isfinite().all()):
            return name
    return None


def refuse_not_finite(folder: Path, names: Sequence[str]) -> None:
    """Read the weights of a checkpoint, one tensor at a time.

    Args:
        names: files of the checkpoint. Those in *.safetensors are read. Sharded weights have other names: they were
            looked at before the checkpoint was marked, and are again once they are loaded.

    Raises:
        ConfigError: some are not numbers.
    """
    for name in names:
        if not name.endswith(".safetensors"):
            continue
        with safe_open(str(folder / name), framework="pt") as file:
            spoilt = not_finite((key, file.get_tensor(key)) for key in file.keys())  # noqa: SIM118
        if spoilt is not None:
            raise ConfigError(
                f"the checkpoint {folder} cannot be used: {spoilt} in {name} holds NaN or infinity; resume from "
                "another checkpoint"
            )
