"""Starts early what needs no other module, while the driver imports the rest: of a new run, the fork server, which
loads a tokenizer engine, and the process that asks transformers; of an interrupted run, the check of its shards.
"""

import multiprocessing
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...schemas.config.config import RunConfig
from ...schemas.errors import ConfigError, PacktrainError
from ...schemas.jsontext import decode_note
from ...schemas.names import MANIFEST, check_hash, check_name
from ..encode.tokenizer.load import ask_early
from ..execute.checking import ALONE_BYTES, CheckAhead
from ..execute.executor import EngineAhead
from ..execute.fork_server import start_fork_server
from ..store.checksummed import unseal
from ..store.local import LocalStore, check_tree
from ..store.open import StoredFile, cache_root, is_url, resolve_place
from .worker_count import count_workers

_PLAN = "_run/plan.json"
_RECORD = re.compile(r"_run/((train|holdout)/)?shards/[0-9]+\.json")


@dataclass(frozen=True, slots=True)
class _Record:
    """What a check needs of a shard's record."""

    shard: StoredFile


def engine_ahead(engine: str, folder: Path, cache: Path) -> EngineAhead | None:
    """The engine that workers will probably need; None if the cache may have everything already.

    Args:
        engine: its name, or `auto`.
        folder: the tokenizer's.
    """
    return None if (cache / "encoded").exists() else EngineAhead(engine, folder, cache / "tokenizers")


def start_early(config: RunConfig, base: Path) -> CheckAhead | None:
    """Start the fork server if the run certainly needs one: nothing is there yet, or a run was interrupted while it
    packed, and several workers will be forked here. A new run's loads an engine. Ask transformers, too, if no earlier
    run did. If the run fails, both processes end with the driver. Begin to check the shards of an interrupted run, and
    return the check.

    Whatever is wrong with the configuration or the folder is left to the run, which reports it.
    """
    section = config.run
    if section.executor != "local" or section.shard is not None or section.wait > 0:
        return None
    try:
        out = resolve_place(config.out, base)
        cache = cache_root(config.cache, out, base)
        forks = count_workers(section) > 1 and "forkserver" in multiprocessing.get_all_start_methods()
    except ConfigError:
        return None
    if is_url(out) or is_url(cache):
        return None
    if Path(out).exists():
        checked = _check_shards(LocalStore(Path(out)))
        if checked is not None and forks:
            start_fork_server()
        return checked
    folder = (base / config.tokenizer.path).absolute()
    if forks and folder.is_dir():
        ahead = engine_ahead(config.tokenizer.engine, folder, Path(cache))
        if ahead is not None:
            start_fork_server(ahead)
            with suppress(OSError):
                ask_early(folder, ahead.answers)
    return None


def _check_shards(out: LocalStore) -> CheckAhead | None:
    """Begin to compare the shards of an interrupted run with their records; None if there are none, or very many."""
    if not out.exists(_PLAN) or out.exists(MANIFEST):
        return None
    files = set()
    try:
        check_tree(out.root)
        for name in filter(_RECORD.fullmatch, out.names("_run")):
            shard = decode_note(unseal(out.read(name), name), _Record).shard
            check_name(shard.name)
            check_hash(shard.hash)
            files.add(shard)
    except (PacktrainError, OSError, ValueError):
        return None
    return CheckAhead(out, files) if 0 < sum(file.bytes for file in files) <= ALONE_BYTES else None
