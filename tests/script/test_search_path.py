"""What a change of sys.path does to the imports that follow it."""

import json
import os
import subprocess
import sys
import sysconfig
import textwrap
import zipfile
from pathlib import Path

import pytest

from echelon.script.find import Script, resolve
from echelon.script.imports import PARSED_BYTES, Imports, read_imports

LIBRARY = sysconfig.get_path("stdlib")
HEAD = "import os, sys, site, inspect, pathlib\nfrom os import path as osp\nfrom pathlib import Path\n"
PUTS = "the script puts on sys.path what reading cannot tell (train.py, line 4)"
CHANGES = "the script changes sys.path in a way that reading cannot follow (train.py, line 4)"

# each puts {root}/app/lib before what is installed
FIRST = (
    "sys.path.insert(0, '{root}/app/lib')",
    "sys.path.insert(0, 'lib')",
    "sys.path.insert(1, os.path.abspath('lib'))",
    "sys.path.insert(0, './lib')",
    "sys.path.insert(0, os.path.join(os.path.dirname(__file__), 'lib'))",
    "sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), os.pardir, 'app', 'lib'))",
    "sys.path.insert(0, osp.abspath(osp.join(osp.dirname(__file__), '../app/lib')))",
    "sys.path.insert(0, os.path.dirname(os.path.abspath(inspect.getfile(inspect.currentframe()))) + '/lib')",
    "sys.path.insert(0, os.getcwd() + '/lib')",
    "sys.path.insert(0, f'{{os.getcwd()}}/lib')",
    "sys.path.insert(0, sys.path[0] + '/lib')",
    "sys.path.insert(0, str(Path(__file__).parent / 'lib'))",
    "sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1].joinpath('app', 'lib')))",
    "sys.path.insert(0, (Path.cwd() / 'lib').as_posix())",
    "sys.path.insert(0, os.fspath(Path('lib').absolute()))",
    "sys.path.insert(0, __file__.replace('train.py', 'lib'))",
    "sys.path[:0] = ['{root}/app/lib']",
    "sys.path[0] = '{root}/app/lib'",
    "sys.path = ['{root}/app/lib'] + sys.path",
    "sys.path = ['{root}/app/lib', *sys.path]",
    "sys.path[:] = [osp.join(osp.dirname(__file__), d) for d in ('lib', 'more')] + sys.path[:]",
    "HERE = os.path.dirname(__file__)\nLIB = os.path.join(HERE, 'lib')\nsys.path.insert(0, LIB)",
    "p = os.path.dirname(__file__)\np = os.path.join(p, 'lib')\nsys.path.insert(0, p)",
    "for name in ('more', 'lib'):\n    folder = osp.join(osp.dirname(__file__), name)\n    sys.path.insert(0, folder)",
    "if '{root}/app/lib' not in sys.path:\n    sys.path.insert(0, '{root}/app/lib')",
    "try:\n    import absent\nexcept ImportError:\n    sys.path.insert(0, '{root}/app/lib')",
    "def add():\n    here = os.path.dirname(__file__)\n    sys.path.insert(0, os.path.join(here, 'lib'))\nadd()",
    "from sys import path\npath.insert(0, '{root}/app/lib')",
    "import sys as s\ns.path.insert(0, '{root}/app/lib')",
    "os.chdir('lib')\nsys.path.insert(0, '../lib')",
    "os.chdir(osp.dirname(osp.dirname(__file__)))\nsys.path.insert(0, osp.abspath('app/lib'))",
    "old = list(sys.path)\nsys.path.insert(0, 'more')\nsys.path = ['{root}/app/lib'] + old",
    "sys.path += ['{root}/app/lib']\nsys.path.insert(0, sys.path[-1])",
    "sys.path.insert(0, 'more')\nsys.path.pop(0)\nsys.path.insert(0, 'lib')",
    "sys.path.insert(0, 'more')\nsys.path.remove('more')\nsys.path.insert(0, 'lib')",
    "sys.path.insert(0, 'more')\ndel sys.path[0]\nsys.path.insert(0, 'lib')",
    "if sys.platform == 'win32':\n    sys.path = []\nelse:\n    sys.path.insert(0, 'lib')",
    "with open(os.devnull):\n    sys.path.insert(0, 'lib')",
)
# each puts {root}/app/lib after what is installed
LAST = (
    "sys.path.append('{root}/app/lib')",
    "sys.path.extend(['{root}/app/lib', 'more'])",
    "sys.path += ['lib']",
    "sys.path = sys.path + [str(Path('lib').resolve())]",
    "sys.path[9999:] = ['lib']",
    "site.addsitedir(os.path.join(os.path.dirname(__file__), 'lib'))",
    "sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), 'lib')))",
)
# each may put anything first, or take anything away
ANYTHING = {
    "sys.path.insert(0, os.environ['LIB'])": PUTS,
    "sys.path.insert(0, sys.argv[1])": PUTS,
    "sys.path[:0] = os.environ['LIB'].split(':')": PUTS,
    "sys.path.insert(sys.argv.index('x'), 'lib')": CHANGES,
    "x = sys.path.insert(0, 'lib')": CHANGES,
    "sys.argv and sys.path.insert(0, 'lib')": CHANGES,
    "add = lambda folder: sys.path.insert(0, folder)": CHANGES,
    "paths = sys.path": CHANGES,
    "prepare(sys.path)": CHANGES,
    "setattr(sys, 'path', ['lib'])": CHANGES,
    "sys.path.sort()": CHANGES,
    "sys.path.append(sys.path.pop(0))": CHANGES,
    "if sys.argv: sys.path.pop(0)": CHANGES,
    "sys.path.remove('never there')": CHANGES,
    "sys.meta_path.insert(0, finder)": CHANGES.replace("sys.path", "sys.meta_path"),
    "class A:\n    def f(self, folder):\n        sys.path.insert(0, folder)": PUTS.replace("4", "6"),
    "def f():\n    sys.path.insert(0, os.getcwd())": PUTS.replace("4", "5"),
    "match sys.argv:\n    case [_]:\n        sys.path.insert(0, 'lib')": CHANGES.replace("4", "6"),
    "if sys.argv: HERE = 'a'\nelse: HERE = 'b'\nsys.path.insert(0, HERE)": PUTS.replace("4", "6"),
    "HERE = 'lib'\ndef f():\n    global HERE\n    HERE = 'x'\nf()\nsys.path.insert(0, HERE)": PUTS.replace("4", "9"),
    "HERE = 'lib'\nfrom tool import *\nsys.path.insert(0, HERE)": PUTS.replace("4", "6"),
    "sys.path.insert(0, 'gone')": (
        "the script puts {root}/app/gone on sys.path (train.py, line 4), which is no folder that could be read"
    ),
    "sys.path.insert(0, 'more')\nos.chdir('/')": (
        "the script changes its working folder (train.py, line 5) after it put 'more' on sys.path"
    ),
    "os.chdir(sys.argv[1])\nsys.path.insert(0, 'lib')": (
        "the script puts 'lib' on sys.path (train.py, line 5) in a working folder that is not known"
    ),
    "sys.path = [each for each in sys.path if each]": PUTS,
    "sys.path = ['lib']": "the script takes away or moves what Python itself put on sys.path (train.py, line 4)",
    "sys.path.reverse()": "the script takes away or moves what Python itself put on sys.path (train.py, line 4)",
    "del sys.path[1:]": "the script takes away or moves what Python itself put on sys.path (train.py, line 4)",
}
READS = (
    "print(sys.path)",
    "old = sys.path[:]",
    "for each in sys.path: print(each)",
    "assert 'lib' not in sys.path",
    "environ = ':'.join(sys.path)",
    "os.chdir(sys.argv[1])",
    "sys.path.insert(0, Path(__file__).parent / 'lib')",
    "if __name__ != '__main__': sys.path.insert(0, 'lib')",
    "sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))",
    "path = ['x']; path.insert(0, 'lib')",
)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder with a script's folder, a vendored `tool` and an installed one."""
    files = {"app/lib/tool.py": "", "app/lib/own.py": "import csv\n", "app/more/__init__.py": ""}
    write(tmp_path, {**files, "site-packages/tool.py": "", "site-packages/plain.py": ""})
    return Path(os.path.realpath(tmp_path))


def script(root: Path, text: str, files: dict[str, str] | None = None) -> Script:
    write(root / "app", {"train.py": text, **(files or {})})
    found = (str(root / "site-packages"), LIBRARY, LIBRARY + "/lib-dynload")
    return resolve("train.py", module=False, cwd=str(root / "app"), search_path=found)


def read(root: Path, text: str, files: dict[str, str] | None = None) -> Imports:
    return read_imports(script(root, text, files))


def plain(root: Path, text: str) -> dict[str, str]:
    """Return where plain Python takes the modules from that are imported after the text."""
    tell = "import json\nimport tool, own\nprint(json.dumps({m.__name__: m.__file__ for m in (tool, own)}))\n"
    write(root / "app", {"train.py": text + tell})
    environ = {**os.environ, "PYTHONPATH": str(root / "site-packages"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, str(root / "app/train.py")]
    done = subprocess.run(command, cwd=root / "app", env=environ, capture_output=True, text=True, check=True)
    return {name: os.path.realpath(os.path.join(root / "app", path)) for name, path in json.loads(done.stdout).items()}


@pytest.mark.parametrize("form", FIRST)
def test_a_folder_put_first_is_searched_first(root: Path, form: str) -> None:
    """What lies there is own code as it is for Python, and an import that may use it is left to the ranks."""
    text = HEAD + form.format(root=root) + "\n"
    assert plain(root, text) == {"tool": f"{root}/app/lib/tool.py", "own": f"{root}/app/lib/own.py"}
    found = read(root, text + "import tool, own, plain\n")
    assert {"tool", "own"} <= set(found.local)
    assert not {"tool", "own", "plain", "csv"} & set(found.preload)
    reason = dict(found.skipped)["plain"]
    assert reason.startswith("the script changes sys.path (train.py, line ")
    assert reason.endswith(
        f"), after which tool comes from {root}/app/lib and not from {root}/site-packages, and this import may use it"
    )
    assert found.preload[:4] == ("os", "sys", "site", "inspect")


@pytest.mark.parametrize("form", LAST)
def test_a_folder_put_last_hides_nothing(root: Path, form: str) -> None:
    """What is installed stays preloadable, as Python still finds it first; what is only there is own code."""
    text = HEAD + form.format(root=root) + "\n"
    assert plain(root, text) == {"tool": f"{root}/site-packages/tool.py", "own": f"{root}/app/lib/own.py"}
    found = read(root, text + "import tool, own, plain\n")
    assert found.local == ("own",)
    assert found.preload[-3:] == ("tool", "csv", "plain")
    assert found.skipped == ()


@pytest.mark.parametrize("form", ANYTHING)
def test_a_change_that_cannot_be_followed_leaves_later_imports_to_the_ranks(root: Path, form: str) -> None:
    """The reason names the place and what cannot be told; what was imported before it stays preloaded."""
    found = read(root, HEAD + form.format(root=root) + "\nimport plain\nimport json.decoder\n")
    reason = ANYTHING[form].format(root=root)
    skipped = dict(found.skipped)
    assert (skipped["plain"], skipped["json.decoder"]) == (reason, reason)
    assert "inspect" in found.preload


@pytest.mark.parametrize("form", READS)
def test_what_changes_nothing_holds_nothing_back(root: Path, form: str) -> None:
    """Looking at sys.path, an entry that is no text, and the script's own folder make no difference."""
    found = read(root, HEAD + form + "\nimport plain, tool\n")
    assert (found.preload[-2:], found.skipped) == (("plain", "tool"), ())


def test_a_folder_put_first_that_hides_nothing_keeps_the_preload(root: Path) -> None:
    """A repository's root, the usual case, costs nothing: its names are own code, the others are installed."""
    write(root, {"repo/mylib/__init__.py": "import json\n", "repo/test/data.txt": "", "repo/setup.py": ""})
    found = read(root, f"import sys\nsys.path.insert(0, {str(root / 'repo')!r})\nimport mylib.part, plain\n")
    assert (found.preload, found.local, found.skipped) == (("sys", "json", "plain"), ("mylib",), ())


def test_an_appended_folder_that_cannot_be_told_may_have_what_is_not_installed(root: Path) -> None:
    """Installed modules stay preloadable; one that is not found, or only as a bare folder, is left with the reason."""
    (root / "site-packages/bare").mkdir()
    found = read(root, "import sys\nsys.path.append(sys.argv[1])\nimport plain, tool, absent, bare\n")
    where = "the script puts on sys.path what reading cannot tell (train.py, line 2)"
    reason = f"it is not installed where Python looked at the start, and {where}"
    assert found.preload == ("sys", "plain", "tool")
    assert found.skipped == (("absent", reason), ("bare", reason))


def test_an_appended_package_hides_an_installed_bare_folder(root: Path) -> None:
    """A package with __init__ wins over a folder without, wherever it stands."""
    (root / "site-packages/bare").mkdir()
    found = read(root, "import sys\nsys.path.append('lib')\nimport bare, plain\n", {"lib/bare/__init__.py": ""})
    assert (found.preload, found.local) == (("sys",), ("bare",))


def test_pth_files_of_a_site_folder_may_add_anything_last(root: Path) -> None:
    """site.addsitedir also reads .pth files: what is not installed may come from there."""
    write(root, {"app/lib/more.pth": "/somewhere\n"})
    found = read(root, "import site\nsite.addsitedir('lib')\nimport tool, own, absent\n")
    assert (found.preload, found.local) == (("site", "tool", "csv"), ("own",))
    assert [name for name, _ in found.skipped] == ["absent"]


def test_an_installers_folder_on_the_path_is_not_read(root: Path) -> None:
    """Another site-packages put first is no own code to be read, and not what the warm process would find."""
    write(root, {"env/site-packages/other.py": "import csv\n"})
    found = read(root, f"import sys\nsys.path.insert(0, {str(root / 'env/site-packages')!r})\nimport other, plain\n")
    assert (found.preload, found.local) == (("sys", "plain"), ())
    place = f"{root}/env/site-packages"
    reason = f"it lies in {place}, which the script puts on sys.path (train.py, line 2)"
    assert found.skipped == (("other", reason),)


def test_what_is_imported_before_the_change_keeps_its_place(root: Path) -> None:
    """A module that has surely been imported is not hidden by a folder that comes later."""
    text = "import sys\nimport tool\nsys.path.insert(0, 'lib')\nimport tool, plain\n"
    found = read(root, text)
    assert (found.preload, found.local, found.skipped) == (("sys", "tool", "plain"), (), ())


def test_what_may_not_have_been_imported_before_the_change_is_taken_back(root: Path) -> None:
    """An import below a test that cannot be read is left to the ranks once a hidden module may be in its way."""
    text = "import sys\nif sys.argv:\n    import plain\nimport json\nsys.path.insert(0, 'lib')\n"
    found = read(root, text)
    assert found.preload == ("sys", "json")
    assert found.skipped[0][0] == "plain"
    assert found.skipped[0][1].startswith(
        "reading cannot tell whether it is imported at all before this: the script changes sys.path (train.py, line 5)"
    )


def test_what_a_library_imports_later_is_not_preloaded_after_such_a_change(root: Path) -> None:
    """torch._dynamo would be imported with the hidden module, so it is left to the ranks too."""
    text = "import torch, sys\nsys.path.insert(0, 'lib')\ntorch.optim.SGD\n"
    found = read(root, text)
    assert found.preload == ("torch", "sys")
    assert [name for name, _ in found.skipped] == ["torch._dynamo"]


def test_a_change_in_an_own_module_counts_from_its_import(root: Path) -> None:
    """sys.path belongs to the process: a module that changes it does so for the script too."""
    files = {"paths.py": "import os, sys\nsys.path.insert(0, os.path.join(os.path.dirname(__file__), 'lib'))\n"}
    found = read(root, "import json\nimport paths\nimport tool, plain\n", files)
    assert found.preload == ("json", "os", "sys")
    assert found.local == ("paths", "tool")
    assert "(paths.py, line 2)" in dict(found.skipped)["plain"]


def test_a_change_in_a_function_of_an_own_module_counts_from_its_import(root: Path) -> None:
    """Whoever calls it later, no call can come earlier."""
    files = {"pkg/__init__.py": "", "pkg/paths.py": "import sys\ndef add(folder):\n    sys.path.insert(0, folder)\n"}
    found = read(root, "import tool\nfrom pkg import paths\npaths.add('lib')\nimport plain\n", files)
    assert found.preload == ("tool", "sys")
    reason = "the script puts on sys.path what reading cannot tell (pkg/paths.py, line 3)"
    assert found.skipped == (("plain", reason),)


def test_a_change_in_an_own_module_of_a_branch_that_seldom_runs_counts(root: Path) -> None:
    """The module is read for what it does to sys.path; what it imports besides is not taken."""
    files = {"paths.py": "import sys, csv\nsys.path.insert(0, sys.argv[1])\n"}
    found = read(root, "try:\n    import json\nexcept ImportError:\n    import paths\nimport plain\n", files)
    assert (found.preload, found.local) == (("json",), ())
    assert [name for name, _ in found.skipped] == ["plain"]


def test_an_own_module_that_may_not_be_imported_takes_nothing_away(root: Path) -> None:
    """What only takes a folder away again counts only where it surely runs; else both are reckoned with."""
    files = {"back.py": "import sys\nsys.path.pop(0)\n", "lib/tool.py": ""}
    sure = "import sys\nsys.path.insert(0, 'more')\nimport back\nimport part\n"
    files |= {"more/part.py": "", "more/__init__.py": ""}
    assert "part" not in read(root, sure, files).local
    assert "part" in read(root, sure.replace("import back", "if sys.argv: import back"), files).local


def test_a_folder_with_a_name_that_no_file_can_have_is_not_followed(root: Path) -> None:
    """A null byte and a lone surrogate in a folder's name are reasons, not errors."""
    for name in ("a\\0b", "\\ud800", "x" * 5000):
        found = read(root, f"import sys\nsys.path.insert(0, '{name}')\nimport plain\n")
        assert (found.preload, [name for name, _ in found.skipped]) == (("sys",), ["plain"])


def test_more_changes_than_are_followed_are_given_up(root: Path) -> None:
    """A generated file may change sys.path ten thousand times: it costs no more than a hundred changes."""
    found = read(root, "import sys\n" + "sys.path.append('lib')\n" * 10_000 + "import plain\n")
    assert (found.preload, dict(found.skipped)["plain"]) == (("sys",), CHANGES.replace("line 4", "line 102"))


def test_a_change_in_a_file_that_is_too_long_counts_from_its_start(root: Path) -> None:
    """A file of which only the imports are read may do anything to sys.path, if it names it."""
    text = "import plain\nimport sys\nsys.path.insert(0, 'lib')\n" + "#" * PARSED_BYTES
    found = read(root, text)
    assert found.preload == ("sys",)
    why = "train.py, which is too long to be read as a whole, may change sys.path"
    assert found.skipped[0] == ("plain", why)


def test_what_sys_path_loses_is_no_longer_found_there(root: Path) -> None:
    """A script that takes its own folder away, to reach what a neighbour's name hides, gets the installed one."""
    write(root, {"app/tool.py": ""})
    found = read(root, "import sys\nsys.path.pop(0)\nimport tool\n")
    assert found.preload == ("sys",)
    reason = dict(found.skipped)["tool"]
    assert f"tool comes from {root}/site-packages and not from {root}/app, and this import" in reason


def test_an_archive_that_changes_sys_path_is_followed(root: Path) -> None:
    """The __main__ of a .pyz has its place inside the archive; what it puts first is followed from there."""
    with zipfile.ZipFile(root / "app/run.pyz", "w") as archive:
        text = "import sys, os\nsys.path.insert(0, os.path.dirname(os.path.dirname(__file__)) + '/lib')\nimport tool\n"
        archive.writestr("__main__.py", text)
    installed = (str(root / "site-packages"),)
    found = read_imports(resolve("app/run.pyz", module=False, cwd=str(root), search_path=installed))
    assert (found.preload, found.local) == (("sys", "os"), ("tool",))


def test_values_that_grow_without_end_are_given_up(root: Path) -> None:
    """A text that doubles at each line, a loop in a loop and a deep sum end at once, as not to be told."""
    double = "a = 'x'\n" + "a = a + a\n" * 60 + "sys.path.insert(0, a)\n"
    nested = "sys.path += [[[c for c in 'ab'] for b in [1]*9] for a in [1]*9]\n"
    deep = "sys.path.insert(0, " + " + ".join(["'x'"] * 900) + ")\n"
    for text in (double, nested, deep):
        found = read(root, "import sys\n" + text + "import absent\n")
        assert (found.preload, [name for name, _ in found.skipped]) == (("sys",), ["absent"])
