"""Reading a configuration: what is wrong is said with file, line and key, and what would be right."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from packtrain.pipeline.configfile import Setting, load_as, load_config
from packtrain.schemas.config.config import RunConfig
from packtrain.schemas.config.section import ConfigModel
from packtrain.schemas.errors import ConfigError
from packtrain.training.trainer.train_config import TrainConfig

from tests import kit

GOOD = """\
out: runs/first
tokenizer:
  path: tok
sources:
  - name: chat
    format: messages
    path: [a.jsonl, b.jsonl]
  - name: web
    format: text
    path: c.jsonl
truncate:
  max_length: 1024
"""


def load(tmp_path: Path, text: str, *overrides: str) -> RunConfig:
    (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
    return load_config(tmp_path / "run.yaml", None, overrides)[0]


def refusal(tmp_path: Path, text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, *overrides)
    return str(caught.value)


def test_plain_data_and_finished_configurations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load(tmp_path, GOOD)
    again, base = load_config(config.model_dump())
    assert (again, base) == (config, tmp_path)
    assert load_config(config) == (config, tmp_path)
    assert load_config(config, tmp_path / "x") == (config, tmp_path / "x")


def test_overrides_of_plain_data_do_not_change_it() -> None:
    data: dict[str, Any] = {
        "out": "x",
        "tokenizer": {"path": "t"},
        "sources": [{"name": "a", "format": "text", "path": "x"}],
    }
    assert load_config(data, None, ["tokenizer.path=other", "sources.0.name=b"])[0].sources[0].name == "b"
    assert data["tokenizer"] == {"path": "t"}
    assert data["sources"][0]["name"] == "a"


OVERRIDES: list[tuple[str, str, Any]] = [
    ("truncate.max_length=77", "truncate.max_length", 77),
    ("pack.max_docs=null", "pack.max_docs", None),
    ("output.shard_bytes=1MiB", "output.shard_bytes", 2**20),
    ("out=a=b", "out", "a=b"),
    ("tokenizer.date=2024-07-26", "tokenizer.date", "2024-07-26"),
    ("sources.1.name=books", "sources.1.name", "books"),
    ("sources.0.keys={messages: talk}", "sources.0.keys", {"messages": "talk"}),
    ("sources.0.keys.messages=talk", "sources.0.keys", {"messages": "talk"}),
    ("tokenizer.chat_template={{ x }}", "tokenizer.chat_template", "{{ x }}"),
    ("tokenizer.chat_template={% for", "tokenizer.chat_template", "{% for"),
    (r'out="runs/\ud83d\ude00"', "out", "runs/😀"),
]


@pytest.mark.parametrize(("override", "key", "expected"), OVERRIDES)
def test_overrides(tmp_path: Path, override: str, key: str, expected: Any) -> None:
    found: Any = load(tmp_path, GOOD, override)
    for part in key.split("."):
        found = found[int(part)] if part.isdecimal() else getattr(found, part)
    assert found == expected


def test_a_key_of_the_mask_keeps_a_policy_that_stands_alone(tmp_path: Path) -> None:
    mask = load(tmp_path, GOOD + "mask: last_assistant\n", "mask.train_end=false").mask
    assert (mask.policy, mask.train_end) == ("last_assistant", False)
    mask = load(tmp_path, GOOD, "mask=assistant", "mask.stop=auto").mask
    assert (mask.policy, mask.stop) == ("assistant", "auto")


def whole_numbers(model: type[ConfigModel], where: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The keys of a configuration that hold one whole number."""
    for name, field in model.model_fields.items():
        for kind in (field.annotation, *get_args(field.annotation)):
            if kind is int:
                yield (*where, name)
            elif isinstance(kind, type) and issubclass(kind, ConfigModel):
                yield from whole_numbers(kind, (*where, name))


@pytest.mark.parametrize("model", [RunConfig, TrainConfig])
@pytest.mark.parametrize(
    "number",
    [10**30, -(10**30), 16**5000, float("inf"), "9" * 5000],
    ids=["large", "small", "hexadecimal", "infinite", "text"],
)
def test_every_whole_number_has_bounds(model: type[ConfigModel], number: Any) -> None:
    keys = list(whole_numbers(model))
    assert len(keys) > 5
    for key in keys:
        data: Any = number
        for part in reversed(key):
            data = {part: [data] if part in ("sources", "data") and data is not number else data}
        with pytest.raises(ConfigError) as found:
            load_as(model, data)
        shown = "(.0)?(.BalanceConfig)?[.]".join(key)
        lines = [line for line in str(found.value).splitlines() if re.search(f": {shown}(.int)?: ", line)]
        assert len(lines) == 1, f"{key}: {found.value}"
        assert len(lines[0]) < 400


def test_aliases_and_merge_keys(tmp_path: Path) -> None:
    text = GOOD.replace("  - name: web", "  - <<: *chat\n    name: web").replace(
        "  - name: chat", "  - &chat\n    name: chat"
    )
    config = load(tmp_path, text + "seed: &seed 3\npack: {max_docs: *seed}\n")
    assert [(one.name, one.format) for one in config.sources] == [("chat", "messages"), ("web", "text")]
    assert (config.seed, config.pack.max_docs) == (3, 3)


def test_every_mistake_is_told_at_once_and_nothing_else(tmp_path: Path) -> None:
    text = GOOD.replace("format: text", "format: csv").replace("1024", "0").replace("name: chat", "name: a b")
    lines = refusal(tmp_path, text).splitlines()
    assert [re.sub(r".*run\.yaml, (line \d+: [\w.]+): .*", r"\1", line) for line in lines] == [
        "line 5: sources.0.name",
        "line 9: sources.1.format",
        "line 12: truncate.max_length",
    ]


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("max_length", "truncate.max_length"),
        ("maxLength", "truncate.max_length"),
        ("max-length", "truncate.max_length"),
        ("strategy", "pack.strategy"),
        ("pack.max_length", "truncate.max_length"),
        ("truncate.max_lenght", "max_length"),
    ],
)
def test_a_key_in_the_wrong_section_is_named_with_its_section(key: str, meant: str, tmp_path: Path) -> None:
    config = kit.configure(tmp_path, "chats")
    with pytest.raises(ConfigError, match=re.escape(f"did you mean {meant}?")):
        load_config(config, None, [Setting(key, 512, "here")])


@pytest.mark.parametrize("name", ["chats.jsonl", "pairs.csv", "rows.parquet", "texts.txt", "chats.jsonl.gz"])
def test_data_in_place_of_a_configuration_is_called_that_whatever_else_is_given(name: str, tmp_path: Path) -> None:
    for options in ((), ("--tokenizer", "x"), ("--input", "y", "--out", "z")):
        done = kit.cli("run", name, *options, cwd=tmp_path)
        assert done.code == 2
        assert f"{name}: such a file holds data, not a configuration; give it with --input" in done.err
