"""What `packtrain export` is asked for: a format, and what its reader must be told."""

from collections.abc import Collection
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ...schemas.config.hints import did_you_mean
from ...schemas.errors import ConfigError
from ...schemas.parallel import Parallel
from ...schemas.rows import UNPADDED, WEIGHTS

FORMATS = ("megatron-bridge", "megatron", "mds", "olmo-core", "trl")
ALIASES = {"datasets": "trl"}
_CARRY_ALL = ("mds", "trl")
_WITHOUT_PLACE = ("doc_starts", "doc_ids", UNPADDED, WEIGHTS)
"""Columns for which the other formats have no place: which document each piece is of, from which of its tokens on, what
of it is padding, and how much its tokens count in the loss."""
_DTYPES = {"megatron": ("int32", "uint16"), "olmo-core": ("uint32", "uint16")}
"""Format → types of its token arrays; the first is the default."""
_TAKEN_BY = {
    "dtype": tuple(_DTYPES),
    "eos_id": ("olmo-core",),
    "pad_seq_to_mult": ("megatron-bridge",),
    "drop_weights": tuple(name for name in FORMATS if name not in _CARRY_ALL),
}


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Everything besides the dataset that decides the written bytes."""

    to: str
    """One of `FORMATS`."""
    dtype: str | None = None
    """The type of token arrays, for formats that have them."""
    eos_id: int | None = None
    """OLMo-core: the token after which its reader ends a document."""
    pad_seq_to_mult: int | None = None
    """Megatron-Bridge: each document's length at run time is padded to a multiple of this. None: see `suited`."""
    drop_weights: bool | None = None
    """True for consent to leave out loss weights, for formats that have no place for them."""

    def payload(self) -> dict[str, Any]:
        """The options that are set, as plain data."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def not_carried(to: str, columns: Collection[str]) -> tuple[str, ...]:
    """Which of a dataset's columns the format cannot carry."""
    return () if to in _CARRY_ALL else tuple(name for name in _WITHOUT_PLACE if name in columns)


def export_options(
    to: str,
    dtype: str | None = None,
    eos_id: int | None = None,
    pad_seq_to_mult: int | None = None,
    drop_weights: bool | None = None,
) -> ExportOptions:
    """Check the options and fill in defaults.

    Raises:
        ConfigError: there is no such format, it does not take an option, lacks one, or a value is out of range.
    """
    form = ALIASES.get(to, to)
    if form not in FORMATS:
        known = (*FORMATS, *ALIASES)
        raise ConfigError(f"--to {to}: choose one of {', '.join(known)}{did_you_mean(to, known)}")
    given = ExportOptions(form, dtype, eos_id, pad_seq_to_mult, drop_weights or None)
    for field in fields(given):
        takers = _TAKEN_BY.get(field.name, FORMATS)
        if getattr(given, field.name) is not None and form not in takers:
            raise ConfigError(
                f"--{field.name.replace('_', '-')} is for --to {' or '.join(takers)}, not for {to}; leave it out"
            )
    if form in _DTYPES:
        dtype = dtype or _DTYPES[form][0]
        if dtype not in _DTYPES[form]:
            near = did_you_mean(dtype, _DTYPES[form])
            raise ConfigError(f"--dtype {dtype}: choose {' or '.join(_DTYPES[form])} for --to {to}{near}")
    if form == "olmo-core" and eos_id is None:
        raise ConfigError(
            "--to olmo-core needs --eos-id, the eos_token_id of the TokenizerConfig that you train with: OLMo-core "
            "finds where documents end by it"
        )
    if eos_id is not None and not 0 <= eos_id < 2**31:
        raise ConfigError(f"--eos-id {eos_id}: token ids are 0 to {2**31 - 1}")
    if pad_seq_to_mult is not None and not 1 <= pad_seq_to_mult < 2**16:
        raise ConfigError(f"--pad-seq-to-mult {pad_seq_to_mult}: give a number from 1 to {2**16 - 1}")
    return replace(given, dtype=dtype)


def refuse_weights(options: ExportOptions, columns: Collection[str]) -> None:
    """Refuse to leave out loss weights, without which a trainer has another objective.

    Raises:
        ConfigError: the dataset has them, the format has no place for them, and `drop_weights` is not set.
    """
    if WEIGHTS in not_carried(options.to, columns) and not options.drop_weights:
        raise ConfigError(
            f"--to {options.to} has no place for loss_weights, and without them every trained token counts the same, "
            f"which is another objective; add --drop-weights to leave them out, or take --to {' or '.join(_CARRY_ALL)}"
        )


def suited(options: ExportOptions, parallel: Parallel | None) -> ExportOptions:
    """The options with what a dataset's `pack.parallel` decides: the default of `pad_seq_to_mult`.

    Raises:
        ConfigError: Megatron-Bridge divides documents between ranks, and the dataset is made to divide rows.
    """
    if options.to != "megatron-bridge" or options.pad_seq_to_mult is not None:
        return options
    if parallel is not None and parallel.layout != "thd" and parallel.cp > 1:
        raise ConfigError(
            f"--to megatron-bridge: with context parallelism it divides documents between ranks, but the dataset is "
            f"packed with pack.parallel.layout: {parallel.layout}, which pads only rows; pack with layout: thd, or "
            "give --pad-seq-to-mult, which is 1 without context parallelism"
        )
    return replace(options, pad_seq_to_mult=parallel.document_multiple if parallel is not None else 1)
