"""Chooses the engine that encodes, by the first rows of every source; it is the reference if the fast one is wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import cast

from ...schemas.errors import IntegrityError, TokenizerError
from ...schemas.fingerprint import fingerprint, version
from ...schemas.tables.engines import REFERENCE
from ...stages.template.call_arguments import CallArguments
from ...stages.tokenize.encode_counts import EncodeCounts
from ...stages.tokenize.engine_check import describe_difference
from ...stages.tokenize.engines import TokenizersEngine
from ..execute.executor import Executor, perform
from ..inputs.blocks import Block, InputFile
from ..observer import Observer
from ..store.open_store import Store
from ..store.sealed_notes import get_note, get_user_note, put_note, put_user_note
from .first_look import FirstLookTask, SourceLook
from .preload import share_tokenizer
from .spec import EncoderKey, EncodeSpec, RenderSpec, TokenizerSpec
from .task import SourceSettings

FORMAT = 11
"""Version of the first look; increase it when other texts are compared, or something else is learnt."""
_CHOICES = "engines"
"""The folder of the cache that keeps choices."""
AGREED = "engines"
"""The folder of the user's cache that keeps which engines agree on the known texts."""


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The engine that encodes, and what the first rows showed when they were encoded with it."""

    engine: str
    reason: str = ""
    """Why the reference encodes although the fast engine was preferred; "" if the preferred engine encodes."""
    stop_tokens: tuple[str, ...] = ()
    """The special tokens with which the chat template ends turns."""
    counts: tuple[EncodeCounts, ...] = ()
    """What was found in the first rows of each source."""
    call_arguments: CallArguments = "object"
    """The form in which the chat template gets the arguments of tool calls; "object" if no rows are rendered."""


@dataclass(frozen=True, slots=True)
class FirstBlock:
    """The first block of a source, and how it is read."""

    block: Block
    settings: SourceSettings


def first_files(files: Sequence[InputFile]) -> tuple[InputFile, ...]:
    """The first file of each source, with only its first block: what is looked at."""
    first = dict[str, InputFile]()
    for file in files:
        first.setdefault(file.source, replace(file, blocks=file.blocks[:1]))
    return tuple(first.values())


def first_blocks(files: Sequence[InputFile], settings: Mapping[str, SourceSettings]) -> list[FirstBlock]:
    """The blocks of `first_files`.

    Args:
        settings: how each source is read, by its name.
    """
    return [FirstBlock(file.blocks[0], settings[file.source]) for file in first_files(files)]


def choose_engine(
    preferred: str,
    render: RenderSpec,
    blocks: Sequence[FirstBlock],
    cache: Store,
    executor: Executor,
    observer: Observer,
) -> EngineChoice:
    """The choice that the cache has for these inputs. If it has none, the first rows are encoded with the preferred
    engine, and with the reference if that engine refuses the tokenizer or gives other tokens.

    Args:
        preferred: the name of the engine to try first.
        blocks: one for each source.

    Raises:
        TokenizerError: `tokenizers` cannot load the tokenizer.
        InputError: an input has changed since it was scanned.
    """
    # A file that grows behind its first block keeps its choice.
    payload = render.payload()
    keys = [fingerprint([first.block.hash, first.settings.hash(payload)]) for first in blocks]
    versions = [f"{engine} {version(engine)}" for engine in (preferred, REFERENCE)]
    note = f"{_CHOICES}/{fingerprint([FORMAT, versions, keys])}.json"
    choice = get_note(cache, note, EngineChoice)
    # The first look takes about a second for each source, which a run on known inputs need not wait for.
    if choice is not None:
        return choice
    # How much work it is, is not known: 0 of no unit.
    observer.begin("check the tokenizer's engine against the reference, once for these inputs", 0, "")
    try:
        choice = _try_engine(preferred, render, blocks, cache, executor)
    except (TokenizerError, IntegrityError) as error:
        if preferred == REFERENCE:
            raise
        choice = replace(_try_engine(REFERENCE, render, blocks, cache, executor), reason=str(error))
    observer.end()
    # Only now: later runs with these inputs find the choice in the cache, and are not told again.
    if choice.reason:
        observer.note(f"{REFERENCE} encodes, which takes several times as long as {preferred}: {choice.reason}")
    put_note(cache, note, choice)
    return choice


def _try_engine(
    engine: str, render: RenderSpec, blocks: Sequence[FirstBlock], cache: Store, executor: Executor
) -> EngineChoice:
    """Have the first rows of each source encoded with an engine, and compare the tokens with those of the reference.

    Raises:
        TokenizerError: the engine refuses the tokenizer, or gives other tokens than the reference.
        IntegrityError: the engine gives other tokens than the reference on a text for which the reference had to tell
        where its tokens lie; or a block's copy in the cache is damaged.
        InputError: an input has changed since it was scanned.
    """
    agreement = _agreement_note(engine, render.tokenizer)
    # Only if no note says yet that the engine agrees with the reference on them.
    with_known_texts = engine != REFERENCE and get_user_note(agreement, dict) is None
    spec = EncodeSpec.of(render, engine)
    # Before the workers start, so that the process that they are forked from loads it once for all of them.
    share_tokenizer(spec, cache)
    # Loaded while that process loads the engine.
    reference = TokenizersEngine(render.tokenizer.json)
    looks = _look_at_sources(EncoderKey.of(cache, spec), blocks, executor, with_known_texts=with_known_texts)
    if engine != REFERENCE:
        samples = [sample for look in looks for sample in look.samples]
        deviation = describe_difference(samples, reference)
        if deviation:
            raise TokenizerError(f"the tokenizer engine {engine} differs from {REFERENCE} {deviation}")
    if with_known_texts:
        put_user_note(agreement, {"agree": [engine, REFERENCE]})
    # Both depend on the template alone, and so are the same for all sources that are rendered.
    stop_tokens = next((look.stop_tokens for look in looks if look.stop_tokens), ())
    call_arguments: CallArguments = next(
        (look.call_arguments for look in looks if look.call_arguments is not None), "object"
    )
    return EngineChoice(
        engine,
        stop_tokens=stop_tokens,
        counts=tuple(look.counts for look in looks),
        call_arguments=call_arguments,
    )


def _agreement_note(engine: str, tokenizer: TokenizerSpec) -> str:
    """The name of the note in the user's cache that is there if an engine agrees with the reference on the known texts.
    These take a third of a second, and depend on the tokenizer alone, so they are compared once for each tokenizer.
    """
    versions = [f"{name} {version(name)}" for name in (engine, REFERENCE)]
    return f"{AGREED}/{fingerprint([str(FORMAT), tokenizer.hash, *versions])}.json"


def _look_at_sources(
    encoder: EncoderKey, blocks: Sequence[FirstBlock], executor: Executor, *, with_known_texts: bool
) -> list[SourceLook]:
    """What the first rows of each source show, in the order of sources.

    Args:
        encoder: with the engine that is tried.
        blocks: the first of each source.
        with_known_texts: whether to encode the known texts, too; the first source's task does it.
    """
    tasks = [
        FirstLookTask(number, first.block, first.settings, encoder, known_texts=with_known_texts and number == 0)
        for number, first in enumerate(blocks)
    ]
    # Results come in any order, but notes name the first source.
    looks = cast("list[SourceLook]", list(executor.map(perform, tasks)))
    return sorted(looks, key=attrgetter("source"))
