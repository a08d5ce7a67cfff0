"""The only code of ours inside a sandbox: sets limits, then is the program. Standard library only; run by `-c`.

Its arguments are the descriptors that were handed on: the first has the setup as JSON, the second becomes 3 and takes
the JSON of a returned value. A program can write there itself, which is no more than returning a value.
"""

import builtins
import importlib
import json
import os
import resource
import sys
import types
from typing import Any

PRELUDE = (
    *("typing", "string", "re", "datetime", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools"),
    *("functools", "operator", "collections"),
)
"""Modules whose public names a program finds whose function is called."""


def main() -> None:
    """Read the setup, and run the program."""
    given, out, *others = map(int, sys.argv[1:])
    with os.fdopen(given, "rb") as file:
        setup = json.load(file)
    call = setup["function"] is not None
    if call and out != 3:
        os.dup2(out, 3)
    # Not up to the limit, which may be a billion: some builds of Python close them one by one.
    os.closerange(4 if call else 3, max(given, out, *others) + 1)
    for name, soft in setup["limits"].items():
        limit = getattr(resource, name)
        hard = soft + 1 if name == "RLIMIT_CPU" else soft  # a second to be told by a signal
        most = resource.getrlimit(limit)[1]
        hard = hard if most == resource.RLIM_INFINITY else min(hard, most)
        resource.setrlimit(limit, (min(soft, hard), hard))
    sys.argv = ["program.py"]
    import _sitebuiltins

    for name in ("exit", "quit"):  # which `-S` leaves out
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))
    try:
        if call:
            answer(setup["code"], setup["function"])
        else:
            exec(compile(setup["code"], "program.py", "exec", dont_inherit=True), module("__main__"))
    except SystemExit:
        if call:
            os._exit(1)
        raise
    except BaseException as error:
        frames = error.__traceback__
        while frames and frames.tb_frame.f_code.co_filename == "<string>":  # ours
            frames = frames.tb_next
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        sys.stdout.flush()
        os._exit(1)


def module(name: str) -> dict[str, Any]:
    """The names of a new module."""
    made = types.ModuleType(name)
    sys.modules[name] = made
    return made.__dict__


def answer(code: str, function: str) -> None:
    """Call the function with the arguments on stdin, and write what it returns."""
    write, encode = os.write, json.JSONEncoder().encode
    arguments = json.loads(sys.stdin.buffer.read())
    for name in PRELUDE:
        found = importlib.import_module(name)
        public = getattr(found, "__all__", None) or [one for one in vars(found) if one[:1] != "_"]
        vars(builtins).update({one: getattr(found, one) for one in public if not hasattr(builtins, one)})
    vars(builtins).update({name: sys.modules[name] for name in (*PRELUDE, "sys")})
    vars(builtins)["datetime"] = sys.modules["datetime"].datetime
    names = module("solution")
    exec(compile(code, "program.py", "exec", dont_inherit=True), names)
    solution = names.get("Solution")
    if isinstance(solution, type) and hasattr(solution, function):
        call = getattr(solution(), function)
    elif function in names:
        call = names[function]
    else:
        raise NameError(f"the program defines no {function!r}")
    left = memoryview(encode(call(*arguments)).encode())
    while left:
        left = left[write(3, left) :]
    os._exit(0)


if __name__ == "__main__":
    main()
