"""The card of a dataset: README.md, as the Hub shows it and as `datasets` reads it.

It is a pure function of the manifest. Of the configuration it shows numbers and choices alone, so it holds no path of a
machine, no name of an input file, and no row. Every text that the template inserts is escaped here.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from ...schemas.dataset.ledger import Ledger
from ...schemas.dataset.manifest import Manifest
from ...schemas.errors import InputError
from ...schemas.escape import escape, escape_line
from ...schemas.tables.columns import COLUMNS, schema_of, shares_tokens
from ...schemas.tables.masks import POLICIES
from .collect import packing_of
from .grid import Grid
from .ledger_lines import describe_supervision, ledger_grid, supervision_of
from .sections import packing_grid

NAME = "README.md"
OWN_PLACE = "path/to/the/dataset"
"""What a card calls the folder that it is in."""
_SETTINGS = (
    "seed", "mask", "loss", "keep_untrained", "filter", "duplicates", "holdout", "truncate", "pack", "output",
)  # fmt: skip
"""Keys of the configuration that hold numbers and choices alone."""
_OF_SOURCES = ("name", "expand", "repeat", "weight", "loss_weight", "max_rows", "mask", "filter")
"""Keys of a source that hold numbers and choices alone. Its `name` stands in the tables of the card, too."""
_CLIP = 120
"""Most characters of a text in a table."""
_ACTIVE = re.compile(r"[\\`*_\[\]|~#!$]")
"""Characters with a meaning in Markdown, which a backslash takes from them."""
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;"}
"""Characters that begin HTML, or name a user (@) → how they are written as literal text."""
_LINK = re.compile(r"(?i)(:)(?=//)|(?<=www)(\.)")
"""The colon (group 1) or the point (group 2) that makes a link of plain text in GitHub's and the Hub's Markdown."""


def dataset_card(manifest: Manifest, address: str = OWN_PLACE) -> bytes:
    """The card of a dataset.

    Args:
        address: what the card tells people to load with `datasets`: a folder, or a name on the Hub.

    Raises:
        InputError: the manifest's plan is not one that packtrain writes.
    """
    try:
        # As it is read back: the order of mappings in memory depends on who made them.
        manifest = Manifest.from_json(json.loads(manifest.to_bytes()))
        return f"---\n{_yaml(_front(manifest))}---\n\n{_text(manifest, address)}".encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"the manifest's plan is not one that packtrain writes ({error!r}), so there is no card for it; run the "
            "configuration again with another --out"
        ) from error


def _front(manifest: Manifest) -> dict[str, Any]:
    """What the Hub and `datasets` read: files and tags."""
    data_files = []
    # The training rows first: the Hub shows the first split.
    for name in sorted(manifest.splits, key=lambda name: (name != "train", name)):
        # `train/shards/00000.arrow` and all others of its folder are `train/shards/*.arrow`.
        shards = manifest.splits[name].shards
        patterns = sorted({re.sub(r"[^/]*(\.\w+)$", r"*\1", shard.name) for shard in shards})
        if patterns:
            # One pattern stands without brackets, as people write it.
            data_files.append({"split": name, "path": patterns[0] if len(patterns) == 1 else patterns})
    tags = ["packtrain"]
    if not manifest.has_unpacked_pairs:
        tags.append("packed")
    if manifest.has_unpacked_pairs or manifest.has_packed_pairs:
        tags.append("preference")
    tags.append("tokenized")
    return {
        "configs": [{"config_name": "default", "data_files": data_files}],
        "task_categories": ["text-generation"],
        "tags": tags,
    }


def _text(manifest: Manifest, address: str) -> str:
    """Everything below the YAML head."""
    plan = manifest.plan
    config = plan["config"]
    is_own_place = address == OWN_PLACE
    # In the order of the configuration: JSON has sorted the names of the ledger. Names that the configuration does not
    # have come last.
    configured = [source["name"] for source in config["sources"] if source["name"] in manifest.ledger.sources]
    names = dict.fromkeys([*configured, *manifest.ledger.sources])
    ledger = Ledger({name: manifest.ledger.sources[name] for name in names})
    total = ledger.total()
    sources = []
    for source in config["sources"]:
        sources.append({key: source[key] for key in _OF_SOURCES if _is_set(source.get(key))})
    settings = {"sources": sources} | {key: config[key] for key in _SETTINGS}
    policy = POLICIES[config["mask"]["policy"]]
    versions = plan["versions"]
    origin = [
        ("dataset", manifest.hash),
        ("tokenizer", plan["tokenizer"]["hash"]),
        ("chat template", plan["tokenizer"]["template"] or "none"),
        ("tokens by", f"{plan['encode']['engine']} {plan['encode']['engine_version']}"),
        ("versions", ", ".join(f"{name} {versions[name]}" for name in sorted(versions))),
    ]
    # Without a split, `load_dataset` gives a mapping of splits, and `load_from_disk` does if there are several.
    chosen_split = '["train"]' if len(manifest.splits) > 1 or not is_own_place else ""
    # `Markup` marks texts of packtrain's own, which `_shown` inserts as they are.
    return _template().render(
        unpacked_pairs=manifest.has_unpacked_pairs,
        pairs=manifest.has_packed_pairs,
        kind="preference pairs" if manifest.has_packed_pairs else "training rows",
        rows=sum(split.rows for split in manifest.splits.values()),
        tokens=sum(split.tokens for split in manifest.splits.values()),
        row_length=manifest.row_length,
        longest=manifest.longest_piece,
        total=total,
        supervision=describe_supervision(supervision_of(total)),
        policy=Markup(policy.name),
        policy_sentence=Markup(policy.sentence),
        weighted=manifest.weighted,
        shares=shares_tokens(manifest.schema),
        splits=_table(packing_grid(packing_of(manifest))),
        ledger=_table(ledger_grid(ledger)),
        columns=[(Markup(field.name), COLUMNS[field.name].sentence) for field in schema_of(manifest.schema)],
        load=Markup("load_from_disk" if is_own_place else "load_dataset"),
        chosen=Markup(chosen_split),
        address=Markup(json.dumps(address)),
        here=is_own_place,
        settings=_fenced(_yaml(settings)),
        made=_table(Grid(caption="", head=("", "hash or version"), rows=origin, text_columns=2)),
    )


def _is_set(value: Any) -> bool:
    """Whether a key of a source says something: neither null, nor `none` (of `expand`), nor a mapping of unset keys."""
    return any(value.values()) if isinstance(value, Mapping) else value not in (None, "none")


# Foreign text in Markdown


@cache
def _template() -> Template:
    """The template of the card, read once."""
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=loader, undefined=StrictUndefined, finalize=_shown, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True, autoescape=False,  # `_shown` escapes, for Markdown
    )  # fmt: skip
    return environment.get_template("card.md.jinja")


def _shown(value: object) -> object:
    """What the template inserts: Markdown made here as it is, whole numbers with commas, all else escaped."""
    if isinstance(value, Markup):
        return value
    return f"{value:,}" if isinstance(value, int) else _inline(str(value))


def _inline(text: str) -> str:
    """Foreign text as literal text within a line or a cell: without markup, HTML, links, or what hides or reorders."""
    line = escape_line(text if len(text) <= _CLIP else f"{text[: _CLIP - 1]}…")
    line = _ACTIVE.sub(r"\\\g<0>", line)
    line = "".join(_ENTITIES.get(character, character) for character in line)
    # `https://` loses its colon and `www.` its point, without which Markdown makes no link of them.
    return _LINK.sub(lambda match: "&#58;" if match[1] else "&#46;", line)


def _table(grid: Grid) -> Markup:
    """A grid as a Markdown table. Indented words stay indented; words that are bold in a terminal are bold here."""
    lines = [[_inline(name) for name in grid.head]]
    lines.append(["---" if grid.is_words(column) else "---:" for column in range(len(grid.head))])
    for number, row in enumerate(grid.rows):
        words, *others = row
        first = _inline(words.lstrip(" "))
        # Markdown drops spaces at the beginning of a cell.
        if words.startswith(" "):
            first = f"&emsp;{first}"
        elif grid.styles and "bold" in grid.styles[number]:
            first = f"**{first}**"
        lines.append([first, *(_inline(cell) for cell in others)])
    return Markup("\n".join(f"| {' | '.join(cells)} |" for cells in lines))


def _fenced(text: str) -> Markup:
    """YAML as a block of code that its own text cannot end."""
    # A longer run of backticks than any in the text: only such a one would end the block.
    longest = max((len(backticks) for backticks in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markup(f"{fence}yaml\n{text.rstrip()}\n{fence}")


def _yaml(data: Any) -> str:
    """Data as YAML, in its own order. Characters that hide or reorder text are written as escapes."""
    text = str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100))
    if escape(text) == text:
        return text
    # Without `allow_unicode`, every character beyond ASCII is an escape, and reads back as it was.
    return str(yaml.safe_dump(data, sort_keys=False, width=100))
