"""What a run writes down about itself, so that a damaged output can be mended without asking for it all again.

The notes hold paths and times, and stand in `_run`. They are believed only as far as hashes agree: with the plan, the
parts and in the end the manifest. Somebody else may have written them. So no code that they name is run, nothing is
fetched from a URL that they name, and nothing is written at a place of theirs that is not a cache of packtrain's: for
these, a person names the configuration.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ..schemas.config import RunConfig
from ..schemas.errors import ConfigError, PacktrainError
from ..schemas.fingerprint import fingerprint
from ..schemas.jsontext import decode_note
from ..stages.prep import FORMATS
from .cache_use import is_cache
from .encode import EncodeSpec
from .formats import SourceFormat
from .inputs.blocks import Block, InputFile, Place
from .live_notes import _PLACES
from .readers import is_reader
from .sealed import seal, unseal
from .stores import Store, cache_beside, is_url
from .tokenizer import TokenizerSpec

CONFIG = "_run/config.json"
SCAN = "_run/scan.json"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run was asked to do, and from where."""

    config: RunConfig
    base: Path
    """Where relative paths of the configuration start."""
    cache: str
    """Where the encoded parts were, in full."""


def remember(out: Store, config: RunConfig, base: Path, cache: Store, files: Sequence[InputFile]) -> None:
    """Write down the whole configuration, and how the inputs are cut into blocks."""
    data = config.model_dump(mode="json")
    for source in data["sources"]:
        source["path"] = [_without_secrets(path) for path in source["path"]]
    asked = {"base": str(base.absolute()), "cache": cache.url, "config": data}
    out.replace_bytes(CONFIG, seal(msgspec.json.encode(asked)))
    plain = msgspec.to_builtins(list(files), enc_hook=str)
    for file, noted in zip(files, plain, strict=True):
        for block, entry in zip(file.blocks, noted["blocks"], strict=True):
            if block.place is not None:
                entry["place"] = [type(block.place).__name__, entry["place"]]
    out.replace_bytes(SCAN, seal(msgspec.json.encode({"files": plain})))


def recall(out: Store) -> Asked | None:
    """What `remember` wrote down; None where it is gone or damaged.

    Its cache is one that a note may name, or the place of one beside `out`.
    """
    data = unseal(out.read(CONFIG))
    if data is None:
        return None
    try:
        noted = decode_note(data, dict[str, Any])
        config = RunConfig.model_validate(noted["config"])
        cache = recall_cache(out, noted["cache"]) or cache_beside(out.url)
        return Asked(config, Path(noted["base"]), cache)
    except (ValueError, KeyError, TypeError):  # written by another version
        return None


def recall_cache(out: Store, place: str) -> str | None:
    """The cache that a note names; None where it is not for a note to name.

    Args:
        out: where the note stands.
        place: a folder of this machine counts where packtrain has marked it as a cache, a URL in the bucket of `out`.
    """
    if not is_url(place):
        return place if Path(place).is_absolute() and is_cache(Path(place)) else None
    mine, theirs = urlsplit(out.url), urlsplit(place)
    return place if (mine.scheme, mine.netloc) == (theirs.scheme, theirs.netloc) else None


def refuse_code(config: RunConfig, what: str) -> None:
    """Refuse a configuration of a note that names a person's own reader.

    Args:
        what: the note, for the message.

    Raises:
        ConfigError: says what would do.
    """
    for source in config.sources:
        if is_reader(source.format):
            raise ConfigError(
                f"source {source.name} is read by {source.format}, which {what} names. packtrain runs only code that "
                "you name yourself: give the run's configuration with --config"
            )


def refuse_urls(config: RunConfig, what: str) -> None:
    """Refuse a configuration of a note that names what would have to be fetched.

    Raises:
        ConfigError: says what would do.
    """
    paths = [path for source in config.sources for path in source.path]
    for path in (*paths, config.tokenizer.path):
        if is_url(path):
            raise ConfigError(
                f"{_without_secrets(path)} would have to be fetched, because {what} names it. packtrain fetches only "
                "what you name yourself: give the run's configuration with --config"
            )


def recall_files(out: Store) -> list[InputFile] | None:
    """The inputs as they were cut; None where that is gone or damaged. They may be gone themselves.

    What was fetched from a URL is not fetched again on the word of a note.
    """
    data = unseal(out.read(SCAN))
    if data is None:
        return None
    try:
        files = []
        for noted in decode_note(data, dict[str, Any])["files"]:
            blocks = tuple(_block(entry) for entry in noted.pop("blocks"))
            file = msgspec.convert({**noted, "blocks": ()}, InputFile, dec_hook=_path)
            files.append(replace(file, blocks=blocks, far=None))
    except (ValueError, KeyError, TypeError, AttributeError):  # written by another version
        return None
    return files


def recall_formats(config: RunConfig, plan: dict[str, Any]) -> dict[str, SourceFormat] | None:
    """The format of every source as the plan has it; None where this version reads it otherwise.

    Raises:
        ConfigError: a source is read by a person's own function.
    """
    refuse_code(config, CONFIG)
    out: dict[str, SourceFormat] = {}
    for source in config.sources:
        noted = plan["formats"][source.name]
        kind = FORMATS[noted["format"]].options_type
        form = SourceFormat(noted["format"], msgspec.convert(noted["options"], kind))
        if form.payload() != noted:
            return None
        out[source.name] = form
    return out


def recall_spec(cache: Store, plan: dict[str, Any]) -> EncodeSpec | None:
    """How the parts were encoded, from the cache; None where that is gone."""
    payload = {key: value for key, value in plan["encode"].items() if key != "pairs"}
    try:
        return EncodeSpec.load(cache, f"specs/{fingerprint(payload)}.json")
    except (PacktrainError, msgspec.MsgspecError):
        return None


def recall_tokenizer(spec: EncodeSpec, plan: dict[str, Any]) -> TokenizerSpec:
    """As much of the tokenizer as encoding and packing ask for."""
    noted = plan["tokenizer"]
    return TokenizerSpec(
        name="of the run",
        json=spec.tokenizer_json,
        chat_template=spec.template,
        template_names=(),
        special_tokens=dict(spec.variables),
        bos_id=None,
        eos_token=None,
        eos_id=None,
        pad_id=noted["pad_id"],
        prefix_ids=(),
        suffix_ids=(),
        hash=noted["hash"],
        template_hash=noted["template"],
    )


def _without_secrets(path: str) -> str:
    """A URL without the password or the signature that it may hold; anything else as it is."""
    if "://" not in path or path.startswith("hf://"):
        return path
    parts = urlsplit(path)
    signed = parts.scheme in ("http", "https") and parts.query
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="" if signed else parts.query).geturl()


def _block(entry: dict[str, Any]) -> Block:
    place, spooled = entry.pop("place"), entry.pop("spooled")
    block = msgspec.convert({**entry, "place": None, "spooled": None}, Block)
    if place is not None:
        kind, fields = place
        known: type[Place] = _PLACES[kind]
        block = replace(block, place=msgspec.convert(fields, known))
    return block if spooled is None else replace(block, spooled=Path(spooled))


def _path(kind: type, text: str) -> Path:
    """The one field that JSON has no type for."""
    return Path(text)
