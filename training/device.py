"""Which device a command computes on."""

import torch

from ..schemas.errors import ConfigError


def choose_device(named: str | None) -> torch.device:
    """The device to compute on: the one named, else CUDA where there is any.

    Raises:
        ConfigError: that device is not here.
    """
    if named is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(named)
    except RuntimeError:
        raise ConfigError(f"--device {named}: choose one of cpu, cuda, such as cuda:0") from None
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= found:
        here = f"{found} here, from cuda:0; give one of them" if found else "no CUDA here; leave it out, or give cpu"
        raise ConfigError(f"--device {named}: torch finds {here}")
    return device
