"""Resolve the target of `echelon run TARGET` like `python TARGET`, and refuse early what cannot run."""

import ast
import os
import re
import shlex
import stat
import sys
import zipimport
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from echelon.environment import regular_files
from echelon.errors import UsageError
from echelon.script.locate import Searcher, is_built_in
from echelon.script.nearest import nearest_files, nearest_modules, one_of
from echelon.script.source import judge, parse

MOST_BYTES = 1 << 30
RUN = "echelon run "
# the first bytes of files that are often started by mistake
BINARY = {
    b"\x7fELF": "a compiled program (ELF)",
    b"\x1f\x8b": "a gzip archive",
    b"(\xb5/\xfd": "a zstd archive",
    b"%PDF": "a PDF document",
    b"\x89PNG": "a PNG image",
    b"\x89HDF": "an HDF5 file",
    b"PK\x03\x04": "a zip archive that Python cannot open",
}
UTF16 = (b"\xff\xfe", b"\xfe\xff")
END_OF_ARCHIVE = b"PK\x05\x06"


@dataclass(frozen=True, kw_only=True)
class Script:
    """The `__main__` of the ranks."""

    kind: Literal["file", "module", "directory", "zip"]
    path: str | None
    """The source of `__main__`; None if it is inside an archive."""
    folder: str
    """The first entry of sys.path."""
    name: str = "__main__"
    """The dotted name of the module that runs, `pkg.__main__` for a package; `__main__` for a file."""
    search_path: tuple[str, ...] = ()
    """The entries of sys.path after `folder`."""
    cwd: str = ""
    """The working folder at the start, "" if unknown."""
    content: bytes | None = field(default=None, compare=False, repr=False)
    """The source of `__main__`; None if there is none that can be read."""

    @cached_property
    def tree(self) -> ast.Module | None:
        """The syntax tree; None if this Python cannot parse the source."""
        return parse(self.content, self.path or self.folder) if self.content is not None else None


def resolve(target: str, *, module: bool, cwd: str, search_path: Sequence[str]) -> Script:
    """Return the script of a target, or raise UsageError with the repair."""
    if not target.strip():
        raise UsageError("the script has an empty name", hint=RUN + "train.py")
    if "\0" in target:
        raise UsageError(f"the script's name {target!r} contains a null byte, which no file name can")
    script = (_resolve_module if module else _resolve_path)(target, cwd=cwd, search_path=tuple(search_path))
    return replace(script, cwd=os.path.abspath(cwd))


def _resolve_path(target: str, *, cwd: str, search_path: tuple[str, ...]) -> Script:
    if target == "-":
        raise UsageError(
            "a script on standard input (-) can be read once, not by every rank",
            hint="cat > train.py, then: echelon run train.py",
        )
    path = os.path.join(os.path.abspath(cwd), target)
    mode = _mode(target, path, cwd=cwd, search_path=search_path)
    if stat.S_ISDIR(mode):
        return _directory(target, path, search_path)
    if not stat.S_ISREG(mode):
        raise UsageError(
            f"{target} is not a regular file; every rank reads the script, so it must be one",
            hint=f"cat {shlex.quote(target)} > train.py, then: echelon run train.py",
        )
    source = read_source(path, target)
    archived = _archived(path, search_path) if END_OF_ARCHIVE in source else None
    if archived is not None:
        return archived
    if not path.endswith(".pyc"):
        _judge_file(target, path, source)
    # python resolves links here: sys.path[0] is the folder of the link's target
    folder = os.path.dirname(os.path.realpath(path))
    return Script(kind="file", path=path, folder=folder, search_path=search_path, content=source)


def _mode(target: str, path: str, *, cwd: str, search_path: tuple[str, ...]) -> int:
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise _missing(target, path, cwd=cwd, search_path=search_path) from None
    except PermissionError:
        raise UsageError(
            f"{target} cannot be reached: a folder on its way gives no permission to {_who()}",
            hint=f"namei -l {shlex.quote(path)}",
        ) from None
    except OSError as error:
        shown = target if len(target) <= 200 else f"{target[:60]}… ({len(target)} characters)"
        raise UsageError(f"{shown} cannot be reached: {error.strerror}", hint=RUN + "train.py") from None


def _who() -> str:
    return f"user {os.geteuid()}"


def _missing(target: str, path: str, *, cwd: str, search_path: tuple[str, ...]) -> UsageError:
    folder, name = os.path.split(path.rstrip("/"))
    if os.path.islink(path):
        to = os.readlink(path)
        return UsageError(f"{target} is a link to {to}, which does not exist", hint=f"ls -l {shlex.quote(to)}")
    if not os.path.isdir(folder):
        near = nearest_files(os.path.dirname(folder), os.path.basename(folder), only_folders=True)
        message = f"there is no script {target}: {folder} is no folder"
        return UsageError(message + one_of("; the nearest folders beside it are", near), hint="ls -d */")
    near = nearest_files(folder, name)
    message = f"there is no script {target} in {folder}" + one_of("; the nearest names there are", near)
    if near:
        shown = os.path.join(os.path.dirname(target), near[0])
        return UsageError(message, hint=RUN + shlex.quote(shown))
    if Searcher([cwd, *search_path]).locate(name) is not None and "/" not in target:
        return UsageError(f"{message}; there is a module of that name", hint=f"{RUN}-m {target}")
    if re.fullmatch(r"python[\d.]*", target):
        return UsageError(f"{target} is the interpreter, and echelon starts it itself", hint=RUN + "train.py")
    if "/" not in target and _is_command(target):
        message += "; there is a program of that name"
        return UsageError(message, hint=f"to start a program that is not Python write: {RUN}-- {target}")
    return UsageError(message, hint=f"ls {shlex.quote(folder)}")


def _is_command(name: str) -> bool:
    places = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return any(os.access(os.path.join(place, name), os.X_OK) for place in places)


def read_source(path: str, target: str) -> bytes:
    """Return the file's bytes, or raise UsageError that says why it cannot be read."""
    try:
        return regular_files.read(path, most_bytes=MOST_BYTES)  # an archive may contain libraries
    except PermissionError:
        mode = stat.filemode(os.stat(path).st_mode)
        raise UsageError(
            f"{target} may not be read by {_who()} (its mode is {mode})", hint=f"chmod u+r {shlex.quote(path)}"
        ) from None
    except OSError as error:
        raise UsageError(f"echelon cannot read {target}: {error.strerror}", hint=f"ls -l {shlex.quote(path)}") from None


def _archived(path: str, search_path: tuple[str, ...]) -> Script | None:
    """Return the script of an archive; None if it has no `__main__`."""
    try:
        archive = zipimport.zipimporter(path)
        if archive.find_spec("__main__") is None:
            return None
    except zipimport.ZipImportError:
        return None
    try:
        source = archive.get_source("__main__")
    except (zipimport.ZipImportError, UnicodeDecodeError, SyntaxError):
        source = None
    content = None if source is None else source.encode()
    return Script(kind="zip", path=None, folder=path, search_path=search_path, content=content)


def _judge_file(target: str, path: str, source: bytes) -> None:
    program = f"to start a program that is not Python write: {RUN}-- {shlex.quote(path)}"
    for first, description in BINARY.items():
        if source.startswith(first):
            raise UsageError(f"{target} is {description}, not a Python file", hint=program)
    if source.startswith(UTF16):
        hint = f"iconv -f UTF-16 -t UTF-8 {shlex.quote(target)} > utf8.py"
        raise UsageError(f"{target} is UTF-16 text; Python reads UTF-8", hint=hint)
    place = source.find(b"\0")
    if place >= 0:
        line = source.count(b"\n", 0, place) + 1
        raise UsageError(f"{target} is not a Python file: it has a null byte in line {line}", hint=program)
    shell = source[:120].split(b"\n", 1)[0].decode("utf-8", "replace")
    if shell.startswith("#!") and "py" not in shell:
        hint = f"it asks for {shell[2:].strip()} in its first line; {program}"
    else:
        hint = f"{shlex.quote(sys.executable)} -m py_compile {shlex.quote(target)}"
    judge(source, target, hint=hint)


def _directory(target: str, path: str, search_path: tuple[str, ...]) -> Script:
    main = os.path.join(path, "__main__.py")
    if os.path.isfile(main):
        source = read_source(main, main)
        _judge_file(os.path.join(target, "__main__.py"), main, source)
        return Script(kind="directory", path=main, folder=path, search_path=search_path, content=source)
    try:
        names = sorted(name for name in os.listdir(path) if name.endswith(".py"))
    except PermissionError:
        message = f"{target} is a folder that {_who()} may not list"
        raise UsageError(message, hint=f"ls -ld {shlex.quote(path)}") from None
    preferred = [name for name in ("train.py", "main.py", "run.py") if name in names] or names
    message = f"{target} is a folder without __main__.py" + one_of("; the Python files in it are", names)
    shown = os.path.join(target, preferred[0] if preferred else "train.py")
    raise UsageError(message, hint=RUN + shlex.quote(shown))


def _resolve_module(target: str, *, cwd: str, search_path: tuple[str, ...]) -> Script:
    cwd = os.path.abspath(cwd)
    searcher = Searcher([cwd, *search_path])
    if "/" in target or target.endswith(".py"):
        dotted = target.removeprefix("./").removesuffix(".py").strip("/").replace("/", ".")
        message = f"-m takes a module's dotted name, not a path: {target}"
        raise UsageError(message, hint=f"{RUN}-m {dotted}   or: {RUN}{shlex.quote(target)}")
    if "" in target.split("."):
        clean = ".".join(part for part in target.split(".") if part) or "package.module"
        raise UsageError(f"{target} is no module's full name: a part of it is empty", hint=f"{RUN}-m {clean}")
    located = None if is_built_in(target) else searcher.locate(target)
    if located is None:
        raise _missing_module(target, cwd, searcher)
    name = target
    if located.folders:
        name = target + ".__main__"
        main = searcher.locate(name)
        if main is None:
            raise _without_main(target, located.folders)
        located = main
    if not located.source:
        if os.path.isdir(located.entry):
            raise UsageError(f"{name} has no Python source that could be run", hint=RUN + "train.py")
        return Script(kind="module", path=None, folder=cwd, name=name, search_path=search_path)
    path = located.source
    source = read_source(path, path)
    _judge_file(path, path, source)
    return Script(kind="module", path=path, folder=cwd, name=name, search_path=search_path, content=source)


def _missing_module(target: str, cwd: str, searcher: Searcher) -> UsageError:
    if is_built_in(target):
        return UsageError(f"the module {target} is built into Python and cannot be run", hint=RUN + "train.py")
    known, part = "", ""
    for part in target.split("."):
        if searcher.locate(known + part) is None:
            break
        known += part + "."
    parent = searcher.locate(known[:-1]) if known else None
    folders = parent.folders if parent else (cwd,)
    near = [known + name for name in nearest_modules(folders, part)]
    if parent and not parent.folders:
        message = f"there is no module {target}: {known[:-1]} is a module, not a package"
        return UsageError(message, hint=f"{RUN}-m {known[:-1]}")
    where = f"in the package {known[:-1]}" if parent else f"in {cwd} or on Python's search path"
    message = f"there is no module {target} {where}" + one_of("; the nearest names there are", near)
    hint = f"{RUN}-m {near[0]}" if near else "run it from the folder that has it: cd FOLDER"
    return UsageError(message, hint=hint)


def _without_main(target: str, folders: Sequence[str]) -> UsageError:
    names = [f"{target}.{name}" for name in nearest_modules(folders, "") if name != "__init__"]
    message = f"{target} is a package without __main__, so `-m {target}` has nothing to run"
    shown = names[0] if names else target + ".train"
    return UsageError(message + one_of("; its modules are", names), hint=f"{RUN}-m {shown}")
