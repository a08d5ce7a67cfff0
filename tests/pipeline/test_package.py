"""The package as a whole: what importing it costs, who may import whom, and what a wheel holds."""

import ast
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import packtrain
import pytest

from tests.support.sources import FOLDERS, ROOT, trees

HEAVY = {"torch", "transformers", "datasets", "polars", "pandas", "pyarrow"}


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("packtrain", HEAVY | {"numpy", "pydantic", "tokenizers", "typer"}),
        ("packtrain.pipeline.cli", HEAVY),
        ("packtrain.pipeline.dataset.wait", HEAVY | {"pydantic", "tokenizers", "obstore"}),
    ],
)
def test_it_imports_nothing_heavy(module: str, heavy: set[str]) -> None:
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert heavy & set(done.stdout.split()) == set()


def test_every_public_name_is_there() -> None:
    assert packtrain.__all__ == sorted(packtrain.__all__)
    for name in packtrain.__all__:
        assert getattr(packtrain, name).__name__ == name
        assert name in dir(packtrain)
    with pytest.raises(AttributeError, match="module 'packtrain' has no attribute 'nosuch'"):
        getattr(packtrain, "nosuch")  # noqa: B009 - a type checker would see it


def test_the_versions_agree() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{packtrain.__version__}"' in text


# Who imports whom


def modules() -> list[tuple[str, ast.Module]]:
    """(dotted name below packtrain, its tree) of every module; a package is its own last part."""
    return [(".".join(path.with_suffix("").parts), tree) for path, tree in trees().items()]


def imports(module: str, tree: ast.AST) -> Iterator[str]:
    """What a module imports of ours, as dotted names below packtrain; "" is the package itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = module.split(".")[: -node.level]
            for alias in node.names:
                yield ".".join([*base, *(node.module.split(".") if node.module else [alias.name])])
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] != "packtrain", f"{module}: use a relative import"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                assert alias.name.partition(".")[0] != "packtrain", f"{module}: use a relative import"


MAY_IMPORT = {
    "schemas": {"schemas"},
    "stages": {"stages", "schemas"},
    "pipeline": {"pipeline", "stages", "schemas"},
    "training": {"training", "schemas"},
}
MEETING_POINTS = {"pipeline.cli": "training", "training.stream": "pipeline.stream"}
"""The two places that use both halves, with what each uses of the other one. `docs/architecture.md` has the rule."""
LAYERS = {
    "pipeline": (
        "cli",
        "stream",
        "judge",
        "samples",
        "export",
        "run",
        "report",
        "dataset",
        "pack",
        "encode",
        "inputs",
        "execute",
        "store",
    ),
    "stages": (
        "forecast",
        "pack",
        "select",
        "mask",
        "tokenize",
        "render",
        "template",
        "judge",
        "prep",
        "contamination",
    ),
    "training": ("trainer", "launch", "first_batch", "foreign", "preference", "attention", "models"),
    "schemas": ("report", "dataset", "config", "tables", "files", "models"),
}
"""A folder imports only the folders below it in the tables of `docs/architecture.md`."""


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_run_one_way(folder: str) -> None:
    seen = 0
    for module, tree in modules():
        if not module.startswith(f"{folder}."):
            continue
        seen += 1
        for name in imports(module, tree):
            if name in ("", "__version__"):
                continue
            allowed = MAY_IMPORT[folder] | {MEETING_POINTS[point] for point in MEETING_POINTS if is_in(module, point)}
            assert any(is_in(name, other) for other in allowed), f"{module} imports {name}"
    assert seen > 1, "nothing was looked at"


def is_in(module: str, folder: str) -> bool:
    """Whether a module is another one, or is in it."""
    return module == folder or module.startswith(f"{folder}.")


def imports_at_once(module: str, tree: ast.Module) -> Iterator[str]:
    """What a module imports when it is imported itself: neither inside functions nor for type checkers only."""
    statements: list[ast.stmt] = list(tree.body)
    while statements:
        statement = statements.pop()
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            continue
        yield from imports(module, statement) if isinstance(statement, ast.Import | ast.ImportFrom) else ()
        statements += [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)]


def test_meeting_points_import_the_other_half_when_they_need_it() -> None:
    """Either half runs without the packages of the other one, and nothing but a user stands above a meeting point."""
    uses = set()
    for module, tree in modules():
        for point, other_half in MEETING_POINTS.items():
            if not is_in(module, point):
                above = [name for name in imports_at_once(module, tree) if is_in(name, point)]
                assert not above, f"{module} imports {above}, where both halves meet"
                continue
            if any(is_in(name, other_half) for name in imports(module, tree)):
                uses.add(point)
            at_once = [name for name in imports_at_once(module, tree) if is_in(name, other_half)]
            assert not at_once, f"{module} imports {at_once} outside of functions"
    assert uses == set(MEETING_POINTS), "a meeting point that needs no other half"


def layer(name: str) -> int | None:
    """Which layer of its folder a module is in; None for one that stands beside them."""
    folder, _, rest = name.partition(".")
    inner = rest.partition(".")[0]
    return LAYERS[folder].index(inner) if inner in LAYERS.get(folder, ()) else None


def test_imports_point_down_within_a_folder() -> None:
    seen = set()
    for module, tree in modules():
        for name in imports(module, tree):
            ours, theirs = layer(module), layer(name)
            if name.partition(".")[0] == module.partition(".")[0] and ours is not None and theirs is not None:
                assert theirs >= ours, f"{module} imports {name}, which stands above it"
                seen.add(ours)
    assert len(seen) == max(len(one) for one in LAYERS.values()), "nothing was looked at"


def test_no_module_imports_itself_over_others() -> None:
    trees = {module.removesuffix(".__init__"): (module, tree) for module, tree in modules()}
    graph = {name: set(imports(*of)) & trees.keys() - {name} for name, of in trees.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_stages_and_schemas_touch_no_file_no_network_and_no_clock() -> None:
    forbidden = {"os", "pathlib", "io", "shutil", "socket", "subprocess", "tempfile", "time", "urllib", "random"}
    allowed = {
        ("schemas.config.section", "pathlib"),  # PurePath, which touches nothing
        ("stages.tokenize.engine_check", "random"),  # a generator of its own, from a fixed seed
    }
    for module, tree in modules():
        if not module.startswith(("stages", "schemas")) or module.startswith(("schemas.files.", "schemas.dataset.")):
            continue  # what the pipeline and training share that touches files
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("open", "print", "input"), f"{module} calls {node.func.id}"
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names.append(node.module or "")
            for name in names:
                top = name.partition(".")[0]
                assert top not in forbidden or (module, top) in allowed, f"{module} imports {name}"


def test_every_package_is_listed() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    found = {
        ".".join(["packtrain", *path.parent.relative_to(ROOT).parts])
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("__init__.py")
    }
    listed = set(re.findall(r'^    "(packtrain[\w.]*)",$', text, re.MULTILINE))
    assert listed == found | {"packtrain"}


# The wheel


@pytest.mark.slow
def test_a_wheel_runs_the_demo_in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)  # where these sources may be found
    # A copy: building writes beside the sources.
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in (*FOLDERS, "__init__.py", "py.typed", "pyproject.toml", "README.md", "LICENSE"):
        place = ROOT / name
        if place.is_dir():
            shutil.copytree(place, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(place, copy / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    no_network = ["--no-deps", "--no-index"]
    subprocess.run(
        [*pip, "wheel", str(copy), "--no-build-isolation", *no_network, "-w", str(tmp_path)], check=True, cwd=tmp_path
    )
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    fresh = tmp_path / "venv" / "bin" / "python"
    subprocess.run([*pip, "--python", str(fresh), "install", *no_network, str(wheel)], check=True, cwd=tmp_path)
    site, home = tmp_path / "venv" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages", tmp_path / "empty"
    # What it depends on comes from here. The .pth files over there are not read, so an editable packtrain is not found.
    (site / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    home.mkdir()
    assert (site / "packtrain" / "py.typed").exists()
    program = [str(fresh.parent / "packtrain"), "run", "--demo"]
    done = subprocess.run(program, cwd=home, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "is finished" in done.stdout
    assert [path.name for path in home.iterdir()] == ["runs"]
    assert not [path for path in (site / "packtrain").rglob("*") if path.name in ("tests", "conftest.py")]
