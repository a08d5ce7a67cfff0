"""A stand-in for the Hugging Face Hub: a real HTTP server with those parts of its API that publishing and downloading a
dataset ask for, written from what huggingface_hub 2.4 sends and reads. It is not the Hub.

It has repositories with branches, commits, large files by their SHA-256 (the LFS protocol, not Xet), pages of listings,
tokens with and without rights, and faults on demand.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

WRITER, READER, STRANGER = "hf_writer", "hf_reader", "hf_nobody"
"""Tokens: of `me`, who may write to `me` and `team`; of `me`, who may only read; and one without an account."""
_OWNERS = {WRITER: {"me", "team"}, READER: set[str]()}
_PAGE = 3
"""Files on a page of a listing, so that there are several pages."""
Fault = Callable[[str, str], int | None]
"""Method and path → a status to answer with, or None."""


@dataclass
class Blob:
    """A file."""

    data: bytes
    large: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def git_hash(self) -> str:
        """Of a large file, the hash of its pointer."""
        held = self.data if not self.large else f"oid sha256:{self.sha256}\nsize {len(self.data)}\n".encode()
        return hashlib.sha1(f"blob {len(held)}\0".encode() + held).hexdigest()


@dataclass
class Commit:
    """A state of a branch."""

    hash: str
    message: str
    files: dict[str, Blob]


@dataclass
class Repository:
    """A dataset repository."""

    private: bool
    branches: dict[str, list[Commit]]
    objects: dict[str, bytes] = field(default_factory=dict)
    """Contents of large files by SHA-256, whether a commit names them or not."""

    def at(self, revision: str) -> Commit | None:
        """The commit of a branch or hash."""
        if revision in self.branches:
            return self.branches[revision][-1]
        return next((one for all in self.branches.values() for one in all if one.hash == revision), None)


class HubStandIn:
    """See the module; used as a context manager."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.asked: list[tuple[str, str]] = []
        """(method, path) of every request, in order."""
        self.fault: Fault = lambda method, path: None
        self.tokens: set[str] = set()
        """Every token that was sent."""
        self._lock = threading.RLock()
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
            "HF_TOKEN": WRITER,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_OFFLINE": "0",
            "TRANSFORMERS_OFFLINE": "0",
            "HF_DATASETS_OFFLINE": "0",
            "no_proxy": "127.0.0.1",
        }

    def count(self, method: str, part: str = "") -> int:
        """How many requests of a method had this in their path."""
        return sum(one == method and part in path for one, path in self.asked)

    def files(self, name: str, revision: str = "main") -> dict[str, bytes]:
        """What a branch holds."""
        commit = self.repositories[name].at(revision)
        assert commit is not None
        return {path: blob.data for path, blob in commit.files.items()}

    def create(self, name: str, files: Mapping[str, bytes] = MappingProxyType({}), private: bool = False) -> Repository:
        """Make a repository as the Hub does: with one commit and one file, besides those that are given."""
        attributes = b"*.parquet filter=lfs diff=lfs merge=lfs -text\n"
        held = {".gitattributes": Blob(attributes, False)} | {path: Blob(data, False) for path, data in files.items()}
        made = Repository(private, {"main": []})
        self.repositories[name] = made
        self.add_commit(made, "main", "initial commit", held)
        return made

    def add_commit(self, repository: Repository, branch: str, message: str, files: dict[str, Blob]) -> Commit:
        """Put a commit on a branch."""
        with self._lock:
            before = repository.branches[branch][-1].hash if repository.branches[branch] else ""
            listing = sorted((path, blob.git_hash) for path, blob in files.items())
            commit = Commit(hashlib.sha1(repr((before, message, listing)).encode()).hexdigest(), message, files)
            repository.branches[branch].append(commit)
            return commit


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


class _Handler(BaseHTTPRequestHandler):
    hub: HubStandIn
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else the second part of an answer waits for a confirmation, often 40 ms

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing is printed."""

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815 - so does http.server

    # Answers

    def _json(self, data: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(data).encode()
        self._bytes(body, status, {"Content-Type": "application/json"} | (headers or {}))

    def _bytes(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        if not any(key == "Content-Length" for key in headers or {}):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _error(self, status: int, code: str = "", message: str = "") -> None:
        headers = {"X-Error-Code": code} if code else {}
        self._json({"error": message or code}, status, headers | ({"X-Error-Message": message} if message else {}))

    # Requests

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _serve(self) -> None:
        split = urlsplit(self.path)
        path = unquote(split.path)
        self.hub.asked.append((self.command, path))
        fault = self.hub.fault(self.command, path)
        body = self._body()
        if fault is not None:
            self._error(fault, message="a fault on demand")
            return
        query = {key: values[-1] for key, values in parse_qs(split.query).items()}
        # Uploads go to signed addresses, as to S3: they need no token.
        for method, pattern, answer in _SIGNED:
            if self.command in method.split() and (match := re.fullmatch(pattern, path)):
                answer(self, *match.groups(), body=body)
                return
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token:
            self.hub.tokens.add(token)
            if token not in _OWNERS:
                self._error(401, message="Invalid credentials in Authorization header")
                return
        for method, pattern, answer in _ROUTES:
            if self.command in method.split() and (match := re.fullmatch(pattern, split.path)):
                answer(self, *(one and unquote(one) for one in match.groups()), body=body, query=query, token=token)
                return
        self._error(404, message=f"the stand-in has no {self.command} {path}")

    # What the routes have in common

    def _repository(self, name: str, token: str, *, write: bool = False) -> Repository | None:
        """The repository, if the token may see it or write to it; else answers."""
        found = self.hub.repositories.get(name)
        if found is None or (found.private and not token):
            self._error(401 if not token else 404, "RepoNotFound", "Repository not found")
        elif write and name.partition("/")[0] not in _OWNERS.get(token, ()):
            self._error(403, message="you may not write to this repository")
        else:
            return found
        return None

    def _commit(self, name: str, revision: str, token: str) -> Commit | None:
        repository = self._repository(name, token)
        commit = repository.at(revision) if repository is not None else None
        if repository is not None and commit is None:
            self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit

    # Routes

    def create(self, *, body: bytes, query: Any, token: str) -> None:
        asked = json.loads(body)
        name = f"{asked['organization'] or 'me'}/{asked['name']}"
        assert asked["type"] == "dataset"
        if not token:
            self._error(401, message="you must be logged in")
        elif name.partition("/")[0] not in _OWNERS[token]:
            self._error(403, message="You don't have the rights to create a dataset under this namespace")
        elif name in self.hub.repositories:
            self._json({"url": f"{self.hub.url}/datasets/{name}", "error": "You already created this dataset"}, 409)
        else:
            self.hub.create(name, private=asked.get("visibility") == "private" or bool(asked.get("private")))
            self._json({"url": f"{self.hub.url}/datasets/{name}", "name": name})

    def whoami(self, *, body: bytes, query: Any, token: str) -> None:
        if not token:
            self._error(401, message="you must be logged in")
            return
        role = "write" if _OWNERS[token] else "read"
        orgs = [{"name": "team", "roleInOrg": role}]
        self._json({"name": "me", "orgs": orgs, "auth": {"accessToken": {"role": role}}})

    def info(self, name: str, revision: str | None = None, *, body: bytes, query: Any, token: str) -> None:
        commit = self._commit(name, revision or "main", token)
        if commit is not None:
            siblings = [{"rfilename": path} for path in commit.files]
            private = self.hub.repositories[name].private
            self._json({"id": name, "sha": commit.hash, "private": private, "siblings": siblings, "tags": []})

    def branch(self, name: str, branch: str, *, body: bytes, query: Any, token: str) -> None:
        repository = self._repository(name, token, write=True)
        if repository is None:
            return
        if branch in repository.branches:
            self._error(409, message="the branch is there")
            return
        start = repository.at(json.loads(body or b"{}").get("startingPoint") or "main")
        assert start is not None
        repository.branches[branch] = [start]
        self._json({})

    def tree(
        self, name: str, revision: str, folder: str | None = None, *, body: bytes, query: dict[str, str], token: str
    ) -> None:
        commit = self._commit(name, revision, token)
        if commit is None:
            return
        entries: list[dict[str, Any]] = [
            {"type": "directory", "path": folder, "oid": "0" * 40, "size": 0}
            for folder in sorted({path.rpartition("/")[0] for path in commit.files} - {""})
        ]
        for path, blob in sorted(commit.files.items()):
            entry = {"type": "file", "path": path, "oid": blob.git_hash, "size": len(blob.data)}
            if blob.large:
                entry["lfs"] = {"oid": blob.sha256, "size": len(blob.data), "pointerSize": 134}
            entries.append(entry)
        if folder is not None:
            entries = [one for one in entries if one["path"].startswith(f"{folder}/")]
        if query.get("recursive", "false").lower() != "true":
            depth = 0 if folder is None else folder.count("/") + 1
            entries = [one for one in entries if one["path"].count("/") == depth]
        first = int(query.get("cursor", 0))
        headers = {}
        if len(entries) > first + _PAGE:
            recursive = query.get("recursive", "false")
            address = f"{self.hub.url}{urlsplit(self.path).path}"
            following = f"{address}?recursive={recursive}&cursor={first + _PAGE}"
            headers["Link"] = f'<{following}>; rel="next"'
        self._json(entries[first : first + _PAGE], headers=headers)

    def validate(self, *, body: bytes, query: Any, token: str) -> None:
        import yaml

        content = json.loads(body)["content"]
        try:
            front = yaml.safe_load(content.split("---\n")[1])
            sound = isinstance(front, dict) and bool(front["configs"])
        except (IndexError, yaml.YAMLError, KeyError):
            sound = False
        self._json(
            {"errors": [], "warnings": []} if sound else {"errors": [{"message": "no head"}]}, 200 if sound else 400
        )

    def preupload(self, name: str, revision: str, *, body: bytes, query: Any, token: str) -> None:
        repository = self._repository(name, token, write=True)
        commit = repository.at(revision) if repository is not None else None
        if commit is None:
            return
        files = []
        for one in json.loads(body)["files"]:
            there = commit.files.get(one["path"])
            large = one["path"].endswith((".parquet", ".arrow")) or one["size"] > 10_000_000
            files.append(
                {
                    "path": one["path"],
                    "uploadMode": "lfs" if large else "regular",
                    "shouldIgnore": False,
                    "oid": None if there is None else there.sha256 if there.large else there.git_hash,
                }
            )
        self._json({"files": files})

    def batch(self, name: str, *, body: bytes, query: Any, token: str) -> None:
        repository = self._repository(name, token, write=True)
        if repository is None:
            return
        objects = []
        for one in json.loads(body)["objects"]:
            entry = {"oid": one["oid"], "size": one["size"]}
            if one["oid"] not in repository.objects:
                upload = {"href": f"{self.hub.url}/storage/{name}/{one['oid']}"}
                entry["actions"] = {"upload": upload, "verify": {"href": f"{self.hub.url}/storage-verify/{name}"}}
            objects.append(entry)
        self._json({"transfer": "basic", "objects": objects})

    def commit(self, name: str, revision: str, *, body: bytes, query: Any, token: str) -> None:
        repository = self._repository(name, token, write=True)
        if repository is None:
            return
        with self.hub._lock:
            lines = [json.loads(line) for line in body.splitlines()]
            head = repository.branches[revision][-1]
            files, message = dict(head.files), ""
            for line in lines:
                value = line["value"]
                match line["key"]:
                    case "header":
                        message = value["summary"]
                        if value.get("parentCommit") not in (None, head.hash):
                            self._error(412, message="A commit has happened since. Please refresh and try again.")
                            return
                    case "file":
                        files[value["path"]] = Blob(base64.b64decode(value["content"]), False)
                    case "lfsFile":
                        if value["oid"] not in repository.objects:
                            self._error(400, message=f"{value['oid']} was not uploaded")
                            return
                        files[value["path"]] = Blob(repository.objects[value["oid"]], True)
                    case "deletedFile":
                        del files[value["path"]]
                    case other:
                        raise AssertionError(other)
            made = self.hub.add_commit(repository, revision, message, files)
        url = f"{self.hub.url}/datasets/{name}/commit/{made.hash}"
        self._json({"success": True, "commitOid": made.hash, "commitUrl": url})

    def resolve(self, name: str, revision: str, path: str, *, body: bytes, query: Any, token: str) -> None:
        commit = self._commit(name, revision, token)
        if commit is None:
            return
        blob = commit.files.get(path)
        if blob is None:
            self._error(404, "EntryNotFound", "Entry not found")
            return
        # The Hub sends clients elsewhere for large files; here they are at the same address.
        hash = blob.sha256 if blob.large else blob.git_hash
        first, last, status = 0, len(blob.data) - 1, 200
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last, status = int(match[1]), int(match[2] or last), 206
        headers = {"X-Repo-Commit": commit.hash, "ETag": f'"{hash}"'}
        if status == 206:
            headers["Content-Range"] = f"bytes {first}-{last}/{len(blob.data)}"
        self._bytes(blob.data[first : last + 1], status, headers)

    def store(self, name: str, oid: str, *, body: bytes) -> None:
        if hashlib.sha256(body).hexdigest() != oid:
            self._error(400, message="the content has another hash")
            return
        self.hub.repositories[name].objects[oid] = body
        self._bytes(b"")

    def verify(self, name: str, *, body: bytes) -> None:
        known = self.hub.repositories[name].objects
        self._json({}) if json.loads(body)["oid"] in known else self._error(404, message="not there")


_NAME = r"([^/]+/[^/]+)"
_SIGNED: list[tuple[str, str, Callable[..., None]]] = [
    ("PUT", rf"/storage/{_NAME}/(\w+)", _Handler.store),
    ("POST", rf"/storage-verify/{_NAME}", _Handler.verify),
]
_ROUTES: list[tuple[str, str, Callable[..., None]]] = [
    ("GET", r"/api/whoami-v2", _Handler.whoami),
    ("POST", r"/api/repos/create", _Handler.create),
    ("POST", r"/api/validate-yaml", _Handler.validate),
    ("GET", rf"/api/datasets/{_NAME}", _Handler.info),
    ("GET", rf"/api/datasets/{_NAME}/revision/([^/]+)", _Handler.info),
    ("POST", rf"/api/datasets/{_NAME}/branch/([^/]+)", _Handler.branch),
    ("GET", rf"/api/datasets/{_NAME}/tree/([^/]+)(?:/(.+))?", _Handler.tree),
    ("POST", rf"/api/datasets/{_NAME}/preupload/([^/]+)", _Handler.preupload),
    ("POST", rf"/datasets/{_NAME}\.git/info/lfs/objects/batch", _Handler.batch),
    ("POST", rf"/api/datasets/{_NAME}/commit/([^/]+)", _Handler.commit),
    ("GET HEAD", rf"/datasets/{_NAME}/resolve/([^/]+)/(.+)", _Handler.resolve),
]
