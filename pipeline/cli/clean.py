"""`packtrain clean`: remove unused cache parts, and what killed runs left behind."""

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


def clean(
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="CONFIG", help="Clean the cache and output of this YAML configuration.", show_default=False
        ),
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
    out: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIR",
            help="An output to clean, without its cache; add --cache for that. Repeatable.",
            autocompletion=completion.path,
        ),
    ] = None,
    older_than: Annotated[
        float,
        days_option("Keep parts and copies written within this many days, or a time such as 12h.", default="7"),
    ] = 7.0,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Remove all encoded parts and copies, also those that an output was made from."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Remove unused encoded parts, and what killed runs left behind. Lists the files first, and asks."""
    import sys

    from ..dataset.clean import KINDS, Cleaning
    from ..report.printing import say
    from .views.console import make_console

    console = make_console()
    folder, outs = _places(config, cache, out or [])
    with Cleaning(folder, outs, days=older_than, everything=everything) as cleaning:
        items = cleaning.find()
        total = sum(item.bytes for item in items)
        if not as_json:
            for kind, what in KINDS.items():
                mine = [item for item in items if item.kind == kind]
                if mine:
                    if kind == "part" and everything:
                        what = "encoded parts, also those that outputs were made from"
                    say(console, f"{what}: {plural(len(mine), 'file')}, {size(sum(item.bytes for item in mine))}")
                    for item in mine[:3]:
                        say(console, f"  {item.path} ({size(item.bytes)})")
                    if len(mine) > 3:
                        say(console, f"  and {len(mine) - 3:,} more")
        asks = not as_json and bool(items) and sys.stdin.isatty()
        if agreed := yes or (asks and typer.confirm(f"Remove {plural(len(items), 'file')}, {size(total)}?")):
            cleaning.remove(items)
    if as_json:
        listed = [{"kind": item.kind, "path": str(item.path), "bytes": item.bytes} for item in items]
        print_json({"removed": agreed, "bytes": total, "files": listed})
    elif not items:
        say(console, "nothing to remove")
    elif agreed:
        say(console, f"removed {plural(len(items), 'file')}, {size(total)}; a run rebuilds what it needs")
    else:
        say(console, f"nothing was removed: {plural(len(items), 'file')}, {size(total)}; --yes removes them")


def _places(config: Path | None, cache: str | None, outs: list[str]) -> "tuple[LocalStore | None, list[LocalStore]]":
    """The cache and the outputs to clean.

    Raises:
        ConfigError: none is given, or one is not on this machine.
        InputError: a folder does not exist.
    """
    from ..configfile import load_config
    from ..dataset.manifests import open_output
    from ..store.local import LocalStore
    from ..store.open import cache_root, open_store, resolve_place

    stores = []
    for text in outs:
        store = open_output(text)
        if not isinstance(store, LocalStore):
            raise ConfigError(
                f"--out: {text} is not on this machine; let the bucket remove what killed runs left, by a lifecycle "
                "rule (AbortIncompleteMultipartUpload)"
            )
        stores.append(store)
    place = resolve_place(cache, Path.cwd()) if cache is not None else None
    if config is not None and config.is_dir():
        raise ConfigError(f"{config} is a folder, not a configuration; give --out {config} to clean an output")
    if config is not None:
        loaded, base = load_config(config)
        own = resolve_place(loaded.out, base)
        place = place or cache_root(loaded.cache, own, base)
        store = open_store(own)
        if isinstance(store, LocalStore):
            stores.append(store)
    if place is None and not stores:
        raise ConfigError("say what to clean: a configuration, --cache, or --out")
    if place is not None and not isinstance(open_store(place), LocalStore):
        raise ConfigError(
            f"the cache {place} is not on this machine, so no lock shows who uses it; let a lifecycle rule of the "
            "store expire its objects, and clean this machine's copies with --cache and the scratch folder"
        )
    for text in outs if cache is None else [*outs, cache]:
        if not Path(resolve_place(text, Path.cwd())).is_dir():
            raise InputError(f"there is no folder {text}; check the spelling")
    return (LocalStore(Path(place)) if place is not None else None), stores
