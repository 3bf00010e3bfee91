"""Find a module's source in the folders of the search path, without importing."""

from __future__ import annotations

import os
import re
import sys
import zipimport
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import machinery

from echelon.hardware import files

LOADERS = (
    (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES),
    (machinery.SourceFileLoader, machinery.SOURCE_SUFFIXES),
    (machinery.SourcelessFileLoader, machinery.BYTECODE_SUFFIXES),
)
SUFFIXES = frozenset({*machinery.EXTENSION_SUFFIXES, *machinery.SOURCE_SUFFIXES, *machinery.BYTECODE_SUFFIXES})
# /opt/lib/python3.12, …/lib-dynload, /usr/lib/python312.zip, …/site-packages, …/dist-packages
INSTALLED = re.compile(r"/(site|dist)-packages(/|$)|/lib\w*/python3[\d.]*t?(/lib-dynload)?/?$|/python3\d*\.zip$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """The place from which Python would import a module."""

    name: str
    source: str
    """Path of its .py file, or "" if there is none (compiled, zipped, a folder without __init__)."""
    folders: tuple[str, ...]
    """The folders of its submodules; empty for a module that is no package."""
    entry: str
    """The entry of the search path that contains it."""
    is_bare: bool = False
    """A folder without __init__, which any later package of that name hides."""

    def is_same_as(self, other: Located) -> bool:
        """Say whether both are one file or folder, after resolving links."""
        mine, theirs = ((each.source or each.entry, *each.folders) for each in (self, other))
        return [*map(os.path.realpath, mine)] == [*map(os.path.realpath, theirs)]


def is_own_code(entry: str) -> bool:
    """Say whether a folder contains the user's own code, and not installed packages."""
    return INSTALLED.search(entry) is None and os.path.isdir(entry)


def tops(entry: str) -> list[str]:
    """Return the names in this folder that may be modules."""
    stems = (name.split(".", 1) for name in files.names(entry))
    names = (stem for stem, *suffix in stems if not suffix or "." + suffix[0] in SUFFIXES)
    return [name for name in dict.fromkeys(names) if name.isidentifier()]


def is_built_in(top: str) -> bool:
    """Say whether Python finds this name before searching folders, so that no file can hide it."""
    if top in sys.builtin_module_names or top == "encodings":
        return True
    return machinery.FrozenImporter.find_spec(top) is not None


class Searcher:
    """Search modules in Python's order; folder listings are cached."""

    def __init__(self, path: Iterable[str]) -> None:
        self.path = tuple(entry for entry in path if entry)
        self._finders: dict[str, machinery.FileFinder | zipimport.zipimporter | None] = {}
        self._found: dict[str, Located | None] = {}

    def over(self, path: Iterable[str]) -> Searcher:
        """Return a searcher for another search path with the same cache."""
        other = Searcher(path)
        other._finders = self._finders
        return other

    def locate(self, name: str) -> Located | None:
        """Return the place of a dotted name; None if the folders do not contain it."""
        if name not in self._found:
            self._found[name] = self._locate(name)
        return self._found[name]

    def _locate(self, name: str) -> Located | None:
        top, *rest = name.split(".")
        located = self._among(top, self.path) or _editable(top)
        for part in rest:
            if located is None:
                return None
            located = self._among(located.name + "." + part, located.folders)
        return located

    def _among(self, name: str, folders: Sequence[str]) -> Located | None:
        portions: list[tuple[str, str]] = []
        for entry in folders:
            spec = self._spec(name, entry)
            if spec is None:
                continue
            places = tuple(spec.submodule_search_locations or ())
            if spec.loader is not None:
                return Located(name=name, source=_source(spec), folders=places, entry=entry)
            portions += [(entry, place) for place in places]
        if not portions:
            return None
        places = tuple(place for _, place in portions)
        return Located(name=name, source="", folders=places, entry=portions[0][0], is_bare=True)

    def _spec(self, name: str, entry: str) -> machinery.ModuleSpec | None:
        if entry not in self._finders:
            self._finders[entry] = _finder(entry)
        finder = self._finders[entry]
        return None if finder is None else finder.find_spec(name)


def _finder(entry: str) -> machinery.FileFinder | zipimport.zipimporter | None:
    if os.path.isdir(entry):
        return machinery.FileFinder(entry, *LOADERS)
    try:
        return zipimport.zipimporter(entry)
    except zipimport.ZipImportError:
        return None


def _source(spec: machinery.ModuleSpec) -> str:
    origin = spec.origin or ""
    return origin if origin.endswith(".py") and os.path.isfile(origin) else ""


def _editable(top: str) -> Located | None:
    """Ask the finders of `pip install -e` that use a table instead of a folder on the path."""
    for finder in sys.meta_path:
        module = getattr(finder, "__module__", "")
        if not module.startswith("__editable__"):
            continue
        place = getattr(sys.modules.get(module), "MAPPING", {}).get(top)
        if place is not None:
            folder, name = os.path.split(str(place))
            return Searcher([folder]).locate(name.removesuffix(".py"))
    return None


def rocm(search_path: Sequence[str]) -> str:
    """Return the ROCm version, "6.2"; empty if PyTorch is missing or built for something else.

    `torch/version.py` holds a line such as `hip: Optional[str] = '6.2.41133-dd7f95766'`.
    """
    for folder in search_path:
        try:
            with open(os.path.join(folder, "torch", "version.py"), encoding="utf-8") as file:
                match = re.search(r"^hip\b[^=]*=\s*['\"](\d+\.\d+)", file.read(), re.MULTILINE)
        except OSError:
            continue
        return match.group(1) if match else ""
    return ""
