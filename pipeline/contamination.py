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
from ..schemas.report.evaluation_hits import Hit
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

HITS_FILE = "contamination.jsonl"
FORMAT = 6
"""Increase it whenever the same files would give another index, or the same index other hits."""
_MAX_EQUAL_ROWS = 10
"""Rows with the same text that hits name; a set may have a question thousands of times."""
_MAX_ROW_BYTES = 64 << 20
"""Longer lines are refused. Rows of programming problems hold megabytes of tests."""


# Evaluation files, and the index of their texts, which each process makes once


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The evaluation data of a run."""

    inputs: tuple[InputFile, ...]
    ngram: int
    """Words of an n-gram."""
    share: float
    """Hits with a smaller share of an evaluation text's n-grams are left out; 0 leaves out none."""

    def payload(self) -> dict[str, Any]:
        """Everything that hits in the cache depend on, for the plan and for the key of the hits: names, sizes and
        hashes of the files, but no paths. `share` is left out, because it is applied when hits are read.
        """
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
        # The scan names the key of a source, and the user has written another one.
        raise type(error)(str(error).replace("sources.evaluation.path", "contamination.against")) from None
    make_index(evaluation)  # for its checks; the processes that compare make their own
    return evaluation


@lru_cache(maxsize=2)
def make_index(evaluation: Evaluation) -> tuple[ContaminationIndex, list[list[tuple[int, int]]]]:
    """Read all rows, and index their T texts. Equal texts are one text of several rows. Made once in each process.

    Returns:
        The index, and (T,) the places of the first rows that have each text: number of the file, line from 1.

    Raises:
        InputError: a file has changed since it was scanned, a line is not a row, or no row of a file has a text.
    """
    places: dict[tuple[bool, str], list[tuple[int, int]]] = {}  # (whether it is a question, text) → where it is
    for file_number, file in enumerate(evaluation.inputs):
        has_text = False
        for line, row in _read_rows(file):
            for is_question, text in dict.fromkeys(evaluation_texts(row)):
                has_text = True
                places.setdefault((is_question, text), []).append((file_number, line))
        if not has_text:
            # Of a copy, `origin` is what the user knows it as: a URL, or the name of a dataset.
            raise InputError(
                f"{file.origin or file.path} has no text to compare: rename the column that holds the question to "
                "`question`, and that of the answer to `answer`"
            )
    # Keys of a dictionary keep their order: text t of the index is key t of the places.
    index = ContaminationIndex(
        texts=[text for _, text in places],
        asks=[is_question for is_question, _ in places],
        ngram=evaluation.ngram,
    )
    return index, [equal_rows[:_MAX_EQUAL_ROWS] for equal_rows in places.values()]


def _read_rows(file: InputFile) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(line, row) of every row, lines from 1.

    Raises:
        InputError: a line is not a JSON object; names it.
    """
    for block in file.blocks:
        rows = read_rows(block, _MAX_ROW_BYTES)
        first_line = block.first_line + 1
        if rows.rejects:
            # `number` counts the rows of the block from 0, here and below.
            number, reason, detail = rows.rejects[0]
            raise _bad_line(file, first_line + number, f"{reason}: {detail}")
        # Tables come as records, JSON lines as lines; a block has one of both.
        for number, record in rows.records:
            yield first_line + number, record
        for number, line in rows.lines:
            if not line.strip():  # a blank line is no mistake
                continue
            try:
                row = msgspec.json.decode(line, type=dict[str, Any])
                require_shallow(row, "the row")
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, RowRejectedError) as error:
                raise _bad_line(file, first_line + number, f"the line is not a JSON object ({error})") from None
            yield first_line + number, row


def _bad_line(file: InputFile, line: int, problem: str) -> InputError:
    """The error for a line, counted from 1."""
    return InputError(f"{file.origin or file.path}, line {line:,}: {problem}; fix the line, or remove it")


# The blocks of a run: each is a task


class BlockHits(msgspec.Struct, frozen=True):
    """The hits of a block. They are kept by the block's content, so they have neither ids nor sources yet."""

    examples: int
    """How many were compared."""
    hits: list[tuple[int, int, Hit]]
    """(row in the block from 0, which example of the row or -1 if the row gives only one, hit), ascending."""


@dataclass(frozen=True)
class ContaminationTask:
    """One block to compare. It is small: names and ranges, but no data."""

    block: Block
    source: SourceConfig
    form: SourceFormat
    """How rows of the source are read."""
    cache: Store
    """Where the hits are kept."""
    evaluation: Evaluation

    @cached_property
    def record(self) -> str:
        """Name of the task's record, which holds the hits."""
        # What decides which examples a block gives. polars evaluates `where`, so its version is a part of that.
        where = [self.source.where, version("polars")] if self.source.where is not None else []
        reading = [self.form.payload(), self.source.max_row_bytes, where]
        key = fingerprint([self.block.hash, reading, self.evaluation.payload()])
        return f"contamination/{key[:2]}/{key}.json"

    def run(self) -> tuple[int, int]:
        """Compare the block, and put its hits into the cache. Returns (bytes, rows) of the block, for the progress."""
        # A block makes many small objects but no cycles, so that garbage collection would only cost time.
        gc.disable()
        try:
            put_note(self.cache, self.record, self._compare())
        finally:
            gc.enable()
        return self.block.end - self.block.start, self.block.lines

    def _compare(self) -> BlockHits:
        """The hits of the block: at most one for each example, evaluation row and kind of text (question or answer).

        If an example shares several texts of a kind with a row, the hit is of the text with the largest share.

        Raises:
            InputError: the file has changed since the scan, or its rows have token ids instead of text.
        """
        index, places = make_index(self.evaluation)
        form = (self.form.name, self.form.options)
        examples = block_examples(self.block, form, self.source.max_row_bytes, self.source.where).examples
        if any(example.ids is not None for example in examples):
            # Not skipped: a run that did not compare them would look as clean as one that did.
            raise InputError(
                f"{self.block.path}: its rows have token ids instead of text, and ids cannot be compared with "
                "evaluation rows; leave this source out, or leave out contamination"
            )
        best: dict[tuple[int, int, int, bool], Hit] = {}  # (example, evaluation file, its line, whether it asks) → hit
        # `shared.text` is the number of a text in the index, `shared.example` of an example in `examples`.
        for shared in search_examples(index, examples):
            asks = bool(index.asks[shared.text])
            for file_number, line in places[shared.text]:
                key = (shared.example, file_number, line, asks)
                if key not in best or shared.share > best[key].share:
                    best[key] = Hit(
                        id="",  # ids and sources are given where hits are listed
                        source="",
                        evaluation=self.evaluation.inputs[file_number].shown,
                        evaluation_line=line,
                        kind="prompt" if asks else "answer",
                        share=shared.share,
                        shared=shared.longest,
                    )
        hits = []
        for key in sorted(best):  # so that the record has the same bytes each time
            example_number, _, _, _ = key
            example = examples[example_number]
            hits.append((example.line, example.sub, best[key]))
        return BlockHits(examples=len(examples), hits=hits)

    def __str__(self) -> str:
        return f"{self.block}, compared with evaluation rows"


@dataclass(frozen=True, slots=True)
class ContaminationHits:
    """The hits of all blocks of a run. They stay in the cache, and are read block by block."""

    evaluation: Evaluation
    blocks: tuple[tuple[InputFile, ContaminationTask], ...]
    """In the order of the run."""

    def by_block(self) -> Iterator[tuple[InputFile, Block, BlockHits]]:
        """The file, the block and the hits of each block, in order; a hit below the configured share is left out.

        Raises:
            IntegrityError: another process has removed them meanwhile.
        """
        for file, task in self.blocks:
            block_hits = get_note(task.cache, task.record, BlockHits)
            if block_hits is None:
                raise IntegrityError(f"{task.cache.where(task.record)} vanished from the cache; run again")
            hits = [(row, sub, hit) for row, sub, hit in block_hits.hits if hit.share >= self.evaluation.share]
            yield file, task.block, BlockHits(examples=block_hits.examples, hits=hits)

    def contaminated_examples(self) -> list[bytes]:
        """One entry for each block: its examples that share text, as the bytes of an ascending int64 array without
        repeats. An entry is empty if no example does.

        Each number has the row of an example in its high 32 bits, and `sub` + 1 in the low ones, because `sub` may be
        -1: example 2 of row 5 is 5 · 2³² + 3.
        """
        examples_of_blocks = []
        for _, _, block_hits in self.by_block():
            keys = [(row << 32) + sub + 1 for row, sub, _ in block_hits.hits]
            examples_of_blocks.append(np.unique(np.array(keys, np.int64)).tobytes())
        return examples_of_blocks

    def compared_examples(self) -> int:
        """How many examples were compared."""
        return sum(block_hits.examples for _, _, block_hits in self.by_block())

    def hits(self) -> Iterator[Hit]:
        """All hits, in the order of the run, with ids as in documents.parquet."""
        for file, block, block_hits in self.by_block():
            # Hits in the cache lack ids: another run may give the same file another name.
            for row, sub, hit in block_hits.hits:
                # `file` may be several small files that are encoded as one: `row_file` is the one with this row.
                row_file, line = file.at(block, row)
                document_id = example_id(file.source, row_file.label, line, sub)
                yield msgspec.structs.replace(hit, id=document_id, source=file.source, share=round(hit.share, 4))

    def put(self, out: Store, name: str = HITS_FILE) -> FileRecord:
        """Write all hits to a file, and return its entry in the manifest."""
        with out.draft() as draft:
            for hit in self.hits():
                draft.file.write(escape_json(msgspec.json.encode(hit)) + b"\n")
            written = draft.size_and_hash
            out.put(draft, name)
        return FileRecord(name, written.bytes, written.hash)


def find_contamination(
    sources: Sequence[SourceConfig],
    files: Sequence[InputFile],
    formats: Mapping[str, SourceFormat],
    evaluation: Evaluation,
    cache: Store,
    executor: Executor,
    observer: Observer,
) -> ContaminationHits:
    """Compare the blocks for which the cache has no hits.

    Args:
        sources: the sources of the run, or of the command.
        files: their files, each with its blocks.
        formats: name of a source → how its rows are read.
        cache: where hits are kept.

    Returns:
        The hits of all blocks, also of blocks that were compared before.

    Raises:
        InputError: an input has changed since it was scanned; a row has token ids instead of text.
    """
    source_of_name = {source.name: source for source in sources}
    blocks = []
    for file in files:
        source = source_of_name[file.source]
        for block in file.blocks:
            task = ContaminationTask(
                block=block, source=source, form=formats[file.source], cache=cache, evaluation=evaluation
            )
            blocks.append((file, task))

    # Asked twice: here of all tasks together, which is fast, and by the executor once more as each task begins, because
    # another run may have compared its block meanwhile.
    def is_done(task: ContaminationTask) -> bool:
        return get_note(cache, task.record, BlockHits) is not None

    # Equal blocks have one record, and are compared once.
    distinct_tasks = list({task.record: task for _, task in blocks}.values())
    answers = ask_all(cache, is_done, distinct_tasks)
    pending = [task for task, done in zip(distinct_tasks, answers, strict=True) if not done]
    if pending:
        observer.begin("compare", sum(task.block.end - task.block.start for task in pending), "B")
        for result in executor.map(perform, pending, is_done):
            assert isinstance(result, tuple)  # as `ContaminationTask.run` gives it
            compared_bytes, compared_rows = result
            observer.advance(compared_bytes, rows=compared_rows)
        observer.end()
    return ContaminationHits(evaluation, tuple(blocks))
