"""Compares the blocks of a run with evaluation data. Each block is a task, whose hits stay in the cache; together they
are contamination.jsonl: an example and an evaluation row a line.
"""

import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from ...schemas.config.config import SourceConfig
from ...schemas.errors import ConfigError, InputError, IntegrityError
from ...schemas.escape import escape_json
from ...schemas.fingerprint import fingerprint
from ...schemas.manifest import FileRecord
from ...schemas.report import Hit
from ...stages.overlap.examples import ANSWER, PROMPT, search_examples
from ...stages.prep import Options
from ..execute.executor import Executor, perform
from ..inputs.blocks import Block, InputFile
from ..inputs.first_rows import polars_version
from ..inputs.read import block_examples
from ..inputs.source_formats import SourceFormat
from ..observer import Observer
from ..store.checksummed import get_note, put_note
from ..store.open_store import Store, ask_all
from .evaluation_index import Evaluation, load_rows

NAME = "contamination.jsonl"


class BlockHits(msgspec.Struct, frozen=True):
    """The hits of a block, which does not know the names of its files."""

    examples: int
    """How many were compared."""
    places: list[tuple[int, int]]
    """The example of each hit: its row in the block, from 0, and `schemas.rows.Example.sub`. Ascending."""
    hits: list[Hit]


@dataclass(frozen=True)
class OverlapTask:
    """One block to compare. It is small: names and ranges, but no data."""

    path: Path
    block: Block
    form: tuple[str, Options]
    """Name and options of the format."""
    max_row_bytes: int
    cache: Store
    evaluation: Evaluation
    where: tuple[str, str] | None = None
    """See `EncodeTask`."""

    @cached_property
    def record(self) -> str:
        """Name of the task's record, which holds the hits."""
        name, options = self.form
        key = fingerprint({
            "block": self.block.hash,
            "format": name,
            "options": msgspec.to_builtins(options.payload()),
            "max_row_bytes": self.max_row_bytes,
            "where": list(self.where or ()),
            "evaluation": self.evaluation.key,
        })  # fmt: skip
        return f"overlaps/{key[:2]}/{key}.json"

    def run(self) -> tuple[int, int]:
        """Compare the block and put the hits; return its (bytes, rows)."""
        gc.disable()  # see EncodeTask.run
        try:
            found = compare_block(self)
        finally:
            gc.enable()
        put_note(self.cache, self.record, found)
        return self.block.end - self.block.start, self.block.lines

    def __str__(self) -> str:
        return f"{self.block.named(self.path)}, compared with evaluation rows"


def compare_block(task: OverlapTask) -> BlockHits:
    """The hits of a block: of each example, one for each evaluation row and kind of text, that of the text it shares
    most of.

    Raises:
        InputError: the file has changed since the scan, or its rows have token ids instead of text.
    """
    rows, names = load_rows(task.cache, task.evaluation.index), [one["file"] for one in task.evaluation.files]
    where = task.where[0] if task.where is not None else None
    examples = block_examples(task.path, task.block, task.form, task.max_row_bytes, where).examples
    if any(example.ids is not None for example in examples):
        raise InputError(
            f"{task.path}: its rows have token ids instead of text, and ids cannot be compared with evaluation rows; "
            "leave this source out, or leave out decontaminate"
        )
    best = dict[tuple[int, int, int, bool], Hit]()
    for hit in search_examples(rows.index, examples):
        asks = bool(rows.index.asks[hit.text])
        for number, line, id in json.loads(rows.found_in[hit.text].as_py()):
            key = (hit.example, number, line, asks)
            if key not in best or hit.share > best[key].share:
                kind = PROMPT if asks else ANSWER
                best[key] = Hit("", "", names[number], line, kind, hit.match, hit.share, hit.longest, id)
    keys = sorted(best)
    places = [(examples[key[0]].line, examples[key[0]].sub) for key in keys]
    return BlockHits(len(examples), places, [best[key] for key in keys])


@dataclass(frozen=True, slots=True)
class Contamination:
    """The hits of all blocks of a run. They stay in the cache, and are read block by block."""

    evaluation: Evaluation
    cache: Store
    share: float
    """See `DecontaminateConfig.share`."""
    blocks: tuple[tuple[InputFile, Block, str], ...]
    """In the order of the run, with the name of each block's hits."""

    def each(self) -> Iterator[tuple[InputFile, Block, BlockHits]]:
        """Yield the hits of each block, in order; a hit below the configured share is left out.

        Raises:
            IntegrityError: another process has removed them meanwhile.
        """
        for file, block, record in self.blocks:
            found = get_note(self.cache, record, BlockHits)
            if found is None:
                raise IntegrityError(f"{self.cache.where(record)} vanished from the cache; run again")
            kept = [both for both in zip(found.places, found.hits, strict=True) if both[1].share >= self.share]
            yield file, block, BlockHits(found.examples, [place for place, _ in kept], [hit for _, hit in kept])

    def marked(self) -> list[bytes]:
        """The examples of each block that share text, as ascending distinct 64-bit numbers made of row and sub."""
        every = (
            np.array([(line << 32) + sub + 1 for line, sub in found.places], np.int64) for *_, found in self.each()
        )
        return [np.unique(keys).tobytes() for keys in every]

    def examples(self) -> int:
        """How many examples were compared."""
        return sum(found.examples for *_, found in self.each())

    def lines(self) -> Iterator[Hit]:
        """Yield all hits, in the order of the run, with ids as in documents.parquet."""
        for file, block, found in self.each():
            for (line, sub), hit in zip(found.places, found.hits, strict=True):
                mine, number = file.at(block, line)
                yield msgspec.structs.replace(
                    hit,
                    id=f"{file.source}/{mine.label}:{number}{f'/{sub}' if sub >= 0 else ''}",
                    source=file.source,
                    share=round(hit.share, 4),
                )

    def put(self, out: Store, name: str = NAME) -> FileRecord:
        """Write all hits to a file, and return its entry in the manifest."""
        with out.draft("") as draft:
            for line in self.lines():
                draft.file.write(escape_json(msgspec.json.encode(line)) + b"\n")
            put = draft.result
            out.put(draft, name, replace_damaged=True)
        return FileRecord(name, put.bytes, put.hash)


def check_text(formats: Mapping[str, SourceFormat], named: str = "decontaminate") -> None:
    """Refuse sources without text.

    Raises:
        ConfigError: a source has token ids.
    """
    for name, form in formats.items():
        if form.name == "tokenized":
            raise ConfigError(
                f"{named}: source {name} holds token ids instead of text, and ids cannot be compared with evaluation "
                "rows; take the texts that they were made from, or use a run without it for this source"
            )


def compare(
    sources: Sequence[SourceConfig],
    files: Sequence[InputFile],
    formats: Mapping[str, SourceFormat],
    evaluation: Evaluation,
    share: float,
    cache: Store,
    executor: Executor,
    observer: Observer,
) -> Contamination:
    """Compare what the cache has no hits for.

    Raises:
        InputError: an input has changed since it was scanned; a row has token ids instead of text.
    """
    by_name = {source.name: source for source in sources}
    blocks, tasks = [], dict[str, OverlapTask]()
    for file in files:
        source, form = by_name[file.source], formats[file.source]
        where = (source.where, polars_version()) if source.where is not None else None
        for block in file.blocks:
            task = OverlapTask(
                file.path, block, (form.name, form.options), source.max_row_bytes, cache, evaluation, where
            )
            tasks.setdefault(task.record, task)
            blocks.append((file, block, task.record))
    every = list(tasks.values())

    def known(task: OverlapTask) -> bool:
        return get_note(cache, task.record, BlockHits) is not None

    due = [task for task, done in zip(every, ask_all(cache, known, every), strict=True) if not done]
    if due:
        for folder in ("overlaps", "evaluations"):
            cache.sweep(folder)
        observer.begin("compare", sum(task.block.end - task.block.start for task in due), "B")
        waiting = {task.record for task in due}
        for result in executor.map(perform, every, lambda task: task.record not in waiting or known(task)):
            assert isinstance(result, tuple)
            observer.advance(result[0], rows=result[1])
        observer.end()
    return Contamination(evaluation, cache, share, tuple(blocks))
