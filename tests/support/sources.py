"""The modules of the package as syntax trees, parsed once for all tests that read them."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("schemas", "stages", "pipeline", "training")


@cache
def trees() -> dict[Path, ast.Module]:
    """Every module by its path from the root; not to be changed."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(paths) > 100
    return {path.relative_to(ROOT): ast.parse(path.read_text(encoding="utf-8")) for path in paths}
