"""Names that no file has, a folder that is gone, conditions that end polars: each is said in a sentence."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit import cli, configure, merged, saved, source
from tests.support.hostile import patience

NUL = "a\0b"
KEYS: tuple[dict[str, Any], ...] = (
    {"out": NUL},
    {"cache": NUL},
    {"tokenizer": {"path": NUL}},
    {"tokenizer": {"chat_template": NUL}},
    {"sources": [{**source("texts"), "path": NUL}]},
    {"sources": [{**source("texts"), "path": f"{NUL}*"}]},
    {"contamination": {"against": [NUL]}},
)


@pytest.mark.parametrize("keys", KEYS, ids=lambda keys: next(iter(keys)))
def test_a_name_with_a_nul_character_is_refused(tmp_path: Path, keys: dict[str, Any]) -> None:
    file = tmp_path / "nul.json"
    file.write_text(json.dumps(merged(configure(tmp_path, "texts"), keys)))
    done = cli("run", file)
    assert done.code == 2, done
    assert "a\\x00b" in done.err.replace("\n", "")


def test_a_folder_that_is_gone_is_said(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"cd {gone} && rmdir {gone} && exec {sys.executable} -c '{PROGRAM}' verify x"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done
    assert "the working directory is gone" in done.stderr


PROGRAM = "from packtrain.pipeline.cli.main import main; main()"


CONDITIONS = (
    "text = 'a'" + " AND text = 'a'" * 20_000,
    "LENGTH(text) > 1" + "+1" * 8_000,
    "NOT " * 50_000 + "text = 'a'",
    "LPAD(text, 9223372036854775807, 'a') = 'a'",
    "text = '" + "a" * (1 << 21) + "'",
)


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda text: text[:12])
def test_a_condition_that_would_end_polars_is_refused(tmp_path: Path, condition: str) -> None:
    pytest.importorskip("polars")
    config = configure(tmp_path, {**source("texts"), "where": condition})
    with patience(120):
        done = cli("run", saved(config))
    assert done.code == 2, done
    assert "cannot be used" in done.err


def test_a_long_list_is_taken(tmp_path: Path) -> None:
    pytest.importorskip("polars")
    names = ", ".join(f"'{number} - (a + b)'" for number in range(3_000))
    config = configure(tmp_path, {**source("texts"), "where": f"text NOT IN ({names})"})
    assert cli("run", saved(config)).code == 0
