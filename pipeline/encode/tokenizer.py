"""The tokenizer that `transformers.AutoTokenizer.from_pretrained(folder)` gives, without its import.

transformers rebuilds some tokenizers from their class, so a folder's tokenizer.json is not always the tokenizer that is
used with the model. A child process asks transformers once. Its answer is kept in the user's cache, under a hash of the
folder's content and the versions, where later runs read it in milliseconds.
"""

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ...schemas.errors import TaskError, TokenizerError
from ...schemas.fingerprint import fingerprint, hash_bytes, version
from ..execute.executor import exit_reason, out_of_memory_kills
from ..store.sealed_notes import get_user_note, put_user_note
from . import ask_transformers
from .ask_transformers import FORMAT, Answer

GENERATION_CONFIG = "generation_config.json"
_MAX_BYTES = 1 << 20

_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")


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

    with suppress(ValueError):  # no possible name
        for name in _FILES:
            found = try_to_load_from_cache(path, name)
            if isinstance(found, str):
                return Path(found).parent
    raise TokenizerError(
        f"tokenizer.path: the folder {folder} does not exist, and the Hugging Face cache {HF_HUB_CACHE} holds no "
        f'tokenizer of {path}. Nothing is downloaded; this fetches it: python -c "from transformers import '
        f"AutoTokenizer; AutoTokenizer.from_pretrained('{path}')\""
    )


def tokenizer_name(folder: Path) -> str:
    """The tokenizer's name for messages: the folder's, or the repository's if it is a hub snapshot."""
    folder = folder.resolve()
    repository = folder.parents[1].name if len(folder.parents) > 1 else ""
    if folder.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.removeprefix("models--").replace("--", "/")
    return folder.name


_Id = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class _GenerationConfig(msgspec.Struct):
    eos_token_id: _Id | Annotated[list[_Id], msgspec.Meta(max_length=64)] | None = None


def generation_stops(folder: Path) -> tuple[int, ...]:
    """`eos_token_id` of a folder's generation_config.json, in the order of the file.

    The file is read as data, within limits; one that is absent or makes no sense names no stops.
    """
    try:
        with (folder / GENERATION_CONFIG).open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        ids = msgspec.json.decode(content if len(content) <= _MAX_BYTES else b"", type=_GenerationConfig).eos_token_id
    except (OSError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return ()
    return tuple(dict.fromkeys(ids if isinstance(ids, list) else [] if ids is None else [ids]))


ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONWARNINGS": "ignore",
    "PYTHONIOENCODING": "utf-8",
}
"""Environment variables of the process that asks transformers, besides this one's."""
# A model's folder also holds weights: many gigabytes that do not affect the tokenizer.
_NOT_TOKENIZER = {
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".onnx", ".npz", ".npy",
    ".parquet", ".arrow", ".msgpack", ".tar", ".gz", ".zip", ".zst", ".lock", ".tmp",
}  # fmt: skip
_SUBFOLDERS = ("additional_chat_templates",)


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """Everything that packtrain needs to know about a tokenizer. Can be pickled; workers build engines from it."""

    name: str
    """The folder's name, for messages; it does not identify the tokenizer."""
    json: str = field(repr=False)
    """Content of a tokenizer.json without truncation and padding."""
    chat_template: str | None = field(repr=False)
    """Source of the chat template, or None; read it with `require_template`."""
    template_name: str
    """What messages call the template: the name of its file, the configuration key, or the tokenizer's name."""
    special_tokens: dict[str, str]
    """Special tokens that are set, by name (`bos_token`, `eos_token` and so on); chat templates see them as
    variables.
    """
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    """Id of the padding token, or of the end-of-sequence token if there is no padding token."""
    prefix_ids: tuple[int, ...]
    """Tokens that `tokenizer(text)` puts before a plain text. They are never put before a rendered conversation."""
    suffix_ids: tuple[int, ...]
    """Tokens that `tokenizer(text)` puts after a plain text."""
    hash: str
    """BLAKE3 hash, hexadecimal, of everything except the name and the template."""
    template_hash: str
    """BLAKE3 hash, hexadecimal, of the template; "" without a template."""
    generation_stops: tuple[int, ...] = ()
    """Ids at which the model's generation stops; () if no generation_config.json names them. Not part of `hash`."""

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


def load_tokenizer(folder: Path, *, chat_template: str | Path | None = None, base: Path = Path()) -> TokenizerSpec:
    """Load a tokenizer. A new one takes seconds, one that the user's cache knows takes milliseconds.

    Args:
        folder: a local folder that AutoTokenizer can load; nothing is downloaded.
        chat_template: replaces the tokenizer's own: the path of a file, or the jinja source itself, which is a string
            with `{{` or `{%` in it.
        base: where relative paths of a template start.

    Raises:
        TokenizerError: there is no such folder or template, or transformers cannot load it.
        TaskError: the process that asks transformers was killed by a signal.
    """
    folder = find_tokenizer(str(folder.absolute()), Path())
    note = f"tokenizers/{_folder_key(folder)}.json"
    answer = get_user_note(note, Answer)
    if answer is None:
        answer = _ask(folder)
        put_user_note(note, answer)
    given, special, pad = answer["chat_template"], answer["special_tokens"], answer["pad_id"]
    name = origin = tokenizer_name(folder)
    template = given.get("default") if isinstance(given, dict) else given
    if chat_template is not None:
        template, origin = _template(chat_template, base)
    around = {key: value for key, value in sorted(answer.items()) if key not in ("chat_template", "json")}
    return TokenizerSpec(
        name=name,
        json=answer["json"],
        chat_template=template,
        template_name=origin,
        special_tokens=dict(special),
        bos_id=answer["bos_id"],
        eos_id=answer["eos_id"],
        pad_id=pad if pad is not None else answer["eos_id"],
        prefix_ids=tuple(answer["prefix_ids"]),
        suffix_ids=tuple(answer["suffix_ids"]),
        hash=hash_bytes(answer["json"].encode() + b"\0" + msgspec.json.encode(around, order="sorted")),
        template_hash=hash_bytes(template.encode()) if template is not None else "",
        generation_stops=generation_stops(folder),
    )


def _ask(folder: Path) -> Answer:
    """Ask transformers about a folder."""
    kills = out_of_memory_kills()
    # -P prevents the import of a folder called transformers in the working directory.
    command = [sys.executable, "-P", "-m", ask_transformers.__name__, str(folder)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=os.environ | ENVIRONMENT
    )
    if done.returncode < 0:  # a signal says nothing about the folder
        raise TaskError(
            f"the process that loads the tokenizer folder {folder} died: {exit_reason(done.returncode, kills)}. Free "
            "memory, and run the same command again"
        )
    try:
        said = msgspec.json.decode(done.stdout, type=dict[str, Any])
    except msgspec.MsgspecError:
        tail = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        said = {"error": f"the process that loads it ended with {done.returncode}: {''.join(tail)}"}
    if "error" in said:
        missing = "" if (folder / "tokenizer.json").is_file() else f"{folder} has no tokenizer.json, and "
        raise TokenizerError(
            f"{missing}transformers cannot load a tokenizer from {'it' if missing else folder}: {said['error']}"
        )
    return msgspec.convert(said, Answer)


def _template(given: str | Path, base: Path) -> tuple[str, str]:
    """A template that replaces the tokenizer's, and where it comes from, for messages.

    Raises:
        TokenizerError: there is no such file.
    """
    if isinstance(given, str) and ("{{" in given or "{%" in given):
        return given, "tokenizer.chat_template"
    path = base / given
    try:
        return path.read_text(encoding="utf-8"), path.name
    except (OSError, ValueError) as error:  # no possible path, or no text
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TokenizerError(
            f"tokenizer.chat_template: cannot read {str(given)!r}: {why}; give the path of a jinja file, or the "
            "template itself"
        ) from error


def _folder_key(folder: Path) -> str:
    """Return a hash of the folder's own files, without weights, and of the versions that read them."""
    files = [
        [path.relative_to(folder).as_posix(), hash_bytes(path.read_bytes())]
        for base in (folder, *(folder / name for name in _SUBFOLDERS))
        for path in (sorted(base.iterdir()) if base.is_dir() else ())
        if path.is_file() and path.suffix not in _NOT_TOKENIZER
    ]
    return fingerprint([FORMAT, version("transformers"), version("tokenizers"), files])
