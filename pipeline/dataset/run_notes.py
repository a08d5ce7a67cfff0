"""A run's note about itself, `_run/run.json`: what it was asked to do, and the tokenizer that it used.

It is not part of the dataset, holds paths, and may come from another person: nothing that it names is run or written.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ...schemas.config.config import RunConfig
from ...schemas.errors import StoreError
from ...schemas.fingerprint import fingerprint
from ..contamination import find_evaluation
from ..encode.tokenizer import find_tokenizer
from ..inputs.find import Found, find_inputs
from ..inputs.user_reader import is_reader, reader_file
from ..store.checksummed import get_note, put_note
from ..store.open_store import Store

RUN = "_run/run.json"


@dataclass(frozen=True, slots=True)
class Request:
    """What a run is asked to do, and with what."""

    asked: str
    """Hash of the configuration, of the version, and of paths, sizes and times of all files: compared in
    milliseconds."""
    tokenizer: Path
    """The tokenizer's folder."""
    template: str | None
    """The chat template that replaces the tokenizer's own: its file, or its text."""

    @classmethod
    def of(cls, config: RunConfig, base: Path, version: str) -> "Request":
        """Make the request of a configuration, with its inputs as they are now.

        Raises:
            ConfigError, TokenizerError: an input or the tokenizer is missing.
        """
        found, others = list[tuple[str, Found]](), list[Path]()
        for source in config.sources:
            found += [(source.name, one) for one in find_inputs(source, base)]
            if is_reader(source.format):
                others.append(reader_file(source.format, base, f"sources.{source.name}.format"))
        if config.decontaminate is not None:
            found += [("", one) for one in find_evaluation(config.decontaminate, base)]
        folder = find_tokenizer(config.tokenizer.path, base)
        others += [path for path in sorted(folder.iterdir()) if path.is_file()]
        template = config.tokenizer.chat_template
        if template and "{" not in template and (base / template).is_file():
            others.append(base / template)
            template = str((base / template).absolute())
        files: list[Any] = [str(base.absolute()), *((one.name, one.split, one.subset) for one in config.sources)]
        for name, one in found:
            files.append((name, one.shown, one.size, one.stamp))
        files += [(str(path.absolute()), (stat := path.stat()).st_size, stat.st_mtime_ns) for path in others]
        tokenizer = config.tokenizer.model_dump(mode="json")
        return cls(fingerprint([config.identity(), tokenizer, files, version]), folder.absolute(), template)


class _Run(msgspec.Struct):
    asked: str
    """See `Request`."""
    tokenizer: str
    chat_template: str | None


def remember(out: Store, request: Request) -> None:
    """Write the note of a run."""
    put_note(out, RUN, _Run(request.asked, str(request.tokenizer), request.template))


def is_asked_again(out: Store, request: Request) -> bool:
    """Whether the folder's last run had the same request."""
    note = _read(out)
    return note is not None and note.asked == request.asked


def tokenizer_folder(out: Store) -> Path | None:
    """The folder of the tokenizer that a run used; None if this machine does not have it."""
    note = _read(out)
    return Path(note.tokenizer) if note is not None and Path(note.tokenizer).is_dir() else None


def _read(out: Store) -> _Run | None:
    """The note; None also if the store does not answer."""
    try:
        return get_note(out, RUN, _Run)
    except StoreError:
        return None
