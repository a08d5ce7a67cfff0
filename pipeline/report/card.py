"""The card of a dataset: README.md, as the Hub shows it and as `datasets` reads it.

It is a pure function of the manifest. Of the configuration it shows numbers and choices alone, so it holds no path of a
machine, no name of an input file, and no row.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...schemas.errors import InputError
from ...schemas.ledger import Ledger
from ...schemas.manifest import Manifest, SplitRecord
from ...schemas.rows import UNPADDED, WEIGHTS, schema_of
from ...schemas.units import plural, share, size
from .collect import packing_of
from .ledger_table import ledger_grid
from .markdown import code, grid_table, inline, table, with_front, yaml_text
from .sections import packing_grid

NAME = "README.md"
_LIMITS = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")
"""Limits of the Hub's categories of sizes: a thousand rows, and ten times as many from one to the next."""
_MOST_SOURCES = 100
"""More sources are not listed."""
_SETTINGS = (
    "seed", "mask", "loss", "keep_untrained", "filter", "duplicates", "holdout", "truncate", "pack", "output",
)  # fmt: skip
_OF_SOURCES = ("name", "expand", "repeat", "weight", "loss_weight", "max_rows", "mask", "filter")
"""Parts of the configuration that hold numbers and choices alone; `name` stands in tables, too."""
_TRAINED = {
    "completion": "everything after the prompt, which is everything before a last assistant message",
    "assistant": "every assistant turn, without its header",
    "last_assistant": "the last assistant turn, without its header",
    "all": "every token",
}
_COLUMNS = {
    "input_ids": "token ids",
    "labels": "the id of the token itself where it is trained, else -100; not shifted, as transformers expects",
    "position_ids": "0, 1, 2, … in each document",
    "seq_lengths": "tokens of each document in the row, in order",
    "doc_starts": "at which of its tokens each document begins; 0 unless it was cut",
    "doc_ids": "a number for each document; pieces of one document share it",
    UNPADDED: "as `seq_lengths`, without the padding at the end of each document",
    WEIGHTS: "how much each token counts in the loss; 0 where it is not trained",
    "prompt_ids": "token ids of the prompt",
    "chosen_ids": "token ids of the chosen completion, which continues the prompt",
    "rejected_ids": "token ids of the rejected completion, which continues the prompt",
}


@dataclass(frozen=True, slots=True)
class CardSplit:
    """The files of one split."""

    name: str
    patterns: tuple[str, ...]
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CardPlace:
    """Where the rows are that a card describes."""

    splits: tuple[CardSplit, ...]
    address: str
    """What `datasets` loads: a folder, or a name on the Hub."""
    whole: bool
    """Whether it is the dataset itself, with its manifest."""


def in_order(splits: Mapping[str, SplitRecord]) -> list[tuple[str, SplitRecord]]:
    """The splits, `train` first."""
    return sorted(splits.items(), key=lambda one: (one[0] != "train", one[0]))


def own_place(manifest: Manifest) -> CardPlace:
    """The dataset's own folder."""
    return CardPlace(
        tuple(
            CardSplit(name, _patterns(split), split.rows, sum(shard.bytes for shard in split.shards))
            for name, split in in_order(manifest.splits)
        ),
        "path/to/the/dataset",
        whole=True,
    )


def dataset_card(manifest: Manifest, place: CardPlace) -> bytes:
    """The card of the rows at a place.

    Raises:
        InputError: the manifest's plan is not one that packtrain writes.
    """
    try:
        # As it is read back: the order of mappings in memory depends on who made them.
        manifest = Manifest.from_json(json.loads(manifest.to_bytes()))
        return with_front(card_front(manifest, place), _text(manifest, place)).encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"the manifest's plan is not one that packtrain writes ({error!r}), so there is no card for it; run the "
            "configuration again with another --out"
        ) from error


def card_front(manifest: Manifest, place: CardPlace) -> dict[str, Any]:
    """What the Hub and `datasets` read: files, columns, sizes, tags."""
    total = sum(split.bytes for split in place.splits)
    files = [
        {"split": split.name, "path": split.patterns[0] if len(split.patterns) == 1 else list(split.patterns)}
        for split in place.splits
        if split.patterns
    ]
    return {
        "configs": [{"config_name": "default", "data_files": files}],
        "dataset_info": {
            "features": [
                {"name": field.name, "sequence": {"float": "float32"}.get(kind := str(field.type.value_type), kind)}
                for field in schema_of(manifest.schema)
            ],
            "splits": [
                {"name": split.name, "num_bytes": split.bytes, "num_examples": split.rows} for split in place.splits
            ],
            "download_size": total,
            "dataset_size": total,
        },
        "size_categories": [_size_category(sum(split.rows for split in place.splits))],
        "task_categories": ["text-generation"],
        "tags": ["packtrain", "preference" if manifest.preference else "packed", "tokenized"],
    }


def _size_category(rows: int) -> str:
    digits = len(str(max(rows, 1)))
    if digits < 4:
        return "n<1K"
    return f"{_LIMITS[digits - 4]}<n<{_LIMITS[digits - 3]}" if digits < 13 else "n>1T"


def _patterns(split: SplitRecord) -> tuple[str, ...]:
    found = set()
    for shard in split.shards:
        folder, _, name = shard.name.rpartition("/")
        found.add(f"{folder}/*.{name.rpartition('.')[2]}".removeprefix("/"))
    return tuple(sorted(found))


def _text(manifest: Manifest, place: CardPlace) -> str:
    """Everything below the YAML head."""
    first = [one["name"] for one in manifest.plan["config"]["sources"] if one["name"] in manifest.ledger.sources]
    ledger = Ledger({name: manifest.ledger.sources[name] for name in dict.fromkeys([*first, *manifest.ledger.sources])})
    sections = {
        "": _intro(manifest),
        "Splits": grid_table(packing_grid(packing_of(manifest, {}))),
        "What it is made of": _sources(manifest, ledger),
        "Ledger": "What became of every row, example, token and label. The sums close: what is read is used or counted "
        f"as left out, with the reason.\n\n{grid_table(ledger_grid(ledger))}",
        "What is trained": _trained(manifest),
        "Columns": "\n".join(f"- `{field.name}`: {_COLUMNS[field.name]}" for field in schema_of(manifest.schema)),
        "Load it": _load(manifest, place),
        "Settings": _settings(manifest),
        "Made with": _made_with(manifest),
    }
    return "".join(f"\n## {title}\n\n{text}\n" if title else f"\n{text}\n" for title, text in sections.items() if text)


def _intro(manifest: Manifest) -> str:
    rows = sum(split.rows for split in manifest.splits.values())
    tokens = sum(split.tokens for split in manifest.splits.values())
    if manifest.preference:
        title = "Tokenized preference pairs"
        what = f"{plural(rows, 'preference pair')} of {tokens:,} tokens, for DPO and similar methods."
    else:
        title = "Packed training rows"
        what = (
            f"{plural(rows, 'row')} of at most {manifest.max_length:,} tokens, {tokens:,} tokens in all. A row holds "
            "several documents, one after another; labels say which of their tokens are trained."
        )
    return (
        f"# {title}\n\n{what} The rows are token ids of one tokenizer, and fit only models with that tokenizer. "
        f"Written by packtrain {inline(str(manifest.plan['versions']['packtrain']))}."
    )


def _sources(manifest: Manifest, ledger: Ledger) -> str:
    rows, formats = [], manifest.plan["formats"]
    for name, source in list(ledger.sources.items())[:_MOST_SOURCES]:
        form = str(formats[name]["format"] if name in formats else "")
        if not form.replace("_", "").isalpha():
            form = "own reader" if form else ""  # its module is the user's own
        packed = sum(source.examples_packed.values())
        counts = (source.rows_read, packed, source.tokens_packed, source.labels_trained)
        rows.append([inline(name), inline(form), *(f"{value:,}" for value in counts)])
    more = len(ledger.sources) - len(rows)
    made = table(["source", "format", "rows read", "examples", "tokens", "trained"], rows, words=2)
    return f"{made}\n\nAnd {plural(more, 'more source')}." if more else made


def _trained(manifest: Manifest) -> str:
    if manifest.preference:
        return ""
    config = manifest.plan["config"]
    policy = config["mask"]["policy"]
    total = manifest.ledger.total()
    weights = (
        f" Trained tokens have weights in `{WEIGHTS}`; a trainer that ignores them trains another objective."
        if manifest.weighted
        else ""
    )
    own = "".join(
        f" Source {inline(source['name'])} has `{mine}`: {_TRAINED[mine]}."
        for source in config["sources"]
        if (mine := source.get("mask", {}).get("policy", policy)) != policy
    )
    return (
        f"Mask policy `{policy}`: in conversations, {_TRAINED[policy]}.{own} A plain text is trained as a whole; of a "
        f"prompt with its completion, the completion. {total.labels_trained:,} of {total.document_tokens:,} tokens are "
        f"trained ({share(total.labels_trained / max(total.document_tokens, 1))}). The first token of a document is "
        f"never trained, so no document is trained to predict another.{weights}"
    )


def _load(manifest: Manifest, place: CardPlace) -> str:
    disk = place.whole and any(pattern.endswith(".arrow") for split in place.splits for pattern in split.patterns)
    several = len(manifest.splits) > 1
    address = json.dumps(place.address)
    call = f"datasets.load_from_disk({address})" if disk else f"datasets.load_dataset({address})"
    chosen = '["train"]' if several or not disk else ""
    parts = [code(f"import datasets\n\nrows = {call}{chosen}", "python")]
    if manifest.preference:
        parts.append("The rows hold token ids: a trainer that tokenizes its data must be kept from doing so.")
        return "\n\n".join(parts)
    parts.append(
        "A trainer must keep the documents of a row apart: give it `position_ids`, or boundaries from `seq_lengths`, "
        "and no attention mask. TRL does so with"
    )
    parts.append(
        code(
            "from trl import SFTConfig, SFTTrainer\n\n"
            'arguments = SFTConfig("sft", packing=False, padding_free=True, max_length=None)\n'
            'trainer = SFTTrainer("path/to/model", args=arguments, train_dataset=rows)',
            "python",
        )
    )
    if place.whole:
        parts.append("packtrain's loader shuffles, divides rows among ranks, and resumes at any step:")
        parts.append(
            code(
                f"from packtrain.training import PackedLoader\n\nloader = PackedLoader({address}, rows_per_step=8)",
                "python",
            )
        )
    return "\n\n".join(parts)


def _settings(manifest: Manifest) -> str:
    config, inputs = manifest.plan["config"], plural(len(manifest.plan["inputs"]), "file")
    held = size(sum(source.bytes_read for source in manifest.ledger.sources.values()))
    sources = [{key: one[key] for key in _OF_SOURCES if _given(one.get(key))} for one in config["sources"]]
    shown = {"sources": sources[:_MOST_SOURCES], **{key: config[key] for key in _SETTINGS}}
    return (
        f"From {inputs}, {held}. The same configuration, inputs, tokenizer and versions give the same bytes. Texts of "
        "the configuration, such as paths, conditions and names of columns, are not shown; ids of examples are made "
        f"from the names of files.\n\n{code(yaml_text(shown), 'yaml')}"
    )


def _given(value: Any) -> bool:
    """Whether a key of a source says something."""
    return any(value.values()) if isinstance(value, Mapping) else value not in (None, "none")


def _made_with(manifest: Manifest) -> str:
    plan = manifest.plan
    tokenizer, encode, versions = plan["tokenizer"], plan["encode"], plan["versions"]
    rows = [
        ("dataset", manifest.hash),
        ("tokenizer", tokenizer["hash"]),
        ("chat template", tokenizer["template"] or "none"),
        ("tokens by", f"{encode['engine']} {encode['engine_version']}"),
        ("versions", ", ".join(f"{name} {versions[name]}" for name in sorted(versions))),
    ]
    return table(["", "hash or version"], [[name, inline(str(value))] for name, value in rows], words=2)
