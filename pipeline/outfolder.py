"""The state of an output folder: empty, another's, interrupted, or finished."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ..schemas.config import RunConfig
from ..schemas.errors import IntegrityError, OutputError
from ..schemas.manifest import Manifest
from .sources import InputFile, resolve_paths
from .store import LocalStore

MANIFEST = "manifest.json"
PLAN = "_run/plan.json"
REQUEST = "_run/request.json"


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for, cheap to compare: sizes and times stand in for contents."""

    config: dict[str, Any]
    tokenizer: dict[str, Any]
    files: list[tuple[str, str, int, int]]
    """(source, path, size, modification time in ns)."""
    version: str

    @classmethod
    def of(cls, config: RunConfig, base: Path, version: str) -> "Request":
        """The request that a configuration makes now.

        Raises:
            ConfigError: an input is missing.
        """
        files = []
        for source in config.sources:
            for path in resolve_paths(source, base):
                stat = path.stat()
                files.append((source.name, str(path.absolute()), stat.st_size, stat.st_mtime_ns))
        folder = base / config.tokenizer.path
        held = sorted(folder.iterdir()) if folder.is_dir() else []
        stamps = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in held if p.is_file()]
        template = config.tokenizer.chat_template
        if template and "{" not in template and (base / template).is_file():
            stat = (base / template).stat()
            stamps.append((template, stat.st_size, stat.st_mtime_ns))
        tokenizer = {
            **config.tokenizer.model_dump(mode="json"),
            "path": str(folder.absolute()),
            "files": stamps,
        }
        return cls(config.identity(), tokenizer, files, version)

    def save(self, store: LocalStore) -> None:
        """Keep it for the next run."""
        store.replace_bytes(REQUEST, msgspec.json.encode(self))

    def matches(self, store: LocalStore) -> bool:
        """Whether the folder was made for this very request."""
        data = store.read(REQUEST)
        return data is not None and data == msgspec.json.encode(self)


def check_folder(store: LocalStore) -> None:
    """Refuse a folder that holds something else.

    Raises:
        OutputError: it is a file, or it has content that no run of packtrain put there.
    """
    if store.root.is_file():
        raise OutputError(f"out: {store.root} is a file; name a folder")
    if not store.root.is_dir() or store.exists(PLAN) or store.exists(MANIFEST):
        return
    held = sorted(path.name for path in store.root.iterdir() if path.name != "_run")
    if held:
        some = ", ".join(held[:5]) + (", …" if len(held) > 5 else "")
        raise OutputError(f"out: {store.root} holds something else ({some}); name an empty folder, or move it away")


def read_manifest(store: LocalStore) -> Manifest | None:
    """The manifest of a finished dataset, or None.

    Raises:
        IntegrityError: there is one that cannot be read, or whose hash is not its content's.
    """
    data = store.read(MANIFEST)
    if data is None:
        return None
    try:
        content = json.loads(data)
        manifest = Manifest.from_json(content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(
            f"{store.path(MANIFEST)} is not a manifest of this version of packtrain ({error!r}); "
            "restore it, or delete the folder and run again"
        ) from error
    if manifest.hash != content.get("hash"):
        raise IntegrityError(
            f"{store.path(MANIFEST)} was changed after it was written: its hash is not its content's; "
            "restore it, or delete the folder and run again"
        )
    return manifest


def all_there(store: LocalStore, manifest: Manifest) -> bool:
    """Whether every file that the manifest names is there with its size. `packtrain verify` reads contents."""
    sizes = [(file.name, file.bytes) for file in manifest.files]
    for split in manifest.splits.values():
        sizes += [(shard.name, shard.bytes) for shard in split.shards]
    return all(store.size(name) == size for name, size in sizes)


def claim(store: LocalStore, plan: dict[str, Any]) -> None:
    """Write down what this folder is for, or find it written down already.

    Raises:
        OutputError: the folder is for another configuration or other inputs; says what differs, field by field.
    """
    data = json.dumps(plan, indent=2, sort_keys=True, ensure_ascii=False).encode()
    if store.put_bytes(PLAN, data):
        return
    earlier = json.loads(store.read(PLAN) or b"{}")
    lines = list(differences(earlier, plan))
    if lines:
        shown = "\n".join(f"  {line}" for line in lines[:20])
        more = f"\n  and {len(lines) - 20} more" if len(lines) > 20 else ""
        raise OutputError(
            f"out: {store.root} belongs to another run. What differs (there → here):\n{shown}{more}\n"
            "Name another folder with --out (what is encoded already is used again), or delete this one."
        )


def differences(left: Any, right: Any, where: str = "") -> Iterator[str]:
    """One line for each field in which two plans differ."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted({*left, *right}):
            yield from differences(left.get(key), right.get(key), f"{where}.{key}" if where else key)
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for index, (one, other) in enumerate(zip(left, right, strict=True)):
            yield from differences(one, other, f"{where}[{index}]")
    elif left != right:
        yield f"{where}: {_short(left)} → {_short(right)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"


def tokenizer_folder(store: LocalStore) -> Path | None:
    """The folder of the tokenizer that a run used, as far as this machine still has it."""
    data = store.read(REQUEST)
    if data is None:
        return None
    folder = Path(msgspec.json.decode(data, type=Request).tokenizer["path"])
    return folder if folder.is_dir() else None


def plan_inputs(files: list[InputFile]) -> list[dict[str, Any]]:
    """The inputs as the plan knows them: labels and contents, no paths."""
    return [{"source": file.source, "file": file.label, "bytes": file.size, "hash": file.hash} for file in files]
