"""Packages in a folder of their own, which a process has before its other packages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def install_packages(folder: Path, packages: tuple[str, ...], **environment: str) -> None:
    """Install packages, without their dependencies. The test is skipped where that is not possible."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", str(folder)]
    done = subprocess.run(
        [*pip, *packages], env=os.environ | environment, capture_output=True, text=True, timeout=1800, check=False
    )
    if done.returncode:
        pytest.skip(f"{', '.join(packages[:3])}, ... cannot be installed: {done.stderr.strip()[-300:]}")


def run_with_packages(folder: Path, script: str, *arguments: object, **environment: str) -> str:
    """What a script prints, in a process whose first packages are those of a folder. Fails if the script does."""
    paths = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"} | environment,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
