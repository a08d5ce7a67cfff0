"""Runs the Python blocks of one page, one after another, so that torch is imported once.

Each line of its input is JSON: `where`, `code`, and whether it `continues` the block before. Each line of its output
answers with what was printed and the exit code. The blocks themselves have an empty input.
"""

import json
import os
import sys
import tempfile
import traceback
from pathlib import Path


def main() -> None:
    """Until the other side closes its end."""
    asked, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.path[0] = ""
    names: dict[str, object] = {}
    for line in asked:
        block = json.loads(line)
        if not block["continues"]:
            names = {"__name__": "snippet"}
        code, said = _run(block["code"], block["where"], names)
        answers.write(json.dumps({"code": code, "said": said}) + "\n")
        answers.flush()


def _run(code: str, where: str, names: dict[str, object]) -> tuple[int, str]:
    """The exit code and all that was written, by child processes as well."""
    out = 0
    kept = [os.dup(1), os.dup(2)]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
        try:
            exec(compile(code, where, "exec"), names)
        except SystemExit as leave:
            out = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
        except BaseException:
            traceback.print_exc()
            out = 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, one in enumerate(kept, start=1):
                os.dup2(one, number)
                os.close(one)
        printed.seek(0)
        return out, printed.read()


if __name__ == "__main__":
    main()
