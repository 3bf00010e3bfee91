"""Find the installed frameworks and their versions by reading files: importing them would take minutes."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from echelon.hardware import vendors
from echelon.hardware.vendor import Vendor

REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)\s*(?:\[[^\]]*\])?\s*\(?(?P<versions>[^;)]*)\)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageProblem:
    """A problem of the installed packages."""

    package: str
    """The framework that has the problem."""
    text: str
    hint: str
    breaks: bool
    """Whether a script that imports the package cannot run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """The devices that the installed PyTorch was built for."""

    version: str
    vendor: Vendor = vendors.UNKNOWN
    toolkit_version: str = ""

    @property
    def devices(self) -> str:
        return f"{self.vendor.toolkit} {self.toolkit_version}" if self.toolkit_version else "the CPU"


def version(*distributions: str) -> str:
    """Return the version of the first installed distribution; empty if none is installed."""
    from importlib import metadata  # most runs never pay these 15 ms

    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def is_there(name: str) -> bool:
    """Say whether `import NAME` would find a module; import nothing."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def torch_build() -> Build | None:
    """Return PyTorch's build from its version.py; None if PyTorch is not installed."""
    text = _source("torch", "version.py")
    if not text:
        return None
    fields = dict(re.findall(r"^(\w+)\b[^=]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE))
    vendor = next((vendor for vendor in vendors.ALL if vendor.torch_word in fields), vendors.UNKNOWN)
    toolkit_version = ".".join(fields.get(vendor.torch_word, "").split(".")[:2])
    return Build(version=fields.get("__version__", ""), vendor=vendor, toolkit_version=toolkit_version)


def _source(package: str, file: str) -> str:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return ""
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    for folder in folders:
        try:
            with open(os.path.join(folder, file), encoding="utf-8") as opened:
                return opened.read()
        except OSError:
            continue
    return ""


def versions() -> dict[str, str]:
    by_name = {row.name: row.distributions for row in FRAMEWORKS}
    names = {name for row in CONFLICTS for name in (row.one, row.other)} | {
        name for pair in COMPANIONS for name in pair
    }
    by_package = {name: version(*by_name.get(name, (name,))) for name in sorted(names | by_name.keys())}
    return {name: text for name, text in by_package.items() if text}


def problems(versions: Mapping[str, str], build: Build | None, vendor: str) -> list[PackageProblem]:
    """Return the problems of these versions on devices of this vendor ("": no devices)."""
    return [*_conflicts(versions), *_companions(versions), *_builds(versions, build, vendor)]


def _conflicts(versions: Mapping[str, str]) -> list[PackageProblem]:
    return [
        PackageProblem(
            package=row.one,
            text=f"{row.one} {versions[row.one]} with {row.other} {versions[row.other]}: {row.why}",
            hint=row.hint,
            breaks=row.breaks,
        )
        for row in CONFLICTS
        if row.one in versions and row.other in versions
        if not row.below or is_older(versions[row.one], row.below)
        if not row.other_from or not is_older(versions[row.other], row.other_from)
    ]


def _companions(versions: Mapping[str, str]) -> list[PackageProblem]:
    """Compare installed versions with the packages' requirements, extras included, as `pip check` does."""
    wrong = []
    for package, other in COMPANIONS:
        wanted = requirement(package, other) if package in versions and other in versions else ""
        if wanted and not fits(versions[other], wanted):
            wrong.append(
                PackageProblem(
                    package=package,
                    text=f"{package} {versions[package]} needs {other}{wanted}, but {versions[other]} is installed",
                    hint=f"pip install '{other}{wanted}'" if other != "torch" else f"pip install -U {package}",
                    breaks=True,
                )
            )
    return wrong


def requirement(package: str, other: str) -> str:
    """Return the requirement of an installed package for another, ">=1.1.0"; empty if it has none."""
    from importlib import metadata

    try:
        lines = metadata.requires(package) or []
    except metadata.PackageNotFoundError:
        return ""
    for line in lines:
        match = REQUIREMENT.match(line)
        if match and match["name"].replace("_", "-").lower() == other and match["versions"].strip():
            return match["versions"].replace(" ", "").strip()
    return ""


def _builds(versions: Mapping[str, str], build: Build | None, vendor: str) -> list[PackageProblem]:
    wrong = []
    if build is not None and vendor and build.vendor.name != vendor:
        devices = vendors.named(vendor).title
        wrong.append(
            PackageProblem(
                package="torch",
                text=f"torch {build.version} is built for {build.devices}, but this machine has {devices} devices",
                hint="https://pytorch.org/get-started shows the command for each kind of device",
                breaks=False,
            )
        )
    built_with = prebuilt_for() if "deepspeed" in versions else ""
    if build is not None and built_with and parts(built_with)[:2] != parts(build.version)[:2]:
        wrong.append(
            PackageProblem(
                package="deepspeed",
                text=f"deepspeed {versions['deepspeed']} has operators built for torch {built_with}, but torch "
                f"{build.version} is installed",
                hint="pip install --force-reinstall --no-deps --no-build-isolation deepspeed",
                breaks=True,
            )
        )
    return wrong


def prebuilt_for() -> str:
    """Return the PyTorch that DeepSpeed's operators were compiled with; empty if they are compiled on demand."""
    text = _source("deepspeed", "git_version_info_installed.py")
    operators = re.search(r"^installed_ops\s*=\s*\{(.*)\}", text, re.MULTILINE)
    built = re.search(r"^torch_info\s*=.*?'version':\s*'([\d.]+)'", text, re.MULTILINE)
    is_prebuilt = operators is not None and "True" in operators.group(1)
    return built.group(1) if is_prebuilt and built and built.group(1) != "0.0" else ""


def row(name: str) -> Framework | None:
    return next((each for each in FRAMEWORKS if each.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One framework."""

    name: str
    """The name that scripts import."""
    distributions: tuple[str, ...]
    """The names of the distribution and of its other builds on pip."""
    install: str
    """The command that installs it."""
    tested: str
    """The version that echelon is tested with."""


FRAMEWORKS = (
    Framework(name="torch", distributions=("torch",), install="torch", tested="2.13.0"),
    Framework(name="transformers", distributions=("transformers",), install="'echelon[hf]'", tested="5.23.0"),
    Framework(name="accelerate", distributions=("accelerate",), install="'echelon[accelerate]'", tested="1.15.0"),
    Framework(name="lightning", distributions=("lightning",), install="'echelon[lightning]'", tested="2.6.6"),
    Framework(name="pytorch_lightning", distributions=("pytorch-lightning",), install="'echelon[lightning]'",
              tested="2.6.6"),
    Framework(name="deepspeed", distributions=("deepspeed",), install="'echelon[deepspeed]'", tested="0.19.8"),
    Framework(name="horovod", distributions=("horovod",), install="'echelon[horovod]'", tested="0.28.1"),
    Framework(name="tensorflow", distributions=("tensorflow", "tensorflow-cpu", "tensorflow-rocm"),
              install="'echelon[tensorflow]'", tested="2.21.0"),
    Framework(name="mpi4py", distributions=("mpi4py",), install="'echelon[mpi]'", tested="4.1.2"),
    Framework(name="jax", distributions=("jax",), install="'echelon[jax]'", tested="0.10.2"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Two packages that do not work together."""

    one: str
    below: str
    """Affects versions of `one` below this; empty: all."""
    other: str
    other_from: str
    """Affects versions of `other` from this on; empty: all."""
    why: str
    breaks: bool
    """Whether a script that imports `one` cannot run."""
    hint: str
    source: str


CONFLICTS = (
    Conflict(one="deepspeed", below="0.14.4", other="torch", other_from="2.4", breaks=True,
             why="it imports a name that torch.distributed.elastic no longer has", hint="pip install -U deepspeed",
             source="https://github.com/deepspeedai/DeepSpeed/issues/5603"),
    Conflict(one="mosaicml-streaming", below="", other="transformers", other_from="5", breaks=False,
             why="it installs old versions of numpy and transformers, and another torchvision",
             hint="install it in its own environment", source="seen with 0.13.0, 2026-11-21"),
    Conflict(one="horovod", below="0.29", other="torch", other_from="2.1", breaks=False,
             why="it builds only if you change its CMake files to C++17 or newer", hint="see docs/frameworks.md",
             source="seen with 0.28.1 and torch 2.13, 2026-11-21"),
    Conflict(one="tensorflow", below="", other="keras", other_from="3", breaks=False,
             why="fit() does not support MultiWorkerMirroredStrategy", hint="a loop with strategy.run works",
             source="https://github.com/keras-team/keras/issues/20585"),
)  # fmt: skip
COMPANIONS = (("transformers", "accelerate"), ("torchvision", "torch"), ("torchaudio", "torch"), ("lightning", "torch"),
              ("accelerate", "torch"), ("deepspeed", "torch"), ("transformers", "torch"))  # fmt: skip
"""Pairs of packages; the first states in its metadata which versions of the second it needs."""


OPERATORS = re.compile(r"\s*(===|==|!=|<=|>=|~=|<|>)\s*([\w.*+!-]+)\s*")


def parts(version: str) -> tuple[int, ...]:
    """Return the numbers of a release: 2.13.0+cpu, 2.13.0rc1 and 2.13.0.dev1 are (2, 13, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", version.strip().lstrip("v"))
    return tuple(map(int, match.group().split("."))) if match else ()


def is_older(version: str, than: str) -> bool:
    """Say whether a version comes before another; trailing zeros do not count."""
    ours, theirs = parts(version), parts(than)
    width = max(len(ours), len(theirs))
    return ours + (0,) * (width - len(ours)) < theirs + (0,) * (width - len(theirs))


def fits(version: str, wanted: str) -> bool:
    """Say whether a version satisfies a requirement such as ">=1.1,<2" or "==2.13.*"."""
    return all(_is_allowed(version, operator, bound) for operator, bound in OPERATORS.findall(wanted))


def _is_allowed(version: str, operator: str, bound: str) -> bool:
    if operator in ("==", "===", "!="):
        is_same = _is_equal(version, bound)
        return not is_same if operator == "!=" else is_same
    if operator == "~=":
        prefix = parts(bound)[:-1]
        return not is_older(version, bound) and parts(version)[: len(prefix)] == prefix
    older, newer = is_older(version, bound), is_older(bound, version)
    return {"<": older, ">": newer, "<=": not newer, ">=": not older}[operator]


def _is_equal(version: str, bound: str) -> bool:
    if bound.endswith(".*"):
        prefix = parts(bound)
        return parts(version)[: len(prefix)] == prefix
    return not is_older(version, bound) and not is_older(bound, version)
