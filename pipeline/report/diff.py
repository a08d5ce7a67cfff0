"""What differs between two finished datasets: what their manifests say, and their examples, one by one.

The first dataset is A, the second B.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...schemas.errors import InputError, IntegrityError
from ...schemas.escape import escape_line
from ...schemas.manifest import Manifest
from ...schemas.units import exact, share
from ...stages.arrays import view
from ..dataset.open_dataset import Finished, open_dataset
from ..dataset.output_folder import all_there
from ..dataset.plan_diff import flat, plan_settings
from ..observer import Observer
from .collect import packing_of
from .digests import Documents, read_documents
from .grid import Grid, Lines

NAMED = 20
"""Examples of each kind that are named."""
KINDS = {
    "only_a": "only in A",
    "only_b": "only in B",
    "tokens": "in both, with other tokens",
    "labels": "in both, with other labels",
    "copies": "in both, packed a different number of times",
    "moved": "in both, in another split",
}
"""The ways in which an example can differ."""
MOST, FIRST = 8, 3
"""Lines of a section that are printed, and examples of a kind that are named, unless all are."""
LONGEST = 60
"""Characters of a value that are printed."""


@dataclass(frozen=True, slots=True)
class Change:
    """One setting or figure that differs; None where a side lacks it."""

    section: str
    """`configuration`, `reading`, `tokenizer`, `encoding`, `versions`, `inputs`, `ledger`, `rows` or `lengths`."""
    key: str
    """In the ledger `source.field` or `source.field.reason`, where the source `*` is the sum of several."""
    a: Any
    b: Any


@dataclass(frozen=True, slots=True)
class NamedExample:
    """An example that differs. Its id is untrusted text."""

    id: str
    tokens_a: int | None
    tokens_b: int | None


@dataclass(frozen=True, slots=True)
class Examples:
    """Packed examples, matched by id; copies are not counted."""

    same: int
    """In both with the same tokens and the same trained tokens; with the same length, if no rows were read."""
    counts: dict[str, int]
    """By kind; the first four and `same` add up to all examples."""
    named: dict[str, list[NamedExample]]
    """The first examples of each kind."""
    alike: int | None
    """Examples that have the same tokens and as many copies in both, whatever their ids; None if no rows were read."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Everything that a diff shows."""

    a: str
    b: str
    manifests: tuple[str, str]
    identical: bool
    """Whether the manifests' hashes are equal, and therefore all bytes."""
    same_rows: bool
    """Whether all shards have the same bytes, in the same order."""
    changes: list[Change] = field(default_factory=list)
    examples: Examples | None = None
    """None if the datasets are identical."""


def compare(a: str | Path, b: str | Path, quick: bool, observer: Observer) -> Difference:
    """Compare two finished datasets, given by their folders or URLs.

    Args:
        quick: open no shards: compare examples only by id and length.

    Raises:
        InputError: a dataset is missing, unfinished or damaged, or one has packed rows and the other preference pairs.
    """
    sides = [_open(folder) for folder in (a, b)]
    one, other = (side.manifest for side in sides)
    if one.preference != other.preference:
        kinds = ["preference pairs" if each.preference else "packed rows" for each in (one, other)]
        raise InputError(f"{a} has {kinds[0]} and {b} has {kinds[1]}; only datasets of the same kind can be compared")
    hashes = one.hash, other.hash
    if hashes[0] == hashes[1]:
        return Difference(str(a), str(b), hashes, identical=True, same_rows=True)
    shards = [[[shard.hash for shard in split.shards] for split in each.splits.values()] for each in (one, other)]
    same_rows = shards[0] == shards[1] and list(one.splits) == list(other.splits)
    changes = [Change(each.section, each.key, each.a, each.b) for each in plan_settings(one.plan, other.plan)]
    changes += _changes(_figures(one), _figures(other))
    if not quick:
        rows = [shard for each in (one, other) for split in each.splits.values() for shard in split.shards]
        observer.begin("compare", sum(shard.tokens for shard in rows), "tok")
    try:
        left, right = (read_documents(side, quick=quick, observer=observer) for side in sides)
    except IntegrityError as error:
        raise InputError(str(error)) from error
    observer.end()
    changes += _changes({"lengths": _lengths(left)}, {"lengths": _lengths(right)})
    examples = _compared(left, right, (list(one.splits), list(other.splits)), quick)
    return Difference(str(a), str(b), hashes, False, same_rows, changes, examples)


def _open(folder: str | Path) -> Finished:
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


# Figures of manifests


def _changes(a: Mapping[str, Mapping[str, Any]], b: Mapping[str, Mapping[str, Any]]) -> list[Change]:
    return [
        Change(section, key, a[section].get(key), b[section].get(key))
        for section in a
        for key in dict.fromkeys([*a[section], *b[section]])
        if a[section].get(key) != b[section].get(key)
    ]


def _figures(manifest: Manifest) -> dict[str, dict[str, Any]]:
    """Section → key → value of what a manifest says of its inputs, its ledger and its rows."""
    entries = {name: asdict(entry) for name, entry in manifest.ledger.sources.items()}
    if len(entries) > 1:
        entries = {"*": asdict(manifest.ledger.total()), **entries}
    splits = {one.split: asdict(one) for one in packing_of(manifest, {}).splits}
    return {
        "inputs": {f"{one['source']}/{one['file']}": one["hash"][:16] for one in manifest.plan["inputs"]},
        "ledger": {key: value for key, value in flat(entries).items() if value},
        "rows": {key: value for key, value in flat(splits).items() if not key.endswith(".split")},
    }


# Examples


def _lengths(documents: Documents) -> dict[str, float]:
    found: dict[str, float] = {"examples": len(documents.tokens)}
    if len(documents.tokens):
        found["mean"] = float(documents.tokens.mean())
        found["median"] = float(np.median(documents.tokens))
        found["longest"] = int(documents.tokens.max())
    return found


def _compared(a: Documents, b: Documents, splits: tuple[list[str], list[str]], quick: bool) -> Examples:
    """Match the examples of A with those of B by their ids."""
    found = view(pc.fill_null(pc.index_in(a.ids, value_set=b.ids), -1)).astype(np.int64)
    here = np.flatnonzero(found >= 0)
    there = found[here]
    alone_a, alone_b = np.flatnonzero(found < 0), np.delete(np.arange(len(b.ids)), there)
    # The sums are over all copies, so each is taken as often as the other side has copies.
    mine, yours = (
        a.digests[:, here] * b.copies[there].astype(np.uint64),
        b.digests[:, there] * a.copies[here].astype(np.uint64),
    )
    other = a.tokens[here] != b.tokens[there]
    tokens = other if quick else other | (mine[0] != yours[0])
    labels = ~tokens & (mine[1] != yours[1])
    names = [*splits[0], *(name for name in splits[1] if name not in splits[0])]
    theirs = np.array([names.index(name) for name in splits[1]], np.int64)
    masks = {"tokens": tokens, "labels": labels, "copies": a.copies[here] != b.copies[there]}
    masks["moved"] = np.zeros(len(here), np.bool_) if quick else a.split[here] != theirs[b.split[there]]
    places = {"only_a": (alone_a, np.full(len(alone_a), -1)), "only_b": (np.full(len(alone_b), -1), alone_b)}
    places |= {kind: (here[mask], there[mask]) for kind, mask in masks.items()}
    return Examples(
        same=int((~tokens & ~labels).sum()),
        counts={kind: len(places[kind][0]) for kind in KINDS},
        named={kind: _named(a, b, *places[kind]) for kind in KINDS if len(places[kind][0])},
        alike=None if quick else _alike(a.digests[0], b.digests[0]),
    )


def _named(a: Documents, b: Documents, here: NDArray[np.int64], there: NDArray[np.int64]) -> list[NamedExample]:
    """Return the first examples of some; -1 where a side lacks one."""
    out = []
    for mine, yours in zip(here[:NAMED].tolist(), there[:NAMED].tolist(), strict=True):
        name = a.ids[mine] if mine >= 0 else b.ids[yours]
        tokens = [int(side.tokens[at]) if at >= 0 else None for side, at in ((a, mine), (b, yours))]
        out.append(NamedExample(name.as_py(), *tokens))
    return out


def _alike(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> int:
    """Count the digests of A that can be paired with an equal one of B."""
    mine, yours = (np.unique(side, return_counts=True) for side in (a, b))
    _, one, other = np.intersect1d(mine[0], yours[0], assume_unique=True, return_indices=True)
    return int(np.minimum(mine[1][one], yours[1][other]).sum())


# In the terminal


def difference_lines(everything: bool, found: Difference) -> Lines:
    """A table for each section, and the examples that differ.

    Args:
        everything: all changes, not about a screen.
    """
    if found.identical:
        yield f"A and B are the same dataset, byte for byte: manifest {found.manifests[0][:16]}"
        return
    for side, where, manifest in zip("AB", (found.a, found.b), found.manifests, strict=True):
        yield f"{side}: {where}, manifest {manifest[:16]}"
    if found.same_rows:
        yield "The rows of A and B are identical."
    left = 0
    for section in dict.fromkeys(change.section for change in found.changes):
        changes = [change for change in found.changes if change.section == section]
        shown = changes if everything else changes[:MOST]
        left += len(changes) - len(shown)
        yield ""
        yield Grid("", (section, "A", "B", "change"), [_cells(one) for one in shown])
    if found.examples is not None:
        yield from _example_lines(found, found.examples, None if everything else FIRST)
    if left:
        yield f"\n{exact(left)} more differ; --all shows them"


def _cells(one: Change) -> list[str]:
    """Key, both values, and the change of a number as `▲ +53 (+378.6 %)`, of a share in percentage points."""
    part, a, b = one.section == "rows" and one.key.endswith(".fill"), one.a, one.b
    said = [one.key, _value(a, part), _value(b, part)]
    a, b = (0 if side is None else side for side in (a, b))
    if not all(isinstance(side, int | float) and not isinstance(side, bool) for side in (a, b)):
        return [*said, ""]
    arrow = "▲ +" if b > a else "▼ −"
    if part:
        return [*said, f"{arrow}{100 * abs(b - a):.2f} points"]
    relative = f" ({'+' if b > a else '−'}{share(abs(b - a) / a)})" if a and b else ""
    return [*said, f"{arrow}{exact(abs(b - a))}{relative}"]


def _value(value: Any, part: bool) -> str:
    if value is None:
        return "–"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return share(value, 2) if part else exact(value) if isinstance(value, int) else f"{value:,.6g}"
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _example_lines(found: Difference, examples: Examples, most: int | None) -> Iterator[str]:
    rows_read = examples.alike is not None
    yield f"\n{exact(examples.same)} examples are {'the same' if rows_read else 'of the same length'} in both"
    for kind, named in examples.named.items():
        words = KINDS[kind] if rows_read or kind != "tokens" else "in both, of another length"
        shown = named[:most]
        more = examples.counts[kind] - len(shown)
        listed = ", ".join(map(_example, shown)) + (f", and {exact(more)} more" if more else "")
        yield f"  {exact(examples.counts[kind])} {words}: {listed}"
    if examples.alike is not None and examples.alike > examples.same + examples.counts["labels"]:
        yield f"  {exact(examples.alike)} have the same tokens in both, whatever their ids"
    for kind, where, side in (("only_a", found.b, "B"), ("only_b", found.a, "A")):
        if (name := _of_both_inputs(found, examples.named.get(kind, []))) is not None:
            yield f"packtrain inspect {shlex.quote(where)} --id {shlex.quote(name)} says why {side} lacks it"


def _example(one: NamedExample) -> str:
    tokens = list(dict.fromkeys(exact(each) for each in (one.tokens_a, one.tokens_b) if each is not None))
    return f"{escape_line(one.id)} ({' → '.join(tokens)} tokens)"


def _of_both_inputs(found: Difference, named: Sequence[NamedExample]) -> str | None:
    """Return the first example whose file both datasets have read, so that the one without it can say why."""
    changed = {change.key for change in found.changes if change.section == "inputs"}
    return next((one.id for one in named if one.id.rpartition(":")[0] not in changed), None)
