"""Read a script's imports, through the user's own modules, so that they can be imported before the fork."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from echelon.environment import regular_files
from echelon.script.branches import Certainty
from echelon.script.changes import marked_lines, trace
from echelon.script.find import Script
from echelon.script.preloading import later, why_unsafe
from echelon.script.search_path import SearchPath, is_read_on_import
from echelon.script.source import parse
from echelon.script.statements import Event, ImportStatement, Moved, events, mentions

# of all files together: 0.1 s of CPU for ordinary code, 2.4 s for lines of `f(a)` (2026-11-21, Python 3.11, one core)
PARSED_BYTES = 1 << 19
LOCAL_FILES = 1000
# `import a.b, c as d` or `from a.b import c`, at the start of a line
IMPORT_LINE = re.compile(rb"^(?:import[ \t]+([\w.,\t ]+)|from[ \t]+([\w.]+)[ \t]+import\b)", re.MULTILINE)
DOTTED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Imports:
    """The imports of a script, as far as reading can tell."""

    preload: tuple[str, ...]
    """In the script's order: "a.b"; for `from a.b import c` "a.b:c", a.b and then a.b.c if it has no c."""
    skipped: tuple[tuple[str, str], ...]
    """Names that ranks import themselves, each with the reason."""
    local: tuple[str, ...]
    """The user's own modules, which were read and which ranks import themselves."""
    uses: frozenset[str]
    """Top-level packages that are imported anywhere in the script or its own modules, also in functions."""
    mentions: frozenset[str]
    """Dotted names below these packages that the sources mention, such as `torch.distributed.init_process_group`."""
    files: Mapping[str, bytes] = field(default_factory=dict, compare=False, repr=False)
    """The script and the modules of `local` that could be read: path → content."""

    @property
    def all_uses(self) -> frozenset[str]:
        """Return `uses`, and the top-level names of the user's own modules."""
        return self.uses | {name.partition(".")[0] for name in self.local}

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages of `uses` outside of Python's standard library."""
        return tuple(sorted(self.uses - sys.stdlib_module_names))


def read_imports(script: Script) -> Imports:
    """Read the script and its own modules; skip unreadable ones with a reason, and run nothing.

    >>> read_imports(Script(kind="file", path="train.py", folder=".")).preload  # doctest: +SKIP
    ('torch', 'torch:nn', 'torch._dynamo')
    """
    reader = _Reader(script)
    reader.run()
    return reader.result()


class _Reader:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.search_path = SearchPath(script)
        self.preload: dict[str, Certainty] = {}
        self.skipped: dict[str, str] = {}
        self.local: dict[str, None] = {}
        self.glanced: set[str] = set()
        self.mentions: set[str] = set()
        self.keys: dict[str, None] = {}
        self.files: dict[str, bytes] = {}
        self.parsed_bytes = 0
        self.long: list[str] = []

    def run(self) -> None:
        """Walk the imports depth first, in execution order; the own stack makes cycles and depth harmless."""
        stack = [self._script_names()]
        while stack:
            child = next((inner for inner in map(self._take, stack[-1]) if inner is not None), None)
            if child is None:
                stack.pop()
            else:
                stack.append(child)

    def result(self) -> Imports:
        foreign = {name for name in self.mentions if not self.search_path.is_own(name.partition(".")[0])}
        for name in later(foreign):
            self._want(name, name, Certainty.LIKELY)
        if self.long:
            more = f" and {len(self.long) - 1} more" if len(self.long) > 1 else ""
            reason = f"more than {PARSED_BYTES // 1024} KiB of source: only imports at the start of a line were read"
            self.skipped[self.long[0] + more] = reason
        return Imports(
            preload=tuple(self.preload),
            skipped=tuple(self.skipped.items()),
            local=tuple(self.local),
            uses=frozenset(name.partition(".")[0] for name in foreign if not name.startswith("$")) - {"__future__"},
            mentions=frozenset(foreign),
            files=self.files,
        )

    def _script_names(self) -> Iterator[ImportStatement]:
        script = self.script
        package = script.name.rpartition(".")[0]
        parts = package.split(".") if package else []
        for end in range(1, len(parts) + 1):  # `-m a.b.c` imports a and a.b first
            yield ImportStatement(module=".".join(parts[:end]))
        if script.content is None:
            self.skipped["__main__"] = "its source cannot be read"
        else:
            path = script.path or os.path.join(script.folder, "__main__.py")
            yield from self._wanted(self._events(script.content, path, as_main=True), package=package)

    def _read(self, path: str, *, package: str, certainty: Certainty) -> Iterator[ImportStatement]:
        try:
            source = regular_files.read(path)
        except OSError as error:
            self.skipped[path] = f"cannot be read: {error.strerror}"
            return
        yield from self._wanted(self._events(source, path, certainty=certainty), package=package)

    def _wanted(self, events: Iterable[Event], *, package: str) -> Iterator[ImportStatement]:
        for event in events:
            if isinstance(event, ImportStatement):
                yield _absolute(event, package)
            elif isinstance(event, Moved):
                self.search_path.update(event.where)
                self._withdraw()
            else:
                self.keys[event.key] = None

    def _events(
        self, source: bytes, path: str, *, as_main: bool = False, certainty: Certainty = Certainty.CERTAIN
    ) -> Iterator[Event]:
        if certainty is not Certainty.SELDOM:
            self.files[path] = source
        shown = path.removeprefix(self.script.folder + "/")
        lines = marked_lines(source)
        if self.parsed_bytes + len(source) > PARSED_BYTES:
            self.long.append(path)
            if lines:
                self._lose(f"{shown}, which is too long to be read as a whole, may change sys.path")
            names = _scan(source)
            self.mentions.update(names)
            likely = min(certainty, Certainty.LIKELY)
            return iter([ImportStatement(module=name, certainty=likely) for name in names])
        self.parsed_bytes += len(source)
        tree = self.script.tree if as_main else parse(source, path)
        if tree is None:
            self.skipped[path] = "this Python cannot parse it"
            return iter(())
        if certainty is not Certainty.SELDOM:
            self.mentions |= mentions(tree)
        place = self.search_path.place
        follower = trace(tree, lines=lines, file=path, shown=shown, place=place) if lines else None
        return events(tree, as_main=as_main, trace=follower, at_most=certainty)

    def _take(self, wanted: ImportStatement) -> Iterator[ImportStatement] | None:
        """Record an import; return the imports of the user's own modules that it runs, or None."""
        name, top = wanted.module, wanted.module.partition(".")[0]
        if wanted.level:
            self.skipped["." * wanted.level + name] = "a relative import that leaves its package"
            return None
        if top == "__future__" or not name:
            return None
        is_own = self.search_path.is_own(top)
        if wanted.certainty is Certainty.CERTAIN:
            self.search_path.record_import(top)
        if is_own:
            return self._own(wanted)
        if wanted.certainty is not Certainty.SELDOM:
            self._want(f"{name}:{wanted.attribute}" if wanted.attribute else name, name, wanted.certainty)
        return None

    def _want(self, entry: str, module: str, certainty: Certainty) -> None:
        dotted = entry.replace(":", ".")
        if dotted == self.script.name:
            return  # runpy warns if the module that it runs was imported before
        if entry in self.preload:
            self.preload[entry] = max(certainty, self.preload[entry])
            return
        row = why_unsafe(dotted)
        if row is not None:
            self.skipped[entry] = row.reason
            for name in row.instead:
                module = name.partition(":")[0]
                if not self.search_path.is_own(module.partition(".")[0]):
                    self._want(name, module, certainty)
            return
        top = module.partition(".")[0]
        late = next((key for key in self.keys if is_read_on_import(key, top=top)), None)
        why_not = self.search_path.why_not(top)
        if why_not:
            self.skipped[entry] = why_not
        elif late is None:
            self.preload[entry] = certainty
        else:
            change = late or "an environment variable"
            self.skipped[entry] = f"the script sets {change} first, which the import may read"

    def _lose(self, why: str) -> None:
        self.search_path.lose(why)
        self._withdraw()

    def _withdraw(self) -> None:
        """Leave uncertain imports to the ranks after a significant change of sys.path: they may happen after it."""
        why = self.search_path.barrier
        for name in [name for name, certainty in self.preload.items() if why and certainty < Certainty.CERTAIN]:
            del self.preload[name]
            self.skipped[name] = f"reading cannot tell whether it is imported at all before this: {why}"

    def _own(self, wanted: ImportStatement) -> Iterator[ImportStatement]:
        parts = wanted.module.split(".")
        names = [".".join(parts[: end + 1]) for end in range(len(parts))]
        if wanted.attribute:
            names.append(f"{wanted.module}.{wanted.attribute}")
        is_seldom = wanted.certainty is Certainty.SELDOM
        for name in names:
            located = self.search_path.locate(name)
            if located is None or name in self.local or (is_seldom and name in self.glanced):
                continue
            if len(self.local) >= LOCAL_FILES:
                self.skipped[name] = f"not read: the script has more than {LOCAL_FILES} modules of its own"
                self._lose(f"{name}, which is not read, may change sys.path")
                return
            if is_seldom:
                self.glanced.add(name)
            else:
                self.local[name] = None
            package = located.name if located.folders else located.name.rpartition(".")[0]
            if located.source:
                yield from self._read(located.source, package=package, certainty=wanted.certainty)
            elif not (located.folders and os.path.isdir(located.folders[0])):
                self.skipped[located.name] = "has no source to read"


def _absolute(wanted: ImportStatement, package: str) -> ImportStatement:
    """Turn a relative import into an absolute one; keep the dots if that is impossible."""
    if not wanted.level:
        return wanted
    parts = package.split(".") if package else []
    kept = len(parts) - (wanted.level - 1)
    if kept < 1:
        return wanted
    module = ".".join([*parts[:kept], *([wanted.module] if wanted.module else [])])
    return replace(wanted, module=module, level=0)


def _scan(source: bytes) -> list[str]:
    names: dict[str, None] = {}
    for plain, origin in IMPORT_LINE.findall(source):
        for part in (plain or origin).decode("utf-8", "replace").split(","):
            name = part.strip().partition(" ")[0]
            if DOTTED.match(name):
                names[name] = None
    return list(names)
