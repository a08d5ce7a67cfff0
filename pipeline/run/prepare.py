"""The first step of a run, a plan and a stream: load the tokenizer, scan inputs, find formats, choose the engine."""

from collections.abc import Sequence
from dataclasses import replace

from ...schemas.config.config import RunConfig
from ...stages.tokenize.engines import preferred_engine
from ..contamination import prepare_evaluation
from ..encode.driver import Prepared, first_look
from ..encode.first_look import Look
from ..encode.preload import expect_tokenizer
from ..encode.task import EncodeSpec
from ..encode.tokenizer import ask_ahead, load_tokenizer
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
        files: the inputs, if they are already scanned; then small files are not joined.

    Raises:
        ConfigError, InputError, TokenizerError, TemplateError: something that the user can fix.
    """
    section, cache = config.tokenizer, work.cache
    work.observer.begin("load inputs and tokenizer", 0, "")
    if ask_ahead(section.path, work.base):
        expect_tokenizer()
        executor.start()  # workers' imports take half a second, while transformers is asked
    whole, files = files is None, files if files is not None else scan_inputs(config.sources, work.base, work.scratch)
    formats = resolve_formats(config.sources, work.base, files)
    tokenizer = load_tokenizer(section.path, work.base, section.chat_template)
    for form in formats.values():
        if form.said is not None:
            work.observer.note(form.said)
    evaluation = None
    if config.contamination is not None:
        evaluation = prepare_evaluation(config.contamination, work.base, work.scratch)
    pairs = is_preference(config, formats, files)
    if pairs:
        work.observer.note("preference pairs are not packed: each becomes one row of prompt, chosen and rejected ids")
    if any(form.make().needs_template for form in formats.values()):
        tokenizer.require_template()
    spec = EncodeSpec.of(tokenizer, section, preferred_engine(section.engine))
    readers = [one.name for one in config.sources if is_reader(one.format)]
    files = tuple(files)
    joined = tuple(join_small(files, readers)) if whole else files
    prepared = Prepared(config.sources, files, joined, formats, pairs, spec, Look(spec.engine), evaluation)
    look = first_look(prepared, cache, executor, work.observer)
    work.observer.end()
    return replace(prepared, spec=spec.with_engine(look.engine), look=look)
