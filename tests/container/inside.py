"""Say what a command inside a container finds: its mounts as bubblewrap's options, and its environment."""

import os
import shlex
from collections.abc import Mapping

from .errors import Fatal
from .image import Image
from .options import Bind, Options

IMAGE_BIN = "/opt/image/bin"
IMAGE_SITE = "/opt/image/site"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LIBRARIES = "/.singularity.d/libs"
ETC = (
    "alternatives",
    "group",
    "hosts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "nsswitch.conf",
    "passwd",
    "resolv.conf",
    "ssl",
)
KEPT_WHEN_CLEAN = ("HOME", "TERM", "USER", "SINGULARITY_BIND", "APPTAINER_BIND")
PREFIXES = ("SINGULARITYENV_", "APPTAINERENV_")
# As the action scripts of a real image do.
START = """\
command -v -- "$1" >/dev/null || { echo "FATAL:   \\"$1\\": executable file not found in \\$PATH" >&2; exit 255; }
exec "$@"
"""


def mounts(options: Options, image: Image, environ: Mapping[str, str], working_folder: str) -> list[str]:
    """Write the options by which bubblewrap builds the container's file tree."""
    home = environ.get("HOME", "/")
    shared = ["/tmp", "/var/tmp", *([] if "no_home" in options.flags or home == "/" else [home])]
    shared = [folder for folder in shared if os.path.isdir(folder)]
    words = ["--bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib64"):
        words += _root_folder(f"/{name}")
    for name in ETC:
        words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for folder in ("/proc", "/dev", "/sys"):
        words += ["--dev-bind", folder, folder]
    for folder in shared:
        words += ["--bind", folder, folder]
    if not _covered(working_folder, [*shared, "/usr", "/proc", "/dev", "/sys", "/etc"]):
        words += ["--bind", working_folder, working_folder]
    words += _python(image)
    words += ["--dir", LIBRARIES]
    for bind in options.binds:
        words += _bind(bind, image)
    if "writable_tmpfs" not in options.flags:
        words += ["--remount-ro", "/usr", "--remount-ro", "/"]
    return [*words, "--chdir", options.pwd or working_folder]


def variables(options: Options, image: Image, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment inside: the host's, over it the image's, over it what was asked for."""
    own = ("PATH", "LD_LIBRARY_PATH", "PWD", "OLDPWD")
    passed = {name: value for name, value in environ.items() if name not in own and not name.startswith(PREFIXES)}
    if "cleanenv" in options.flags:
        passed = {name: value for name, value in passed.items() if name in KEPT_WHEN_CLEAN}
    asked = {
        name[len(prefix) :]: value
        for prefix in PREFIXES
        for name, value in environ.items()
        if name.startswith(prefix) and name != prefix
    }
    asked.update(options.environ)
    path = [asked.pop("PREPEND_PATH", ""), IMAGE_BIN, PATH, asked.pop("APPEND_PATH", "")]
    result = {**passed, "PATH": ":".join(filter(None, path)), "LD_LIBRARY_PATH": LIBRARIES}
    if image.site:
        result["PYTHONPATH"] = ":".join(filter(None, [IMAGE_SITE, passed.get("PYTHONPATH", "")]))
    for runtime in ("SINGULARITY", "APPTAINER"):
        result[f"{runtime}_CONTAINER"] = os.path.abspath(options.image)
        result[f"{runtime}_NAME"] = os.path.basename(options.image)
    return {**result, **image.environ, **asked}


def command(options: Options, image: Image) -> list[str]:
    """Return what is started inside."""
    runscript = shlex.split(image.runscript) if options.verb == "run" else []
    # Not sh: Debian's drops variables whose names are no shell's. Privileged, because it reads no BASH_ENV then.
    return ["/bin/bash", "-p", "-c", START, "singularity", *(runscript + options.command or ["/bin/sh"])]


def _root_folder(folder: str) -> list[str]:
    if os.path.islink(folder):
        return ["--symlink", os.readlink(folder), folder]
    return ["--ro-bind-try", folder, folder]


def _python(image: Image) -> list[str]:
    real = os.path.realpath(image.python)
    if not os.access(real, os.X_OK):
        raise Fatal(f"the image's python {image.python} does not exist on this machine")
    prefix = os.path.dirname(os.path.dirname(real))
    words = [] if _covered(prefix, ["/usr"]) else ["--ro-bind", prefix, prefix]
    for name in ("python3", "python"):
        words += ["--symlink", real, f"{IMAGE_BIN}/{name}"]
    if image.site:
        words += ["--ro-bind", image.site, IMAGE_SITE]
    return words


def _bind(bind: Bind, image: Image) -> list[str]:
    source = os.path.abspath(bind.source)
    if not os.path.exists(source) and image.sources:
        source = image.sources + source
    if not os.path.exists(source):
        raise Fatal(
            f"container creation failed: mount hook function failure: mount {bind.source}->{bind.target} error: "
            f"while mounting {bind.source}: mount source {bind.source} doesn't exist"
        )
    return ["--ro-bind" if bind.read_only else "--bind", source, os.path.abspath(bind.target)]


def _covered(path: str, folders: list[str]) -> bool:
    return path == "/" or any(path == folder or path.startswith(f"{folder}/") for folder in folders)
