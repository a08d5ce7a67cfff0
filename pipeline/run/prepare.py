"""The first step of a run, a plan and a stream: load the tokenizer, scan inputs, find formats, choose the engine; then
estimate what there is to do, and whether the disks have room for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...schemas.config.config import RunConfig
from ...schemas.errors import StoreError
from ...schemas.names import PLAN
from ...schemas.units import size
from ...stages.tokenize.engines import preferred_engine
from ..contamination import prepare_evaluation
from ..encode.encode_spec import EncodeSpec, Look
from ..encode.first_look import first_look
from ..encode.prepared import Prepared
from ..encode.tokenizer import find_tokenizer, load_tokenizer
from ..execute.executor import Executor
from ..inputs.blocks import InputFile
from ..inputs.first_rows import check_conditions, is_preference
from ..inputs.scan import join_small, scan_inputs
from ..inputs.source_formats import resolve_formats
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
    evaluation = None
    if config.decontaminate is not None:
        evaluation = prepare_evaluation(config.decontaminate, work.base, cache, work.scratch)
    pairs = is_preference(config, formats, files)
    if pairs:
        work.observer.note("preference pairs are not packed: each becomes one row of prompt, chosen and rejected ids")
    engine, version = preferred_engine(section.engine)
    if any(form.make().needs_template for form in formats.values()):
        tokenizer.require_template()
    spec = EncodeSpec.of(tokenizer, section, engine, version)
    readers = [one.name for one in config.sources if is_reader(one.format)]
    files = tuple(files)
    joined = tuple(join_small(files, readers)) if whole else files
    guess = Look(engine, version, 0.0)
    prepared = Prepared(config.sources, files, joined, formats, pairs, spec, guess, evaluation)
    look = first_look(prepared, cache, executor, work.observer)
    return replace(prepared, spec=replace(spec, engine=look.engine, engine_version=look.version), look=look)


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """What a run has to encode, and how much disk space and memory it needs."""

    blocks: int
    cached: int
    """Blocks whose encoded parts are in the cache."""
    room_needed: int
    """Bytes of disk space that the run needs."""
    memory: Need
    """The memory that encoding needs."""


def estimate_run(prepared: Prepared, work: Workspace) -> RunEstimate:
    """Find the missing parts, and estimate tokens and space from the blocks' bytes."""
    tasks = prepared.tasks(work.cache)
    known = work.parts.records(tasks)
    missing = list({task.key: task for task in tasks if task.key not in known}.values())
    every, new = (
        sum(task.block.end - task.block.start for task in some) * prepared.look.tokens_per_byte
        for some in (tasks, missing)
    )
    # The factor 1.2 allows for a sample that is off by a fifth. Parts hold 4 bytes per token; shards hold all columns.
    room = int(1.2 * (new * 4 + every * (TOKEN_BYTES + 1))) - _shards_written(work.out)
    need = encoding_need(missing, prepared.spec.engine)
    return RunEstimate(len(tasks), len(tasks) - len(missing), max(0, room), need)


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
