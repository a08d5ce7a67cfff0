"""A stand-in for the Hugging Face Hub: a real HTTP server with those parts of its API that publishing and downloading a
dataset ask for, written from what huggingface_hub 2.4 sends and reads. It is not the Hub.

It has repositories of one branch, and faults on demand. Files come in the commit itself, as the Hub takes small ones.
It lets everybody in.
"""

import hashlib
import json
import re
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests.support.faulty import Handler

TOKEN = "hf_writer"


@dataclass(frozen=True)
class Commit:
    """A state of the files."""

    hash: str
    files: Mapping[str, bytes]


@dataclass
class Repository:
    """A dataset repository."""

    private: bool = False
    commits: list[Commit] = field(default_factory=list)

    def add(self, files: Mapping[str, bytes]) -> Commit:
        """Make a commit."""
        listing = sorted((path, _sha256(data)) for path, data in files.items())
        before = [one.hash for one in self.commits[-1:]]
        self.commits.append(Commit(hashlib.sha1(repr((before, listing)).encode()).hexdigest(), files))
        return self.commits[-1]

    def at(self, revision: str) -> Commit:
        """The commit of a hash, or the last one of `main`."""
        for commit in self.commits[::-1]:
            if revision in ("main", commit.hash):
                return commit
        raise _RefusedError(404, "RevisionNotFound")


class HubStandIn:
    """See the module; used as a context manager."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.asked: list[tuple[str, str]] = []
        """(method, path) of every request, in order."""
        self.fault: Callable[[str, str], int | None] = lambda method, path: None
        """Method and path → a status to answer with, or None."""
        self.tokens: set[str] = set()
        """Every token that was sent."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self._server.daemon_threads = True

    def __enter__(self) -> "HubStandIn":
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Its HF_ENDPOINT."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to take it for the Hub, and a token."""
        off = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
        on = ("HF_HUB_DISABLE_XET", "HF_HUB_DISABLE_TELEMETRY")
        switches = dict.fromkeys(off, "0") | dict.fromkeys(on, "1")
        return {"HF_ENDPOINT": self.url, "HF_TOKEN": TOKEN, "no_proxy": "127.0.0.1", **switches}

    def files(self, name: str) -> Mapping[str, bytes]:
        """What a repository holds."""
        return self.repositories[name].at("main").files

    def create(self, name: str, files: Mapping[str, bytes] | None = None, private: bool = False) -> Repository:
        """Make a repository as the Hub does: with one commit and one file, besides those that are given."""
        made = self.repositories[name] = Repository(private)
        made.add({".gitattributes": b"*.parquet filter=lfs diff=lfs merge=lfs -text\n", **(files or {})})
        return made


@contextmanager
def taken_for_the_hub(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[HubStandIn]:
    """The stand-in, which this process and its children take for the Hub; failures are followed by no pause.

    Args:
        folder: for what huggingface_hub and packtrain keep.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import _http

    with HubStandIn() as stand_in:
        places = {"HF_HOME": str(folder / "hf"), "PACKTRAIN_CACHE": str(folder / "cache")}
        for key, value in (stand_in.environment | places).items():
            monkeypatch.setenv(key, value)
        # What it reads from the environment when it is imported.
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "hf" / "token"))
        monkeypatch.setattr(_http, "time", SimpleNamespace(sleep=lambda seconds: None))
        yield stand_in


class _RefusedError(Exception):
    """(status, the Hub's code for it), and where what is wanted is there already, its URL"""


class _Handler(Handler):
    hub: HubStandIn

    def answer(self) -> None:
        split = urlsplit(self.path)
        path, body = unquote(split.path), self.body()
        self.hub.asked.append((self.command, path))
        self.hub.tokens |= {self.headers.get("Authorization", "").removeprefix("Bearer ")} - {""}
        try:
            if (fault := self.hub.fault(self.command, path)) is not None:
                raise _RefusedError(fault, "")
            recursive = parse_qs(split.query).get("recursive", [""])[0].lower() == "true"
            answer = self._answer(path.strip("/").split("/"), body, recursive)
        except _RefusedError as refused:
            status, code, *url = refused.args
            said = json.dumps({"error": code or "a fault", "url": "".join(url)}).encode()
            self.send(status, {"X-Error-Code": code} if code else {}, said)
            return
        if answer is not None:
            self.send(200, {"Content-Type": "application/json"}, json.dumps(answer).encode())

    def _answer(self, words: list[str], body: bytes, recursive: bool) -> Any:
        """What is said as JSON; None where a file was sent."""
        match self.command, words:
            case "POST", ["api", "validate-yaml"]:
                return {"errors": [], "warnings": []}
            case "POST", ["api", "repos", "create"]:
                asked = json.loads(body)
                name = f"{asked['organization'] or 'me'}/{asked['name']}"
                url = f"{self.hub.url}/datasets/{name}"
                if name in self.hub.repositories:
                    raise _RefusedError(409, "", url)
                self.hub.create(name, private=asked.get("visibility") == "private" or bool(asked.get("private")))
                return {"url": url, "name": name}
            case "GET" | "HEAD", ["datasets", owner, name, "resolve", revision, *path]:
                return self._resolve(self._repository(owner, name).at(revision), "/".join(path))
            case "GET", ["api", "datasets", owner, name, "tree", revision, *folder]:
                return _tree(self._repository(owner, name).at(revision), "/".join(folder), recursive)
            case "GET", ["api", "datasets", owner, name] | ["api", "datasets", owner, name, "revision", _]:
                repository = self._repository(owner, name)
                commit = repository.at(words[5] if words[5:] else "main")
                about = {"sha": commit.hash, "private": repository.private, "tags": []}
                return {"id": f"{owner}/{name}", "siblings": [{"rfilename": path} for path in commit.files], **about}
            case "POST", ["api", "datasets", owner, name, "preupload", _]:
                taken = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
                return {"files": [{"path": one["path"], **taken} for one in json.loads(body)["files"]]}
            case "POST", ["api", "datasets", owner, name, "commit", _]:
                made = self._repository(owner, name).add(self._changed(owner, name, body))
                url = f"{self.hub.url}/datasets/{owner}/{name}/commit/{made.hash}"
                return {"success": True, "commitOid": made.hash, "commitUrl": url}
        raise _RefusedError(404, "")

    def _repository(self, owner: str, name: str) -> Repository:
        if f"{owner}/{name}" not in self.hub.repositories:
            raise _RefusedError(404, "RepoNotFound")
        return self.hub.repositories[f"{owner}/{name}"]

    def _changed(self, owner: str, name: str, body: bytes) -> dict[str, bytes]:
        """The files after a commit."""
        files = dict(self.hub.files(f"{owner}/{name}"))
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                files[line["value"]["path"]] = b64decode(line["value"]["content"])
            elif line["key"] == "deletedFile":
                del files[line["value"]["path"]]
            else:
                assert line["key"] == "header", line
        return files

    def _resolve(self, commit: Commit, path: str) -> None:
        """Send a file, or a part of it."""
        if path not in commit.files:
            raise _RefusedError(404, "EntryNotFound")
        data = commit.files[path]
        headers = {"X-Repo-Commit": commit.hash, "ETag": f'"{_sha256(data)}"'}
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(match[1]), min(int(match[2] or len(data)), len(data) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            self.send(206, headers, data[first : last + 1])
        else:
            self.send(200, headers, data)


def _tree(commit: Commit, folder: str, recursive: bool) -> list[dict[str, Any]]:
    """The files and folders below a folder."""
    inside = f"{folder}/" if folder else ""
    folders = {path.rpartition("/")[0] for path in commit.files} - {"", folder}
    entries: list[dict[str, Any]] = [{"type": "directory", "path": one, "oid": "0", "size": 0} for one in folders]
    files = sorted(commit.files.items())
    entries += [{"type": "file", "path": path, "oid": _sha256(data), "size": len(data)} for path, data in files]
    below = (one for one in entries if one["path"].startswith(inside))
    return [one for one in below if recursive or "/" not in one["path"].removeprefix(inside)]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
