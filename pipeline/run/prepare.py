"""The first step of a run, a plan and a stream: scan inputs, find formats, load the tokenizer, choose the engine."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...schemas.config.config import RunConfig
from ...stages.template.nested_values import nests_values
from ...stages.tokenize.engines import guess_engine, reference_tokenizer
from ..contamination.driver import check_text
from ..contamination.evaluation import Evaluation, prepare_evaluation
from ..encode.engine.choice import warm_up
from ..encode.engine.trust import REFERENCE, choose_on_first_rows, distrusted_engines, trusted_trace
from ..encode.prepared import Prepared, make_spec
from ..encode.sampling_notes import compile_early
from ..encode.tokenizer.load import TokenizerLoading
from ..encode.tokenizer.place import find_tokenizer
from ..execute.executor import EngineAhead, Executor
from ..inputs.blocks import InputFile
from ..inputs.first_rows import check_conditions, is_preference
from ..inputs.formats import SourceFormat, needs_template, resolve_formats
from ..inputs.scan import join_small
from ..inputs.scan_cache import scan_inputs
from ..inputs.user_reader import is_reader
from ..store.local import LocalStore
from .workspace import Workspace


def prepare(
    config: RunConfig,
    work: Workspace,
    executor: Executor,
    *,
    files: Sequence[InputFile] | None = None,
    first: Sequence[InputFile] | None = None,
) -> Prepared:
    """Find out what to encode, and how. Writes only notes in the cache.

    Args:
        files: the inputs, if they are already scanned; then small files are not joined.
        first: the files to encode first, by default all. If the cache lacks some of their parts, workers start to warm
        up.

    Raises:
        ConfigError, InputError, TokenizerError, TemplateError: something that the user can fix.
    """
    section, cache = config.tokenizer, work.cache
    folder = find_tokenizer(section.path, work.base)
    template = named = section.chat_template
    if template is not None and "{{" not in template and "{%" not in template:
        template = str(work.base / template)
    memo = work.scratch.root / "tokenizers"
    with TokenizerLoading.start(folder, chat_template=template, template_name=named, cache=memo) as loading:
        new = isinstance(cache, LocalStore) and not (cache.root / "encoded").exists()
        # The engine that workers will probably need, unless the cache may have everything already.
        executor.get_ready(EngineAhead(section.engine, folder, memo) if new else None)
        whole, files = files is None, files if files is not None else _scan(config, work)
        formats = resolve_formats(config, work.base, files)
        for form in formats.values():
            if form.said is not None:
                work.observer.note(form.said)
        check_conditions(config.sources, files, formats)
        evaluation = _evaluation(config, work, formats)
        pairs = is_preference(config, formats, files)
        if pairs:
            work.observer.note(
                "preference pairs are not packed: each becomes one row of prompt, chosen and rejected ids"
            )
        with work.timings.stage("tokenizer"):
            tokenizer = loading.result()
    with work.timings.stage("engine"):
        conversations = any(needs_template(form.options) for form in formats.values())
        engine, version = guess_engine(section.engine, distrusted_engines(cache, tokenizer.hash))
        prove = config.mask.prove is not None
        made = make_spec(tokenizer, section, engine, version, needs_template=conversations, prove=prove)
        spec = trusted_trace(cache, made)
        readers = [one.name for one in config.sources if is_reader(one.format)]
        files = tuple(files)
        joined = tuple(join_small(files, readers)) if whole else files
        guess = Prepared(
            config.sources, files, joined, formats, pairs, tokenizer, section.engine, spec, 0.0, evaluation
        )
        if spec.template is not None and nests_values(spec.template):
            executor.isolate()
        soon = guess if first is None else replace(guess, joined=tuple(first))
        if work.parts.missing(soon.tasks(cache)):
            if section.engine != REFERENCE and loading.was_stored:
                # Needed later in this process, which would wait here for the fork server to load the engine.
                reference_tokenizer(tokenizer.json)
                compile_early(spec, config.mask)
            executor.start(warm_up, cache, spec.name)
        choice = choose_on_first_rows(guess, cache, executor, work.observer)
        spec = replace(spec, engine=choice.name, engine_version=choice.version)
    return replace(guess, spec=spec, tokens_per_byte=choice.tokens_per_byte)


def _evaluation(config: RunConfig, work: Workspace, formats: Mapping[str, SourceFormat]) -> Evaluation | None:
    if config.decontaminate is None:
        return None
    check_text(formats)
    with work.timings.stage("evaluation data"):
        return prepare_evaluation(config.decontaminate, work.base, work.cache, work.scratch)


def _scan(config: RunConfig, work: Workspace) -> list[InputFile]:
    shard = config.run.shard
    notes = work.cache if shard is not None else None
    with work.timings.stage("scan"):
        return scan_inputs(config.sources, work.base, work.scratch, notes=notes, shard=shard)
