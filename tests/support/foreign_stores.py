"""Servers that speak S3 and are not ours: moto's, and Ceph's radosgw, on loopback.

moto gets an environment of its own, because it brings many packages. Ceph is used where it is installed (Debian's
packages radosgw, ceph-mon, ceph-mgr and ceph-osd): one monitor, one manager, one OSD in memory and one gateway.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MOTO = "moto[server,s3]==5.2.5"
KEY, SECRET = "KEY", "SECRET"
_PATIENCE = 90.0
_CEPH = """
[global]
fsid = {fsid}
mon host = v1:127.0.0.1:{monitor}
public addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
run dir = {folder}
admin socket = {folder}/$name.asok
log file = {folder}/$name.log
pid file = {folder}/$name.pid
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd crush chooseleaf type = 0
osd objectstore = memstore
memstore device bytes = 4294967296
mon data = {folder}/mon
mgr data = {folder}/mgr
osd data = {folder}/osd
[client.rgw]
rgw data = {folder}/rgw
rgw frontends = beast endpoint=127.0.0.1:{port}
"""


class NoServerError(RuntimeError):
    """The server is not installed here, or does not start."""


@contextmanager
def moto(folder: Path) -> Iterator[str]:
    """moto's server; gives its address.

    Raises:
        NoServerError: its packages cannot be installed, or it does not start.
    """
    programs = _moto_environment()
    port = _free_port()
    with (folder / "moto.log").open("wb") as log:
        command = [str(programs / "moto_server"), "-H", "127.0.0.1", "-p", str(port)]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=_without_settings())
    try:
        _wait_for(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@contextmanager
def ceph(folder: Path) -> Iterator[str]:
    """Ceph's gateway; gives its address.

    Raises:
        NoServerError: it is not installed, or does not start.
    """
    for program in ("radosgw", "radosgw-admin", "ceph", "ceph-mon", "ceph-mgr", "ceph-osd", "monmaptool"):
        if shutil.which(program) is None:
            raise NoServerError(f"{program} is not installed")
    home = folder / "ceph"
    for name in ("mon", "mgr", "osd", "rgw"):
        (home / name).mkdir(parents=True)
    config = home / "ceph.conf"
    fsid, monitor, port = uuid.uuid4(), _free_port(), _free_port()
    config.write_text(_CEPH.format(fsid=fsid, monitor=monitor, port=port, folder=home))
    common = ("-c", config)
    try:
        monitors = home / "monitors"
        _run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", f"[v1:127.0.0.1:{monitor}]", monitors)
        _run("ceph-mon", *common, "--mkfs", "-i", "a", "--monmap", monitors)
        _run("ceph-mon", *common, "-i", "a")
        _run("ceph-mgr", *common, "-i", "x")
        device = uuid.uuid4()
        number = _run("ceph", *common, "osd", "create", device).strip()
        _run("ceph-osd", *common, "-i", number, "--mkfs", "--osd-uuid", device)
        _run("ceph", *common, "osd", "crush", "add", f"osd.{number}", "1.0", "host=here", "root=default")
        _run("ceph-osd", *common, "-i", number)
        _run("radosgw", *common, "-n", "client.rgw")
        _wait_for(port)
        user = ("--uid", "test", "--display-name", "test", "--access-key", KEY, "--secret", SECRET)
        _run("radosgw-admin", *common, "user", "create", *user)
        yield f"http://127.0.0.1:{port}"
    finally:
        for file in home.glob("*.pid"):
            with suppress(OSError, ValueError):
                os.kill(int(file.read_text()), signal.SIGKILL)


STORES = {"moto": moto, "ceph": ceph}
_MAKE_BUCKET = """
import sys, boto3
boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1").create_bucket(Bucket=sys.argv[2])
"""


def make_bucket(address: str, name: str) -> None:
    """Make a bucket, which obstore cannot do."""
    _run(_moto_environment() / "python", "-c", _MAKE_BUCKET, address, name)


def _moto_environment() -> Path:
    """The programs of moto's environment, which is made once and kept as long as this one."""
    home = Path(sys.prefix) / "moto"
    if not (home / "bin" / "moto_server").exists():
        _run(sys.executable, "-m", "venv", "--clear", "--without-pip", home)
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", home / "bin" / "python")
        _run(*pip, "install", MOTO)
    return home / "bin"


def environment(address: str) -> dict[str, str]:
    """The variables by which clients find a store."""
    return {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


def _run(*words: object) -> str:
    """What a program prints.

    Raises:
        NoServerError: it fails, or takes too long.
    """
    try:
        done = subprocess.run(
            [str(word) for word in words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=4 * _PATIENCE,
            env=_without_settings(),
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise NoServerError(f"{words[0]}: {str(said)[-300:]}") from error
    return done.stdout


def _without_settings() -> dict[str, str]:
    """This environment without what tests set for Python programs."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PACKTRAIN"))}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def _wait_for(port: int) -> None:
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise NoServerError(f"nothing answers on port {port}")
