"""Track sys.path while a script changes it, and decide what may be imported before the ranks start.

Environment variables that a script sets before an import: does the import read them?

A module that is imported before the fork does not see variables that the script sets later. If it reads one, the
import is left to the ranks.
"""

import os
import sys

from echelon.script.find import Script
from echelon.script.locate import Located, Searcher, is_built_in, is_own_code, tops
from echelon.script.values import ProcessPlace, UnknownEntry


class SearchPath:
    """sys.path at one point of the script.

    The warm process imports with the initial sys.path. Once an entry that the script adds may hide an installed module,
    all imports are left to the ranks, because other modules may import the hidden one.
    """

    def __init__(self, script: Script) -> None:
        self.given = (script.folder, *script.search_path)
        self.place = ProcessPlace(cwd=script.cwd, path=list(self.given), given=self.given)
        self.folder = script.folder
        self.start = Searcher(self.given)
        self.installed = self.start.over(script.search_path)
        self.now = self.start
        self.barrier = ""
        """The reason why no later import may come before the ranks; "" if it may."""
        self.open_end = ""
        """The reason why a missing module may still exist."""
        self._seen: dict[str, str] = {}
        self._added: dict[str, str] = {}
        self._homes: dict[str, Searcher] = {}
        self._real = {os.path.realpath(entry): entry for entry in self.given if entry}

    def locate(self, name: str) -> Located | None:
        """Return the place of a dotted name; an imported module stays at its place."""
        top = name.partition(".")[0]
        now = self._homes.get(top, self.now)
        return (now if now.locate(top) is not None else self.start).locate(name)

    def record_import(self, name: str) -> None:
        """Record a certain import, so that no later change hides it."""
        top = name.partition(".")[0]
        if top not in self._homes and self.now.locate(top) is not None:
            self._homes[top] = self.now

    def is_own(self, top: str) -> bool:
        """Say whether a top-level name is the user's own code, which is read and left to the ranks."""
        located = None if is_built_in(top) else self.locate(top)
        # `pip install -e` may use a table instead of the search path: such a package has an entry outside of it
        return located is not None and (located.entry == self.folder or is_own_code(located.entry))

    def why_not(self, top: str) -> str:
        """Return why a module must not be imported before the fork, "" if it may."""
        if is_built_in(top):
            return ""
        located = self.locate(top)
        if located is not None and located.entry in self._added:
            return f"it lies in {located.entry}, which the script puts on sys.path ({self._added[located.entry]})"
        if self.barrier:
            return self.barrier
        if self.open_end and (located is None or located.is_bare or located.entry not in self.given):
            return f"it is not installed where Python looked at the start, and {self.open_end}"
        return ""

    def update(self, where: str) -> None:
        """Update the state after a change of `place.path`."""
        entries = [self._resolved(each, where) for each in self.place.path if isinstance(each, (str, UnknownEntry))]
        known = [each for each in entries if isinstance(each, str)]
        self._added.update((each, where) for each in known if each not in self.given and each not in self._added)
        self.now = self.start.over(known)
        installed = self.given[1:]
        last = max((number for number, each in enumerate(entries) if each in installed), default=-1)
        unknown = next(
            ((number, each.why) for number, each in enumerate(entries) if isinstance(each, UnknownEntry)), None
        )
        self.open_end = unknown[1] if unknown else ""
        is_moved = [*dict.fromkeys(each for each in known if each in installed)] != [*dict.fromkeys(installed)]
        if self.barrier:
            return
        if unknown and (unknown[0] < last or is_moved):
            self.barrier = unknown[1]
        elif is_moved:
            self.barrier = f"the script takes away or moves what Python itself put on sys.path ({where})"
        else:
            self.barrier = self._hidden(known, where)

    def lose(self, why: str) -> None:
        """Record that sys.path may change in an unknown way."""
        self.place.path = [UnknownEntry(why=why), *self.place.path]
        self.update("")

    def _resolved(self, entry: str | UnknownEntry, where: str) -> str | UnknownEntry:
        if isinstance(entry, UnknownEntry) or entry in self.given:
            return entry
        where = self._seen.setdefault(entry, where)
        path = os.path.normpath(os.path.join(self.place.cwd, entry))
        if not os.path.isabs(path):
            return UnknownEntry(
                why=f"the script puts {entry!r} on sys.path ({where}) in a working folder that is not known"
            )
        if not os.path.isdir(os.path.join(self.place.cwd, entry)):
            return UnknownEntry(
                why=f"the script puts {path} on sys.path ({where}), which is no folder that could be read"
            )
        real = os.path.realpath(os.path.join(self.place.cwd, entry))
        return self._real.get(real, path if os.path.realpath(path) == real else real)

    def _hidden(self, known: list[str], where: str) -> str:
        """Return why an import may now find another module than at the start."""
        candidates = [each for each in known if each not in self.given]
        first = next((number for number, each in enumerate(known) if each in self.given[1:]), len(known))
        if self.folder not in known[:first] and os.path.isdir(self.folder):
            candidates.append(self.folder)
        for top in (name for entry in dict.fromkeys(candidates) for name in tops(entry)):
            if top in self._homes or is_built_in(top) or self.installed.locate(top) is None:
                continue
            was, now = self.start.locate(top), self.now.locate(top)
            if was is not None and now is not None and not was.is_same_as(now):
                return (
                    f"the script changes sys.path ({where}), after which {top} comes from {now.entry} and not from "
                    f"{was.entry}, and this import may use it"
                )
        return ""


READ_WHEN_USED = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUBLAS_", "HIP_", "ROCR_", "NCCL_",
    "RCCL_", "GLOO_", "FI_", "UCX_", "MASTER_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "TOKENIZERS_PARALLELISM",
    "WANDB_", "MIOPEN_", "DISPLAY",
)  # fmt: skip
# prefixes of other libraries' variables, which torch and numpy do not read
OTHERS = (
    "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "MLFLOW_", "TF_", "XLA_", "JAX_", "COMET_", "NEPTUNE_", "AWS_", "RAY_",
)  # fmt: skip
INDIFFERENT = frozenset({"torch", "torchvision", "torchaudio", "numpy", "scipy"})


def is_read_on_import(key: str, *, top: str) -> bool:
    """Say whether importing the package `top` may depend on this variable; "" is an unknown variable."""
    if top in sys.stdlib_module_names:
        return False
    if key.startswith(READ_WHEN_USED):
        return False
    return not (top in INDIFFERENT and key.startswith(OTHERS))
