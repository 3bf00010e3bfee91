"""Read a command line of `singularity exec` or `singularity run`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .errors import Fatal, Usage

FLAGS = {
    "--rocm": "rocm",
    "--nv": "nv",
    "--cleanenv": "cleanenv",
    "-e": "cleanenv",
    "--no-home": "no_home",
    "--writable-tmpfs": "writable_tmpfs",
    "--pid": "pid",
    "-p": "pid",
}
VALUES = {"-B": "--bind", "--bind": "--bind", "--env": "--env", "--env-file": "--env-file", "--pwd": "--pwd"}
GLOBAL_FLAGS = ("-q", "--quiet", "-s", "--silent", "-d", "--debug", "-v", "--verbose")


@dataclass(frozen=True)
class Bind:
    """One folder or file of the host and where it is inside."""

    source: str
    target: str
    read_only: bool


@dataclass
class Options:
    """What was asked for."""

    verb: str = ""
    image: str = ""
    command: list[str] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)
    binds: list[Bind] = field(default_factory=list)
    environ: dict[str, str] = field(default_factory=dict)
    pwd: str = ""


def parse(words: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Read the words behind the program's name, and the binds that the environment asks for."""
    rest = list(words)
    while rest and rest[0] in GLOBAL_FLAGS:
        rest.pop(0)
    if not rest or rest[0] not in ("exec", "run"):
        raise Usage(f'unknown command "{rest[0] if rest else ""}" for "singularity"')
    options = Options(verb=rest.pop(0))
    for name in ("SINGULARITY_BIND", "SINGULARITY_BINDPATH", "APPTAINER_BIND", "APPTAINER_BINDPATH"):
        options.binds += _binds(environ.get(name, ""))
    while rest and rest[0].startswith("-"):
        _option(options, rest)
    if not rest or (options.verb == "exec" and len(rest) < 2):
        least = 2 if options.verb == "exec" else 1
        raise Usage(f"requires at least {least} arg(s), only received {len(rest)}")
    options.image, *options.command = rest
    return options


def _option(options: Options, rest: list[str]) -> None:
    word = rest.pop(0)
    name, joined, value = word.partition("=")
    if word in FLAGS:
        options.flags.add(FLAGS[word])
        return
    if name not in VALUES:
        raise Usage(f"unknown flag: {name}")
    if not joined:
        if not rest:
            raise Usage(f"flag needs an argument: {name}")
        value = rest.pop(0)
    if VALUES[name] == "--bind":
        options.binds += _binds(value)
    elif VALUES[name] == "--env":
        options.environ.update(_variables(value.split(",")))
    elif VALUES[name] == "--env-file":
        options.environ = {**_variables(_lines(value)), **options.environ}
    else:
        options.pwd = value


def _binds(text: str) -> list[Bind]:
    return [_bind(part) for part in text.split(",") if part]


def _bind(text: str) -> Bind:
    source, _, rest = text.partition(":")
    target, _, access = rest.partition(":")
    if access not in ("", "ro", "rw"):
        raise Fatal(f"while parsing bind path: {access} is not a valid bind option")
    return Bind(source, target or source, access == "ro")


def _variables(parts: Sequence[str]) -> dict[str, str]:
    variables = {}
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals:
            raise Fatal(f"while parsing environment variables: {part} must be formatted as key=value")
        variables[name.strip()] = value
    return variables


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise Fatal(f"Could not read {path!r} environment file: {error.strerror}") from None
    # Read by a shell in the real program, so that a value may stand in quotation marks.
    return [_unquoted(line) for line in lines if line.strip() and not line.lstrip().startswith("#")]


def _unquoted(line: str) -> str:
    name, equals, value = line.partition("=")
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        value = value[1:-1]
    return f"{name}{equals}{value}"
