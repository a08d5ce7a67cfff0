"""What keys of other tools' configurations are called here: for somebody who arrives with a file of another tool.

The tables are also those of docs/trainers.md. Only keys about data are listed; what is about training stays with the
trainer.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

_DEPTH = 4
"""How deep keys nest in the files that are read here: `datasets`, an item, `type`, a key."""
_ITEMS = 8
"""Datasets of a file whose keys are looked at; further ones have the same keys."""
_LISTED = 60
"""Most keys that a message names."""
_SHOWN = 40
"""Characters of a value that a message repeats."""


class ForeignKey(NamedTuple):
    """What one key of another tool is here."""

    equivalent: str
    """The key of packtrain's configuration, or the command or step in its place; "" if there is nothing like it."""
    differs: str = ""
    """What a user must know besides: another default, or why there is no such key. Markdown."""


@dataclass(frozen=True)
class ForeignTool:
    """A tool whose configurations people have."""

    name: str
    required: frozenset[str]
    """Keys that each of its configurations has; empty for files that are recognised in another way."""
    typical: frozenset[str]
    """Keys of which each has at least one."""
    keys: Mapping[str, ForeignKey]
    """Keys about data, by their path; `[]` stands for an item of a list, or a key that the user chose."""

    def recognises(self, data: Mapping[str, Any]) -> list[str]:
        """The keys that show that a file is this tool's, for a message; [] if it is not."""
        typical = sorted(self.typical & data.keys())
        if not typical or not self.required <= data.keys():
            return []
        return [*sorted(self.required), *typical[:2]]  # two say enough


_OWN_READER = "[your own reader](data.md#your-own-reader)"

AXOLOTL = ForeignTool(
    "Axolotl",
    frozenset({"base_model"}),
    frozenset({"datasets", "sequence_len", "sample_packing", "micro_batch_size", "adapter"}),
    {
        "base_model": ForeignKey("tokenizer.path"),
        "tokenizer_config": ForeignKey("tokenizer.path"),
        "special_tokens": ForeignKey(
            "tokenizer.path", "set them in the tokenizer's folder, which the model reads too; nothing is added here"
        ),
        "tokens": ForeignKey("tokenizer.path", "likewise: `tokenizer.add_tokens`, then `save_pretrained`"),
        "added_tokens_overrides": ForeignKey("tokenizer.path", "likewise"),
        "sequence_len": ForeignKey("truncate.max_length", "512 there, 2048 here"),
        "excess_length_strategy": ForeignKey(
            "truncate.overlong",
            "**Axolotl drops what is too long by default.** `drop` and `truncate` are the same words; for `raise`, "
            "look at the ledger",
        ),
        "min_sample_len": ForeignKey("filter.min_tokens"),
        "sample_packing": ForeignKey("pack.strategy", "`bfd`, the default, for `true`; `none` for `false`"),
        "eval_sample_packing": ForeignKey("pack.strategy", "held-out examples are packed like the others"),
        "sample_packing_bin_size": ForeignKey("pack.max_docs"),
        "sample_packing_group_size": ForeignKey("", "all examples are packed together"),
        "sample_packing_sequentially": ForeignKey("", "only `wrapped` keeps the order of documents"),
        "pretraining_sample_concatenation": ForeignKey("pack.strategy", "`wrapped`"),
        "pad_to_sequence_len": ForeignKey("PackedLoader(static_shapes=True)", "rows on disk have no padding"),
        "context_parallel_size": ForeignKey("pack.parallel.cp"),
        "sequence_parallel_degree": ForeignKey("pack.parallel.cp"),
        "val_set_size": ForeignKey(
            "holdout.fraction", "a share of the examples; a number of them has no equivalent. Groups are kept whole"
        ),
        "train_on_inputs": ForeignKey("mask", "`all` for `true`; for `false`, `completion`, or `assistant` for chats"),
        "chat_template": ForeignKey(
            "tokenizer.chat_template", "a file or the template itself; the tokenizer's own by default"
        ),
        "chat_template_jinja": ForeignKey("tokenizer.chat_template"),
        "chat_template_kwargs": ForeignKey("tokenizer.variables"),
        "eot_tokens": ForeignKey("", "the token that ends a turn is found in the template, and trained with its turn"),
        "default_system_message": ForeignKey("", f"write it into the rows, by {_OWN_READER}, or into the template"),
        "shuffle_merged_datasets": ForeignKey("pack.shuffle"),
        "shuffle_before_merging_datasets": ForeignKey("pack.shuffle", "rows of all sources are shuffled together"),
        "curriculum_sampling": ForeignKey("pack.shuffle", "`false` keeps the order that packing gives"),
        "dataset_exact_deduplication": ForeignKey("duplicates", "`drop`"),
        "dataset_prepared_path": ForeignKey("cache", "what is encoded once is found again, with other limits too"),
        "dataset_processes": ForeignKey("run.workers"),
        "dataset_num_proc": ForeignKey("run.workers"),
        "dataset_shard_num": ForeignKey("--shard I/N", "runs that share the work"),
        "dataset_shard_idx": ForeignKey("--shard I/N"),
        "push_dataset_to_hub": ForeignKey("packtrain export --to hub"),
        "streaming": ForeignKey("PackedStream", "see loader.md"),
        "rl": ForeignKey("sources[].format", "`preference`, in a run of its own"),
        "seed": ForeignKey("seed"),
        "datasets": ForeignKey("sources"),
        "pretraining_dataset": ForeignKey("sources", "`format: text` and `pack.strategy: wrapped`"),
        "test_datasets": ForeignKey("holdout.fraction", "or pack them in a run of their own"),
        "datasets[].path": ForeignKey("sources[].path", "`hf://owner/name` for a dataset of the hub"),
        "datasets[].data_files": ForeignKey("sources[].path"),
        "datasets[].split": ForeignKey("sources[].split"),
        "datasets[].name": ForeignKey("sources[].subset"),
        "datasets[].revision": ForeignKey("sources[].path", "`hf://owner/name@revision`"),
        "datasets[].ds_type": ForeignKey("", "the kind of file is found from its name and content"),
        "datasets[].type": ForeignKey(
            "sources[].format",
            "`chat_template`: `messages`; `alpaca`: `alpaca`, with the turns of the chat template in place of Stanford "
            f"Alpaca's text; `completion`: `text`; others: {_OWN_READER}",
        ),
        "datasets[].type.field_system": ForeignKey("sources[].keys.system"),
        "datasets[].type.field_instruction": ForeignKey("sources[].keys.instruction"),
        "datasets[].type.field_input": ForeignKey("sources[].keys.input"),
        "datasets[].type.field_output": ForeignKey("sources[].keys.output"),
        "datasets[].type.system_prompt": ForeignKey("", _OWN_READER),
        "datasets[].type.system_format": ForeignKey("", "the chat template writes turns"),
        "datasets[].type.format": ForeignKey("", "the chat template writes turns"),
        "datasets[].type.no_input_format": ForeignKey("", "the chat template writes turns"),
        "datasets[].field": ForeignKey("sources[].keys.text"),
        "datasets[].field_messages": ForeignKey("sources[].keys.messages", "`keys.conversations` of `sharegpt`"),
        "datasets[].field_tools": ForeignKey("sources[].keys.tools"),
        "datasets[].field_thinking": ForeignKey("", "read where the template reads it, such as `reasoning_content`"),
        "datasets[].template_thinking_key": ForeignKey("", "the same"),
        "datasets[].message_property_mappings": ForeignKey(
            "sources[].format", f"`sharegpt` for `{{role: from, content: value}}`; other names: {_OWN_READER}"
        ),
        "datasets[].message_field_role": ForeignKey("sources[].format", "the same"),
        "datasets[].message_field_content": ForeignKey("sources[].format", "the same"),
        "datasets[].message_field_training": ForeignKey("messages[].train", "a key of messages"),
        "datasets[].message_field_training_detail": ForeignKey("", "a message is trained as a whole, or not"),
        "datasets[].roles_to_train": ForeignKey(
            "mask", "`assistant`, the default there; here the last answer alone is. Other roles: only with `all`"
        ),
        "datasets[].train_on_eos": ForeignKey(
            "mask.train_end", "`true`, the default, for `turn`; `false` for `none`; there is no `last`"
        ),
        "datasets[].train_on_eot": ForeignKey("mask.train_end", "the same"),
        "datasets[].roles": ForeignKey("sources[].format", "`sharegpt` knows the usual ones"),
        "datasets[].drop_system_message": ForeignKey("", _OWN_READER),
        "datasets[].split_thinking": ForeignKey("", "thoughts between tags are found by the template's tags"),
        "datasets[].chat_template": ForeignKey("tokenizer.chat_template", "one for a run"),
        "datasets[].chat_template_jinja": ForeignKey("tokenizer.chat_template", "one for a run"),
        "datasets[].shards": ForeignKey("sources[].max_rows", "the first rows, instead of a share"),
        "datasets[].shards_idx": ForeignKey("", "every share of a dataset can be a file"),
        "datasets[].preprocess_shards": ForeignKey("", "memory is bounded without it"),
        "datasets[].trust_remote_code": ForeignKey("", "no code of a dataset is ever run"),
    },
)

LLAMA_FACTORY = ForeignTool(
    "LLaMA-Factory",
    frozenset({"model_name_or_path"}),
    frozenset({"stage", "finetuning_type", "cutoff_len", "dataset_dir", "template"}),
    {
        "model_name_or_path": ForeignKey("tokenizer.path"),
        "template": ForeignKey("tokenizer.chat_template", "the tokenizer's own by default, not a text of the tool's"),
        "tool_format": ForeignKey("tokenizer.chat_template", "the template writes tools"),
        "default_system": ForeignKey("", f"write it into the rows, by {_OWN_READER}, or into the template"),
        "enable_thinking": ForeignKey("tokenizer.variables.enable_thinking"),
        "preserve_thinking": ForeignKey("tokenizer.variables", "if the template has such a variable"),
        "dataset": ForeignKey("sources", "a list of sources, or one `--input` each"),
        "eval_dataset": ForeignKey("holdout.fraction", "or pack it in a run of its own"),
        "dataset_dir": ForeignKey("sources[].path", "relative paths start at the configuration's folder"),
        "media_dir": ForeignKey("", "text only"),
        "cutoff_len": ForeignKey(
            "truncate.max_length",
            "it cuts the prompt and the answer of each turn; packtrain cuts one end of the whole example "
            "(`truncate.keep`). With packing, its limit is one token less",
        ),
        "train_on_prompt": ForeignKey(
            "mask", "`all` for `true`; `assistant`, all turns of the assistant, is the default there"
        ),
        "mask_history": ForeignKey(
            "mask", "`last_assistant`, with `truncate.keep: end`: it keeps the last turns first"
        ),
        "packing": ForeignKey("pack.strategy", "`bfd`; documents never see each other here"),
        "neat_packing": ForeignKey(
            "pack.strategy", "`bfd`; it packs 1,000 examples at a time (`preprocessing_batch_size`)"
        ),
        "streaming": ForeignKey("PackedStream", "see loader.md"),
        "buffer_size": ForeignKey("", "rows are shuffled whole, without a buffer"),
        "mix_strategy": ForeignKey("sources[].weight", "and `sources[].repeat`, how often a source may be repeated"),
        "interleave_probs": ForeignKey("sources[].weight"),
        "max_samples": ForeignKey("sources[].max_rows"),
        "val_size": ForeignKey(
            "holdout.fraction", "a share of the examples; a number of them has no equivalent. Groups are kept whole"
        ),
        "preprocessing_num_workers": ForeignKey("run.workers"),
        "preprocessing_batch_size": ForeignKey("", "all examples are packed together, in bounded memory"),
        "overwrite_cache": ForeignKey("", "what changed is found by its content"),
        "tokenized_path": ForeignKey("out", "[its rows](#llama-factory-and-ms-swift)"),
        "data_shared_file_system": ForeignKey("--shard I/N", "runs that share the work"),
        "ignore_pad_token_for_loss": ForeignKey("", "padding is never trained"),
        "eval_on_each_dataset": ForeignKey("packtrain train", "evaluates by source"),
        "stage": ForeignKey(
            "sources[].format", "`pt`: `text`, with `pack.strategy: wrapped`; `rm` and `dpo`: `preference`"
        ),
        "seed": ForeignKey("seed"),
    },
)

DATASET_INFO = ForeignTool(
    "LLaMA-Factory's dataset_info.json",
    frozenset(),
    frozenset(),
    {
        "[]": ForeignKey("sources[].name", "each dataset is a source"),
        "[].file_name": ForeignKey("sources[].path"),
        "[].folder": ForeignKey("sources[].path"),
        "[].cloud_file_name": ForeignKey("sources[].path", "a URL"),
        "[].hf_hub_url": ForeignKey("sources[].path", "`hf://owner/name`"),
        "[].ms_hub_url": ForeignKey("", "download it"),
        "[].om_hub_url": ForeignKey("", "download it"),
        "[].script_url": ForeignKey("", "no code of a dataset is ever run; save the rows as JSONL or Parquet"),
        "[].subset": ForeignKey("sources[].subset"),
        "[].split": ForeignKey("sources[].split"),
        "[].num_samples": ForeignKey("sources[].max_rows", "the first rows; it draws them"),
        "[].formatting": ForeignKey("sources[].format", "`alpaca`, `sharegpt`; `openai` is `messages`"),
        "[].ranking": ForeignKey("sources[].format", "`preference`, in a run of its own"),
        "[].columns.prompt": ForeignKey("sources[].keys.instruction", "`keys.prompt` of pairs"),
        "[].columns.query": ForeignKey("sources[].keys.input"),
        "[].columns.response": ForeignKey("sources[].keys.output"),
        "[].columns.history": ForeignKey("sources[].keys.history"),
        "[].columns.messages": ForeignKey("sources[].keys.conversations", "`keys.messages` of `messages`"),
        "[].columns.system": ForeignKey("sources[].keys.system"),
        "[].columns.tools": ForeignKey("sources[].keys.tools"),
        "[].columns.chosen": ForeignKey("sources[].keys.chosen"),
        "[].columns.rejected": ForeignKey("sources[].keys.rejected"),
        "[].columns.kto_tag": ForeignKey("", "single answers with a label are not packed"),
        "[].columns.images": ForeignKey("", "text only"),
        "[].columns.videos": ForeignKey("", "text only"),
        "[].columns.audios": ForeignKey("", "text only"),
        "[].tags.role_tag": ForeignKey(
            "sources[].format",
            f"`sharegpt` for `from` and `value`, `messages` for `role` and `content`; others: {_OWN_READER}",
        ),
        "[].tags.content_tag": ForeignKey("sources[].format", "the same"),
        "[].tags.user_tag": ForeignKey("sources[].format", "`sharegpt` knows the usual names of roles"),
        "[].tags.assistant_tag": ForeignKey("sources[].format", "the same"),
        "[].tags.observation_tag": ForeignKey("sources[].format", "the same"),
        "[].tags.function_tag": ForeignKey("sources[].format", "the same"),
        "[].tags.system_tag": ForeignKey("sources[].format", "the same"),
    },
)

TRL = ForeignTool(
    "TRL",
    frozenset({"model_name_or_path"}),
    frozenset({"dataset_name", "dataset_train_split", "max_length", "packing", "use_peft"}),
    {
        "model_name_or_path": ForeignKey("tokenizer.path"),
        "dataset_name": ForeignKey("sources[].path", "`hf://owner/name` for a dataset of the hub"),
        "dataset_config": ForeignKey("sources[].subset"),
        "dataset_train_split": ForeignKey("sources[].split"),
        "dataset_test_split": ForeignKey("holdout.fraction", "or pack it in a run of its own"),
        "dataset_streaming": ForeignKey("PackedStream", "see loader.md"),
        "dataset_text_field": ForeignKey("sources[].keys.text"),
        "dataset_num_proc": ForeignKey("run.workers"),
        "max_length": ForeignKey("truncate.max_length", "1024 there, 2048 here"),
        "truncation_mode": ForeignKey("truncate.keep", "`start` for `keep_start`"),
        "packing": ForeignKey("pack.strategy", "`none` for `false`, the default there"),
        "packing_strategy": ForeignKey(
            "pack.strategy",
            "`bfd`, `bfd_split` and `wrapped` are the same words. TRL packs 1,000 examples at a time, per process; "
            "packtrain packs all of them",
        ),
        "eval_packing": ForeignKey("pack.strategy", "held-out examples are packed like the others"),
        "pad_to_multiple_of": ForeignKey("pack.align"),
        "completion_only_loss": ForeignKey(
            "mask",
            "`completion`, the default; `all` for `false`. On by default for prompt and completion there. It applies "
            "to conversations too: everything before the last answer is the prompt",
        ),
        "assistant_only_loss": ForeignKey(
            "mask",
            "`assistant`. TRL needs `{% generation %}` in the template, or replaces the template with its own; "
            "packtrain finds turns in any template, or rejects the conversation. **With neither of the two, TRL "
            "trains all of a conversation (`mask: all`); here only the last answer is trained**",
        ),
        "chat_template_path": ForeignKey("tokenizer.chat_template", "a file or the template itself"),
        "shuffle_dataset": ForeignKey("pack.shuffle"),
        "seed": ForeignKey("seed"),
    },
)

TOOLS = (AXOLOTL, LLAMA_FACTORY, TRL)
"""The tools whose configurations are recognised by their keys."""


def recognise(data: Mapping[str, Any]) -> tuple[ForeignTool, Sequence[str]] | None:
    """The tool that a configuration was written for, and the keys that show it; None if it is no other tool's."""
    for tool in TOOLS:
        if tool_keys := tool.recognises(data):
            return tool, tool_keys
    # At its top, a dataset_info.json has only names of datasets that the user chose. The value of each has one of these
    # keys, to say where the dataset is.
    place_keys = ("file_name", "hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name")
    if data and all(isinstance(value, Mapping) and any(key in value for key in place_keys) for value in data.values()):
        first_dataset = next(iter(data.values()))
        return DATASET_INFO, [next(key for key in place_keys if key in first_dataset)]
    return None


def translation(tool: ForeignTool, data: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a message: for each key of a file that is about data, what it is called here; then the names of the
    other keys.

    Args:
        data: the file's content.
    """
    # Path of a key → its value; if several datasets have the key, the value of the first. Only the table of
    # dataset_info.json has the path `[]`, because the keys at the top of such a file are names.
    values: dict[str, Any] = {}
    for path, value in _values(data, by_name="[]" in tool.keys):
        values.setdefault(path, value)
    translated = [path for path in values if path in tool.keys]
    for path in translated[:_LISTED]:
        key = tool.keys[path]
        value = values[path]
        is_section = isinstance(value, (Mapping, list, tuple))
        shown = "" if is_section else f": {str(value)[:_SHOWN]}"
        differs = f" ({_plain(key.differs)})" if key.differs else ""
        yield f"  {path}{shown} → {key.equivalent or 'no such key'}{differs}"
    # Keys inside of sections and lists, whose paths have a dot or a bracket, are not named: the section is.
    untranslated = [path for path in values if path not in tool.keys and not re.search(r"[][.]", path)]
    if untranslated:
        not_listed = len(untranslated) - _LISTED
        more = f", and {not_listed} more" if not_listed > 0 else ""
        yield f"  Not about data, so for your trainer: {', '.join(untranslated[:_LISTED])}{more}"


def _values(data: Any, path: str = "", depth: int = 0, *, by_name: bool = False) -> Iterator[tuple[str, Any]]:
    """The path and value of each key of a file, with `[]` for each item of a list.

    `{seed: 1, datasets: [{path: a}]}` has `seed`, `datasets`, `datasets[]` and `datasets[].path`.

    Args:
        path: the path of `data`; "" at the top.
        depth: how many keys and items lead to `data`.
        by_name: whether the keys of `data` are names that the user chose, which count as items of a list.
    """
    # The file is the user's, and may be any YAML; configurations of these tools do not nest deeper than this.
    if depth > _DEPTH:
        return
    inner: list[tuple[str, Any]] = []
    if isinstance(data, Mapping) and by_name:
        inner = [("[]", value) for value in list(data.values())[:_ITEMS]]
    elif isinstance(data, Mapping):
        beginning = f"{path}." if path else ""
        inner = [(f"{beginning}{key}", value) for key, value in data.items()]
    elif isinstance(data, (list, tuple)):
        inner = [(f"{path}[]", value) for value in data[:_ITEMS]]
    for inner_path, value in inner:
        yield inner_path, value
        yield from _values(value, inner_path, depth + 1)


def _plain(markdown: str) -> str:
    """A remark of a table as plain text."""
    text = markdown.replace(_OWN_READER, "your own reader, python:module:function")
    text = text.replace("[its rows](#llama-factory-and-ms-swift)", "docs/trainers.md says how it reads them")
    return text.replace("**", "").replace("`", "")
