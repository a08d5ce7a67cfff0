"""Programs that attack, each run for real: what they reach, how they end, and that the next test is as if alone.

The fixture `sandbox` fails a test that leaves a process or an open descriptor behind.
"""

import os
import socket
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from packtrain.pipeline.judge.sandbox import ProgramLimits
from packtrain.stages.judge.comparators import Verdict

from tests.pipeline.judge.conftest import MIB, QUICK, Run

HELPERS = """
import ctypes, os, resource, signal, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def tried(what, *arguments):
    try:
        return what(*arguments)
    except BaseException as error:
        return type(error).__name__
def called(*arguments):
    return 'done' if libc.syscall(*arguments) >= 0 else os.strerror(ctypes.get_errno())
def ignore_signals():
    for one in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(one, signal.SIG_IGN)
"""
INT_80 = """
libc.mmap.restype = ctypes.c_void_p
place = libc.mmap(None, 4096, 7, 0x22, -1, 0)
ctypes.memmove(place, bytes.fromhex("{}"), 8)
1 / (ctypes.CFUNCTYPE(ctypes.c_int)(place)() > 0)
"""
"""Runs machine code."""
GOOD = b"print('good')"
ATTACK_OR_GOOD = HELPERS + "code = sys.stdin.buffer.read()\nexec(code)"
"""Runs what it reads: first an attack, then `GOOD`, in one launch."""


def attack(run: Run, code: str, limits: ProgramLimits = QUICK) -> tuple[Verdict | None, str]:
    """How an attack ended and what it printed. The test after it must do as if nothing had been."""
    first, second = run(ATTACK_OR_GOOD, code.encode(), GOOD, limits=limits)
    assert (second.failure, second.output) == (None, b"good\n"), second
    return first.failure, first.output.decode() + (first.stderr if first.failure is Verdict.runtime_error else "")


# The network


def test_no_way_to_sockets_outside(run: Run, tmp_path: Path) -> None:
    path = Path(tempfile.mkdtemp()) / "socket"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        with socket.socket(socket.AF_UNIX) as abstract, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            unix.bind(str(path))
            abstract.bind("\0packtrain-test-" + tmp_path.name)
            udp.bind(("127.0.0.1", 0))
            for one in (unix, abstract):
                one.listen()
            for one in (tcp, unix, abstract, udp):
                one.setblocking(False)
            ending, said = attack(
                run,
                f"""
for family, kind, address in (
    (socket.AF_INET, socket.SOCK_STREAM, {tcp.getsockname()!r}),
    (socket.AF_UNIX, socket.SOCK_STREAM, {str(path)!r}),
    (socket.AF_UNIX, socket.SOCK_STREAM, {abstract.getsockname()!r}),
    (socket.AF_INET, socket.SOCK_DGRAM, {udp.getsockname()!r}),
    (socket.AF_NETLINK, socket.SOCK_RAW, (0, 0)),
):
    print(tried(lambda: socket.socket(family, kind).connect(address)))
print(tried(lambda: [socket.socket(fileno=fd).getsockname() for fd in range(3, 64)]))
""",
            )
            assert (ending, said.split()) == (None, ["PermissionError"] * 5 + ["OSError"])
            for one in (tcp, unix, abstract):
                with pytest.raises(BlockingIOError):
                    one.accept()
        path.unlink()
        path.parent.rmdir()


# Files


def test_nothing_to_read_but_python(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "of the parent")
    secret = tmp_path / "packtrain-other" / "sample"
    secret.parent.mkdir()
    secret.write_text("secret")
    for path in (secret, secret.parent):
        path.chmod(0o777)
    places = [
        "/etc/passwd", "/etc/ssl", "/root/.ssh", "/home", "/work", "/usr/local/etc", "/var", "/sys", "/usr/share",
        "/proc", "/proc/1/environ", "/proc/self/environ", "/proc/self/mem", f"/proc/{os.getpid()}/environ",
        f"/proc/{os.getpid()}/cmdline", f"/proc/{os.getpid()}/root/etc/passwd", "/proc/self/fd", "/proc/meminfo",
        "/dev/shm", "/dev/vda", "/dev/mem", "/dev/tty", str(secret), str(secret.parent), __file__,
        str(Path(pytest.__file__).parent),
    ]  # fmt: skip
    ending, said = attack(
        run,
        f"""
for place in {places!r}:
    for read in (os.listdir, lambda path: open(path, 'rb').read(9)):
        found = tried(read, place)
        if found not in ('PermissionError', 'FileNotFoundError', 'NotADirectoryError', 'IsADirectoryError'):
            print('READ', place, found)
print('SECRET_TOKEN' in os.environ, sorted(os.environ)[0])
packages = os.path.join(os.path.dirname(os.__file__), 'site-packages')
print([name for name in (os.listdir(packages) if not isinstance(tried(os.listdir, packages), str) else [])])
""",
    )
    assert (ending, said) == (None, "False HOME\n[]\n")
    secret.unlink()
    secret.parent.rmdir()


def test_nothing_to_write_at_all(run: Run) -> None:
    ending, said = attack(
        run,
        """
places = ('/', '.', '/dev', '/lib', '/usr', '/usr/lib', '/bin', '/etc', os.path.dirname(os.__file__), '/tmp',
          '/root', '/dev/shm', os.path.join(os.path.dirname(os.__file__), 'site-packages'))
for place in places:
    done = (tried(open, place + '/made', 'w'), tried(os.mkdir, place + '/made.d'), tried(os.symlink, '/', place + '/s'),
            tried(os.mkfifo, place + '/fifo'), tried(os.mknod, place + '/made.n'))
    if not set(done) <= {'OSError', 'PermissionError', 'FileNotFoundError'}:
        print('WROTE', place, done)
print(tried(open, os.__file__, 'a'), tried(open, sys.executable, 'r+b'), tried(os.remove, os.__file__))
print(tried(os.chmod, os.__file__, 0), tried(os.utime, os.__file__), tried(os.rename, os.__file__, '/x'))
print(tried(os.truncate, os.__file__, 0), tried(os.link, os.__file__, '/x'), tried(os.setxattr, '/', b'user.x', b'y'))
""",
    )
    assert ending is None, said
    assert set(said.split()) <= {"OSError", "PermissionError", "FileNotFoundError"}, said


def test_its_input_and_output_cannot_grow_beyond_their_limit(run: Run) -> None:
    ending, said = attack(
        run,
        """
import fcntl, mmap
grow = [tried(os.ftruncate, fd, 1 << 40) for fd in (0, 1, 2)]
grow += [tried(os.pwrite, 1, b'x', 1 << 40), tried(os.posix_fallocate, 0, 0, 1 << 30), tried(mmap.mmap, 1, 1 << 30)]
grow += [tried(resource.setrlimit, resource.RLIMIT_FSIZE, (-1, -1)), tried(fcntl.fcntl, 1, 1033, 0xf)]
grow += ['OSError' if called(285, 1, 1, 0, ctypes.c_long(1 << 30)) == 'File too large' else 'GROWN']
os.write(1, ' '.join(map(str, grow)).encode())
zero = os.open('/dev/zero', 0)
while tried(os.sendfile, 1, zero, None, 1 << 20) != 'OSError': pass
""",
    )
    assert ending is Verdict.output_limit
    (done,) = run("import os\nos.write(1, b'wrong'); os.lseek(1, 0, 0); os.write(1, b'right')")
    assert (done.failure, done.output) == (None, b"right")
    assert set(said.rstrip("\0").split()) <= {"OSError", "ValueError", "PermissionError"}, said[:300]
    assert len(said) == MIB


# Time and memory


@pytest.mark.parametrize(
    ("code", "ending"),
    [
        ("ignore_signals()\nwhile True: pass", Verdict.timeout),
        ("10**10**9", Verdict.timeout),
        ("bytearray(1 << 40)", Verdict.memory),
        ("all = []\nwhile True: all.append(bytearray(1 << 20))", Verdict.memory),
        ("while True: os.write(1, bytes(1 << 16))", Verdict.output_limit),
        ("while True: os.write(2, bytes(1 << 16))", Verdict.output_limit),
        ("sys.stdout.write('x' * (10 << 20))", Verdict.output_limit),
        ("sys.setrecursionlimit(10**9)\ndef f(): return [f()]\nf()", Verdict.timeout),
        ("sys.setrecursionlimit(10**9)\nclass A:\n  def __repr__(self): return repr(self)\nrepr(A())", "by either"),
        ("eval('(' * 10**5)", Verdict.runtime_error),
        ("os.memfd_create('x')", Verdict.runtime_error),
        ("signal.alarm(1); time.sleep(1.2)", Verdict.runtime_error),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_what_never_ends_is_ended(run: Run, code: str, ending: object) -> None:
    was, said = attack(run, code)
    assert was is ending or (ending == "by either" and was in (Verdict.runtime_error, Verdict.memory)), said


@pytest.mark.parametrize(
    "code",
    [
        "ignore_signals()\nlibc.prctl(1, 0); tried(os.setsid); time.sleep(100)",  # 1: what the end of its parent does
        "os.kill(os.getpid(), signal.SIGSTOP)",
        "import threading\nthreading.Thread(target=time.sleep, args=(100,)).start(); libc.pthread_exit(None)",
    ],
)
@pytest.mark.slow
def test_what_waits_for_ever_is_ended(run: Run, code: str) -> None:
    assert attack(run, code, replace(QUICK, wall_seconds=3))[0] is Verdict.timeout


@pytest.mark.slow
def test_ten_gigabytes_of_output_are_not_kept(run: Run) -> None:
    (done,) = run("import os\nfor _ in range(10 << 14): os.write(1, bytes(1 << 16))")
    assert (done.failure, len(done.output)) == (Verdict.output_limit, MIB)
    (done,) = run("import os\nfor _ in range(10 << 14): os.write(2, b'x' * (1 << 16))")
    assert (done.failure, len(done.stderr)) == (Verdict.output_limit, 4096)


# Processes


@pytest.mark.parametrize(
    "start",
    [
        "os.fork()",
        "os.forkpty()",
        "os.posix_spawn(sys.executable, [sys.executable], {})",
        "__import__('subprocess').run([sys.executable, '-c', '1'])",
        "__import__('multiprocessing').get_context('fork').Process(target=print).start()",
        "__import__('os').popen('true').read()",
        "1 / (libc.syscall(57) > 0)",
        "1 / (libc.syscall(58) > 0)",
        "1 / (libc.syscall(56, 17, 0, 0, 0, 0) > 0)",
        "1 / (libc.syscall(56, 0x100 | 17, 0, 0, 0, 0) > 0)",
        "1 / (libc.syscall(435, ctypes.create_string_buffer(88), 88) > 0)",
        "1 / (libc.syscall(0x40000039) > 0)",  # fork by the numbers of x32
        INT_80.format("b802000000cd80c3"),  # by those of 32 bits
        "1 / (libc.fork() > 0)",
        "1 / (libc.vfork() > 0)",
    ],
)
def test_no_other_process_can_be_started(run: Run, start: str) -> None:
    ending, said = attack(run, f"{start}\nprint('STARTED')")
    assert ending is Verdict.runtime_error
    assert "STARTED" not in said


def test_threads_are_limited(run: Run) -> None:
    ending, said = attack(
        run,
        "import threading\nfor n in range(10**4): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
    )
    assert ending is Verdict.runtime_error
    assert "can't start new thread" in said


def test_the_first_process_cannot_be_touched(run: Run) -> None:
    ending, said = attack(
        run,
        """
driver = 1
ignore_signals()
print(called(101, 16, driver, 0, 0), called(101, 0x4206, driver, 0, 0))
print(tried(resource.prlimit, driver, resource.RLIMIT_NOFILE, (1, 1)))
print(tried(os.setpriority, os.PRIO_PROCESS, driver, 19))
print(tried(os.sched_setaffinity, driver, {0}), tried(open, f'/proc/{driver}/mem', 'r+b'))
data = ctypes.create_string_buffer(8)
vector = (ctypes.c_void_p * 2)(ctypes.addressof(data), 8)
print(called(310, driver, vector, 1, vector, 1, 0))
print(called(438, os.pidfd_open(driver), 0, 0))
""",
    )
    assert ending is None, said
    assert set(said.replace("Operation not permitted", "PermissionError").split()) <= {
        "PermissionError", "FileNotFoundError"
    }, said  # fmt: skip


def test_killing_everything_kills_the_program_alone(run: Run) -> None:
    ending, said = attack(run, "tried(os.kill, 1, 9); tried(os.kill, os.getppid(), 9); os.kill(os.getpid(), 9)")
    assert (ending, said) == (Verdict.runtime_error, "")


def test_no_rights_can_be_gained(run: Run) -> None:
    ending, said = attack(
        run,
        """
print([tried(change, 0) for change in (os.setuid, os.setgid, os.seteuid)], tried(os.setgroups, []))
print(called(272, 0x10000000), called(272, 0x20000), called(56, 0x10000011, 0, 0, 0, 0), called(435, 0, 88))
print(called(165, 0, b'/tmp', b'tmpfs', 0, 0), called(166, b'/tmp', 2), called(161, b'/'), called(41, 16, 3, 0))
print(called(321, 0, 0, 0), called(425, 1, 0), called(250, 0, 0), called(298, 0, 0, 0, 0, 0), called(304, 0, 0, 0))
print([open('/dev/null', 'w').write(''), len(open('/dev/urandom', 'rb').read(3))])
print(resource.getrlimit(resource.RLIMIT_CORE), tried(resource.setrlimit, resource.RLIMIT_AS, (-1, -1)))
print(os.getresuid()[0] != 0 and len(set(os.getresuid())) == 1, os.getgroups())
""",
    )
    assert ending is None, said
    lines = said.replace("Operation not permitted", "no").replace("PermissionError", "no").replace("OSError", "no")
    assert lines.splitlines() == [
        "['no', 'no', 'no'] no",
        "no no no Function not implemented",
        "no no no no",
        "no no no no no",
        "[0, 3]",
        "(0, 0) ValueError",
        "True []",
    ]


def test_other_tests_and_expected_outputs_are_not_there(run: Run) -> None:
    looks = (
        "import gc\n"
        "print(any(b'SEC' + b'RET' in one for one in gc.get_objects() if isinstance(one, bytes)))\n"
        "print(any(b'SEC' + b'RET' in tried(os.read, fd, 1 << 16) for fd in range(64)"
        " if isinstance(tried(os.read, fd, 0), bytes)))"
    )
    done = run(ATTACK_OR_GOOD, looks.encode(), b"# SECRET")
    assert done[0].output == b"False\nFalse\n", done[0]


def test_what_looks_like_a_failure_of_bubblewrap_is_one_of_the_program(run: Run) -> None:
    ending, said = attack(run, "sys.stderr.write('bwrap: Creating new namespace failed'); sys.exit(1)")
    assert (ending, said) == (Verdict.runtime_error, "bwrap: Creating new namespace failed")
    ending, _ = attack(run, "print('{}'); [tried(os.write, fd, b'{\"exit-code\": 0}') for fd in range(64)]")
    assert ending is None
