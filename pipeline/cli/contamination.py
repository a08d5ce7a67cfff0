"""`packtrain contamination`: which training examples share text with evaluation rows."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from ...schemas.errors import ConfigError
from ...schemas.units import plural, share
from .arguments import completion
from .arguments.options import Config, Format, Input, Json, Set, Workers, without_file
from .views.streams import print_json

if TYPE_CHECKING:
    from ...schemas.config.config import DecontaminateConfig, RunConfig
    from ..run.contaminated import Compared

_SHOWN = 12
_WORDS = 24
"""Words of a hit that the terminal shows."""


def contamination(
    config: Config = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Evaluation files, as for --input. May be repeated.",
            show_default="the configuration's decontaminate.against",
            autocompletion=completion.path,
        ),
    ] = None,
    ngram: Annotated[
        int | None, typer.Option(metavar="N", help="Words that must be shared in a row.", show_default="13")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE.jsonl", help="Write all hits to this file.")
    ] = None,
    format: Format = None,
    input: Input = None,
    settings: Set = None,
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Find training examples that share text with evaluation rows. No tokenizer is needed.

    With a configuration, what is found stays in its cache: a run with `decontaminate` finds it there.
    """
    from ..configfile import load_config
    from ..run.contaminated import find_contamination
    from .views.console import ConsoleObserver, make_console

    overrides = list(settings or [])
    if workers is not None:
        overrides.append(f"run.workers={workers}")
    console = make_console(stderr=as_json)
    with TemporaryDirectory(prefix="packtrain-contamination-") as temporary:
        if config is not None:
            if format is not None or input:
                raise ConfigError("give either a configuration file, or --format and --input; not both")
            loaded, base = load_config(config, None, overrides)
        else:
            data = without_file(format, input, Path("unused"), "unused")
            loaded, base = load_config({**data, "cache": temporary}, Path.cwd(), overrides)
        section, named = _section(loaded, against, ngram)
        with ConsoleObserver(console) as observer:
            found = find_contamination(loaded, section, base, observer, hits=out, named=named)
    if as_json:
        print_json(_numbers(found, section))
        return
    from ..contamination.summary import TELLS_NOTHING
    from ..report.printing import print_grids, say
    from ..report.sections import overlap_grid

    counts, summary = found.evaluation.counts, found.summary
    said = summary.sentence(found.examples, counts.rows)
    say(console, f"{said} (runs of {section.ngram} words)")
    left = [
        *([f"{plural(counts.textless, 'row has', 'rows have')} no text"] if counts.textless else []),
        *([f"{plural(counts.left_out, 'text is', 'texts are')} {TELLS_NOTHING}"] if counts.left_out else []),
    ]
    if left:
        say(console, f"not compared: {', '.join(left)}", "dim")
    if summary.counts:
        print_grids(console, [overlap_grid(summary.counts)])
        for line in summary.shown[:_SHOWN]:
            row = f"{line.evaluation}, line {line.evaluation_line:,}"
            say(
                console,
                f"{line.id} ~ {row}: {line.match}, {share(line.share)} of its {line.kind}: {_short(line.shared)}",
            )
    if out is not None:
        say(console, f"all hits: {out}")
    elif summary.examples:
        say(console, "--out hits.jsonl writes all hits, some with both texts", "dim")


def _short(text: str) -> str:
    words = text.split(" ")
    return text if len(words) <= _WORDS else f"{' '.join(words[:_WORDS])} …"


def _section(config: "RunConfig", against: list[str] | None, ngram: int | None) -> "tuple[DecontaminateConfig, str]":
    """What to compare with, and what the user calls it.

    Raises:
        ConfigError: no evaluation file is named, or an option is out of range.
    """
    from ...schemas.config.config import DecontaminateConfig
    from ..configfile import load_as

    own = config.decontaminate
    if not against and own is None:
        raise ConfigError("--against is needed: the evaluation file to compare with, such as test.jsonl")
    asked = own.model_dump() if own is not None else {}
    if against:
        asked["against"] = [str(Path(one).absolute()) if "://" not in one else one for one in against]
    section, _ = load_as(DecontaminateConfig, asked, None, [f"ngram={ngram}"] if ngram is not None else [])
    return section, "--against" if against else "decontaminate.against"


def _numbers(found: "Compared", section: "DecontaminateConfig") -> dict[str, object]:
    import msgspec

    summary = found.summary
    return {
        "ngram": section.ngram,
        "examples": found.examples,
        "contaminated": summary.examples,
        "evaluation": {
            **msgspec.to_builtins(found.evaluation.counts),
            "found": summary.rows,
            "files": [msgspec.to_builtins(file) for file in found.evaluation.files],
        },
        "sources": [
            {
                "source": one.source,
                "evaluation": one.evaluation,
                "examples": one.examples,
                "whole": one.whole,
                "near_whole": one.near_whole,
                "ngram": one.ngram,
                "evaluation_rows": one.rows,
            }
            for one in summary.counts
        ],
        "hits": [{**msgspec.to_builtins(line), "texts": None} for line in summary.shown[:_SHOWN]],
    }
