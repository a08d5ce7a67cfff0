"""The tokenizer that `transformers.AutoTokenizer.from_pretrained(folder)` gives, without its import.

transformers rebuilds some tokenizers from their class, so a folder's tokenizer.json is not always the tokenizer that is
used with the model. A child process asks transformers once: its import takes seconds, and whatever it prints must not
reach our output. The child runs this module as a program. Its answer is kept in the user's cache, under a hash of the
folder's content and the versions, where later runs read it in milliseconds.
"""

import contextlib
import gc
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ...schemas.errors import TaskError, TokenizerError
from ...schemas.files.foreign import read_regular_text
from ...schemas.files.model_folder import read_small_files
from ...schemas.fingerprint import fingerprint, hash_bytes, version
from ...schemas.jsontext import decode_note
from ...stages.tokenize.vocabulary import SpecialTokenAffixes
from ..execute.executor import exit_reason, out_of_memory_kills
from ..store.sealed_notes import get_user_note, put_user_note

FORMAT = 3
"""Version of the answer; increase it whenever the answer changes."""
GENERATION_CONFIG = "generation_config.json"
ASK_SECONDS = 300.0
"""How long transformers may take to load a tokenizer; it takes seconds."""
ASK_BYTES = 16 << 30
"""Address space that it may use for that; it uses some gigabytes."""
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Environment variables of the process that asks transformers, besides this one's."""


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """Everything that packtrain needs to know about a tokenizer. Can be pickled; workers build engines from it."""

    json: str = field(repr=False)
    """Content of a tokenizer.json without truncation and padding."""
    chat_template: str | None = field(repr=False)
    """Source of the chat template, or None; read it with `require_template`."""
    special_tokens: dict[str, str]
    """Special tokens that are set, by name (`bos_token`, `eos_token` and so on); chat templates see them as
    variables.
    """
    around: SpecialTokenAffixes
    """The tokens around a plain text."""
    eos_id: int | None
    pad_id: int | None
    """Id of the padding token, or of the end-of-sequence token if there is no padding token."""
    hash: str
    """BLAKE3 hash, hexadecimal, of everything except the template, the stops and names."""
    name: str = ""
    """The folder's name, or the repository's, for messages; it does not identify the tokenizer."""
    template_name: str = ""
    """What messages call the template: the name of its file, the configuration key, or the tokenizer's name."""
    template_hash: str = ""
    """BLAKE3 hash, hexadecimal, of the template; "" without a template."""
    generation_stops: tuple[int, ...] = ()
    """Ids at which the model's generation stops; () if no generation_config.json names them."""

    def require_template(self) -> str:
        """Return the chat template.

        Raises:
            TokenizerError: there is none.
        """
        if self.chat_template is None:
            raise TokenizerError(
                f"the tokenizer {self.name} has no chat template, which conversations need (of several, none is called "
                "default); give a file with a jinja template: tokenizer.chat_template=template.jinja"
            )
        return self.chat_template


def load_tokenizer(path: str | Path, base: Path = Path(), chat_template: str | Path | None = None) -> TokenizerSpec:
    """Load a tokenizer. A new one takes seconds, one that the user's cache knows takes milliseconds.

    Args:
        path, base: see `find_tokenizer`.
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
        # `ask_ahead` may have asked.
        question = _questions.pop(note) if note in _questions else _Question(folder, files)
        spec = _answer(question)
        put_user_note(note, spec)
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


def ask_ahead(path: str | Path, base: Path) -> bool:
    """Begin to ask transformers about a tokenizer that the user's cache does not know, so that `load_tokenizer` waits
    less. Returns whether it is new. For a run that imports, scans and starts workers meanwhile, this saves a second of
    the five that 14 MB of chats take with a new tokenizer.

    Args:
        path, base: see `find_tokenizer`; `load_tokenizer` says what is wrong with them.
    """
    try:
        folder = find_tokenizer(str(path), base)
        files = _read_files(folder)
    except (TokenizerError, OSError):
        return False
    note = _note_name(files)
    if note not in _questions and get_user_note(note, TokenizerSpec) is None:
        _questions[note] = _Question(folder, files)
    return note in _questions


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
        template: see `load_tokenizer`.
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
    """`eos_token_id` of a generation_config.json, in the order of the file.

    The file is read as data; one that is absent or makes no sense names no stops.
    """
    try:
        ids = decode_note(content, _GenerationConfig).eos_token_id
    except ValueError:
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


class _Question:
    """A child process that asks transformers about a folder, within `ASK_SECONDS` and `ASK_BYTES`.

    It gets a copy of the files that were read, so that it opens no other, and finds no code.
    """

    def __init__(self, folder: Path, files: Mapping[str, bytes]) -> None:
        self.folder = folder
        self.temporary = tempfile.TemporaryDirectory(prefix="packtrain-tokenizer-")
        # Of the same name, so that nothing depends on what the copy is called.
        self.copy = Path(self.temporary.name, folder.name or "tokenizer")
        self.copy.mkdir()
        for name, content in files.items():
            (self.copy / name).parent.mkdir(exist_ok=True)
            (self.copy / name).write_bytes(content)
        self.kills_before = out_of_memory_kills()
        # -P prevents the import of a folder called transformers in the working directory.
        command = [sys.executable, "-P", "-m", __name__, str(self.copy), str(ASK_BYTES)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | ENVIRONMENT,
        )


_questions: dict[str, _Question] = {}
"""Questions that `ask_ahead` began and `load_tokenizer` has not yet read, by the note that will keep the answer."""


def _note_name(files: Mapping[str, bytes]) -> str:
    """The name under which the user's cache keeps what transformers says of a folder with these files: a hash of them,
    and of the versions that read them.
    """
    hashes = [[name, hash_bytes(content)] for name, content in files.items()]
    return f"tokenizers/{fingerprint([FORMAT, version('transformers'), version('tokenizers'), hashes])}.json"


def _answer(question: _Question) -> TokenizerSpec:
    """What transformers says of a folder.

    Raises:
        TokenizerError: transformers cannot load it, or not within the limits.
        TaskError: the process was killed by a signal.
    """
    folder = question.folder
    process = question.process
    with question.temporary, process:
        try:
            output, log = process.communicate(timeout=ASK_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise TokenizerError(
                f"the tokenizer folder {folder} was not loaded within {ASK_SECONDS:,.0f} seconds, which no tokenizer "
                "needs; take another one, or another copy of it"
            ) from None
        except BaseException:
            process.kill()
            raise
    # Rust aborts when the limit of memory is reached, while Python raises an error.
    if process.returncode == -signal.SIGABRT and b"memory allocation" in log:
        raise _memory_error(folder)
    if process.returncode < 0:  # a signal says nothing about the folder
        reason = exit_reason(process.returncode, question.kills_before)
        raise TaskError(
            f"the process that loads the tokenizer folder {folder} died: {reason}. Free memory, and run the same "
            "command again"
        )
    try:
        answer = msgspec.json.decode(output, type=dict[str, Any])
    except msgspec.MsgspecError:
        last_line = "".join(log.decode(errors="replace").strip().splitlines()[-1:])
        answer = {"error": f"the process that loads it ended with {process.returncode}: {last_line}"}
    if "error" not in answer:
        return msgspec.convert(answer, TokenizerSpec)
    error = str(answer["error"])
    if error.startswith(MemoryError.__name__):
        raise _memory_error(folder)
    error = error.replace(str(question.copy), str(folder))
    if (folder / "tokenizer.json").is_file():
        raise TokenizerError(f"transformers cannot load a tokenizer from {folder}: {error}")
    raise TokenizerError(f"{folder} has no tokenizer.json, and transformers cannot load a tokenizer from it: {error}")


def _memory_error(folder: Path) -> TokenizerError:
    return TokenizerError(
        f"the tokenizer folder {folder} needs more than {ASK_BYTES >> 30:,} GiB of memory to be loaded, which no "
        "tokenizer does; take another one, or another copy of it"
    )


# The child process


def _resolve(folder: str) -> TokenizerSpec:
    """What transformers knows of a folder."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # a tokenizer needs none, and its import takes seconds
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"{type(tokenizer).__name__} is written in Python; a tokenizer.json is needed")
    # What is put around a text shows on any text: `<s> a </s>` has the ids of `a` at 1.
    ids = tokenizer("a")["input_ids"]
    text_ids = tokenizer("a", add_special_tokens=False)["input_ids"]
    begin = next((i for i in range(len(ids)) if ids[i : i + len(text_ids)] == text_ids), None)
    if begin is None:
        raise ValueError(f"its special tokens are not only before and after the text: {text_ids} becomes {ids}")
    backend.no_truncation()
    backend.no_padding()
    # Older versions of transformers also list the additional tokens here; templates do not use them by name.
    special = {k: str(v) for k, v in tokenizer.special_tokens_map.items() if not isinstance(v, list)}
    prefix = tuple(ids[:begin])
    suffix = tuple(ids[begin + len(text_ids) :])
    eos = special.get("eos_token", "")
    eos_id = tokenizer.eos_token_id
    pad_id = tokenizer.pad_token_id
    around = SpecialTokenAffixes(
        prefix,
        suffix,
        # As text only where a text can have them already, so that they are not put twice.
        special.get("bos_token", "") if prefix == (tokenizer.bos_token_id,) else "",
        eos if suffix == (eos_id,) else "",
        eos,
    )
    template = tokenizer.chat_template
    if isinstance(template, dict):  # several, by name
        template = template.get("default")
    json = backend.to_str()
    special_tokens = msgspec.json.encode([special, around, eos_id, pad_id], order="sorted")
    return TokenizerSpec(
        json=json,
        chat_template=template,
        special_tokens=special,
        around=around,
        eos_id=eos_id,
        pad_id=eos_id if pad_id is None else pad_id,
        hash=hash_bytes(json.encode() + b"\0" + special_tokens),
    )


def _main(folder: str) -> None:
    """Print what transformers knows of a folder, or why it cannot load it, as JSON."""
    with contextlib.redirect_stdout(sys.stderr):  # libraries may print; standard output holds only the answer
        try:
            answer: Any = _resolve(folder)
        except Exception as error:
            if "trust_remote_code" in str(error):
                error = ValueError("it needs code from the folder, which packtrain never runs")
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            answer = {"error": f"{type(error).__name__}: {' '.join(lines)[:600]}".rstrip(".: ")}
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    sys.stdout.buffer.flush()
    os._exit(0)  # taking all of transformers apart would let the parent wait another fifth of a second


if __name__ == "__main__":
    tokenizer_folder = sys.argv[1]
    address_space = int(sys.argv[2])
    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    if hard_limit != resource.RLIM_INFINITY:
        address_space = min(address_space, hard_limit)
    resource.setrlimit(resource.RLIMIT_AS, (address_space, hard_limit))
    gc.disable()  # imports make many objects and little garbage: a tenth of a second
    _main(tokenizer_folder)
