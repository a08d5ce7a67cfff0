"""Compares the input files of two datasets by content."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import blake3

from ....schemas.units import plural
from ...dataset.open import Finished
from ...dataset.run_notes import recall_files
from ...inputs.blocks import Block, InputFile
from .changes import InputChange, InputsChange

MOST = 200
"""Maximum number of changes that are listed; all are counted."""
_Key = tuple[str, str]
"""Identifies an input: (source, file)."""


def inputs_change(a: Finished, b: Finished) -> InputsChange:
    """Compare the inputs of two datasets by their plans, and files that have grown by their blocks."""
    mine, yours = _listed(a), _listed(b)
    renamed = renames(a, b)
    changes = []
    cut = _Cuts(a, b)
    for key in sorted({*mine, *yours}):
        one, other = mine.get(key), yours.get(key)
        if one is not None and other is not None:
            if one["hash"] != other["hash"]:
                what, rows = cut.grown(key) if other["bytes"] > one["bytes"] else ("changed", None)
                changes.append(InputChange(what, *key, None, one["bytes"], other["bytes"], rows))
        elif other is not None:
            was = renamed.get(key)
            what = "renamed" if was is not None else "added"
            name = "/".join(was) if was is not None else None
            changes.append(InputChange(what, *key, name, other["bytes"] if was else None, other["bytes"]))
        elif one is not None and key not in renamed.values():
            changes.append(InputChange("removed", *key, None, one["bytes"], None))
    counts = dict(sorted(Counter(change.what for change in changes).items()))
    same = sum(1 for key in mine if key in yours and mine[key]["hash"] == yours[key]["hash"])
    return InputsChange(
        sentence=_sentence(counts, same, len(yours)),
        same=same,
        files_a=len(mine),
        files_b=len(yours),
        bytes_a=sum(one["bytes"] for one in mine.values()),
        bytes_b=sum(one["bytes"] for one in yours.values()),
        counts=counts,
        changes=changes[:MOST],
    )


def renames(a: Finished, b: Finished) -> dict[_Key, _Key]:
    """Map files of B that A has only under another name to their name in A. Files with equal content are left out."""
    mine, yours = _listed(a), _listed(b)
    gone, new = ([key for key in here if key not in there] for here, there in ((mine, yours), (yours, mine)))
    times = Counter(one["hash"] for one in [*mine.values(), *(yours[key] for key in new)])
    by_hash = {mine[key]["hash"]: key for key in gone}
    return {
        key: by_hash[yours[key]["hash"]]
        for key in new
        if yours[key]["hash"] in by_hash and times[yours[key]["hash"]] == 2
    }


def _listed(dataset: Finished) -> dict[_Key, Mapping[str, Any]]:
    return {(one["source"], one["file"]): one for one in dataset.manifest.plan.get("inputs", [])}


class _Cuts:
    """Read from the notes of both runs how they cut their inputs into blocks."""

    def __init__(self, a: Finished, b: Finished) -> None:
        self._datasets = a, b
        self._files: tuple[dict[_Key, InputFile], dict[_Key, InputFile]] | None = None

    def grown(self, key: _Key) -> tuple[str, int | None]:
        """Return (`appended`, rows) if B's file starts with all of A's; (`grown`, rows) if only some of A's blocks
        could be compared and these are the same; else (`changed`, None).
        """
        if self._files is None:
            self._files = _noted(self._datasets[0]), _noted(self._datasets[1])
        one, other = (files.get(key) for files in self._files)
        if one is None or other is None or not one.blocks:
            return "changed", None
        if one.not_taken or any(block.take is not None for block in one.blocks):
            return "changed", None  # blocks cover only a part of the file
        last = one.blocks[-1]
        kept = one.blocks[:-1]
        if len(other.blocks) < len(one.blocks) or any(
            (mine.hash, mine.lines) != (theirs.hash, theirs.lines)
            for mine, theirs in zip(kept, other.blocks, strict=False)
        ):
            return "changed", None
        follows = other.blocks[len(kept)]
        if (last.hash, last.lines) == (follows.hash, follows.lines) or _begins_with(other, last):
            return "appended", one.lines
        return ("grown", kept[-1].first_line + kept[-1].lines) if kept else ("changed", None)


def _begins_with(file: InputFile, block: Block) -> bool:
    """Whether the file is unchanged since the run, and contains a block's bytes at the block's position."""
    try:
        stat = file.path.stat()
        if (stat.st_size, stat.st_mtime_ns) != (file.size, file.mtime_ns) or block.end > file.size:
            return False
        if block.kind != "lines" or block.spooled is not None or block.end <= block.start:
            return False  # the block's range does not count the file's own bytes
        size = block.end - block.start
        with file.path.open("rb") as opened:
            opened.seek(block.start)
            data = opened.read(size + 1)
        # If the old last line had no line end, it would be longer now.
        whole = data[size - 1 : size] == b"\n" or data[size:] == b"\n"
        return whole and blake3.blake3(data[:size]).hexdigest() == block.hash
    except OSError:
        return False


def _noted(dataset: Finished) -> dict[_Key, InputFile]:
    files = recall_files(dataset.store, dataset.manifest.plan) or []
    return {(file.source, file.label): file for file in files}


def _sentence(counts: Mapping[str, int], same: int, files: int) -> str:
    if not counts:
        return "The inputs are the same files." if files == 1 else f"All {plural(same, 'input file')} are the same."
    said = ", ".join(f"{number:,} {what}" for what, number in counts.items())
    return f"{said[0].upper()}{said[1:]} of the input files; {same:,} the same."
