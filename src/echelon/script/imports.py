"""Read what a script imports, following the user's own modules, so that it is imported before the fork."""

import os
import re
import zipimport
from collections.abc import Iterator
from dataclasses import dataclass

from echelon.script.find import Script
from echelon.script.lazy import later
from echelon.script.locate import Located, Searcher, is_built_in, is_own_code
from echelon.script.settings import is_read_on_import
from echelon.script.source import parse
from echelon.script.statements import Event, Setting, Wanted, events, mentions
from echelon.script.unsafe import why_unsafe

PARSED_BYTES = 1 << 19  # of all files together, about 0.2 s on one core; the rest is read by lines
LOCAL_FILES = 1000
# `import a.b, c as d` or `from a.b import c`, at the start of a line
IMPORT_LINE = re.compile(rb"^(?:import[ \t]+([\w.,\t ]+)|from[ \t]+([\w.]+)[ \t]+import\b)", re.MULTILINE)
DOTTED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Imports:
    """What a script imports, as far as reading it can tell; every field is JSON-friendly when made a list."""

    preload: tuple[str, ...]
    """In the script's order: "a.b"; for `from a.b import c` "a.b:c", a.b and then a.b.c if it has no c."""
    skipped: tuple[tuple[str, str], ...]
    """Names that are left to the ranks, each with the reason."""
    local: tuple[str, ...]
    """The user's own modules, which were read and are left to the ranks."""
    uses: frozenset[str]
    """Top-level packages that are imported anywhere in the script or its own modules, also in functions."""
    mentions: frozenset[str]
    """Dotted names below them that the sources mention, `torch.distributed.init_process_group` for one."""


def read_imports(script: Script) -> Imports:
    """Read the script and its own modules; what cannot be read is skipped with a reason, nothing is run.

    >>> read_imports(Script(kind="file", path="train.py", folder=".")).preload  # doctest: +SKIP
    ('torch', 'torch:nn', 'torch._dynamo')
    """
    reader = _Reader(script)
    reader.run()
    return reader.result()


class _Reader:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.searcher = Searcher([script.folder, *script.search_path])
        own = (entry for entry in script.search_path if is_own_code(entry))
        self.own_entries = {script.folder, *own}
        self.preload: dict[str, None] = {}
        self.skipped: dict[str, str] = {}
        self.local: dict[str, None] = {}
        self.mentions: set[str] = set()
        self.keys: dict[str, None] = {}
        self.parsed_bytes = 0
        self.long: list[str] = []

    def run(self) -> None:
        """Walk the imports depth first, as they run, with a stack of our own: cycles and depth do no harm."""
        stack = [self._script_names()]
        while stack:
            child = next((inner for inner in map(self._take, stack[-1]) if inner is not None), None)
            if child is None:
                stack.pop()
            else:
                stack.append(child)

    def result(self) -> Imports:
        foreign = {name for name in self.mentions if not self._is_own(name.partition(".")[0])}
        for name in later(foreign):
            self._want(name, name)
        if self.long:
            more = f" and {len(self.long) - 1} more" if len(self.long) > 1 else ""
            reason = f"more than {PARSED_BYTES // 1024} KiB of source: only imports at the start of a line were read"
            self.skipped[self.long[0] + more] = reason
        return Imports(
            preload=tuple(self.preload),
            skipped=tuple(self.skipped.items()),
            local=tuple(self.local),
            uses=frozenset(name.partition(".")[0] for name in foreign) - {"__future__"},
            mentions=frozenset(foreign),
        )

    def _script_names(self) -> Iterator[Wanted]:
        script = self.script
        package = script.name.rpartition(".")[0]
        parts = package.split(".") if package else []
        for end in range(1, len(parts) + 1):  # `-m a.b.c` imports a and a.b first
            yield Wanted(module=".".join(parts[:end]))
        if script.path is None:
            yield from self._archived()
        else:
            yield from self._read(script.path, package=package, as_main=True)

    def _archived(self) -> Iterator[Wanted]:
        try:
            source = zipimport.zipimporter(self.script.folder).get_source("__main__")
        except (zipimport.ZipImportError, UnicodeDecodeError, SyntaxError):
            source = None
        if source is None:
            self.skipped["__main__"] = "its source cannot be read"
        else:
            yield from self._events(source.encode(), "__main__", package="", as_main=True)

    def _read(self, path: str, *, package: str, as_main: bool) -> Iterator[Wanted]:
        try:
            with open(path, "rb") as file:
                source = file.read()
        except OSError as error:
            self.skipped[path] = f"cannot be read: {error.strerror}"
            return
        yield from self._events(source, path, package=package, as_main=as_main)

    def _events(self, source: bytes, path: str, *, package: str, as_main: bool) -> Iterator[Wanted]:
        found: Iterator[Event]
        if self.parsed_bytes + len(source) > PARSED_BYTES:
            names = _scan(source)
            self.mentions.update(names)
            self.long.append(path)
            found = (Wanted(module=name) for name in names)
        else:
            self.parsed_bytes += len(source)
            tree = parse(source, path)
            if tree is None:
                self.skipped[path] = "this Python cannot parse it"
                return
            self.mentions |= mentions(tree)
            found = events(tree, as_main=as_main)
        for event in found:
            if isinstance(event, Setting):
                self.keys[event.key] = None
            else:
                yield _absolute(event, package)

    def _take(self, wanted: Wanted) -> Iterator[Wanted] | None:
        """Note one import; return the imports of the own modules that it runs, if any."""
        name, top = wanted.module, wanted.module.partition(".")[0]
        if wanted.level:
            self.skipped["." * wanted.level + name] = "a relative import that leaves its package"
            return None
        if top == "__future__" or not name:
            return None
        if self._is_own(top):
            return self._own(wanted)
        self._want(f"{name}:{wanted.attribute}" if wanted.attribute else name, name)
        return None

    def _want(self, entry: str, module: str) -> None:
        dotted = entry.replace(":", ".")
        if dotted == self.script.name:
            return  # runpy warns when the module that it is to run has been imported before
        row = why_unsafe(dotted)
        if row is not None:
            self.skipped[entry] = row.reason
            for name in row.instead:
                self._want(name, name)
            return
        top = module.partition(".")[0]
        late = next((key for key in self.keys if is_read_on_import(key, top=top)), None)
        if late is None or entry in self.preload:
            self.preload[entry] = None
        else:
            what = late or "an environment variable"
            self.skipped[entry] = f"the script sets {what} first, which the import may read"

    def _is_own(self, top: str) -> bool:
        if is_built_in(top):
            return False
        found = self.searcher.locate(top)
        if found is None:
            return False
        # a package that `pip install -e` put on no path has an entry of its own outside the search path
        return found.entry in self.own_entries or (found.entry not in self.searcher.path and is_own_code(found.entry))

    def _own(self, wanted: Wanted) -> Iterator[Wanted]:
        parts = wanted.module.split(".")
        names = [".".join(parts[: end + 1]) for end in range(len(parts))]
        if wanted.attribute:
            names.append(f"{wanted.module}.{wanted.attribute}")
        for name in names:
            found = self.searcher.locate(name)
            if found is None or name in self.local:
                continue
            if len(self.local) >= LOCAL_FILES:
                self.skipped[name] = f"not read: the script has more than {LOCAL_FILES} modules of its own"
                return
            self.local[name] = None
            yield from self._read_module(found)

    def _read_module(self, found: Located) -> Iterator[Wanted]:
        package = found.name if found.folders else found.name.rpartition(".")[0]
        if found.source:
            yield from self._read(found.source, package=package, as_main=False)
        elif not (found.folders and os.path.isdir(found.folders[0])):
            self.skipped[found.name] = "has no source to read"


def _absolute(wanted: Wanted, package: str) -> Wanted:
    """Turn a relative import into an absolute one; where that cannot be, the dots stay."""
    if not wanted.level:
        return wanted
    parts = package.split(".") if package else []
    kept = len(parts) - (wanted.level - 1)
    if kept < 1:
        return wanted
    module = ".".join([*parts[:kept], *([wanted.module] if wanted.module else [])])
    return Wanted(module=module, attribute=wanted.attribute)


def _scan(source: bytes) -> list[str]:
    found: dict[str, None] = {}
    for plain, origin in IMPORT_LINE.findall(source):
        for part in (plain or origin).decode("utf-8", "replace").split(","):
            name = part.strip().partition(" ")[0]
            if DOTTED.match(name):
                found[name] = None
    return list(found)
