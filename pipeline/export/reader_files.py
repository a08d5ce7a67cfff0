"""The small files that tell a format's reader what the large ones are."""

import json
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from ...stages.exchange import bridge, mds
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
    elif options.to == "trl":
        yield "README.md", _hub_card(list(results))


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


def _hub_card(splits: Sequence[str]) -> bytes:
    """README.md, whose head tells the Hub and `datasets` which files are which split."""
    lines = ["---", "configs:", "- config_name: default", "  data_files:"]
    for split in splits:
        lines += [f"  - split: {split}", f"    path: data/{split}-*.parquet"]
    return "\n".join([*lines, "---", "", "Packed rows, exported by packtrain; see export.json.", ""]).encode()
