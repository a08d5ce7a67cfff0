"""The card of a dataset: README.md, as the Hub shows it and as `datasets` reads it.

It is a pure function of the manifest, and holds no path of a machine, no name of an input file, and no row.
"""

import json
import re
from typing import Any

from ...schemas.errors import InputError
from ...schemas.fingerprint import hash_bytes
from ...schemas.manifest import Manifest, SplitRecord
from ...schemas.rows import schema_of
from .card_text import CardPlace, CardSplit, card_text, in_order
from .markdown import with_front

NAME = "README.md"
_LIMITS = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")
"""Limits of the Hub's categories of sizes: a thousand rows, and ten times as many from one to the next."""
_SEAL = "<!-- Written by packtrain, which may replace it as long as its text has the hash {}. -->\n"
_SEALED = re.compile(re.escape(_SEAL).replace(r"\{\}", "([0-9a-f]{16})"))


def own_place(manifest: Manifest) -> CardPlace:
    """The dataset's own folder."""
    return CardPlace(
        tuple(
            CardSplit(name, _patterns(split), split.rows, sum(shard.bytes for shard in split.shards))
            for name, split in in_order(manifest.splits)
        ),
        "path/to/the/dataset",
        whole=True,
    )


def dataset_card(manifest: Manifest, place: CardPlace) -> bytes:
    """The card, with a line at its end by which `is_untouched` knows it.

    Raises:
        InputError: the manifest's plan is not one that packtrain writes.
    """
    try:
        # As it is read back: the order of mappings in memory depends on who made them.
        manifest = Manifest.from_json(json.loads(manifest.to_bytes()))
        return seal_card(with_front(card_front(manifest, place), card_text(manifest, place)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"the manifest's plan is not one that packtrain writes ({error!r}), so there is no card for it; run the "
            "configuration again with another --out"
        ) from error


def seal_card(text: str) -> bytes:
    """A card's bytes: its text, and a line with its hash."""
    data = text.encode()
    return data + _SEAL.format(hash_bytes(data)[:16]).encode()


def is_untouched(card: bytes) -> bool:
    """Whether a card is as packtrain wrote it, in this version or another."""
    text, _, last = card.removesuffix(b"\n").rpartition(b"\n")
    found = _SEALED.fullmatch(last.decode(errors="replace") + "\n")
    return found is not None and found[1] == hash_bytes(text + b"\n")[:16]


def card_front(manifest: Manifest, place: CardPlace) -> dict[str, Any]:
    """What the Hub and `datasets` read: files, columns, sizes, tags."""
    total = sum(split.bytes for split in place.splits)
    files = [
        {"split": split.name, "path": split.patterns[0] if len(split.patterns) == 1 else list(split.patterns)}
        for split in place.splits
        if split.patterns
    ]
    return {
        "configs": [{"config_name": "default", "data_files": files}],
        "dataset_info": {
            "features": [
                {"name": field.name, "sequence": {"float": "float32"}.get(kind := str(field.type.value_type), kind)}
                for field in schema_of(manifest.schema)
            ],
            "splits": [
                {"name": split.name, "num_bytes": split.bytes, "num_examples": split.rows} for split in place.splits
            ],
            "download_size": total,
            "dataset_size": total,
        },
        "size_categories": [_size_category(sum(split.rows for split in place.splits))],
        "task_categories": ["text-generation"],
        "tags": ["packtrain", "preference" if manifest.preference else "packed", "tokenized"],
    }


def _size_category(rows: int) -> str:
    digits = len(str(max(rows, 1)))
    if digits < 4:
        return "n<1K"
    return f"{_LIMITS[digits - 4]}<n<{_LIMITS[digits - 3]}" if digits < 13 else "n>1T"


def _patterns(split: SplitRecord) -> tuple[str, ...]:
    found = set()
    for shard in split.shards:
        folder, _, name = shard.name.rpartition("/")
        found.add(f"{folder}/*.{name.rpartition('.')[2]}".removeprefix("/"))
    return tuple(sorted(found))
