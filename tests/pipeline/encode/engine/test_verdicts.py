"""The engine check over the fuzz texts runs once for a tokenizer and its versions, and its stored verdict is not
trusted blindly."""

import json
import os
import pwd
from collections.abc import Sequence
from pathlib import Path

import pytest
from packtrain.pipeline.encode.engine.verdicts import UserVerdicts
from packtrain.stages.tokenize import engines
from packtrain.stages.tokenize.engine_check import Resolution, check_texts, resolve_engine
from packtrain.stages.tokenize.engines import EngineTokens, FastokensEngine, TokenizersEngine

pytest.importorskip("fastokens")

FUZZ = 3000
"""A call that encodes at least this many texts encodes the fuzz texts."""


@pytest.fixture
def tokenizer(tiny_tokenizer: Path) -> str:
    """Content of a tokenizer.json."""
    return (tiny_tokenizer / "tokenizer.json").read_text()


@pytest.fixture
def fuzzed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets the number of texts whenever the reference encodes the fuzz texts."""
    calls: list[int] = []
    encode = TokenizersEngine.encode

    def counted(self: TokenizersEngine, texts: Sequence[str]) -> EngineTokens:
        if len(texts) > FUZZ:
            calls.append(len(texts))
        return encode(self, texts)

    monkeypatch.setattr(TokenizersEngine, "encode", counted)
    return calls


def resolve(tokenizer: str, folder: Path, samples: Sequence[str] = ("some text",)) -> Resolution:
    """Chooses an engine with the verdicts of a folder."""
    return resolve_engine("auto", tokenizer, lambda: samples, check=UserVerdicts(tokenizer, folder).check)


def note(folder: Path) -> Path:
    """The only note in a folder."""
    (path,) = folder.iterdir()
    return path


class Wrong(FastokensEngine):
    """Wrong on a line's end of Windows, and on one word that no fuzz text has."""

    def encode(self, texts: Sequence[str]) -> EngineTokens:
        return super().encode([text.replace("\r\n", "\n").replace("MOON", "MOO") for text in texts])


class Sly(FastokensEngine):
    """Wrong on one word that no fuzz text has."""

    def encode(self, texts: Sequence[str]) -> EngineTokens:
        return super().encode([text.replace("MOON", "MOO") for text in texts])


def test_a_second_data_set_does_not_encode_the_fuzz_texts(tokenizer: str, tmp_path: Path, fuzzed: list[int]) -> None:
    first = resolve(tokenizer, tmp_path)
    assert len(fuzzed) == 1
    second = resolve(tokenizer, tmp_path)
    assert len(fuzzed) == 1
    assert (second.name, second.version, second.tried) == (first.name, first.version, first.tried)
    assert first.name == "fastokens"


def test_a_run_keeps_its_verdict_in_the_cache_of_the_user(
    tmp_path: Path, tiny_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from packtrain.pipeline.run.driver import run

    monkeypatch.setenv("PACKTRAIN_CACHE", str(tmp_path / "user"))
    seen = []
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": f"a line of {name}"}) + "\n")
        source = {"name": name, "format": "text", "path": str(tmp_path / f"{name}.jsonl")}
        config = {
            "out": str(tmp_path / name),
            "cache": str(tmp_path / f"cache-{name}"),
            "tokenizer": {"path": str(tiny_tokenizer)},
            "sources": [source],
            "truncate": {"max_length": 64},
            "run": {"workers": 1, "report": False},
        }
        assert run(config).plan["encode"]["engine"] == "fastokens"
        seen.append(note(tmp_path / "user" / "engine-checks").stat().st_ino)
    assert seen[0] == seen[1]


def test_the_persons_own_text_is_always_compared(
    tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "ENGINES", {"fastokens": Sly, "tokenizers": TokenizersEngine})
    assert resolve(tokenizer, tmp_path).name == "fastokens"
    found = resolve(tokenizer, tmp_path, ["fine", "the MOON"])
    assert found.name == "tokenizers"
    assert "'the MOON'" in found.tried[0][1]


class Checks:
    """The check of a few texts with the verdicts of a folder; `compared` is how often the engine was."""

    def __init__(self, tokenizer: str, folder: Path) -> None:
        self.tokenizer, self.folder, self.compared = tokenizer, folder, 0
        self.engine, self.reference = FastokensEngine(tokenizer), TokenizersEngine(tokenizer)
        encode = self.engine.encode

        def counted(texts: Sequence[str]) -> EngineTokens:
            self.compared += 1
            return encode(texts)

        self.engine.encode = counted  # type: ignore[method-assign]

    def __call__(self, *texts: str, tokenizer: str | None = None) -> int:
        """Check, and say how often the engine has been compared."""
        verdicts = UserVerdicts(tokenizer or self.tokenizer, self.folder, compare=check_texts)
        verdict = verdicts.check(self.engine, self.reference, texts or ("a", "b c"))
        assert verdict.differing == 0
        return self.compared


@pytest.fixture
def checks(tokenizer: str, tmp_path: Path) -> Checks:
    return Checks(tokenizer, tmp_path / "checks")


def test_another_tokenizer_version_text_or_engine_is_compared_again(
    checks: Checks, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [checks(), checks()] == [1, 1]
    assert checks(tokenizer=tokenizer + " ") == 2
    assert checks("a", "b c", "d") == 3
    for one in (checks.engine, checks.reference):
        monkeypatch.setattr(one, "version", one.version + ".post1")
        before = checks.compared
        assert [checks(), checks()] == [before + 1, before + 1]


def test_an_engine_that_takes_anothers_name_has_not_its_verdict(
    tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert resolve(tokenizer, tmp_path).name == "fastokens"
    monkeypatch.setattr(engines, "ENGINES", {"fastokens": Wrong, "tokenizers": TokenizersEngine})
    assert resolve(tokenizer, tmp_path).name == "tokenizers"


def test_a_damaged_or_misplaced_note_is_not_believed(checks: Checks, tokenizer: str) -> None:
    assert checks() == 1
    path = note(checks.folder)
    whole = path.read_bytes()
    damages = (b"", whole[:-1], whole.replace(b'"differing":0', b'"differing":9'), b"{}", b"\xff" * 100_000)
    for count, content in enumerate(damages, 2):
        assert content != whole
        path.write_bytes(content)
        assert checks() == count
        assert path.read_bytes() == whole
    count = checks(tokenizer=tokenizer + " ")
    (second,) = set(checks.folder.iterdir()) - {path}
    second.replace(path)  # a sealed note, under the name of another tokenizer's
    assert checks() == count + 1


def test_what_others_may_have_written_is_not_believed(checks: Checks) -> None:
    count = checks()
    path = note(checks.folder)
    whole = path.read_bytes()
    for place, mode in ((path, 0o666), (checks.folder, 0o777)):
        before = place.stat().st_mode
        place.chmod(mode)
        count += 1
        assert checks() == count
        place.chmod(before)
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
        count += 1
        assert checks() == count
    path.unlink()
    os.mkfifo(path)  # would block whoever opens it
    assert checks() == count + 1
    assert path.read_bytes() == whole


def test_a_link_in_the_place_of_the_folder_is_not_followed(tokenizer: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "checks").symlink_to("elsewhere")
    checks = Checks(tokenizer, tmp_path / "checks")
    assert [checks(), checks()] == [1, 2]
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_cache_that_cannot_be_written_costs_time_only(tokenizer: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    checks = Checks(tokenizer, tmp_path / "file" / "checks")
    assert [checks(), checks()] == [1, 2]


def test_a_user_without_a_home_has_no_cache(tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PACKTRAIN_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    def unknown(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert resolve_engine("auto", tokenizer, list, check=UserVerdicts(tokenizer).check).name == "fastokens"
