"""Compares all blocks of a run with the evaluation data, as far as the cache lacks the result."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...schemas.config.config import SourceConfig
from ...schemas.errors import ConfigError, IntegrityError
from ...schemas.units import plural
from ..execute.executor import Executor, perform
from ..inputs.blocks import Block, InputFile
from ..inputs.elsewhere import origin_of
from ..inputs.first_rows import polars_version
from ..inputs.formats import SourceFormat
from ..observer import Observer
from ..store.open import Store, ask_all
from .evaluation import Evaluation
from .task import BlockHits, OverlapDone, OverlapTask, read_hits


@dataclass(frozen=True, slots=True)
class Contamination:
    """The hits of all blocks of a run. They stay in the cache, and are read block by block."""

    evaluation: Evaluation
    cache: Store
    share: float
    """See `DecontaminateConfig.share`."""
    blocks: tuple[tuple[InputFile, Block], ...]
    """In the order of the run."""
    records: tuple[str, ...]
    """The name of each block's hits."""

    def each(self) -> Iterator[tuple[InputFile, Block, BlockHits]]:
        """Yield the hits of each block, in order; a hit below the configured share is left out.

        Raises:
            IntegrityError: another process has removed them meanwhile.
        """
        for (file, block), record in zip(self.blocks, self.records, strict=True):
            found = read_hits(self.cache, record)
            if found is None:
                raise IntegrityError(f"{self.cache.where(record)} vanished from the cache; run again")
            yield file, block, BlockHits(found.examples, [hit for hit in found.hits if hit.share >= self.share])

    def marked(self) -> tuple[list[bytes], str]:
        """The examples of each block that share text, as `example_keys`, ascending; and how many, in a sentence."""
        keys, examples, rows = [], 0, self.evaluation.counts.rows
        for _, _, found in self.each():
            keys.append(example_keys([(hit.line, hit.sub) for hit in found.hits]))
            examples += found.examples
        many = sum(len(one) // 8 for one in keys)
        if not many:
            return keys, f"no example shares text with any of {plural(rows, 'evaluation row')}"
        return keys, f"{many:,} of {plural(examples, 'example')} share text with {plural(rows, 'evaluation row')}"


def example_keys(places: Sequence[tuple[int, int]]) -> bytes:
    """The (line, sub) of examples of a block as ascending distinct 64-bit numbers, in bytes."""
    keys = np.array([(line << 32) + sub + 1 for line, sub in places], dtype=np.int64)
    return np.unique(keys).tobytes()


def overlap_tasks(
    sources: Sequence[SourceConfig],
    files: Sequence[InputFile],
    formats: Mapping[str, SourceFormat],
    evaluation: Evaluation,
    cache: Store,
) -> list[OverlapTask]:
    """One task for each block, in order."""
    by_name = {source.name: source for source in sources}
    out = []
    for file in files:
        source, form = by_name[file.source], formats[file.source]
        where = (source.where, polars_version()) if source.where is not None else None
        out += [
            OverlapTask(
                file.where(block),
                block,
                (form.name, form.options),
                source.max_row_bytes,
                cache,
                evaluation.index,
                evaluation.key,
                where,
                origin_of(file, source.max_row_bytes),
            )
            for block in file.blocks
        ]
    return out


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
    tasks = overlap_tasks(sources, files, formats, evaluation, cache)
    every = list({task.record: task for task in tasks}.values())

    def known(task: OverlapTask) -> bool:
        return read_hits(cache, task.record) is not None

    due = [task for task, done in zip(every, ask_all(cache, known, every), strict=True) if not done]
    if due:
        for folder in ("overlaps", "evaluations"):
            cache.sweep(folder)
        observer.begin("compare", sum(task.block.end - task.block.start for task in due), "B")
        waiting = {task.record for task in due}
        for result in executor.map(perform, every, lambda task: task.record not in waiting or known(task)):
            assert isinstance(result, OverlapDone)
            observer.advance(result.bytes, rows=result.rows)
        observer.end()
    blocks = tuple((file, block) for file in files for block in file.blocks)
    return Contamination(evaluation, cache, share, blocks, tuple(task.record for task in tasks))
