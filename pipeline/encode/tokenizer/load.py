"""The tokenizer that `transformers.AutoTokenizer.from_pretrained(folder)` gives, without its import.

transformers rebuilds some tokenizers from their class, so a folder's tokenizer.json is not always the tokenizer that is
used with the model. A child process asks transformers once. Its answer is cached under a hash of the folder's content
and the versions, and later runs read it in milliseconds.
"""

import contextlib
import os
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ....schemas.config.hints import setting
from ....schemas.errors import StoreError, TaskError, TokenizerError
from ....schemas.jsontext import decode_note
from ....schemas.versions import version
from ...execute.child_exit import exit_reason, out_of_memory_kills
from ...store.checksummed import seal, unseal
from ...store.local import LocalStore
from .child import FORMAT, Answer
from .generation_stops import generation_stops
from .place import find_tokenizer, tokenizer_name
from .process import start_child

if TYPE_CHECKING:
    import subprocess

    from ...store.user_cache import UserCache

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
                f"{setting('tokenizer.chat_template', self.template_names[0])}"
            )
        raise TokenizerError(
            f"the tokenizer {self.name} has no chat template, which conversations need; give a file with a jinja "
            f"template: {setting('tokenizer.chat_template', 'template.jinja')}"
        )


class TokenizerLoading:
    """A tokenizer that is being resolved in a child process, while the caller continues.

    End it with `result` or `cancel`. As a context manager, it cancels on exit.
    """

    def __init__(
        self,
        folder: Path,
        template: str | None,
        memo: Path | None,
        key: str,
        answer: Answer | None,
        child: "subprocess.Popen[bytes] | None",
        template_name: str | None = None,
        template_from: str = "",
    ) -> None:
        self._template_from = template_from
        self._folder = folder
        self._template = template
        self._memo = memo
        self._key = key
        self._answer = answer
        self._child = child
        self._kills_before = out_of_memory_kills() if child is not None else None
        self._template_name = template_name

    @classmethod
    def start(
        cls,
        folder: Path,
        *,
        chat_template: str | Path | None = None,
        template_name: str | None = None,
        cache: Path | None = None,
    ) -> "TokenizerLoading":
        """Read the cached answer, or start the child process.

        Args:
            folder: a local folder that AutoTokenizer can load; nothing is downloaded.
            chat_template: replaces the tokenizer's own: the path of a file, or the jinja source itself. A
                string with `{{` or `{%` in it is a source.
            template_name: name of one of the tokenizer's own templates, used if `chat_template` is not a file.
            cache: folder for the cached answer; without it, every run asks transformers. A copy goes to the user's
            cache, for runs with another folder.

        Raises:
            TokenizerError: there is no such folder or template file.
        """
        folder = find_tokenizer(str(folder.absolute()), Path())
        named = template_name is not None and chat_template is not None and not _is_there(chat_template)
        template = None if named else _template_source(chat_template)
        key = _folder_key(folder) if cache is not None else ""
        memo = _memo(cache, key) if cache is not None else None
        answer = read_answer(memo)
        if answer is None and memo is not None:
            answer = _of_user(key, memo)
        child = start_child(folder) if answer is None else None
        written = isinstance(chat_template, str) and template == chat_template
        origin = "tokenizer.chat_template" if written else Path(chat_template).name if template is not None else ""  # type: ignore[arg-type]
        return cls(folder, template, memo, key, answer, child, template_name if named else None, origin)

    def result(self) -> TokenizerSpec:
        """Wait for the tokenizer. Can be called more than once.

        Raises:
            TokenizerError: transformers cannot load the folder; the message says why, and lists the folder's content.
            TaskError: the process that loads the tokenizer was killed by a signal, twice.
        """
        self._answer = self._answer or self._ask()
        spec = _spec(self._folder, self._answer)
        template = self._template
        if self._template_name is not None:
            template = _named_template(self._answer["chat_template"], self._template_name, spec.name)
        if template is None:
            return spec
        return replace(
            spec,
            chat_template=template,
            template_names=(),
            template_hash=_blake3(template.encode()),
            template_from=self._template_from or f"{spec.name}, {self._template_name}",
        )

    def cancel(self) -> None:
        """End the child process, if it still runs."""
        if self._child is not None and self._child.poll() is None:
            self._child.kill()
            self._child.communicate()

    def __enter__(self) -> "TokenizerLoading":
        return self

    def __exit__(self, *exc: object) -> None:
        self.cancel()

    def _ask(self) -> Answer:
        if self._child is None:
            raise TokenizerError(f"loading the tokenizer folder {self._folder} was cancelled")
        out, err = self._child.communicate()
        if self._child.returncode < 0:  # a signal says nothing about the folder
            self._child = start_child(self._folder)
            out, err = self._child.communicate()
            if self._child.returncode < 0:
                raise TaskError(
                    f"the process that loads the tokenizer folder {self._folder} died twice: "
                    f"{exit_reason(self._child.returncode, self._kills_before)}. Free memory, and run the "
                    "same command again"
                )
        try:
            said = msgspec.json.decode(out, type=dict[str, Any])
        except msgspec.MsgspecError:
            tail = err.decode(errors="replace").strip().splitlines()[-1:]
            said = {"error": f"the process that loads it ended with {self._child.returncode}: {''.join(tail)}"}
        if "error" in said:
            held = sorted(entry.name for entry in self._folder.iterdir())
            listing = ", ".join(held[:20]) + (", ..." if len(held) > 20 else "") if held else "nothing"
            missing = "" if "tokenizer.json" in held else f"{self._folder} has no tokenizer.json, and "
            raise TokenizerError(
                f"{missing}transformers cannot load a tokenizer from {'it' if missing else self._folder}. The folder "
                f"holds: {listing}. transformers says: {said['error']}"
            )
        if self._memo is not None:
            _write_atomically(self._memo, seal(out, self._memo.name))
            _user_cache().keep({"folder": self._key}, out)
        return msgspec.convert(said, Answer)


def load_tokenizer(
    folder: Path, *, chat_template: str | Path | None = None, cache: Path | None = None
) -> TokenizerSpec:
    """Load a tokenizer and wait for it; arguments and errors as for `TokenizerLoading`."""
    return TokenizerLoading.start(folder, chat_template=chat_template, cache=cache).result()


def _spec(folder: Path, answer: Answer) -> TokenizerSpec:
    templates = answer["chat_template"]
    names: tuple[str, ...] = ()
    if isinstance(templates, dict):
        template = templates.get("default")
        names = () if template is not None else tuple(sorted(templates))
    else:
        template = templates
    around = {key: value for key, value in sorted(answer.items()) if key not in ("chat_template", "format", "json")}
    identity = answer["json"].encode() + b"\0" + msgspec.json.encode(around, order="sorted")
    pad = answer["pad_id"]
    return TokenizerSpec(
        name=tokenizer_name(folder),
        json=answer["json"],
        chat_template=template,
        template_names=names,
        special_tokens=dict(answer["special_tokens"]),
        bos_id=answer["bos_id"],
        eos_token=answer["special_tokens"].get("eos_token"),
        eos_id=answer["eos_id"],
        pad_id=pad if pad is not None else answer["eos_id"],
        prefix_ids=tuple(answer["prefix_ids"]),
        suffix_ids=tuple(answer["suffix_ids"]),
        hash=_blake3(identity),
        template_hash=_blake3(template.encode()) if template is not None else "",
        generation_stops=generation_stops(folder),
    )


def _template_source(chat_template: str | Path | None) -> str | None:
    if chat_template is None:
        return None
    if isinstance(chat_template, str) and ("{{" in chat_template or "{%" in chat_template):
        return chat_template
    path = Path(chat_template)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TokenizerError(
            f"tokenizer.chat_template: cannot read {str(path)!r}: {reason}; "
            "give the path of a jinja file, or the template itself"
        ) from error


def _is_there(chat_template: str | Path) -> bool:
    """Whether this is a template or the path of something other than a folder, and so not a template's name."""
    if isinstance(chat_template, str) and ("{{" in chat_template or "{%" in chat_template):
        return True
    try:
        return Path(chat_template).exists() and not Path(chat_template).is_dir()
    except (OSError, ValueError):
        return False


def _named_template(templates: Any, name: str, tokenizer: str) -> str:
    """Return one of a tokenizer's templates.

    Raises:
        TokenizerError: it has no template of that name.
    """
    own = templates if isinstance(templates, dict) else {"default": templates} if templates else {}
    if name not in own:
        has = f"its templates are {', '.join(sorted(own))}" if own else "it has no templates"
        raise TokenizerError(
            f"tokenizer.chat_template: cannot read {name!r}: there is no such file, and no template of that name in "
            f"the tokenizer {tokenizer}: {has}; "
            "give the path of a jinja file, one of these names, or the template itself"
        )
    return str(own[name])


def _folder_key(folder: Path) -> str:
    """Return a BLAKE3 hash of the folder's own files, without weights, and of the versions that read them."""
    from blake3 import blake3

    digest = blake3()
    versions = f"{FORMAT} transformers {version('transformers')} tokenizers {version('tokenizers')}"
    digest.update(versions.encode())
    for base in (folder, *(folder / name for name in _SUBFOLDERS)):
        for path in sorted(base.iterdir()) if base.is_dir() else ():
            if path.is_file() and path.suffix not in _NOT_TOKENIZER:
                content = path.read_bytes()
                digest.update(f"\n{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
                digest.update(content)
    return str(digest.hexdigest())


def _memo(cache: Path, key: str) -> Path:
    """The file of a folder's answer."""
    return cache / f"tokenizer-{key}.json"


def read_answer(memo: Path | None) -> Answer | None:
    """Return a stored answer; None if there is none, or if it cannot be read or is that of another folder."""
    try:
        return _whole_answer(unseal(LocalStore(memo.parent).read(memo.name), memo.name)) if memo else None
    except StoreError:
        return None


def _of_user(key: str, memo: Path | None) -> Answer | None:
    """Return the answer from the user's cache, and copy it to this run's cache if that is given."""
    kept = _user_cache().read({"folder": key})
    answer = _whole_answer(kept)
    if kept is not None and answer is not None and memo is not None:
        _write_atomically(memo, seal(kept, memo.name))
    return answer


def _whole_answer(content: bytes | None) -> Answer | None:
    try:
        answer = decode_note(content, Answer)
    except msgspec.MsgspecError:
        return None
    return answer if answer["format"] == FORMAT else None


def _user_cache() -> "UserCache":
    from ...store.user_cache import UserCache  # the child does not need it

    return UserCache("tokenizers")


def _write_atomically(path: Path, content: bytes) -> None:
    """Write the cached answer if possible; a cache that cannot be written must not stop a run."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(temporary, path)  # noqa: PTH105
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def _blake3(content: bytes) -> str:
    from blake3 import blake3

    return str(blake3(content).hexdigest())
