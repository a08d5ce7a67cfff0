"""`packtrain clean`: remove files of a cache that no run has used for some days, and what killed runs left behind."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...schemas.errors import ConfigError, InputError
from ...schemas.units import plural, size
from .arguments import completion
from .arguments.options import Json, days_option
from .views.streams import print_json

if TYPE_CHECKING:
    from ..store.local import LocalStore

_SHOWN = 3


def clean(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG", help="Clean the cache of this YAML configuration.", show_default=False),
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="The cache to clean.",
            show_default="the configuration's",
            autocompletion=completion.path,
        ),
    ] = None,
    older_than: Annotated[
        float,
        days_option("Keep parts used, and copies written, within this many days, or a time such as 12h.", default="7"),
    ] = 7.0,
    everything: Annotated[bool, typer.Option("--all", help="Remove everything that can be made again.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Remove old encoded parts and copies, and what killed runs left behind. Lists the files first, and asks."""
    import sys

    from ..dataset.clean import Cleaning
    from ..report.printing import say
    from .views.console import make_console

    console = make_console()
    folder, out = _places(config, cache)
    with Cleaning(folder, days=0 if everything else older_than) as cleaning:
        items = cleaning.find()
        total = sum(item.bytes for item in items)
        what = f"{plural(len(items), 'file')}, {size(total)}"
        if not as_json and items:
            say(console, f"everything: {what}" if everything else f"older than {plural(older_than, 'day')}: {what}")
            for item in items[:_SHOWN]:
                say(console, f"  {item.path} ({size(item.bytes)})")
            if len(items) > _SHOWN:
                say(console, f"  and {len(items) - _SHOWN:,} more")
        asks = not as_json and bool(items) and sys.stdin.isatty()
        if agreed := yes or (asks and typer.confirm(f"Remove {what}?")):
            cleaning.remove(items)
            if out is not None:
                out.sweep()
    if as_json:
        listed = [{"path": str(item.path), "bytes": item.bytes} for item in items]
        print_json({"removed": agreed, "bytes": total, "files": listed})
    elif not items:
        say(console, "nothing to remove")
    elif agreed:
        say(console, f"removed {what}; a run makes again what it needs")
    else:
        say(console, f"nothing was removed: {what}; --yes removes them")


def _places(config: Path | None, cache: str | None) -> "tuple[LocalStore, LocalStore | None]":
    """The cache, and the configuration's output if that is on this machine.

    Raises:
        ConfigError: neither is given, or the cache is not on this machine.
        InputError: the folder does not exist.
    """
    from ..configfile import load_config
    from ..store.local import LocalStore
    from ..store.open import cache_root, open_store, resolve_place

    out = None
    place = resolve_place(cache, Path.cwd()) if cache is not None else None
    if config is not None:
        loaded, base = load_config(config)
        own = resolve_place(loaded.out, base)
        place = place or cache_root(loaded.cache, own, base)
        out = open_store(own)
    if place is None:
        raise ConfigError("say what to clean: a configuration, or --cache")
    store = open_store(place)
    if not isinstance(store, LocalStore):
        raise ConfigError(
            f"the cache {place} is not on this machine, so no lock shows who uses it; let a lifecycle rule of the "
            "store expire its objects, and clean this machine's copies with --cache and the scratch folder"
        )
    if cache is not None and not store.root.is_dir():
        raise InputError(f"there is no folder {cache}; check the spelling")
    return store, out if isinstance(out, LocalStore) else None
