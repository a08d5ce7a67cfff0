"""Compares training data with evaluation data: evaluation files → an index of their texts → the hits of each block,
which stay in the cache. Together the hits are contamination.jsonl: an example and an evaluation row a line.
"""

import gc
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..schemas.config.config import ContaminationConfig, SourceConfig
from ..schemas.dataset.manifest import FileRecord
from ..schemas.errors import ConfigError, InputError, IntegrityError, RowRejectedError
from ..schemas.escape import escape_json
from ..schemas.fingerprint import fingerprint, version
from ..schemas.report import Hit
from ..schemas.rows import example_id
from ..stages.contamination.examples import evaluation_texts, search_examples
from ..stages.contamination.index import ContaminationIndex
from ..stages.prep.rowjson import require_shallow
from .execute.executor import Executor, perform
from .inputs.blocks import Block, InputFile
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


# Evaluation files, and the index of their texts, which each process makes once


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The evaluation data of a run."""

    inputs: tuple[InputFile, ...]
    ngram: int
    share: float
    """See `ContaminationConfig.share`."""

    def payload(self) -> dict[str, Any]:
        """What the plan says about it, and what hits depend on: names, sizes and hashes of files, but no paths."""
        return {
            "files": [{"file": file.shown, "bytes": file.size, "hash": file.hash} for file in self.inputs],
            "counts": {"rows": sum(file.lines for file in self.inputs)},
            "ngram": self.ngram,
            "format": FORMAT,
            "unicode": unicodedata.unidata_version,
        }


def prepare_evaluation(config: ContaminationConfig, base: Path, scratch: LocalStore) -> Evaluation:
    """Scan and check the evaluation files.

    Raises:
        ConfigError: a file is missing.
        InputError: a file is empty or damaged, a line is not a row, or no row of a file has a text to compare.
    """
    source = SourceConfig(name="evaluation", path=config.against, max_row_bytes=_MAX_ROW_BYTES)
    try:
        evaluation = Evaluation(tuple(scan_inputs([source], base, scratch)), config.ngram, config.share)
    except (ConfigError, InputError) as error:
        raise type(error)(str(error).replace("sources.evaluation.path", "contamination.against")) from None
    indexed(evaluation)
    return evaluation


@lru_cache(maxsize=2)
def indexed(evaluation: Evaluation) -> tuple[ContaminationIndex, list[list[tuple[int, int]]]]:
    """Read all rows, and index their T texts. Equal texts are one text of several rows.

    Returns:
        The index, and (T,) the places of the first rows that have each text: number of the file, line from 1.

    Raises:
        InputError: a file has changed; see `prepare_evaluation`.
    """
    texts: dict[tuple[bool, str], list[tuple[int, int]]] = {}  # (whether it asks, text) → places
    for number, file in enumerate(evaluation.inputs):
        had = False
        for line, row in _read(file):
            for one in dict.fromkeys(evaluation_texts(row)):
                had = True
                texts.setdefault(one, []).append((number, line))
        if not had:
            raise InputError(
                f"{file.origin or file.path} has no text to compare: rename the column that holds the question to "
                "`question`, and that of the answer to `answer`"
            )
    index = ContaminationIndex([text for _, text in texts], [asks for asks, _ in texts], evaluation.ngram)
    return index, [some[:_EQUAL_ROWS] for some in texts.values()]


def _read(file: InputFile) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(line, row) of every row, lines from 1.

    Raises:
        InputError: a line is not a JSON object; names it.
    """
    for block in file.blocks:

        def wrong(number: int, problem: str, block: Block = block) -> InputError:
            where = f"{file.origin or file.path}, line {block.first_line + number + 1:,}"
            return InputError(f"{where}: {problem}; fix the line, or remove it")

        found = read_rows(block, _MAX_ROW_BYTES)
        for number, reason, detail in found.rejects:
            raise wrong(number, f"{reason}: {detail}")
        yield from ((block.first_line + number + 1, row) for number, row in found.records or ())
        for number, line in found.lines or ():
            try:
                row = msgspec.json.decode(line if line.strip() else b"{}", type=dict[str, Any])
                require_shallow(row, "the row")
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, RowRejectedError) as error:
                raise wrong(number, f"the line is not a JSON object ({error})") from None
            yield block.first_line + number + 1, row


# The blocks of a run: each is a task


class BlockHits(msgspec.Struct, frozen=True):
    """The hits of a block, which does not know the names of its files."""

    examples: int
    """How many were compared."""
    hits: list[tuple[int, int, Hit]]
    """Ascending: row in the block, from 0, and `schemas.rows.Example.sub` of an example, and its hit without a name."""


@dataclass(frozen=True)
class ContaminationTask:
    """One block to compare. It is small: names and ranges, but no data."""

    block: Block
    source: SourceConfig
    form: SourceFormat
    cache: Store
    evaluation: Evaluation

    @cached_property
    def record(self) -> str:
        """Name of the task's record, which holds the hits."""
        where = [self.source.where, version("polars")] if self.source.where is not None else []
        form = [self.form.payload(), self.source.max_row_bytes, where]
        key = fingerprint([self.block.hash, form, self.evaluation.payload()])
        return f"contamination/{key[:2]}/{key}.json"

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
        index, places = indexed(self.evaluation)
        form = (self.form.name, self.form.options)
        examples = block_examples(self.block, form, self.source.max_row_bytes, self.source.where).examples
        if any(example.ids is not None for example in examples):
            raise InputError(
                f"{self.block.path}: its rows have token ids instead of text, and ids cannot be compared with "
                "evaluation rows; leave this source out, or leave out contamination"
            )
        best = dict[tuple[int, int, int, bool], Hit]()
        for example, text, share, longest in search_examples(index, examples):
            asks = bool(index.asks[text])
            for number, line in places[text]:
                key = (example, number, line, asks)
                if key not in best or share > best[key].share:
                    name, kind = self.evaluation.inputs[number].shown, "prompt" if asks else "answer"
                    best[key] = Hit("", "", name, line, kind, share, longest)
        return BlockHits(len(examples), [(*examples[key[0]][:2], best[key]) for key in sorted(best)])

    def __str__(self) -> str:
        return f"{self.block}, compared with evaluation rows"


@dataclass(frozen=True, slots=True)
class Contamination:
    """The hits of all blocks of a run. They stay in the cache, and are read block by block."""

    evaluation: Evaluation
    blocks: tuple[tuple[InputFile, ContaminationTask], ...]
    """In the order of the run."""

    def each(self) -> Iterator[tuple[InputFile, Block, BlockHits]]:
        """Yield the hits of each block, in order; a hit below the configured share is left out.

        Raises:
            IntegrityError: another process has removed them meanwhile.
        """
        for file, task in self.blocks:
            found = get_note(task.cache, task.record, BlockHits)
            if found is None:
                raise IntegrityError(f"{task.cache.where(task.record)} vanished from the cache; run again")
            hits = [one for one in found.hits if one[2].share >= self.evaluation.share]
            yield file, task.block, BlockHits(found.examples, hits)

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
                id = example_id(file.source, mine.label, number, sub)
                yield msgspec.structs.replace(hit, id=id, source=file.source, share=round(hit.share, 4))

    def put(self, out: Store, name: str = NAME) -> FileRecord:
        """Write all hits to a file, and return its entry in the manifest."""
        with out.draft() as draft:
            for line in self.lines():
                draft.file.write(escape_json(msgspec.json.encode(line)) + b"\n")
            put = draft.size_and_hash
            out.put(draft, name)
        return FileRecord(name, put.bytes, put.hash)


def compare(
    sources: Sequence[SourceConfig],
    files: Sequence[InputFile],
    formats: Mapping[str, SourceFormat],
    evaluation: Evaluation,
    cache: Store,
    executor: Executor,
    observer: Observer,
) -> Contamination:
    """Compare what the cache has no hits for.

    Raises:
        InputError: an input has changed since it was scanned; a row has token ids instead of text.
    """
    by_name = {source.name: source for source in sources}
    blocks = tuple(
        (file, ContaminationTask(block, by_name[file.source], formats[file.source], cache, evaluation))
        for file in files
        for block in file.blocks
    )

    def known(task: ContaminationTask) -> bool:
        return get_note(cache, task.record, BlockHits) is not None

    tasks = list({task.record: task for _, task in blocks}.values())
    due = [task for task, done in zip(tasks, ask_all(cache, known, tasks), strict=True) if not done]
    if due:
        observer.begin("compare", sum(task.block.end - task.block.start for task in due), "B")
        for result in executor.map(perform, due, known):
            assert isinstance(result, tuple)
            observer.advance(result[0], rows=result[1])
        observer.end()
    return Contamination(evaluation, blocks)
