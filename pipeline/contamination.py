"""Compares training data with evaluation data: evaluation files → an index of their texts → the hits of each block,
which stay in the cache. Together the hits are contamination.jsonl: an example and an evaluation row a line.
"""

import gc
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..schemas.config.config import DecontaminateConfig, SourceConfig
from ..schemas.errors import ConfigError, InputError, IntegrityError, RowRejectedError
from ..schemas.escape import escape_json
from ..schemas.fingerprint import fingerprint, version
from ..schemas.manifest import FileRecord
from ..schemas.report import Hit
from ..stages.overlap.examples import ANSWER, PROMPT, evaluation_texts, search_examples
from ..stages.overlap.index import OverlapIndex, build_index
from ..stages.prep import Options
from ..stages.prep.rowjson import require_shallow
from .execute.executor import Executor, perform
from .inputs.blocks import Block, InputFile
from .inputs.lines import BOM
from .inputs.read import block_examples, read_rows
from .inputs.scan import scan_inputs
from .inputs.source_formats import SourceFormat
from .observer import Observer
from .store.local import LocalStore
from .store.open_store import Store, ask_all
from .store.sealed_notes import get_note, put_note

NAME = "contamination.jsonl"
FORMAT = 6
"""Increase it whenever the same files would give another index, or the same index other hits."""
_EQUAL_ROWS = 10
"""Rows with the same text that are known; a set may have a question thousands of times."""
_MAX_ROW_BYTES = 64 << 20
"""Longer lines are refused. Rows of programming problems hold megabytes of tests."""
_SOURCE = "evaluation"


# Evaluation files, and the index of their texts, which each process makes once


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The evaluation data of a run."""

    inputs: tuple[InputFile, ...]
    ngram: int

    def payload(self) -> dict[str, Any]:
        """What the plan says about it, and what hits depend on: names, sizes and hashes of files, but no paths."""
        return {
            "files": [{"file": file.shown, "bytes": file.size, "hash": file.hash} for file in self.inputs],
            "counts": {"rows": sum(file.lines for file in self.inputs)},
            "ngram": self.ngram,
            "format": FORMAT,
            "unicode": unicodedata.unidata_version,
        }


@dataclass(frozen=True, slots=True, eq=False)
class EvaluationRows:
    """The T texts of evaluation data, and the rows that they come from. Equal texts are one text of several rows."""

    index: OverlapIndex
    places: list[list[tuple[InputFile, int]]]
    """(T,) file, and line from 1, of the first rows that have each text."""


def prepare_evaluation(config: DecontaminateConfig, base: Path, scratch: LocalStore) -> Evaluation:
    """Scan and check the evaluation files.

    Raises:
        ConfigError: a file is missing.
        InputError: a file is empty or damaged, a line is not a row, or no row of a file has a text to compare.
    """
    with _called():
        evaluation = Evaluation(tuple(scan_inputs([_source(config)], base, scratch)), config.ngram)
    indexed(evaluation)
    return evaluation


def _source(config: DecontaminateConfig) -> SourceConfig:
    """The evaluation files as a source; its format is not used."""
    return SourceConfig(name=_SOURCE, path=config.against, max_row_bytes=_MAX_ROW_BYTES)


@contextmanager
def _called() -> Iterator[None]:
    """Make errors name the key that lists the files."""
    try:
        yield
    except (ConfigError, InputError) as error:
        raise type(error)(str(error).replace(f"sources.{_SOURCE}.path", "decontaminate.against")) from None


@lru_cache(maxsize=2)
def indexed(evaluation: Evaluation) -> EvaluationRows:
    """Read all rows, and index their texts.

    Raises:
        InputError: a file has changed; see `prepare_evaluation`.
    """
    texts: dict[tuple[bool, str], list[tuple[InputFile, int]]] = {}  # (whether it asks, text) → places of rows
    for file in evaluation.inputs:
        had = False
        for line, row in _read(file):
            for kind, text in dict.fromkeys(evaluation_texts(row)):
                had = True
                texts.setdefault((kind == PROMPT, text), []).append((file, line))
        if not had:
            raise InputError(
                f"{file.origin or file.path} has no text to compare: rename the column that holds the question to "
                "`question`, and that of the answer to `answer`"
            )
    index = build_index([text for _, text in texts], [asks for asks, _ in texts], evaluation.ngram)
    return EvaluationRows(index, [some[:_EQUAL_ROWS] for some in texts.values()])


def _read(file: InputFile) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(line, row) of every row, lines from 1.

    Raises:
        InputError: a line is not a JSON object; names it.
    """
    for block in file.blocks:
        found = read_rows(file.path, block, _MAX_ROW_BYTES)
        bad = [(number, f"{reason}: {detail}") for number, reason, detail in found.rejects[:1]]
        yield from ((block.first_line + number + 1, row) for number, row in found.records or ())
        for number, line in found.lines or ():
            try:
                row = msgspec.json.decode(line.removeprefix(BOM) if line.strip() else b"{}", type=dict[str, Any])
                require_shallow(row, "the row")
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, RowRejectedError) as error:
                bad.append((number, f"the line is not a JSON object ({error})"))
                break
            yield block.first_line + number + 1, row
        for number, problem in bad:
            where = f"{file.origin or file.path}, line {block.first_line + number + 1:,}"
            raise InputError(f"{where}: {problem}; fix the line, or remove it")


# The blocks of a run: each is a task


class BlockHits(msgspec.Struct, frozen=True):
    """The hits of a block, which does not know the names of its files."""

    examples: int
    """How many were compared."""
    hits: list[tuple[int, int, Hit]]
    """Ascending: row in the block, from 0, and `schemas.rows.Example.sub` of an example, and its hit without a name."""


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
    where: tuple[str, str] | None
    """The source's condition, and the version of polars."""

    @cached_property
    def record(self) -> str:
        """Name of the task's record, which holds the hits."""
        name, options = self.form
        form = [name, msgspec.to_builtins(options.payload()), self.max_row_bytes, list(self.where or ())]
        key = fingerprint([self.block.hash, form, self.evaluation.payload()])
        return f"overlaps/{key[:2]}/{key}.json"

    def run(self) -> tuple[int, int]:
        """Compare the block and put the hits; return its (bytes, rows)."""
        gc.disable()  # see EncodeTask.run
        try:
            put_note(self.cache, self.record, self._compare())
        finally:
            gc.enable()
        return self.block.end - self.block.start, self.block.lines

    def _compare(self) -> BlockHits:
        """The hits: of each example, one for each evaluation row and kind of text, that of the text it shares most of.

        Raises:
            InputError: the file has changed since the scan, or its rows have token ids instead of text.
        """
        rows = indexed(self.evaluation)
        where = self.where[0] if self.where is not None else None
        found = block_examples(self.path, self.block, self.form, self.max_row_bytes, where)
        examples = found.examples
        if any(example.ids is not None for example in examples):
            raise InputError(
                f"{self.path}: its rows have token ids instead of text, and ids cannot be compared with evaluation "
                "rows; leave this source out, or leave out decontaminate"
            )
        best = dict[tuple[int, int, int, bool], Hit]()
        for hit in search_examples(rows.index, examples):
            asks = bool(rows.index.asks[hit.text])
            for file, line in rows.places[hit.text]:
                key = (hit.example, self.evaluation.inputs.index(file), line, asks)
                if key not in best or hit.share > best[key].share:
                    kind = PROMPT if asks else ANSWER
                    best[key] = Hit("", "", file.shown, line, kind, hit.share, hit.longest)
        return BlockHits(len(examples), [(*examples[key[0]][:2], best[key]) for key in sorted(best)])

    def __str__(self) -> str:
        return f"{self.block.named(self.path)}, compared with evaluation rows"


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
            yield file, block, BlockHits(found.examples, [one for one in found.hits if one[2].share >= self.share])

    def marked(self) -> list[bytes]:
        """The examples of each block that share text, as ascending distinct 64-bit numbers made of row and sub."""
        every = ([(line << 32) + sub + 1 for line, sub, _ in found.hits] for *_, found in self.each())
        return [np.unique(np.array(keys, np.int64)).tobytes() for keys in every]

    def examples(self) -> int:
        """How many examples were compared."""
        return sum(found.examples for *_, found in self.each())

    def lines(self) -> Iterator[Hit]:
        """Yield all hits, in the order of the run, with ids as in documents.parquet."""
        for file, block, found in self.each():
            for line, sub, hit in found.hits:
                mine, number = file.at(block, line)
                id = f"{file.source}/{mine.label}:{number}{f'/{sub}' if sub >= 0 else ''}"
                yield msgspec.structs.replace(hit, id=id, source=file.source, share=round(hit.share, 4))

    def put(self, out: Store, name: str = NAME) -> FileRecord:
        """Write all hits to a file, and return its entry in the manifest."""
        with out.draft("") as draft:
            for line in self.lines():
                draft.file.write(escape_json(msgspec.json.encode(line)) + b"\n")
            put = draft.result
            out.put(draft, name)
        return FileRecord(name, put.bytes, put.hash)


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
        where = (source.where, version("polars")) if source.where is not None else None
        for block in file.blocks:
            how = (form.name, form.options)
            task = OverlapTask(file.path, block, how, source.max_row_bytes, cache, evaluation, where)
            tasks.setdefault(task.record, task)
            blocks.append((file, block, task.record))
    every = list(tasks.values())

    def known(task: OverlapTask) -> bool:
        return get_note(cache, task.record, BlockHits) is not None

    due = [task for task, done in zip(every, ask_all(cache, known, every), strict=True) if not done]
    if due:
        cache.sweep("overlaps")
        observer.begin("compare", sum(task.block.end - task.block.start for task in due), "B")
        waiting = {task.record for task in due}
        for result in executor.map(perform, every, lambda task: task.record not in waiting or known(task)):
            assert isinstance(result, tuple)
            observer.advance(result[0], rows=result[1])
        observer.end()
    return Contamination(evaluation, cache, share, tuple(blocks))
