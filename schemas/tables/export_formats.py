"""The formats to export to: what each is for, and what of a dataset it can hold.

What writes each is in `pipeline/export/foreign_formats.py`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """What a format holds of packed rows."""

    name: str
    reader: str
    """Who reads it, for the documentation. Markdown, without a full stop."""
    files: str
    """What is written, for the documentation. Markdown, without a full stop."""
    has_all_columns: bool = False
    """Whether it holds `loss_weights`, and which document each piece is of."""
    has_empty_shards: bool = False
    """Whether a shard without rows gives a file, too, because the format numbers its files without gaps."""
    takes_eos_id: bool = False
    """Whether its reader can be told the id of the end-of-sequence token, to find where documents end."""
    pads_documents: bool = False
    """Whether its reader pads documents when it reads them, to the multiple that `pack.parallel` asks for."""


EXPORT_FORMATS = {
    export_format.name: export_format
    for export_format in (
        ExportFormat("megatron-bridge", "Megatron-Bridge, NeMo", "packed Parquet in `train/`", pads_documents=True),
        ExportFormat(
            "megatron",
            "Megatron-LM, megatron-core",
            "`.bin` and `.idx` pairs in `train/`, and the mask as pairs of uint8 in `train-mask/`",
        ),
        ExportFormat(
            "mds",
            "MosaicML streaming",
            "MDS shards and `index.json` in `train/`, with all columns",
            has_all_columns=True,
        ),
        ExportFormat(
            "olmo-core",
            "OLMo-core",
            "`.npy` arrays of uint32 and bounds of documents in `train/`, masks in `train-mask/`",
            takes_eos_id=True,
        ),
        ExportFormat(
            "trl",
            "anything that uses `datasets`",
            "Parquet in `data/`, with all columns",
            has_all_columns=True,
            has_empty_shards=True,
        ),
        ExportFormat(
            "llama-factory",
            "LLaMA-Factory, as `tokenized_path`",
            "a folder of `datasets`: rows of one length, with numbers of documents as `attention_mask`; `holdout` is "
            "`validation`",
            has_empty_shards=True,
        ),
        ExportFormat(
            "ms-swift",
            "ms-swift, as `cached_dataset`",
            "a folder of `datasets`: rows without padding, with `lengths` and `length`",
            has_empty_shards=True,
        ),
    )
}
"""Every format by its name, in the order in which they are listed."""
