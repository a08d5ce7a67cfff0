"""The hash of a manifest moves with everything it vouches for."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from packtrain.schemas.dataset.ledger import Ledger, SourceLedger
from packtrain.schemas.dataset.manifest import FileRecord, Manifest, ShardRecord, SplitRecord
from packtrain.schemas.errors import IntegrityError
from packtrain.schemas.layout import Certificate

CERTIFICATE = Certificate(rows=2, bound=2, tokens=14, pieces=3)
MANIFEST = Manifest(
    plan={"config": {"truncate": {"max_length": 8}, "seed": 1}, "inputs": []},
    schema={"input_ids": "list<item: int32 not null>"},
    splits={
        "train": SplitRecord(
            shards=(
                ShardRecord("shards/00000-aa.arrow", 100, "a" * 64, 1, 8, 5, 3, 7),
                ShardRecord("shards/00001-bb.arrow", 90, "b" * 64, 1, 6, 4, 2, 6),
            ),
            windows=(CERTIFICATE,),
        ),
        "holdout": SplitRecord(shards=(), windows=()),
    },
    files=(FileRecord("documents.parquet", 10, "d" * 64), FileRecord("rejects.jsonl", 0, "e" * 64)),
    ledger=Ledger({"chat": SourceLedger(rows_read=3, rows_used=2, rows_rejected={"invalid_json": 1})}),
)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, (*path, key))
    else:
        yield path


def test_the_hash_covers_every_value() -> None:
    written = json.loads(MANIFEST.to_bytes())
    assert Manifest.from_json(written) == MANIFEST
    paths = [path for path in leaves(written) if path not in (("hash",), ("format",))]
    assert len(paths) > 40
    for path in paths:
        changed = copy.deepcopy(written)
        *parents, last = path
        target = changed
        for key in parents:
            target = target[key]
        old = target[last]
        target[last] = old + 1 if isinstance(old, int | float) else f"0{old[1:]}" if len(old) == 64 else f"{old}x"
        assert Manifest.from_json(changed).hash != MANIFEST.hash, path


@pytest.mark.parametrize(
    "config",
    [
        {"pack": {"align": 0}},
        {"pack": {"parallel": {"cp": 2, "layout": "x"}}},
        {"truncate": {"max_length": 0}},
        {"pack": 1},
    ],
)
def test_a_plan_that_readers_cannot_use_is_damage(config: dict[str, Any]) -> None:
    content = json.loads(MANIFEST.to_bytes())
    content["plan"]["config"] |= config
    with pytest.raises(IntegrityError, match=r"m\.json is not a manifest of this version"):
        Manifest.read(json.dumps(content).encode(), "m.json")
