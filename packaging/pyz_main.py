"""Start echelon from this one file: python3 echelon.pyz COMMAND ...

Python reads all of this file before it runs a line, so it parses on Python 2.7 and 3.6, which older clusters have.
"""

import os
import sys

ARCHIVE = os.path.abspath(sys.argv[0])
DIGEST = "{digest}"
OLDEST = (3, 10)


def refuse_old_python():
    """End with one line where this Python is too old."""
    if sys.version_info < OLDEST:
        sys.stderr.write(
            "echelon: error: echelon needs Python %d.%d or newer, and %s is Python %d.%d\n"
            "  hint: module load python   or name a newer one: python3.11 %s\n"
            % (OLDEST + (sys.executable,) + tuple(sys.version_info[:2]) + (sys.argv[0],))
        )
        sys.exit(2)


def unpacked():
    """Return the folder with the content of this file: in the user's cache, or where that fails in a folder for now."""
    import tempfile
    import zipfile

    cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "echelon")
    folder = os.path.join(cache, "pyz-" + DIGEST)
    if os.path.isdir(folder) and os.stat(folder).st_uid == os.geteuid():
        return folder
    try:
        os.makedirs(cache, mode=0o700, exist_ok=True)
        place = tempfile.mkdtemp(dir=cache, prefix="pyz-")
    except OSError:
        folder, place = "", tempfile.mkdtemp(prefix="echelon-")
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(place)
    return settled(place, folder)


def settled(place, folder):
    """Rename what was unpacked; another process may have been faster, and a folder for now goes with this process."""
    import atexit
    import shutil

    if folder:
        try:
            os.rename(place, folder)
            return folder
        except OSError:
            pass
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


def main():
    """Run a command of echelon, or with -m a module of it."""
    refuse_old_python()
    folder = unpacked()
    sys.path[0] = folder
    if sys.argv[1:2] == ["-m"]:
        import runpy

        del sys.argv[:2]
        # what it starts in turn is found by ARCHIVE
        runpy.run_module(sys.argv[0], {"ARCHIVE": ARCHIVE}, run_name="__main__", alter_sys=True)
        return 0
    from echelon.cli import main as command_line

    return command_line()


if __name__ == "__main__":
    sys.exit(main())
