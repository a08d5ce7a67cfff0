"""Compares two finished datasets."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from ....schemas.errors import InputError, IntegrityError
from ....schemas.manifest import Manifest
from ...dataset.open import Finished, open_dataset
from ...dataset.output_folder import all_there
from ...dataset.plan_diff import plan_settings
from ...dataset.unfinished import refuse_unfinished
from ...observer import Observer, Silent
from .changes import FORMAT, Comparison, Side
from .example_diff import examples_change
from .headline import headline
from .input_diff import inputs_change
from .ledger_diff import ledger_change, packing_change

_SAME = "the datasets are the same, byte for byte"


def compare(a: str | Path, b: str | Path, *, quick: bool = False, observer: Observer | None = None) -> Comparison:
    """Compare two finished datasets.

    Args:
        a, b: their folders or URLs.
        quick: compare examples only by id and length, without opening shards.

    Raises:
        InputError: a dataset is missing, unfinished or damaged, or one has packed rows and the other preference pairs.
    """
    from .... import __version__

    one, other = _open(a), _open(b)
    mine, yours = one.manifest, other.manifest
    if mine.preference != yours.preference:
        kinds = ["preference pairs" if each.preference else "packed rows" for each in (mine, yours)]
        raise InputError(f"{a} has {kinds[0]} and {b} has {kinds[1]}; only datasets of the same kind can be compared")
    identical = mine.hash == yours.hash
    same_rows = _shards(mine) == _shards(yours)
    settings = plan_settings(mine.plan, yours.plan)
    inputs = inputs_change(one, other)
    sides = _side(a, mine), _side(b, yours)
    lengths = examples = None
    absent = {"lengths": _SAME, "examples": _SAME} if identical else {}
    if not identical:
        try:
            examples, lengths = examples_change(one, other, observer or Silent(), quick=quick)
        except IntegrityError as error:
            raise InputError(str(error)) from error
    return Comparison(
        format=FORMAT,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        packtrain=__version__,
        sentence=headline(*sides, settings, inputs, identical=identical, same_rows=same_rows),
        a=sides[0],
        b=sides[1],
        identical=identical,
        same_rows=same_rows,
        settings=settings,
        inputs=inputs,
        ledger=ledger_change(mine.ledger, yours.ledger),
        packing=packing_change(mine, yours),
        lengths=lengths,
        examples=examples,
        absent=absent,
    )


def _open(folder: str | Path) -> Finished:
    refuse_unfinished(folder)
    try:
        dataset = open_dataset(folder)
    except IntegrityError as error:
        raise InputError(str(error)) from error
    if not all_there(dataset.store, dataset.manifest):
        raise InputError(
            f"{folder} is damaged: files that its manifest names are missing, or have another size; "
            "`packtrain verify` says which, `packtrain verify --repair` rebuilds them"
        )
    return dataset


def _shards(manifest: Manifest) -> Mapping[str, list[str]]:
    return {name: [shard.hash for shard in split.shards] for name, split in manifest.splits.items()}


def _side(where: str | Path, manifest: Manifest) -> Side:
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    return Side(
        where=str(where),
        manifest=manifest.hash,
        plan=manifest.plan_hash,
        preference=manifest.preference,
        max_length=manifest.max_length,
        sources=list(manifest.ledger.sources),
        splits=list(manifest.splits),
        rows=sum(shard.rows for shard in shards),
        tokens=sum(shard.tokens for shard in shards),
        padding=sum(split.padding for split in manifest.splits.values()),
        labels=sum(shard.trained for shard in shards),
        shards=len(shards),
        bytes=sum(shard.bytes for shard in shards),
    )
