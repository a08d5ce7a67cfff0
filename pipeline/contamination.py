"""Compares training data with evaluation data: evaluation files → an index of their texts in the cache → the hits of
each block, which stay in the cache. Together the hits are contamination.jsonl: an example and an evaluation row a line.
"""

import gc
import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from ..schemas.config.config import DecontaminateConfig, SourceConfig
from ..schemas.errors import ConfigError, InputError, IntegrityError, RowRejectedError
from ..schemas.escape import escape_json
from ..schemas.fingerprint import fingerprint
from ..schemas.manifest import FileRecord
from ..schemas.report import Hit
from ..stages.arrays import numbers, view
from ..stages.overlap.examples import ANSWER, PROMPT, evaluation_id, evaluation_texts, search_examples
from ..stages.overlap.index import OverlapIndex, build_index
from ..stages.prep import Options
from ..stages.prep.rowjson import require_shallow
from .execute.executor import Executor, perform
from .inputs.blocks import Block, InputFile
from .inputs.find import Found, find_inputs
from .inputs.lines import BOM
from .inputs.read import block_examples, read_rows
from .inputs.scan import scan_inputs
from .inputs.source_formats import SourceFormat, polars_version
from .observer import Observer
from .store.checksummed import get_note, put_note
from .store.local import LocalStore
from .store.open_store import Store, StoredFile, ask_all

NAME = "contamination.jsonl"
FORMAT = 5
"""Increase it whenever the same files would give another index, or the same index other hits."""
_EQUAL_ROWS = 10
"""Rows with the same text that are known; a set may have a question thousands of times."""
_MAX_ROW_BYTES = 64 << 20
"""Longer lines are refused. Rows of programming problems hold megabytes of tests."""
_SOURCE = "evaluation"
_ARRAYS = ("words", "starts", "asks", "keys", "places", "whole")
"""Arrays of the index."""


# Evaluation files, and the index of their texts: an Arrow file of one row, whose columns are lists. All workers map it


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The evaluation data of a run, indexed."""

    files: tuple[dict[str, Any], ...]
    """Name, bytes and hash of each, as the plan has them: no paths."""
    ngram: int
    index: StoredFile
    """The index, in the cache."""
    rows: int
    """Rows of all files."""

    def payload(self) -> dict[str, Any]:
        """What the plan says about it."""
        return {"files": list(self.files), "counts": {"rows": self.rows}, **_settings(self.ngram)}


@dataclass(frozen=True, slots=True, eq=False)
class EvaluationRows:
    """The T texts of an index, and the rows that they come from. Equal texts are one text of several rows."""

    index: OverlapIndex
    found_in: pa.Array
    """(T,) up to `_EQUAL_ROWS` rows of each text, in JSON: [number of the file, line from 1, id or ""]."""
    rows: int
    """Rows of all files."""


def find_evaluation(config: DecontaminateConfig, base: Path) -> list[Found]:
    """The evaluation files, without reading them.

    Raises:
        ConfigError: one is missing.
    """
    with _called():
        return find_inputs(_source(config), base)


def prepare_evaluation(config: DecontaminateConfig, base: Path, cache: Store, scratch: LocalStore) -> Evaluation:
    """Scan the evaluation files, and index them if the cache lacks the index.

    Raises:
        ConfigError: a file is missing.
        InputError: a file is empty or damaged, a line is not a row, or no row of a file has a text to compare.
    """
    with _called():
        found = scan_inputs([_source(config)], base, scratch)
    files = tuple({"file": file.shown, "bytes": file.size, "hash": file.hash} for file in found)
    record = f"evaluations/{_key(files, config.ngram)}.json"
    index = _known(cache, record) or _put(_index_of(found, config.ngram), record, cache)
    return Evaluation(files, config.ngram, index, load_rows(cache, index).rows)


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


def _settings(ngram: int) -> dict[str, Any]:
    return {"ngram": ngram, "format": FORMAT, "unicode": unicodedata.unidata_version}


def _key(files: Sequence[dict[str, Any]], ngram: int) -> str:
    return fingerprint({"files": list(files), **_settings(ngram)})


def _index_of(found: Sequence[InputFile], ngram: int) -> EvaluationRows:
    """Read all rows, and index their texts."""
    texts: dict[tuple[bool, str], list[tuple[int, int, str]]] = {}  # (whether it asks, text) → (file, line, id) of rows
    rows = 0
    for number, file in enumerate(found):
        had = False
        for line, row in _rows(file):
            rows += 1
            said = evaluation_texts(row)
            had = had or bool(said)
            for kind, text in dict.fromkeys(said):
                texts.setdefault((kind == PROMPT, text), []).append((number, line, evaluation_id(row)))
        if not had:
            raise InputError(
                f"{file.origin or file.path} has no text to compare: rename the column that holds the question to "
                "`question`, and that of the answer to `answer`"
            )
    index = build_index([text for _, text in texts], [asks for asks, _ in texts], ngram)
    found_in = [msgspec.json.encode(some[:_EQUAL_ROWS]) for some in texts.values()]
    return EvaluationRows(index, pa.array(found_in, pa.large_binary()).cast(pa.large_string()), rows)


def _rows(file: InputFile) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(line, row) of every row, lines from 1.

    Raises:
        InputError: a line is not a JSON object; names it.
    """
    for block in file.blocks:
        found, first = read_rows(file.path, block, _MAX_ROW_BYTES), block.first_line + 1
        bad = [(first + number, f"{reason}: {detail}") for number, reason, detail in found.rejects[:1]]
        yield from ((first + number, row) for number, row in found.records or ())
        for number, line in found.lines or ():
            if not line.strip():
                continue
            try:
                row = msgspec.json.decode(line.removeprefix(BOM), type=dict[str, Any])
                require_shallow(row, "the row")
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, RowRejectedError) as error:
                bad.append((first + number, f"the line is not a JSON object ({error})"))
                break
            yield first + number, row
        for at, problem in bad:
            raise InputError(f"{file.origin or file.path}, line {at:,}: {problem}; fix the line, or remove it")


def _known(cache: Store, record: str) -> StoredFile | None:
    """The index in the cache; None if it is missing or damaged."""
    index = get_note(cache, record, StoredFile)
    if index is None or not index.name.startswith("evaluations/"):
        return None
    put = cache.hash(index.name)
    return index if put is not None and (put.bytes, put.hash) == (index.bytes, index.hash) else None


def _put(made: EvaluationRows, record: str, cache: Store) -> StoredFile:
    """Put an index, and its record."""
    arrays = {name: getattr(made.index, name) for name in _ARRAYS}
    parts = {name: numbers(one.view(np.uint8) if name == "asks" else one) for name, one in arrays.items()}
    lists = {
        name: pa.LargeListArray.from_arrays(numbers(np.array([0, len(values)], np.int64)), values)
        for name, values in {**parts, "found_in": made.found_in}.items()
    }
    noted = {"ngram": str(made.index.ngram), "rows": str(made.rows)}
    batch = pa.RecordBatch.from_pydict(lists).replace_schema_metadata(noted)
    with cache.draft("evaluations") as draft:
        with pa.ipc.new_file(pa.PythonFile(draft.file, mode="w"), batch.schema) as writer:
            writer.write_batch(batch)
        put = draft.result
        stored = StoredFile(f"{record.removesuffix('.json')}-{put.hash[:16]}.arrow", put.bytes, put.hash)
        cache.put(draft, stored.name)
    put_note(cache, record, stored)
    return stored


@lru_cache(maxsize=2)
def load_rows(store: Store, file: StoredFile) -> EvaluationRows:
    """The index with its rows, mapped.

    Raises:
        IntegrityError: the index cannot be read.
    """
    path = file.path(store)
    try:
        with pa.memory_map(str(path)) as mapped:
            batch = pa.ipc.open_file(mapped).get_batch(0)
    except (OSError, pa.ArrowInvalid) as error:
        raise IntegrityError(f"{path} cannot be read ({error}); delete it and run again to make it again") from error
    noted, lists = batch.schema.metadata, {name: batch.column(name).values for name in batch.schema.names}
    arrays = {name: view(lists[name]) for name in _ARRAYS}
    index = OverlapIndex(ngram=int(noted[b"ngram"]), **{**arrays, "asks": arrays["asks"].view(np.bool_)})
    return EvaluationRows(index, lists["found_in"], int(noted[b"rows"]))


# The blocks of a run: each is a task


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
    where: tuple[str, str] | None
    """The source's condition, and the version of polars."""

    @cached_property
    def record(self) -> str:
        """Name of the task's record, which holds the hits."""
        name, options = self.form
        form = [name, msgspec.to_builtins(options.payload()), self.max_row_bytes, list(self.where or ())]
        key = fingerprint([self.block.hash, form, _key(self.evaluation.files, self.evaluation.ngram)])
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
        rows = load_rows(self.cache, self.evaluation.index)
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
            for number, line, id in json.loads(rows.found_in[hit.text].as_py()):
                key = (hit.example, number, line, asks)
                if key not in best or hit.share > best[key].share:
                    file, kind = self.evaluation.files[number]["file"], PROMPT if asks else ANSWER
                    best[key] = Hit("", "", file, line, kind, hit.share, hit.longest, id)
        keys = sorted(best)
        places = [(examples[key[0]].line, examples[key[0]].sub) for key in keys]
        return BlockHits(len(examples), places, [best[key] for key in keys])

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
        where = (source.where, polars_version()) if source.where is not None else None
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
        for folder in ("overlaps", "evaluations"):
            cache.sweep(folder)
        observer.begin("compare", sum(task.block.end - task.block.start for task in due), "B")
        waiting = {task.record for task in due}
        for result in executor.map(perform, every, lambda task: task.record not in waiting or known(task)):
            assert isinstance(result, tuple)
            observer.advance(result[0], rows=result[1])
        observer.end()
    return Contamination(evaluation, cache, share, tuple(blocks))
