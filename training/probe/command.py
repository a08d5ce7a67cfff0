"""`packtrain probe MODEL`: finds out whether an architecture keeps packed documents apart, before a run is planned.

Needs no tokenizer, data, GPU or weights, because only code decides what leaks. With `tiny`, a model of any size can be
probed on a laptop.
"""

import os
from pathlib import Path
from typing import Any

import torch

from ...schemas.errors import ConfigError
from ...schemas.units import size
from ..attention.apply import Applied, refuse_foreign_attention, use_packed
from ..device import choose_device
from ..rows import ConcatRows, PackedRows
from .documents import RandomDocuments
from .probing import first_line, probe
from .report import ProbeReport
from .tiny import shrink

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


def probe_model(
    where: Path,
    *,
    attention: str = "auto",
    dtype: str | None = None,
    device: str | None = None,
    random: bool = False,
    tiny: bool = False,
    data: Path | None = None,
) -> tuple[ProbeReport, Applied, str]:
    """Build the model and probe it as the trainer would.

    Args:
        where: a folder with config.json, with or without weights.
        attention: as in the trainer's configuration.
        dtype: dtype of the weights; by default bfloat16 on CUDA, float32 elsewhere.
        random: use random weights, even if the folder has weights.
        tiny: use a tiny model of the same architecture, with random weights.
        data: a packed dataset; the probe also tests a row as long as its longest, of documents as long as its longest.

    Returns:
        The report, the attention that was applied, and a description of how the model was made.

    Raises:
        InputError, IntegrityError: see `PackedRows`.
        ConfigError: there is no model, transformers does not know it as a causal language model, or it is too large.
        AttentionError: the attention cannot be applied.
    """
    try:
        from transformers import AutoConfig, AutoModelForCausalLM, logging
    except ImportError:
        raise ConfigError("the probe needs transformers; pip install 'packtrain[train]'") from None
    folder = where.parent if where.name == "config.json" else where
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{where}: there is no config.json; give the folder of a model, as save_pretrained writes it")
    place = choose_device(device)
    dtype = dtype or ("bfloat16" if place.type == "cuda" else "float32")
    logging.set_verbosity_error()  # this process does nothing else, and the table shows what matters
    logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except (ValueError, OSError, KeyError, TypeError) as error:
        raise ConfigError(f"{folder}/config.json: {first_line(error)}") from error
    refuse_foreign_attention(config, folder / "config.json")
    if tiny:
        try:
            config = shrink(config)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            said = f"{config.model_type} cannot be shrunk ({first_line(error)})"
            raise ConfigError(f"--tiny: {said}; leave it out") from error
    made = "tiny, weights at random" if tiny else "weights at random"
    kind = getattr(torch, dtype)
    try:
        if not (tiny or random) and any(next(folder.glob(pattern), None) for pattern in _WEIGHTS):
            made = "its own weights"
            model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=kind, trust_remote_code=False, local_files_only=True
            )
        else:
            _refuse_too_large(AutoModelForCausalLM, config, kind, place)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                model = AutoModelForCausalLM.from_config(config, dtype=kind)
    except ConfigError:
        raise
    except Exception as error:  # architectures raise all kinds of errors if they cannot build a configuration
        raise ConfigError(f"{folder}: transformers cannot build this model: {first_line(error)}") from error
    model.to(place)
    applied = use_packed(model, attention)
    batch = None
    if data is not None:
        rows = ConcatRows([PackedRows(data)])
        longest, room = rows.longest(), rows.max_length
        lengths = [*[longest] * (room // longest), *([room % longest] if room % longest > 1 else [])]
        batch = RandomDocuments(model.config, lengths, 1, place).packed()
    return probe(model, batch=batch), applied, f"{made}, {dtype} on {place.type}"


def _refuse_too_large(factory: Any, config: Any, dtype: torch.dtype, device: torch.device) -> None:
    with torch.device("meta"):
        count = sum(weight.numel() for weight in factory.from_config(config).parameters())
    needed = count * torch.finfo(dtype).bits // 8
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return
    if device.type == "cuda":
        free = min(free, torch.cuda.mem_get_info(device)[0])
    if needed > 0.8 * free:
        raise ConfigError(
            f"{count / 1e9:,.1f} billion parameters take {size(needed)}, and {size(free)} are free; "
            "add --tiny, which probes the same architecture"
        )
