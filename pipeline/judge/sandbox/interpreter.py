"""A Python that a sandbox can show to programs: its executable, its standard library, the shared objects these load."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ....schemas.errors import ConfigError

_PROBE = """
import ctypes, glob, json, os, sys, sysconfig
paths = sysconfig.get_paths()
for extension in glob.glob(os.path.join(sysconfig.get_config_var("DESTSHARED") or "", "*.so")):
    try:
        ctypes.CDLL(extension)
    except OSError:
        pass
names = []
class Info(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]
def seen(info, size, data):
    names.append(os.fsdecode(info.contents.name or b""))
    return 0
called = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)
ctypes.CDLL(None).dl_iterate_phdr(called(seen), None)
print(json.dumps({
    "version": sys.version.split()[0], "files": names,
    "folders": sorted({paths["stdlib"], paths["platstdlib"]}),
}))
"""
"""Prints where the standard library is, and the paths from which its shared objects are loaded. The sandbox shows them
under the same paths, because it has no /etc and so no loader cache."""

_OTHERS = ("/usr/bin/python3", "/usr/local/bin/python3")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """All that it takes to run Python, as absolute paths."""

    executable: str
    version: str
    library: str
    """The folder of the standard library."""
    packages: tuple[str, ...]
    """Folders in it that hold packages which were installed: not to be shown."""
    objects: tuple[str, ...]
    """Shared objects outside of `library`, by the names that the loader uses; some are links."""

    def readable(self) -> list[str]:
        """Files and folders without links and without installed packages, for a sandbox that works by rules."""
        inside = [entry.path for entry in os.scandir(self.library) if entry.path not in self.packages]
        return [*inside, *(os.path.realpath(path) for path in (self.executable, *self.objects))]

    def environment(self, folder: str) -> dict[str, str]:
        """All variables that a program sees; `folder` is the one that it may write to."""
        places = dict.fromkeys(str(Path(path).parent) for path in self.objects)
        return {"LD_LIBRARY_PATH": ":".join(places), "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"}

    def command(self, code: str) -> list[str]:
        return [self.executable, "-I", "-S", "-B", "-X", "utf8", "-c", code]


@cache
def find_interpreter(uid: int | None = None) -> Interpreter:
    """The Python that runs this; with `uid`, one that this other user may read, which a Python under /root is not.

    Raises ConfigError if there is none.
    """
    tried = []
    for executable in (os.path.realpath(sys.executable), *_OTHERS):
        done = subprocess.run(
            [executable, "-I", "-S", "-c", _PROBE],
            capture_output=True, check=False, cwd="/", user=uid, group=uid, extra_groups=None if uid is None else [],
        ) if _may_run(executable, uid) else None  # fmt: skip
        if done and done.returncode == 0:
            found = json.loads(done.stdout)
            library = os.path.realpath(found["folders"][0])
            objects = dict.fromkeys(
                name for name in (*found["files"], *_loader()) if name.startswith("/") and not _within(name, library)
            )
            packages = tuple(str(path) for path in Path(library).glob("*-packages"))
            return Interpreter(executable, found["version"], library, packages, tuple(objects))
        tried.append(executable)
    raise ConfigError(
        f"no Python found that an unprivileged user may read (tried {', '.join(tried)}): install Python where everyone "
        "may read it, such as /usr, or use bubblewrap"
    )


def _may_run(executable: str, uid: int | None) -> bool:
    """Whether this user gets to the executable; asked of the system, by trying to run it."""
    try:
        return not subprocess.run(
            [executable, "-I", "-S", "-c", "import sys; sys.exit(sys.version_info < (3, 11))"],
            capture_output=True, check=False, cwd="/", user=uid, group=uid, extra_groups=None if uid is None else [],
        ).returncode  # fmt: skip
    except OSError:
        return False


def _within(path: str, folder: str) -> bool:
    return os.path.realpath(path).startswith(f"{folder}/")


def _loader() -> list[str]:
    """The dynamic loader, by the name that executables ask for: x86-64 and ARM, glibc and musl."""
    names = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-x86_64.so.1",
             "/lib/ld-musl-aarch64.so.1")  # fmt: skip
    return [name for name in names if Path(name).exists()]
