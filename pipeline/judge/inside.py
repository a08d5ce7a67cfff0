"""The only code of ours inside a sandbox: it sets limits, then becomes the program. Standard library only; run by `-c`.

Its arguments are the descriptors that it inherited. The first has the setup as JSON: `code`, `function` (null for a
program that reads stdin) and `limits`. The second takes the JSON of a returned value, and becomes descriptor 3. The
others are the sandbox's own, and are closed. A program can write to 3 itself, which is no more than returning a value.
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
"""Modules whose public names a program finds without importing them, where its function is called."""


def main() -> None:
    """Read the setup, and run the program."""
    descriptors = [int(argument) for argument in sys.argv[1:]]
    setup_descriptor = descriptors[0]
    value_descriptor = descriptors[1]
    with os.fdopen(setup_descriptor, "rb") as file:
        setup = json.load(file)
    is_call = setup["function"] is not None
    first_closed = 3  # behind standard input, output and error
    if is_call:
        first_closed = 4
        if value_descriptor != 3:
            os.dup2(value_descriptor, 3)
    # Not up to the limit of descriptors, which may be a billion: some builds of Python close them one by one.
    os.closerange(first_closed, max(descriptors) + 1)
    # Before any of the program's code is looked at: compiling it can fill the memory, too.
    set_limits(setup["limits"])
    sys.argv = ["program.py"]
    add_exit_functions()
    try:
        if is_call:
            call_function(setup["code"], setup["function"])
        else:
            exec(compile(setup["code"], "program.py", "exec", dont_inherit=True), new_module("__main__"))
    except SystemExit:
        if is_call:
            os._exit(1)  # whatever code it gave: nothing was returned
        raise
    except BaseException as error:
        print_traceback(error)
        # `os._exit` flushes nothing, and runs nothing that the program has registered for its end.
        sys.stdout.flush()
        os._exit(1)


def add_exit_functions() -> None:
    """Add `exit` and `quit` to the builtins, which programs use. Python runs with -S, which leaves them out."""
    import _sitebuiltins

    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))


def print_traceback(error: BaseException) -> None:
    """Write a program's error to standard error, without the frames of this file, which come before its own."""
    traceback = error.__traceback__
    while traceback and traceback.tb_frame.f_code.co_filename == "<string>":  # as `-c` calls this file
        traceback = traceback.tb_next
    sys.excepthook(type(error), error.with_traceback(traceback), traceback)


def set_limits(limits: dict[str, int]) -> None:
    """Set the limits of this process for good.

    Args:
        limits: name in `resource` → limit.
    """
    for name, limit in limits.items():
        resource_id = getattr(resource, name)
        # At the soft limit of CPU time comes SIGXCPU, by which a timeout is recognised; a second later SIGKILL.
        hard = limit + 1 if name == "RLIMIT_CPU" else limit
        # A process may not raise the hard limit that it was started with.
        _, inherited_hard = resource.getrlimit(resource_id)
        if inherited_hard != resource.RLIM_INFINITY:
            hard = min(hard, inherited_hard)
        resource.setrlimit(resource_id, (min(limit, hard), hard))


def new_module(name: str) -> dict[str, Any]:
    """The names of a new module, which the program finds in `sys.modules`, as pickle and dataclasses do."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    return module.__dict__


def call_function(code: str, function: str) -> None:
    """Call the program's function with the arguments on stdin, write what it returns to descriptor 3, and exit."""
    # Taken before the program runs, which may replace them in their modules.
    write = os.write
    encode = json.JSONEncoder().encode
    arguments = json.loads(sys.stdin.buffer.read())
    add_prelude()
    names = new_module("solution")
    exec(compile(code, "program.py", "exec", dont_inherit=True), names)
    solution = names.get("Solution")
    if isinstance(solution, type) and hasattr(solution, function):
        call = getattr(solution(), function)
    elif function in names:
        call = names[function]
    else:
        raise NameError(f"the program defines no {function!r}")
    # A write may take only a part of what it is given.
    unwritten = memoryview(encode(call(*arguments)).encode())
    while unwritten:
        unwritten = unwritten[write(3, unwritten) :]
    os._exit(0)


def add_prelude() -> None:
    """Add the modules of `PRELUDE` and their public names to the builtins."""
    namespace = vars(builtins)
    for module_name in PRELUDE:
        module = importlib.import_module(module_name)
        # As `from module import *` does: a module without `__all__` gives all names that do not begin with "_".
        public = getattr(module, "__all__", None) or [name for name in vars(module) if name[:1] != "_"]
        # A builtin stays what it is: `pow` is not that of math.
        namespace.update({name: getattr(module, name) for name in public if not hasattr(builtins, name)})
    namespace.update({name: sys.modules[name] for name in (*PRELUDE, "sys")})
    # The one name that is both a module and a class: programs mean the class.
    namespace["datetime"] = sys.modules["datetime"].datetime


if __name__ == "__main__":
    main()
