"""Reading a configuration: what is wrong is said with file, line and key, and what would be right."""

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import pytest
from packtrain.pipeline.configfile import load_as, load_config
from packtrain.schemas.config.config import RunConfig
from packtrain.schemas.errors import ConfigError
from packtrain.training.trainer.config import TrainConfig
from pydantic import BaseModel

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


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(GOOD)
    config, base = load_config(tmp_path / "run.yaml")
    assert base == tmp_path
    assert (config.out, config.truncate.max_length) == ("runs/first", 1024)
    assert [source.path for source in config.sources] == [("a.jsonl", "b.jsonl"), ("c.jsonl",)]


def test_a_relative_file_starts_paths_at_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "run.yaml").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    assert load_config("deep/run.yaml")[1] == tmp_path / "deep"
    assert load_config("deep/run.yaml", base=tmp_path)[1] == tmp_path


def test_plain_data_and_finished_configurations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load(tmp_path, GOOD)
    again, base = load_config(config.model_dump())
    assert (again, base) == (config, tmp_path)
    assert load_config(config) == (config, tmp_path)
    assert load_config(config, tmp_path / "x") == (config, tmp_path / "x")
    with pytest.raises(ConfigError, match="overrides need a configuration that is not yet validated"):
        load_config(config, None, ["seed=1"])


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
    ("pack.shuffle=false", "pack.shuffle", False),
    ("pack.max_docs=null", "pack.max_docs", None),
    ("output.shard_bytes=1MiB", "output.shard_bytes", 2**20),
    ("out=a=b", "out", "a=b"),
    (" seed =5", "seed", 5),
    ("out='5'", "out", "5"),
    ("tokenizer.date=2024-07-26", "tokenizer.date", "2024-07-26"),
    ("sources.1.name=books", "sources.1.name", "books"),
    ("sources.0.path.1=z.jsonl", "sources.0.path", ("a.jsonl", "z.jsonl")),
    ("sources.0.path=[z.jsonl]", "sources.0.path", ("z.jsonl",)),
    ("sources.0.keys={messages: talk}", "sources.0.keys", {"messages": "talk"}),
    ("sources.0.keys.messages=talk", "sources.0.keys", {"messages": "talk"}),
    ("tokenizer.chat_template={{ x }}", "tokenizer.chat_template", "{{ x }}"),
    ("tokenizer.chat_template={% for", "tokenizer.chat_template", "{% for"),
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
    mask = load(tmp_path, GOOD, "mask=assistant", "mask.prove=sampling").mask
    assert (mask.policy, mask.prove) == ("assistant", "sampling")


def test_a_later_override_wins(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD, "seed=1", "seed=2").seed == 2


BAD_OVERRIDES = [
    ("nothing", "--set nothing: write key.path=value, such as truncate.max_length=4096"),
    ("=5", "--set =5: write key.path=value"),
    (".=5", "--set .=5: the key has an empty part"),
    ("a..b=5", "--set a..b=5: the key has an empty part"),
    ("sources.2.name=x", "--set sources.2.name=x: there is no item '2' in a list of 2; count from 0"),
    ("sources.-1.name=x", "there is no item '-1' in a list of 2; count from 0"),
    ("sources.chat.name=x", "there is no item 'chat' in a list of 2; count from 0"),
    ("sources.0.path.0.x=1", "'x' is below 'a.jsonl', which has no keys"),
    ("sources.2=x", "there is no item '2' in a list of 2"),
    ("trunc.max_length=3", "trunc: there is no such key; did you mean truncate?"),
    (
        "truncate.max_lenght=3",
        "--set truncate.max_lenght=3: truncate.max_lenght: there is no such key; did you mean max_length?",
    ),
    ("truncate=5", "--set truncate=5: truncate: input should be"),
    ("pack.shuffle=perhaps", "pack.shuffle: input should be true or false (got 'perhaps')"),
    ("holdout.fraction=half", "holdout.fraction: input should be a number (got 'half')"),
    ("mask=asistant", "'last_assistant' or 'all' (got 'asistant'); did you mean assistant?"),
    ("mask=xyz", "'last_assistant' or 'all' (got 'xyz')"),
    ("run.memory=12 cows", "run.memory: '12 cows' is not a size; write 256MiB"),
    ("run.memory=inf", "run.memory: 'inf' is not a size"),
    ("out=5", "--set out=5: out: input should be a valid string (got 5)"),
]


@pytest.mark.parametrize(("override", "what"), BAD_OVERRIDES)
def test_bad_overrides_say_what_is_wrong(tmp_path: Path, override: str, what: str) -> None:
    assert what in refusal(tmp_path, GOOD, override)


BAD_FILES = [
    (
        GOOD.replace("truncate:", "trunctate:"),
        "run.yaml, line 11: trunctate: there is no such key; did you mean truncate?",
    ),
    (GOOD.replace("max_length", "length"), "line 12: truncate.length: there is no such key; did you mean max_length?"),
    (
        GOOD + "zzz: 1\n",
        "line 13: zzz: there is no such key; known keys: version, seed, out, cache, tokenizer, sources",
    ),
    (GOOD.replace("  path: tok", "  engine: auto"), "line 2: tokenizer.path: is required but missing"),
    (GOOD.replace("out: runs/first\n", ""), "run.yaml: out: is required but missing"),
    (
        GOOD.replace("format: text", "format: csv"),
        "line 9: sources.1.format: input should be auto, messages, ",
    ),
    (
        GOOD.replace("format: text", "formt: text"),
        "line 9: sources.1.formt: there is no such key; did you mean format?",
    ),
    (GOOD.replace("1024", "1"), "line 12: truncate.max_length: input should be greater than or equal to 2 (got 1)"),
    (GOOD.replace("1024", "4k"), "line 12: truncate.max_length: input should be a whole number (got '4k')"),
    (GOOD.replace("1024", "1.5"), "line 12: truncate.max_length: input should be a whole number (got 1.5)"),
    (GOOD.replace("1024", "[1, 2]"), "line 12: truncate.max_length: input should be a whole number"),
    (GOOD.replace("name: web", "name: chat"), "two sources are called 'chat'; give each its own name"),
    (GOOD.replace("name: web", "name: no"), "line 8: sources.1.name: input should be a valid string (got False)"),
    (GOOD.replace("[a.jsonl, b.jsonl]", "5"), "line 7: sources.0.path: input should be a list (got 5)"),
    (
        GOOD.replace("[a.jsonl, b.jsonl]", "[a.jsonl, 5]"),
        "line 7: sources.0.path.1: input should be a valid string (got 5)",
    ),
    (GOOD + "out: runs/second\n", "run.yaml, line 13: out is set again (see line 1)"),
    (
        GOOD.replace("    path: c.jsonl", "    path: c.jsonl\n    path: d.jsonl"),
        "line 11: sources.1.path is set again",
    ),
    (GOOD + "pack: {strategy: wrapped, max_docs: 2}\n", "pack.strategy wrapped cuts anywhere"),
    ("", "a configuration is a mapping of keys to values, such as `out: runs/first`"),
    ("- a\n- b\n", "a configuration is a mapping"),
    ("just words\n", "a configuration is a mapping"),
    ("out: [1, 2\nseed: 3\n", "run.yaml, line 2: this is not YAML: "),
    ("out: 'a\n", "this is not YAML: "),
    ("\tout: a\n", "run.yaml, line 1: this is not YAML: "),
    ("tokenizer:\n\tpath: a\n", "; indent with spaces, because YAML allows no tabs there"),
    (
        GOOD.replace("    path: c.jsonl", "    file: c.jsonl"),
        "sources.1.file: there is no such key; did you mean path?",
    ),
    (GOOD.replace("    path: c.jsonl", "    pth: c.jsonl"), "sources.1.pth: there is no such key; did you mean path?"),
    ("out: a\x00b\n", "this is not YAML: "),
    ("? [a, b]\n: c\n", "this is not YAML: "),
    ("a: !!python/object/apply:os.system [ls]\n", "this is not YAML: could not determine a constructor"),
    ("a: &a\n  b: *a\n", "an alias (*name) stands inside its own anchor (&name); write it out"),
    ("a: " + "[" * 2000, "nested too deeply"),
    ("1: x\n", "1"),
    (
        "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)),
        "its aliases (*name) repeat more than 100,000 values; write out what is meant",
    ),
    (
        "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 10)),
        "its aliases (*name) repeat more than 100,000 values",
    ),
    ("a: &a\n  <<: *a\n", "an alias (*name) stands inside its own anchor"),
    (GOOD + f"seed: {'9' * 5000}\n", "run.yaml, line 13: a number of 5,000 digits"),
    (GOOD + f"seed: 0x{'f' * 5000}\n", "run.yaml, line 13: a number of 5,002 digits"),
    (GOOD + f"seed: {'1:' * 3000}59\n", "a number of 6,002 digits"),
    (GOOD + f"seed: '{'9' * 5000}'\n", "line 13: seed: input should be a smaller whole number (got '9999"),
    (GOOD + "seed: 1000000000000000000000000\n", "line 13: seed: input should be less than 9223372036854775808"),
    (GOOD.replace("1024", "1" + "0" * 30), "truncate.max_length: input should be less than or equal to 16777216"),
    (GOOD + "seed: !!int x\n", "this is not YAML: "),
    ("a: x\n" * 1_000_000, "it has more than 4,194,304 characters"),
]


@pytest.mark.parametrize(("text", "what"), BAD_FILES, ids=range(len(BAD_FILES)))
def test_bad_files_say_where_and_what(tmp_path: Path, text: str, what: str) -> None:
    message = refusal(tmp_path, text)
    assert what in message
    assert str(tmp_path / "run.yaml") in message
    assert "pydantic" not in message


def test_data_is_not_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"messages": []}\n')
    with pytest.raises(
        ConfigError, match=r"rows\.jsonl: a \.jsonl file holds data.* give it with --format and --input"
    ):
        load_config(tmp_path / "rows.jsonl")


def whole_numbers(model: type[BaseModel], where: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The keys of a configuration that hold one whole number."""
    for name, field in model.model_fields.items():
        for kind in (field.annotation, *get_args(field.annotation)):
            if kind is int:
                yield (*where, name)
            elif isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from whole_numbers(kind, (*where, name))


@pytest.mark.parametrize("model", [RunConfig, TrainConfig])
@pytest.mark.parametrize(
    "number",
    [10**30, -(10**30), 10**5000, float("inf"), "9" * 5000],
    ids=["large", "small", "5,001 digits", "infinite", "text"],
)
def test_every_whole_number_has_bounds(model: type[BaseModel], number: Any) -> None:
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


def test_every_mistake_is_told_at_once_and_nothing_else(tmp_path: Path) -> None:
    text = GOOD.replace("format: text", "format: csv").replace("1024", "0").replace("name: chat", "name: a b")
    lines = refusal(tmp_path, text).splitlines()
    assert [re.sub(r".*run\.yaml, (line \d+: [\w.]+): .*", r"\1", line) for line in lines] == [
        "line 5: sources.0.name",
        "line 9: sources.1.format",
        "line 12: truncate.max_length",
    ]


def test_a_needed_key_that_is_misspelt_is_told_once(tmp_path: Path) -> None:
    refused = refusal(tmp_path, GOOD.replace("sources:", "source:")).splitlines()
    assert refused == [f"{tmp_path}/run.yaml, line 4: source: there is no such key; did you mean sources?"]
    both = refusal(tmp_path, GOOD.replace("sources:", "xyz:")).splitlines()
    assert len(both) == 2, "an unrelated key does not replace it"
    assert any(line.endswith("sources: is required but missing") for line in both)


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no configuration .*no\.yaml; check the spelling, or the folder"):
        load_config(tmp_path / "no.yaml")
    with pytest.raises(ConfigError, match=r" is a folder; the configuration is a YAML file"):
        load_config(tmp_path)
    (tmp_path / "run.yaml").write_bytes(b"out: \xff\n")
    with pytest.raises(ConfigError, match=r"cannot be read: .*invalid start byte"):
        load_config(tmp_path / "run.yaml")


def test_yaml_means_what_people_mean(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD.replace("path: tok", "path: tok\n  date: 2024-07-26") + "output: {shard_bytes: 1e6}\n")
    assert config.tokenizer.date == "2024-07-26"
    assert config.output.shard_bytes == 10**6


def test_an_anchor_may_be_used_twice(tmp_path: Path) -> None:
    text = GOOD.replace("[a.jsonl, b.jsonl]", "&files [a.jsonl, b.jsonl]").replace("c.jsonl", "*files")
    assert load(tmp_path, text).sources[1].path == ("a.jsonl", "b.jsonl")


def test_every_shipped_configuration_loads() -> None:
    shipped = [Path(str(files("packtrain.pipeline.demo") / "demo.yaml"))]
    shipped += sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
    for path in shipped:
        config, base = load_config(path)
        assert config.out
        assert base == path.parent
