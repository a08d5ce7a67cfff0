"""The text of a dataset's card, section by section, as Markdown."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from ...schemas.config.config import DecontaminateConfig, RunConfig, SourceConfig
from ...schemas.config.section import ConfigModel
from ...schemas.ledger import Ledger, SourceLedger
from ...schemas.manifest import Manifest, SplitRecord
from ...schemas.rows import UNPADDED, WEIGHTS, schema_of
from ...schemas.units import plural, share, size
from .ledger_lines import ledger_columns, ledger_sections
from .markdown import code, inline, table, yaml_text

_MOST_SOURCES = 100
"""More sources are not listed one by one."""
_MOST_COLUMNS = 6
"""The ledger shows at most this many sources side by side; of more, only the sum."""
_MOST_YAML = 20_000
"""Longer configurations are not shown."""
_TEXTS = {"name": r"[A-Za-z0-9][A-Za-z0-9_.-]*", "format": r"[a-z_]+", "date": r"[0-9-]+"}
"""Texts of the configuration that the card may show, and what they look like. All else that it shows are numbers and
choices: conditions, columns, variables and paths, which a user writes as text, never go."""
_TRAINED = {
    "completion": "everything after the prompt, which is everything before a last assistant message",
    "assistant": "every assistant turn, without its header",
    "last_assistant": "the last assistant turn, without its header",
    "all": "every token",
}
_OVERLONG = {
    "drop": "left out",
    "split": "cut into pieces",
    "error": "refused",
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


def card_text(manifest: Manifest, place: CardPlace) -> str:
    """Everything below the YAML head."""
    config = _config(manifest.plan["config"])
    ledger = _as_configured(manifest)
    sections = [
        ("", _intro(manifest)),
        ("Splits", _splits(manifest)),
        ("What it is made of", _sources(manifest, ledger)),
        ("Ledger", _ledger(ledger)),
        ("What is trained", _trained(manifest, config)),
        ("Rows", _rows(manifest, config)),
        ("Load it", _load(manifest, place)),
        ("Make it again", _again(manifest, config)),
        ("Made with", _made_with(manifest)),
    ]
    return "".join(f"\n## {title}\n\n{text}\n" if title else f"\n{text}\n" for title, text in sections if text)


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


def _splits(manifest: Manifest) -> str:
    rows = []
    for name, split in in_order(manifest.splits):
        pieces = sum(window.pieces for window in split.windows)
        cells = [
            f"{split.rows:,}",
            f"{pieces:,}",
            f"{split.tokens:,}",
            f"{split.trained:,}",
            share(split.fill(manifest.max_length)),
        ]
        rows.append([inline(name), *(cells if not manifest.preference else [cells[0], *cells[2:4]])])
    if manifest.preference:
        return table(["split", "pairs", "tokens", "of completions"], rows)
    return table(["split", "rows", "documents", "tokens", "trained", "fill"], rows)


def _as_configured(manifest: Manifest) -> Ledger:
    """The ledger, its sources in the order of the configuration."""
    sources = manifest.ledger.sources
    first = [name for name in (one["name"] for one in manifest.plan["config"]["sources"]) if name in sources]
    return Ledger({name: sources[name] for name in dict.fromkeys([*first, *sources])})


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


def _ledger(ledger: Ledger) -> str:
    names, columns = ledger_columns(ledger, sources=len(ledger.sources) <= _MOST_COLUMNS)
    rows = []
    for section in ledger_sections(columns):
        for line in section:
            label = inline(line.label)
            if line.inner:
                label = f"&emsp;{label}"
            elif line.stress in ("head", "trained"):
                label = f"**{label}**"
            rows.append([label, *(f"{value:,}" for value in line.values)])
    return (
        "What became of every row, example, token and label. The sums close: what is read is used or counted as left "
        f"out, with the reason.\n\n{table(['', *map(inline, names)], rows)}"
    )


def _trained(manifest: Manifest, config: RunConfig | None) -> str:
    total: SourceLedger = manifest.ledger.total()
    if config is None or manifest.preference:
        return ""
    mask = config.mask
    ends = " End-of-turn tokens are left out." if not mask.train_end and mask.policy != "all" else ""
    thoughts = {"mask": " Thoughts are left out.", "last": " Of thoughts, only those of the last turn are trained."}
    calls = " Tool calls are left out." if mask.tool_calls == "mask" else ""
    weights = (
        f" Trained tokens have weights in `{WEIGHTS}` (`loss.normalize: {config.loss.normalize}`); a trainer that "
        "ignores them trains another objective."
    )
    return (
        f"Mask policy `{mask.policy}`: in conversations, {_TRAINED[mask.policy]}."
        f"{ends}{thoughts.get(mask.thoughts, '')}{calls} A plain text is trained as a "
        f"whole; of a prompt with its completion, the completion. {total.labels_trained:,} of "
        f"{total.document_tokens:,} tokens are trained "
        f"({share(total.labels_trained / max(total.document_tokens, 1))}). The first token of a "
        "document is never trained, so no document is trained to predict another."
        + (weights if manifest.weighted else "")
    )


def _rows(manifest: Manifest, config: RunConfig | None) -> str:
    columns = [f"- `{field.name}`: {_COLUMNS[field.name]}" for field in schema_of(manifest.schema)]
    return "\n".join(columns) + (f"\n\n{_lengths(manifest, config)}" if config is not None else "")


def _lengths(manifest: Manifest, config: RunConfig) -> str:
    cut, pack = config.truncate, config.pack
    limits = [
        f"{what} to {limit:,} tokens"
        for what, limit in (("prompts", cut.max_prompt_length), ("completions", cut.max_completion_length))
        if limit is not None
    ]
    first = f"Cut first: {', '.join(limits)}. " if limits else ""
    if pack.strategy in ("bfd_split", "wrapped") and not manifest.preference:
        fate = "cut into pieces"
    else:
        kept = "cut at their end" if cut.keep == "start" else "cut at their beginning"
        fate = _OVERLONG.get(cut.overlong, kept)
    what = "Pairs" if manifest.preference else "Documents"
    how = f"{first}{what} of more than {cut.max_length:,} tokens are {fate}."
    if manifest.preference:
        return how
    alignment = manifest.alignment
    padded = [
        f"{name} to a multiple of {multiple:,} tokens"
        for name, multiple in (("documents", alignment.document), ("rows", alignment.row))
        if multiple > 1
    ]
    padding = f" Padded: {', '.join(padded)}; padding is not trained." if padded else ""
    order = "in an order shuffled by the seed" if pack.shuffle else "in the order of the plan"
    return f"{how} Rows are packed by strategy `{pack.strategy}`, {order}.{padding}"


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


def _again(manifest: Manifest, config: RunConfig | None) -> str:
    files = len(manifest.plan["inputs"])
    held = sum(source.bytes_read for source in manifest.ledger.sources.values())
    if config is None or len(config.sources) > _MOST_SOURCES:
        return ""
    text = yaml_text(_shown(manifest.plan["config"]))
    if len(text) > _MOST_YAML:
        return ""
    return (
        f"`packtrain run` with this configuration and the same inputs ({plural(files, 'file')}, {size(held)}) and "
        "tokenizer, and the versions below, gives the same bytes. Paths stand for your own: this card names no input "
        "file. Ids of examples are made from the names of files, so files with other names give examples with other "
        "ids. Settings that are not named have their defaults; conditions (`where`), names of columns (`keys`), "
        "variables of the template and readers of one's own are not shown.\n\n"
        f"{code(text, 'yaml')}"
    )


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


def _config(identity: Mapping[str, Any]) -> RunConfig | None:
    """The configuration that a plan was made from, with other paths; None if this version does not accept it."""
    try:
        return RunConfig.model_validate(_shown(identity))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _shown(identity: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration's values that are not defaults, with paths that stand for the user's own."""
    defaults = RunConfig.model_validate(
        {"out": "x", "tokenizer": {"path": "x"}, "sources": [{"name": "x", "path": "x"}]}
    )
    usual, public = defaults.identity(), _public(RunConfig, identity)
    (source_usual,) = usual["sources"]
    sources = [_public(SourceConfig, source) for source in identity["sources"]]
    shown = {
        "out": "packed",
        "tokenizer": {"path": "tokenizer"} | dict(_changed(public.pop("tokenizer"), usual["tokenizer"])),
        "sources": [
            {"name": source["name"], "path": f"{source['name']}.jsonl"}
            | {key: value for key, value in _changed(source, source_usual) if key != "name"}
            for source in sources
        ],
    }
    if public.pop("decontaminate", None) is not None:
        inner = _public(DecontaminateConfig, identity["decontaminate"])
        shown["decontaminate"] = {"against": "evaluation.jsonl"} | inner
    return shown | dict(_changed(public, usual))


def _public(model: type[ConfigModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a section that the card may show."""
    shown: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        value = values.get(name)
        inner = [one for one in (field.annotation, *get_args(field.annotation)) if _is_section(one)]
        if inner and isinstance(value, Mapping):
            shown[name] = _public(inner[0], value)
        elif isinstance(value, str) and name in _TEXTS:
            shown |= {name: value} if re.fullmatch(_TEXTS[name], value) else {}
        elif name in values and _is_choice(field.annotation):
            shown[name] = value
    return shown


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, ConfigModel)


def _is_choice(kind: Any) -> bool:
    """Whether a type has only numbers and choices as values."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _is_choice(parts[0])
    if origin is Literal or kind in (bool, int, float, type(None), Ellipsis):
        return True
    return bool(parts) and origin is not dict and all(map(_is_choice, parts))


def _changed(values: Mapping[str, Any], usual: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The entries that differ from the defaults; of sections, only their keys that differ."""
    for key in [*(key for key in usual if key in values), *(key for key in values if key not in usual)]:
        value, default = values[key], usual.get(key)
        if isinstance(value, Mapping) and isinstance(default, Mapping) and default:
            inner = dict(_changed(value, default))
            if inner:
                yield key, inner
        elif value != default:
            yield key, value
