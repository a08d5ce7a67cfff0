"""The tokenizer that `transformers.AutoTokenizer.from_pretrained(folder)` gives, without its import.

transformers rebuilds some tokenizers from their class, so a folder's tokenizer.json is not always the tokenizer that is
used with the model. A child process asks transformers once; see `ask_transformers`. Its answer is kept in the user's
cache, under a hash of the folder's content and the versions, where later runs read it in milliseconds.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec

from ...schemas.errors import TokenizerError
from ...schemas.files.foreign import read_regular_text
from ...schemas.files.model_folder import read_small_files
from ...schemas.fingerprint import fingerprint, hash_bytes, version
from ...schemas.jsontext import decode_note
from ..store.sealed_notes import get_user_note, put_user_note
from .ask_transformers import Question, answer_of
from .spec import TokenizerSpec

FORMAT = 3
"""Version of the answer; increase it whenever the answer changes."""
GENERATION_CONFIG = "generation_config.json"


def load_tokenizer(path: str | Path, base: Path = Path(), chat_template: str | Path | None = None) -> TokenizerSpec:
    """Load a tokenizer. A new one takes seconds, one that the user's cache knows takes milliseconds.

    Args:
        path: a folder, or the name of a repository that the Hugging Face cache holds.
        base: where relative paths start.
        chat_template: replaces the tokenizer's own: the path of a file, or the jinja source itself, which is a string
            with `{{` or `{%` in it.

    Raises:
        TokenizerError: there is no such folder or template, or transformers cannot load it.
        TaskError: the process that asks transformers was killed by a signal.
    """
    folder = find_tokenizer(str(path), base)
    files = _read_files(folder)
    note = _note_name(files)
    spec = get_user_note(note, TokenizerSpec)
    if spec is None:
        # `load_known` may have asked. An answer is read once: the next one is in the user's cache.
        question = _questions.pop(note) if note in _questions else Question(folder, files)
        spec = answer_of(question)
        put_user_note(note, spec)
    return _of_folder(spec, folder, files, base, chat_template)


@dataclass(frozen=True, slots=True)
class KnownTokenizer:
    """A tokenizer that the user's cache knows."""

    spec: TokenizerSpec
    """With its name, its template and its stops."""
    note: str
    """The name in the user's cache of what transformers said of its folder."""


def load_known(path: str | Path, base: Path, chat_template: str | Path | None) -> KnownTokenizer | None:
    """Load a tokenizer if the user's cache knows it. If it is new, begin to ask transformers, so that `load_tokenizer`
    waits less, and return None.

    Args:
        path, base: the folder or the repository, and where relative paths start.
        chat_template: replaces the tokenizer's own, as in `load_tokenizer`; None replaces nothing.

    Raises:
        TokenizerError: there is no such folder or template.
    """
    folder = find_tokenizer(str(path), base)
    files = _read_files(folder)
    note = _note_name(files)
    if note in _questions:  # asked by an earlier call
        return None
    spec = get_user_note(note, TokenizerSpec)
    if spec is None:
        _questions[note] = Question(folder, files)
        return None
    return KnownTokenizer(_of_folder(spec, folder, files, base, chat_template), note)


def _of_folder(
    spec: TokenizerSpec, folder: Path, files: Mapping[str, bytes], base: Path, chat_template: str | Path | None
) -> TokenizerSpec:
    """What transformers says of a tokenizer, with the name, the template and the stops added, which may differ between
    runs.

    Args:
        files: of the folder, as `_read_files` gives them.
        base: where the path of a template starts.
        chat_template: the path or the source of a template in place of the tokenizer's own; None keeps its own.
    """
    name = _name_of(folder)
    template = spec.chat_template
    template_name = name
    if chat_template is not None:
        template, template_name = _read_template(chat_template, base)
    return replace(
        spec,
        name=name,
        chat_template=template,
        template_name=template_name,
        template_hash=hash_bytes(template.encode()) if template is not None else "",
        generation_stops=generation_stops(files.get(GENERATION_CONFIG)),
    )


def find_tokenizer(path: str, base: Path) -> Path:
    """Return the folder of `tokenizer.path`. An existing folder takes precedence over a name on the hub.

    Args:
        path: a folder, or the name of a repository, such as `Qwen/Qwen3-8B`. Nothing is downloaded.
        base: where relative paths start.

    Raises:
        TokenizerError: it is neither; the message says how to fetch it.
    """
    folder = (base / path).absolute()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise TokenizerError(f"tokenizer.path: {folder} is a file; give the tokenizer's folder")
    # Imported here, because most runs name a folder.
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_CACHE

    with contextlib.suppress(ValueError):  # no possible name
        for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model"):
            cached_file = try_to_load_from_cache(path, name)
            # It may also give a value that says that the repository has no such file.
            if isinstance(cached_file, str):
                return Path(cached_file).parent
    raise TokenizerError(
        f"tokenizer.path: the folder {folder} does not exist, and the Hugging Face cache {HF_HUB_CACHE} holds no "
        f'tokenizer of {path}. Nothing is downloaded; this fetches it: python -c "from transformers import '
        f"AutoTokenizer; AutoTokenizer.from_pretrained('{path}')\""
    )


def _name_of(folder: Path) -> str:
    """The folder's name, or the repository's if it is a hub snapshot."""
    folder = folder.resolve()
    # A snapshot is `models--Qwen--Qwen3-8B/snapshots/{revision}`.
    repository = folder.parents[1].name if len(folder.parents) > 1 else ""
    if folder.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.removeprefix("models--").replace("--", "/")
    return folder.name


def _read_template(template: str | Path, base: Path) -> tuple[str, str]:
    """The source of a template that replaces the tokenizer's, and what messages call it.

    Args:
        template: the path of a file, or the source itself, which is a string with `{{` or `{%` in it.
        base: where a path starts.

    Raises:
        TokenizerError: the file cannot be read, or is no text.
    """
    if isinstance(template, str) and ("{{" in template or "{%" in template):
        return template, "tokenizer.chat_template"
    path = base / template
    try:
        return read_regular_text(path), path.name
    except (OSError, ValueError) as error:  # no possible path, or no text
        reason = getattr(error, "strerror", None) or error
        raise TokenizerError(
            f"tokenizer.chat_template: cannot read {str(template)!r}: {reason}; give the path of a jinja file, or the "
            "template itself"
        ) from error


_Id = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class _GenerationConfig(msgspec.Struct):
    eos_token_id: _Id | Annotated[list[_Id], msgspec.Meta(max_length=64)] | None = None


def generation_stops(content: bytes | None) -> tuple[int, ...]:
    """The ids of `eos_token_id` in a generation_config.json, in the order of the file, without repeats.

    Args:
        content: of the file; None if it is absent. Then, or if it makes no sense, there are no ids.
    """
    try:
        ids = decode_note(content, _GenerationConfig).eos_token_id
    except ValueError:  # also of None
        return ()
    if ids is None:
        return ()
    return tuple(dict.fromkeys(ids if isinstance(ids, list) else [ids]))


def _read_files(folder: Path) -> dict[str, bytes]:
    """The small files of a folder, by their names, without weights.

    Raises:
        TokenizerError: one is not a regular file of the folder, or they are too large.
    """
    try:
        return read_small_files(folder)
    except OSError as error:
        raise TokenizerError(
            f"tokenizer.path: {error.filename or folder} cannot be read: {error.strerror or error}; give a folder of "
            "regular files, as the tokenizer's author published them"
        ) from error


_questions: dict[str, Question] = {}
"""Questions that `load_known` began and `load_tokenizer` has not yet read, by the note that will keep the answer."""


def _note_name(files: Mapping[str, bytes]) -> str:
    """The name under which the user's cache keeps what transformers says of a folder with these files: a hash of them,
    and of the versions that read them.
    """
    hashes = [[name, hash_bytes(content)] for name, content in files.items()]
    return f"tokenizers/{fingerprint([FORMAT, version('transformers'), version('tokenizers'), hashes])}.json"
