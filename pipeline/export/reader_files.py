"""The small files that tell a format's reader what the large ones are."""

import json
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from ...stages.exchange import bridge, mds
from ..report.card_text import CardPlace, CardSplit
from .manifest import ExportManifest
from .options import ExportOptions
from .shard_writers import ShardCounts
from .task import ExportResult


def reader_files(
    options: ExportOptions,
    results: Mapping[str, Sequence[ExportResult]],
    totals: Mapping[str, ShardCounts],
    max_length: int,
    schema: pa.Schema,
) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content).

    Args:
        results: of each split's shards, in order.
        totals: what each split amounts to.
        schema: the columns of a packed row.
    """
    if options.to == "mds":
        for split, made in results.items():
            entries = [
                mds.index_entry(
                    file.record.name.rpartition("/")[2], file.record.bytes, file.record.sha256, file.rows, schema
                )
                for result in made
                for file in result.files
            ]
            yield f"{split}/index.json", mds.index_json(entries)
    elif options.to == "megatron-bridge":
        facts = [_packing(total, max_length) for total in totals.values() if total.rows]
        yield "metadata.json", (json.dumps(facts) + "\n").encode()


def _packing(total: ShardCounts, max_length: int) -> dict[str, float]:
    return bridge.packing_metadata(
        total.rows,
        total.pieces,
        total.tokens + total.padding,
        total.longest,
        total.most_pieces,
        total.shortest_row,
        max_length,
    )


def hub_place(manifest: ExportManifest, address: str) -> CardPlace:
    """Where the card of an export to `trl` says that the rows are.

    Args:
        address: what `datasets` loads them by: a folder, or a name on the Hub.
    """
    splits = []
    for name, split in sorted(manifest.splits.items(), key=lambda one: (one[0] != "train", one[0])):
        held = sum(file.bytes for file in manifest.files if file.name.startswith(f"data/{name}-"))
        splits.append(CardSplit(name, (f"data/{name}-*.parquet",), split.rows, held))
    return CardPlace(tuple(splits), address, whole=False)
