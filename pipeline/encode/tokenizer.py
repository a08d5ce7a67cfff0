"""The tokenizer that `transformers.AutoTokenizer.from_pretrained(folder)` gives, without its import.

transformers rebuilds some tokenizers from their class, so a folder's tokenizer.json is not always the tokenizer that is
used with the model. A child process asks transformers once. Its answer is kept in the user's cache, under a hash of the
folder's content and the versions, where later runs read it in milliseconds.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ...schemas.errors import TaskError, TokenizerError, did_you_mean
from ...schemas.fingerprint import fingerprint, hash_bytes, version
from ..execute.executor import exit_reason, out_of_memory_kills
from ..store.checksummed import get_user_note, put_user_note
from . import ask_transformers
from .ask_transformers import FORMAT, Answer

GENERATION_CONFIG = "generation_config.json"
_MAX_BYTES = 1 << 20

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
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
    if not _HUB_NAME.fullmatch(path):
        raise TokenizerError(
            f"tokenizer.path: the folder {folder} does not exist{_near(folder)}; nothing is downloaded: save a hub's "
            "tokenizer with save_pretrained first"
        )
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_CACHE

    for name in _FILES:
        found = try_to_load_from_cache(path, name)
        if isinstance(found, str):
            return Path(found).parent
    raise TokenizerError(
        f"tokenizer.path: the folder {folder} does not exist{_near(folder)}, and the Hugging Face cache "
        f"{HF_HUB_CACHE} holds no "
        f'tokenizer of {path}. Nothing is downloaded; this fetches it: python -c "from transformers import '
        f"AutoTokenizer; AutoTokenizer.from_pretrained('{path}')\""
    )


def _near(folder: Path) -> str:
    """` (did you mean tokenizer?)`, if a folder beside it has a similar name and a tokenizer; else ""."""
    beside: list[str] = []
    with suppress(OSError):  # the parent folder does not exist either
        beside = [one.name for one in folder.parent.iterdir() if any((one / name).is_file() for name in _FILES)]
    hint = did_you_mean(folder.name, beside)
    return f" ({hint.removeprefix('; ')})" if hint else ""


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
    template_names: tuple[str, ...]
    """Names of the tokenizer's templates if it has several and none is called `default`; else ()."""
    special_tokens: dict[str, str]
    """Special tokens that are set, by name (`bos_token`, `eos_token` and so on); chat templates see them as
    variables.
    """
    bos_id: int | None
    eos_token: str | None
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
    template_from: str = ""
    """Where a template that replaces the tokenizer's own comes from, for messages: a file's name, or the configuration
    key.
    """

    def require_template(self) -> str:
        """Return the chat template.

        Raises:
            TokenizerError: there is no template, or there are several and none is the default.
        """
        if self.chat_template is not None:
            return self.chat_template
        if self.template_names:
            raise TokenizerError(
                f"the tokenizer {self.name} has several chat templates and none is called default: "
                f"{', '.join(self.template_names)}; name one: "
                f"tokenizer.chat_template={self.template_names[0]}"
            )
        raise TokenizerError(
            f"the tokenizer {self.name} has no chat template, which conversations need; give a file with a jinja "
            f"template: tokenizer.chat_template=template.jinja"
        )


def load_tokenizer(folder: Path, *, chat_template: str | Path | None = None, base: Path = Path()) -> TokenizerSpec:
    """Load a tokenizer. A new one takes seconds, one that the user's cache knows takes milliseconds.

    Args:
        folder: a local folder that AutoTokenizer can load; nothing is downloaded.
        chat_template: replaces the tokenizer's own: the path of a file, the name of one of its own templates, or the
            jinja source itself. A string with `{{` or `{%` in it is a source.
        base: where relative paths of a template start.

    Raises:
        TokenizerError: there is no such folder or template, or transformers cannot load it; the message says why, and
            lists the folder's content.
        TaskError: the process that asks transformers was killed by a signal.
    """
    folder = find_tokenizer(str(folder.absolute()), Path())
    note = f"tokenizers/{_folder_key(folder)}.json"
    answer = get_user_note(note, Answer)
    if answer is None:
        answer = _ask(folder)
        put_user_note(note, answer)
    given, special, pad = answer["chat_template"], answer["special_tokens"], answer["pad_id"]
    own = given if isinstance(given, dict) else {} if given is None else {"default": given}
    name, template, origin = tokenizer_name(folder), own.get("default"), ""
    if chat_template is not None:
        template, origin = _template(chat_template, base, own, name)
    around = {key: value for key, value in sorted(answer.items()) if key not in ("chat_template", "json")}
    return TokenizerSpec(
        name=name,
        json=answer["json"],
        chat_template=template,
        template_names=() if template is not None else tuple(sorted(own)),
        special_tokens=dict(special),
        bos_id=answer["bos_id"],
        eos_token=special.get("eos_token"),
        eos_id=answer["eos_id"],
        pad_id=pad if pad is not None else answer["eos_id"],
        prefix_ids=tuple(answer["prefix_ids"]),
        suffix_ids=tuple(answer["suffix_ids"]),
        hash=hash_bytes(answer["json"].encode() + b"\0" + msgspec.json.encode(around, order="sorted")),
        template_hash=hash_bytes(template.encode()) if template is not None else "",
        generation_stops=generation_stops(folder),
        template_from=origin,
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
        held = sorted(entry.name for entry in folder.iterdir())
        listing = ", ".join(held[:20]) + (", ..." if len(held) > 20 else "") if held else "nothing"
        missing = "" if "tokenizer.json" in held else f"{folder} has no tokenizer.json, and "
        raise TokenizerError(
            f"{missing}transformers cannot load a tokenizer from {'it' if missing else folder}. The folder "
            f"holds: {listing}. transformers says: {said['error']}"
        )
    return msgspec.convert(said, Answer)


def _template(given: str | Path, base: Path, own: Mapping[str, str], tokenizer: str) -> tuple[str, str]:
    """A template that replaces the tokenizer's, and where it comes from, for messages.

    Args:
        own: the tokenizer's own templates, by name.

    Raises:
        TokenizerError: there is no such file or template.
    """
    if isinstance(given, str) and ("{{" in given or "{%" in given):
        return given, "tokenizer.chat_template"
    path = base / given
    try:
        if path.exists() and not path.is_dir():
            return path.read_text(encoding="utf-8"), path.name
        why = ""
    except (OSError, ValueError) as error:  # no possible path, or no text
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if str(given) in own:
        return own[str(given)], f"{tokenizer}, {given}"
    has = f"its templates are {', '.join(sorted(own))}" if own else "it has no templates"
    why = why or f"there is no such file, and no template of that name in the tokenizer {tokenizer}: {has}"
    raise TokenizerError(
        f"tokenizer.chat_template: cannot read {str(given)!r}: {why}; give the path of a jinja file, the name of one "
        "of the tokenizer's templates, or the template itself"
    )


def _folder_key(folder: Path) -> str:
    """Return a hash of the folder's own files, without weights, and of the versions that read them."""
    files = [
        [path.relative_to(folder).as_posix(), hash_bytes(path.read_bytes())]
        for base in (folder, *(folder / name for name in _SUBFOLDERS))
        for path in (sorted(base.iterdir()) if base.is_dir() else ())
        if path.is_file() and path.suffix not in _NOT_TOKENIZER
    ]
    return fingerprint([FORMAT, version("transformers"), version("tokenizers"), files])
