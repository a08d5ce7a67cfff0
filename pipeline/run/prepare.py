"""The first step of a run, a plan and a stream: load the tokenizer, scan inputs, find formats, choose the engine."""

from collections.abc import Sequence

from ...schemas.config.config import RunConfig
from ...stages.tokenize.engines import preferred_engine
from ..contamination import prepare_evaluation
from ..encode.driver import Prepared
from ..encode.engine_choice import choose_engine, first_blocks
from ..encode.preload import load_ahead
from ..encode.spec import EncodeSpec, RenderSpec
from ..encode.task import SourceSettings
from ..encode.tokenizer import load_tokenizer
from ..execute.executor import Executor
from ..inputs.blocks import InputFile
from ..inputs.scan import join_small, scan_inputs
from ..inputs.source_formats import is_preference, is_reader, resolve_formats
from .workers import Workspace


def prepare(
    config: RunConfig,
    work: Workspace,
    executor: Executor,
    *,
    files: Sequence[InputFile] | None = None,
) -> Prepared:
    """Find out what to encode, and how. Writes only notes in the cache.

    Args:
        files: the inputs, if they are already scanned; small files are then not joined. None: they are scanned here.

    Raises:
        ConfigError, InputError, TokenizerError, TemplateError: something that the user can fix.
    """
    observer = work.observer
    observer.begin("load inputs and tokenizer", 0, "")  # 0: how much work it is, is not known
    load_ahead(config, work.base)
    if files is None:
        scanned = tuple(scan_inputs(config.sources, work.base, work.scratch))
        # Files that the user's own reader reads are not joined: it may crash its process, and only its own file may be
        # lost.
        reader_sources = [source.name for source in config.sources if is_reader(source.format)]
        joined = tuple(join_small(scanned, reader_sources))
    else:
        scanned = tuple(files)
        joined = scanned
    # From the files themselves, before any are joined: messages name them.
    formats = resolve_formats(config.sources, work.base, scanned)
    # Only now, because transformers answers while the inputs are scanned.
    tokenizer = load_tokenizer(config.tokenizer.path, work.base, config.tokenizer.chat_template)
    for form in formats.values():
        if form.note is not None:
            observer.note(form.note)
    # Before anything is encoded, so that a missing evaluation file is reported at once.
    evaluation = None
    if config.contamination is not None:
        evaluation = prepare_evaluation(config.contamination, work.base, work.scratch)
    pairs = is_preference(config, formats, scanned)
    if pairs and not config.pack.does.is_packing:
        observer.note("pack.strategy none: each preference pair becomes one row of prompt, chosen and rejected ids")
    if any(form.make().needs_template for form in formats.values()):
        tokenizer.require_template()

    # The engine is chosen by how the first rows of each source are encoded.
    # Only then is there a specification, on which the keys of all parts depend.
    render = RenderSpec.of(tokenizer, config.tokenizer)
    settings = {source.name: SourceSettings.of(source, formats[source.name], pairs=pairs) for source in config.sources}
    preferred = preferred_engine(config.tokenizer.engine)
    choice = choose_engine(preferred, render, first_blocks(joined, settings), work.cache, executor, observer)
    observer.end()
    return Prepared(
        sources=config.sources,
        files=scanned,
        joined=joined,
        formats=formats,
        settings=settings,
        pairs=pairs,
        choice=choice,
        spec=EncodeSpec.of(render, choice.engine),
        evaluation=evaluation,
    )
