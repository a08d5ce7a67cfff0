"""The first step of a run, a plan and a stream: load the tokenizer, scan inputs, find formats, choose the engine; then
estimate what there is to do, and whether the disks have room for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...schemas.config.config import RunConfig
from ...schemas.errors import StoreError
from ...schemas.names import PLAN
from ...schemas.units import size
from ...stages.tokenize.engines import preferred_engine
from ..contamination.compare import check_text
from ..contamination.evaluation_index import Evaluation, prepare_evaluation
from ..encode.encode_spec import Look
from ..encode.first_look import first_look
from ..encode.prepared import Prepared, make_spec
from ..encode.tokenizer import find_tokenizer, load_tokenizer
from ..execute.executor import Executor
from ..inputs.blocks import InputFile
from ..inputs.first_rows import check_conditions, is_preference
from ..inputs.scan import join_small, scan_inputs
from ..inputs.source_formats import SourceFormat, resolve_formats
from ..inputs.user_reader import is_reader
from ..pack.row_form import TOKEN_BYTES
from ..store.open_store import Store
from .workers import Need, Workspace, encoding_need


def prepare(
    config: RunConfig,
    work: Workspace,
    executor: Executor,
    *,
    files: Sequence[InputFile] | None = None,
) -> Prepared:
    """Find out what to encode, and how. Writes only notes in the cache.

    Args:
        files: the inputs, if they are already scanned; then small files are not joined.

    Raises:
        ConfigError, InputError, TokenizerError, TemplateError: something that the user can fix.
    """
    section, cache = config.tokenizer, work.cache
    folder = find_tokenizer(section.path, work.base)
    tokenizer = load_tokenizer(folder, chat_template=section.chat_template, base=work.base)
    whole, files = files is None, files if files is not None else scan_inputs(config.sources, work.base, work.scratch)
    formats = resolve_formats(config, work.base, files)
    for form in formats.values():
        if form.said is not None:
            work.observer.note(form.said)
    check_conditions(config.sources, files, formats)
    evaluation = _evaluation(config, work, formats)
    pairs = is_preference(config, formats, files)
    if pairs:
        work.observer.note("preference pairs are not packed: each becomes one row of prompt, chosen and rejected ids")
    conversations = any(form.make().needs_template for form in formats.values())
    engine, version = preferred_engine(section.engine)
    prove = config.mask.prove is not None
    spec = make_spec(tokenizer, section, engine, version, needs_template=conversations, prove=prove)
    readers = [one.name for one in config.sources if is_reader(one.format)]
    files = tuple(files)
    joined = tuple(join_small(files, readers)) if whole else files
    guess = Look(engine, version, 0.0)
    prepared = Prepared(
        config.sources, files, joined, formats, pairs, tokenizer, section.engine, spec, guess, evaluation
    )
    look = first_look(prepared, cache, executor, work.observer)
    return replace(prepared, spec=replace(spec, engine=look.engine, engine_version=look.version), look=look)


def _evaluation(config: RunConfig, work: Workspace, formats: Mapping[str, SourceFormat]) -> Evaluation | None:
    if config.decontaminate is None:
        return None
    check_text(formats)
    return prepare_evaluation(config.decontaminate, work.base, work.cache, work.scratch)


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """What a run has to encode, and how much disk space and memory it needs."""

    blocks: int
    cached: int
    """Blocks whose encoded parts are in the cache."""
    missing_bytes: int
    """Input bytes that must be encoded."""
    tokens: int
    """Estimated tokens of all blocks, cached ones included."""
    room_needed: int
    """Bytes of disk space that the run needs."""
    room_free: int
    """Bytes free on the fuller of the disks."""
    memory: Need | None
    """The memory that encoding needs; None if there is nothing to encode."""


def estimate_run(prepared: Prepared, work: Workspace) -> RunEstimate:
    """Find the missing parts, and estimate tokens and space from the blocks' bytes."""
    tasks = prepared.tasks(work.cache)
    known = work.parts.records(tasks)
    missing = list({task.key: task for task in tasks if task.key not in known}.values())
    missing_bytes = sum(task.block.end - task.block.start for task in missing)
    tokens = int(sum(task.block.end - task.block.start for task in tasks) * prepared.look.tokens_per_byte)
    new_tokens = int(missing_bytes * prepared.look.tokens_per_byte)
    rooms = [room for one in (work.out, work.scratch) if (room := one.free_bytes()) is not None]
    return RunEstimate(
        blocks=len(tasks),
        cached=len(tasks) - len(missing),
        missing_bytes=missing_bytes,
        tokens=tokens,
        # The factor 1.2 allows for a sample that is off by a fifth. Parts hold 4 bytes per token; shards hold all
        # columns.
        room_needed=max(0, int(1.2 * (new_tokens * 4 + tokens * (TOKEN_BYTES + 1))) - _shards_written(work.out)),
        room_free=min(rooms),
        memory=encoding_need(missing, prepared.spec.engine) if missing else None,
    )


def require_room(needed: int, *stores: Store) -> None:
    """Refuse to start if a disk has too little free space.

    Args:
        needed: bytes needed on each store.

    Raises:
        StoreError: there is too little; the message names the disk, the space needed and the free space.
    """
    for store in stores:
        free = store.free_bytes()
        if free is not None and needed > free:
            raise StoreError(
                f"not enough disk space for encoding and packing: about {size(needed)} are needed, but the disk of "
                f"{store.url} has {size(free)} free; free some space, or point --out and `cache` elsewhere"
            )


def _shards_written(out: Store) -> int:
    """Bytes of shards that an interrupted run has already written; 0 for a folder without a run's plan."""
    if not out.exists(PLAN):
        return 0
    sizes = out.sizes()
    return sum(sizes[name] for name in sizes if "shards/" in name and not name.startswith("_run/"))
