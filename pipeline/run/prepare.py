"""The first step of a run, a plan and a stream: load the tokenizer, scan inputs, find formats, choose the engine."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...schemas.config.config import RunConfig
from ...stages.tokenize.engines import preferred_engine
from ..contamination.compare import check_text
from ..contamination.evaluation import Evaluation, prepare_evaluation
from ..encode.first_look import first_look
from ..encode.prepared import Prepared, make_spec
from ..encode.tokenizer import find_tokenizer, load_tokenizer
from ..execute.executor import Executor
from ..inputs.blocks import InputFile
from ..inputs.first_rows import check_conditions, is_preference
from ..inputs.formats import SourceFormat, resolve_formats
from ..inputs.scan import join_small
from ..inputs.scan_cache import scan_inputs
from ..inputs.user_reader import is_reader
from .workspace import Workspace


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
    whole, files = files is None, files if files is not None else _scan(config, work)
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
    guess = Prepared(config.sources, files, joined, formats, pairs, tokenizer, section.engine, spec, 0.0, evaluation)
    look = first_look(guess, cache, executor, work.observer)
    spec = replace(spec, engine=look.engine, engine_version=look.version)
    return replace(guess, spec=spec, tokens_per_byte=look.tokens_per_byte)


def _evaluation(config: RunConfig, work: Workspace, formats: Mapping[str, SourceFormat]) -> Evaluation | None:
    if config.decontaminate is None:
        return None
    check_text(formats)
    return prepare_evaluation(config.decontaminate, work.base, work.cache, work.scratch)


def _scan(config: RunConfig, work: Workspace) -> list[InputFile]:
    shard = config.run.shard
    notes = work.cache if shard is not None else None
    return scan_inputs(config.sources, work.base, work.scratch, notes=notes, shard=shard)
