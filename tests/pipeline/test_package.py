"""The package as a whole: what importing it costs, who may import whom, and what a wheel holds."""

import ast
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from graphlib import TopologicalSorter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import packtrain
import pytest

from tests.support.sources import FOLDERS, ROOT, trees

HEAVY = {"torch", "transformers", "datasets", "polars", "pandas", "pyarrow", "numpy", "pydantic", "tokenizers", "typer"}


# Importing


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


def test_importing_it_imports_nothing_heavy() -> None:
    done = python("import sys, packtrain; print(*{name.partition('.')[0] for name in sys.modules})")
    assert HEAVY & set(done.stdout.split()) == set()


def test_the_command_line_starts_without_anything_heavy() -> None:
    done = python("import sys, packtrain.pipeline.cli; print(*{name.partition('.')[0] for name in sys.modules})")
    assert {"torch", "transformers", "datasets", "pandas", "polars", "pyarrow"} & set(done.stdout.split()) == set()


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
LAZILY = {
    "pipeline.cli.export": {"training"},
    "pipeline.cli.loader": {"training"},
    "pipeline.cli.options": {"training"},
    "pipeline.cli.samples": {"training"},
    "pipeline.cli.training": {"training"},
    "training.stream": {"pipeline.stream"},
}
"""What these modules import besides, and only when it is needed: inside a function."""
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
    "stages": ("forecast", "pack", "select", "mask", "tokenize", "template", "judge", "prep", "overlap"),
    "training": ("trainer", "launch", "attention"),
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
            allowed = MAY_IMPORT[folder] | LAZILY.get(module, set())
            assert any(name == one or name.startswith(f"{one}.") for one in allowed), f"{module} imports {name}"
    assert seen > 1, "nothing was looked at"


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


def test_every_folder_is_small_and_says_what_it_holds() -> None:
    folders = {path.parent for top in FOLDERS for path in (ROOT / top).rglob("*.py")}
    assert {f"{top}/{inner}" for top, all_of in LAYERS.items() for inner in all_of} <= {
        str(folder.relative_to(ROOT)) for folder in folders
    }
    for folder in folders:
        assert len(list(folder.glob("*.py"))) <= 21, f"{folder}: 20 files and __init__ are enough"
        assert ast.get_docstring(trees()[(folder / "__init__.py").relative_to(ROOT)]), folder


@pytest.mark.parametrize("module", LAZILY)
def test_what_is_imported_lazily_is_not_imported_at_once(module: str) -> None:
    tree = trees()[Path(f"{module.replace('.', '/')}.py")]
    inside = [name for name in imports(module, tree) if name.startswith(tuple(LAZILY[module]))]
    top = ast.Module([node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)], [])
    at_once = [name for name in imports(module, top) if name.startswith(tuple(LAZILY[module]))]
    assert at_once == []
    assert inside


def test_stages_and_schemas_touch_no_file_no_network_and_no_clock() -> None:
    forbidden = {
        "os",
        "pathlib",
        "io",
        "shutil",
        "socket",
        "subprocess",
        "tempfile",
        "time",
        "urllib",
        "requests",
        "random",
    }
    allowed = {
        ("schemas.config.section", "pathlib"),  # PurePath, which touches nothing
        ("stages.tokenize.engine_check", "random"),  # a generator of its own, from a fixed seed
    }
    for module, tree in modules():
        if not module.startswith(("stages", "schemas")) or module.startswith("schemas.files."):
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


PYDANTIC = (
    "schemas.config.config", "schemas.config.section", "schemas.config.source",
    "pipeline.configfile", "training.trainer.train_config", "training.trainer.train",
)  # fmt: skip


def test_pydantic_stays_in_the_configuration() -> None:
    for module, tree in modules():
        names = {
            (node.module or "").partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and not node.level
        }
        assert "pydantic" not in names or module in PYDANTIC, module


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


def _built_with() -> str:
    try:
        return version("setuptools")
    except PackageNotFoundError:
        return "0"


@pytest.mark.slow
@pytest.mark.skipif(int(_built_with().partition(".")[0]) < 77, reason="building needs setuptools 77 or later")
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
    site = subprocess.run(
        [fresh, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    # What it depends on comes from here. The .pth files over there are not read, so an editable packtrain is not found.
    Path(site, "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    home = subprocess.run(
        [fresh, "-c", "import packtrain; print(packtrain.__file__)"],
        cwd=empty,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert Path(home).is_relative_to(site)
    assert (Path(home).parent / "py.typed").exists()
    done = subprocess.run(
        [fresh.parent / "packtrain", "run", "--demo"], cwd=empty, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "is finished" in done.stdout
    assert [path.name for path in empty.iterdir()] == ["runs"]
    assert not [path for path in Path(home).parent.rglob("*") if "tests" in path.parts or path.name == "conftest.py"]


def test_the_fixture_of_this_folder_calls_what_the_script_calls(packtrain: Callable[..., Any]) -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert 'packtrain = "packtrain.pipeline.cli.main:main"' in text
    assert packtrain("--version").code == 0
