"""A stand-in for the Hugging Face Hub: a real HTTP server with those parts of its API that publishing and downloading a
dataset ask for, written from what huggingface_hub 2.4 sends and reads. It is not the Hub.

It has repositories with branches, faults on demand, and keeps every file by its SHA-256, as the Hub keeps large ones
(the LFS protocol, not Xet). It lets everybody in.
"""

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

TOKEN = "hf_writer"
Fault = Callable[[str, str], int | None]
"""Method and path → a status to answer with, or None."""


@dataclass(frozen=True)
class Commit:
    """A state of a branch."""

    hash: str
    files: Mapping[str, bytes]


@dataclass
class Repository:
    """A dataset repository."""

    private: bool
    branches: dict[str, list[Commit]]

    def at(self, revision: str) -> Commit | None:
        """The commit of a branch or hash."""
        if revision in self.branches:
            return self.branches[revision][-1]
        return next((one for all in self.branches.values() for one in all if one.hash == revision), None)

    def add(self, branch: str, files: Mapping[str, bytes]) -> Commit:
        """Put a commit on a branch."""
        before = [one.hash for one in self.branches[branch][-1:]]
        listing = sorted((path, _sha256(data)) for path, data in files.items())
        commit = Commit(hashlib.sha1(repr((before, listing)).encode()).hexdigest(), files)
        self.branches[branch].append(commit)
        return commit


class HubStandIn:
    """See the module; used as a context manager."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        """What was uploaded, by SHA-256, whether a commit names it or not."""
        self.asked: list[tuple[str, str]] = []
        """(method, path) of every request, in order."""
        self.fault: Fault = lambda method, path: None
        self.tokens: set[str] = set()
        """Every token that was sent."""
        stand_in = self

        class Handler(_Handler):
            hub = stand_in

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
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
        return {
            "HF_ENDPOINT": self.url,
            "HF_TOKEN": TOKEN,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_OFFLINE": "0",
            "TRANSFORMERS_OFFLINE": "0",
            "HF_DATASETS_OFFLINE": "0",
            "no_proxy": "127.0.0.1",
        }

    def files(self, name: str, revision: str = "main") -> Mapping[str, bytes]:
        """What a branch holds."""
        commit = self.repositories[name].at(revision)
        assert commit is not None
        return commit.files

    def create(self, name: str, files: Mapping[str, bytes] | None = None, private: bool = False) -> Repository:
        """Make a repository as the Hub does: with one commit and one file, besides those that are given."""
        made = self.repositories[name] = Repository(private, {"main": []})
        made.add("main", {".gitattributes": b"*.parquet filter=lfs diff=lfs merge=lfs -text\n", **(files or {})})
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


class _Handler(BaseHTTPRequestHandler):
    hub: HubStandIn
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else the second part of an answer waits for a confirmation, often 40 ms

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing is printed."""

    def _serve(self) -> None:
        split = urlsplit(self.path)
        self.hub.asked.append((self.command, unquote(split.path)))
        fault = self.hub.fault(self.command, unquote(split.path))
        body = self._body()
        self.hub.tokens |= {self.headers.get("Authorization", "").removeprefix("Bearer ")} - {""}
        try:
            if fault is not None:
                raise _RefusedError(fault, "")
            words = [unquote(word) for word in split.path.strip("/").split("/")]
            recursive = parse_qs(split.query).get("recursive", [""])[0].lower() == "true"
            answer = self._answer(words, body, recursive)
        except _RefusedError as refused:
            status, code, *url = refused.args
            said = {"error": code or "a fault", "url": "".join(url)}
            self._send(json.dumps(said).encode(), status, {"X-Error-Code": code} if code else {})
            return
        if answer is not None:
            self._send(json.dumps(answer).encode(), 200, {"Content-Type": "application/json"})

    do_GET = do_HEAD = do_POST = do_PUT = _serve  # noqa: N815 - as http.server wants them

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        out = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            out += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return out

    def _send(self, body: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _answer(self, words: list[str], body: bytes, recursive: bool) -> Any:
        """What is said as JSON; None where a file was sent."""
        match self.command, words:
            case "PUT", ["storage", oid]:
                if _sha256(body) != oid:
                    raise _RefusedError(400, "AnotherHash")
                self.hub.objects[oid] = body
                return {}
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
            case "POST", ["datasets", owner, git, "info", "lfs", "objects", "batch"]:
                self._repository(owner, git.removesuffix(".git"))
                return {"transfer": "basic", "objects": [self._upload(one) for one in json.loads(body)["objects"]]}
            case "GET" | "HEAD", ["datasets", owner, name, "resolve", revision, *path]:
                return self._resolve(self._commit(owner, name, revision), "/".join(path))
            case "GET", ["api", "datasets", owner, name, "tree", revision, *folder]:
                return _tree(self._commit(owner, name, revision), "/".join(folder), recursive)
            case "GET", ["api", "datasets", owner, name] | ["api", "datasets", owner, name, "revision", _]:
                commit = self._commit(owner, name, words[5] if words[5:] else "main")
                about = {"sha": commit.hash, "private": self._repository(owner, name).private, "tags": []}
                return {"id": f"{owner}/{name}", "siblings": [{"rfilename": path} for path in commit.files], **about}
            case "POST", ["api", "datasets", owner, name, "branch", branch]:
                branches = self._repository(owner, name).branches
                if branch in branches:
                    raise _RefusedError(409, "")
                branches[branch] = branches["main"][-1:]
                return {}
            case "POST", ["api", "datasets", owner, name, "preupload", revision]:
                held = self._commit(owner, name, revision).files
                paths = [one["path"] for one in json.loads(body)["files"]]
                oids = {path: _sha256(held[path]) if path in held else None for path in paths}
                more = {"uploadMode": "lfs", "shouldIgnore": False}
                return {"files": [{"path": path, "oid": oid, **more} for path, oid in oids.items()]}
            case "POST", ["api", "datasets", owner, name, "commit", branch]:
                made = self._repository(owner, name).add(branch, self._changed(owner, name, branch, body))
                url = f"{self.hub.url}/datasets/{owner}/{name}/commit/{made.hash}"
                return {"success": True, "commitOid": made.hash, "commitUrl": url}
        raise _RefusedError(404, "")

    def _repository(self, owner: str, name: str) -> Repository:
        if f"{owner}/{name}" not in self.hub.repositories:
            raise _RefusedError(404, "RepoNotFound")
        return self.hub.repositories[f"{owner}/{name}"]

    def _commit(self, owner: str, name: str, revision: str) -> Commit:
        commit = self._repository(owner, name).at(revision)
        if commit is None:
            raise _RefusedError(404, "RevisionNotFound")
        return commit

    def _upload(self, one: dict[str, Any]) -> dict[str, Any]:
        """Where an object goes, if it is not there."""
        upload = {"upload": {"href": f"{self.hub.url}/storage/{one['oid']}"}}
        return {"oid": one["oid"], "size": one["size"]} | (
            {} if one["oid"] in self.hub.objects else {"actions": upload}
        )

    def _changed(self, owner: str, name: str, branch: str, body: bytes) -> dict[str, bytes]:
        """The files of a branch after a commit."""
        files = dict(self._commit(owner, name, branch).files)
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "lfsFile":
                files[line["value"]["path"]] = self.hub.objects[line["value"]["oid"]]
            elif line["key"] == "deletedFile":
                del files[line["value"]["path"]]
            else:
                assert line["key"] == "header", line
        return files

    def _resolve(self, commit: Commit, path: str) -> None:
        """Send a file. The Hub sends clients elsewhere for large ones; here they are at the same address."""
        if path not in commit.files:
            raise _RefusedError(404, "EntryNotFound")
        data = commit.files[path]
        headers = {"X-Repo-Commit": commit.hash, "ETag": f'"{_sha256(data)}"'}
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(match[1]), min(int(match[2] or len(data)), len(data) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            self._send(data[first : last + 1], 206, headers)
        else:
            self._send(data, 200, headers)


def _tree(commit: Commit, folder: str, recursive: bool) -> list[dict[str, Any]]:
    """The files and folders below a folder."""
    inside = f"{folder}/" if folder else ""
    folders = {path.rpartition("/")[0] for path in commit.files} - {""}
    entries: list[dict[str, Any]] = [
        {"type": "directory", "path": one, "oid": "0" * 40, "size": 0} for one in sorted(folders)
    ]
    for path, data in sorted(commit.files.items()):
        large = {"oid": _sha256(data), "size": len(data), "pointerSize": 134}
        entries.append({"type": "file", "path": path, "oid": _sha256(data), "size": len(data), "lfs": large})
    below = [one for one in entries if one["path"].startswith(inside) and one["path"] != folder]
    return [one for one in below if recursive or "/" not in one["path"].removeprefix(inside)]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
