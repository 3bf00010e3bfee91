"""What `echelon run TARGET` resolves to, and the whole message where it resolves to nothing."""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from echelon.errors import UsageError
from echelon.script.find import Script, resolve

VERSION = "{}.{}.{}".format(*sys.version_info[:3])
SHOW = "import sys; print(sys.path[0])\n"


def find(target: object, cwd: Path, *, module: bool = False, search_path: tuple[str, ...] = ()) -> Script:
    return resolve(str(target), module=module, cwd=str(cwd), search_path=search_path)


def refusal(target: object, cwd: Path, *, module: bool = False) -> tuple[str, str]:
    with pytest.raises(UsageError) as caught:
        find(target, cwd, module=module)
    return "\n".join(filter(None, (caught.value.message, caught.value.details))), caught.value.hint


def python_folder(cwd: Path, *args: str) -> str:
    done = subprocess.run([sys.executable, *args], cwd=cwd, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def package(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SHOW)


# what is found


def test_a_file_through_a_link_has_the_folder_that_python_gives_it(tmp_path: Path) -> None:
    """sys.path[0] is the folder of the file that the link leads to, the path stays the link's."""
    package(tmp_path, "real/train.py")
    (tmp_path / "link.py").symlink_to("real/train.py")
    script = find("link.py", tmp_path)
    link, here = str(tmp_path / "link.py"), str(tmp_path)
    assert script == Script(kind="file", path=link, folder=str(tmp_path / "real"), cwd=here)
    assert script.folder == python_folder(tmp_path, "link.py")


def test_a_folder_with_main_is_its_own_first_folder(tmp_path: Path) -> None:
    """`echelon run app` runs app/__main__.py with app first in sys.path, as python does."""
    package(tmp_path, "app/__main__.py")
    script = find("app", tmp_path)
    assert (script.kind, script.path) == ("directory", str(tmp_path / "app/__main__.py"))
    assert script.folder == python_folder(tmp_path, "app")


@pytest.mark.parametrize("prefix", [b"", b"#!/usr/bin/env python3\n"])
def test_a_zip_with_main_is_run_as_python_runs_it(tmp_path: Path, prefix: bytes) -> None:
    """A .pyz is found by its content, also behind a shebang line; its source is no file."""
    with zipfile.ZipFile(tmp_path / "plain.zip", "w") as archive:
        archive.writestr("__main__.py", SHOW)
    (tmp_path / "app.pyz").write_bytes(prefix + (tmp_path / "plain.zip").read_bytes())
    script = find("app.pyz", tmp_path)
    assert (script.kind, script.path) == ("zip", None)
    assert script.folder == python_folder(tmp_path, "app.pyz")


@pytest.mark.parametrize(
    ("target", "source", "name"),
    [
        ("train", "train.py", "train"),
        ("pkg.sub.train", "pkg/sub/train.py", "pkg.sub.train"),
        ("pkg", "pkg/__main__.py", "pkg.__main__"),
        ("bare.train", "bare/train.py", "bare.train"),
    ],
)
def test_a_module_is_found_without_running_its_parents(tmp_path: Path, target: str, source: str, name: str) -> None:
    """-m finds modules, packages and bare folders by looking; a parent that raises does no harm."""
    package(tmp_path, "train.py", "pkg/sub/train.py", "pkg/__main__.py", "bare/train.py")
    for init in ("pkg/__init__.py", "pkg/sub/__init__.py"):
        (tmp_path / init).write_text("raise SystemExit('run')")
    before = set(sys.modules)
    script = find(target, tmp_path, module=True)
    path, here = str(tmp_path / source), str(tmp_path)
    assert script == Script(kind="module", path=path, folder=here, name=name, cwd=here)
    assert not {"pkg", "bare", "train"} & (set(sys.modules) - before)


def test_a_module_of_the_standard_library_is_found_on_the_search_path(tmp_path: Path) -> None:
    """-m looks into the working folder first, then where Python looks."""
    library = os.path.dirname(os.__file__)
    script = find("timeit", tmp_path, module=True, search_path=(library,))
    assert (script.path, script.folder) == (library + "/timeit.py", str(tmp_path))


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbfx = 1\n",
        b"# -*- coding: latin-1 -*-\nx = '\xe9'\n",
        b"x = 1\r\ny = 2\r\n",
        b"",
        b"x = '\\d'\n",
    ],
)
def test_source_that_python_accepts_is_accepted(tmp_path: Path, content: bytes) -> None:
    """Byte order mark, coding cookie, DOS line ends, an empty file and a mere warning are no errors."""
    (tmp_path / "train.py").write_bytes(content)
    assert find("train.py", tmp_path).kind == "file"


def test_names_with_blanks_and_bytes_that_are_no_text_are_found(tmp_path: Path) -> None:
    """A file name is bytes: a blank, a newline or a byte outside UTF-8 changes nothing."""
    name = os.fsdecode(b"my tr\xffain\n.py")
    (tmp_path / name).write_text(SHOW)
    assert find(name, tmp_path).path == str(tmp_path / name)


def test_a_file_of_ten_megabytes_is_found_in_less_than_a_second(tmp_path: Path) -> None:
    """A file beyond the limit is not compiled: the ranks judge it themselves."""
    (tmp_path / "train.py").write_bytes(b"x = [" + b"1, " * 3_500_000 + b"]\n")
    assert find("train.py", tmp_path).kind == "file"


# what is refused, each with its whole message


def test_a_missing_script_offers_the_nearest_names(tmp_path: Path) -> None:
    """A slip of the pen is answered with the name to paste."""
    package(tmp_path, "train.py", "train_all.py", "other.txt")
    assert refusal("trian.py", tmp_path) == (
        f"there is no script trian.py in {tmp_path}; the nearest names there are train.py, train_all.py",
        "echelon run train.py",
    )


def test_a_script_without_its_suffix_is_offered_with_it(tmp_path: Path) -> None:
    """`echelon run train` means train.py."""
    package(tmp_path, "train.py", "trains/x.py")
    assert refusal("train", tmp_path)[1] == "echelon run train.py"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """The folder is what is missing, not the file."""
    package(tmp_path, "scripts/train.py")
    message, _ = refusal("script/train.py", tmp_path)
    assert message == (
        f"there is no script script/train.py: {tmp_path}/script is no folder; the nearest folders beside it are scripts"
    )


def test_a_link_into_nothing_names_where_it_leads(tmp_path: Path) -> None:
    """A dangling link is told from a missing file."""
    (tmp_path / "train.py").symlink_to("gone.py")
    message, hint = refusal("train.py", tmp_path)
    assert (message, hint) == ("train.py is a link to gone.py, which does not exist", "ls -l gone.py")


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    """A loop of links is one sentence, not a traceback."""
    (tmp_path / "a.py").symlink_to("b.py")
    (tmp_path / "b.py").symlink_to("a.py")
    assert refusal("a.py", tmp_path)[0] == "a.py cannot be reached: Too many levels of symbolic links"


def test_a_name_longer_than_any_file_is_refused(tmp_path: Path) -> None:
    """100 kB of name is one sentence, not a traceback."""
    message = "x" * 60 + "… (100000 characters) cannot be reached: File name too long"
    assert refusal("x" * 100_000, tmp_path)[0] == message


def test_a_program_of_the_path_is_pointed_to_the_two_dashes(tmp_path: Path) -> None:
    """`echelon run sh …` is a usual slip: it is started with `--`."""
    message, hint = refusal("sh", tmp_path)
    assert message == f"there is no script sh in {tmp_path}; there is a program of that name"
    assert hint == "to start a program that is not Python write: echelon run -- sh"


def test_a_module_without_its_flag_is_pointed_to_it(tmp_path: Path) -> None:
    """`echelon run pkg.train` means -m."""
    package(tmp_path, "pkg/train.py")
    assert refusal("pkg.train", tmp_path)[1] == "echelon run -m pkg.train"


def test_a_folder_without_main_lists_its_files(tmp_path: Path) -> None:
    """A folder cannot run; what is in it can."""
    package(tmp_path, "app/data.py", "app/train.py")
    assert refusal("app", tmp_path) == (
        "app is a folder without __main__.py; the Python files in it are data.py, train.py",
        "echelon run app/train.py",
    )


@pytest.mark.parametrize("target", ["", "  "])
def test_an_empty_name_is_refused(tmp_path: Path, target: str) -> None:
    """An unset shell variable is the usual cause."""
    assert refusal(target, tmp_path) == ("the script has an empty name", "echelon run train.py")


def test_a_null_byte_in_the_name_is_refused(tmp_path: Path) -> None:
    """It never reaches the system call."""
    message = "the script's name 'a\\x00.py' contains a null byte, which no file name can"
    assert refusal("a\0.py", tmp_path)[0] == message


def test_standard_input_and_pipes_are_refused(tmp_path: Path) -> None:
    """What can be read once cannot be the script of every rank."""
    os.mkfifo(tmp_path / "pipe")
    assert refusal("-", tmp_path)[0] == "a script on standard input (-) can be read once, not by every rank"
    message = "pipe is not a regular file; every rank reads the script, so it must be one"
    assert refusal("pipe", tmp_path)[0] == message


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\x7fELF\x02\x01", "is a compiled program (ELF), not a Python file"),
        (b"PK\x03\x04junk", "is a zip archive that Python cannot open, not a Python file"),
        (b"x = 1\ny = '\0'\n", "is not a Python file: it has a null byte in line 2"),
    ],
)
def test_a_binary_is_pointed_to_the_two_dashes(tmp_path: Path, content: bytes, what: str) -> None:
    """A program that is not Python is started with `--`."""
    (tmp_path / "a.out").write_bytes(content)
    assert refusal("a.out", tmp_path) == (
        f"a.out {what}",
        f"to start a program that is not Python write: echelon run -- {tmp_path}/a.out",
    )


def test_utf16_is_named_with_the_repair(tmp_path: Path) -> None:
    """An editor's UTF-16 is told from a binary."""
    (tmp_path / "train.py").write_bytes("x = 1\n".encode("utf-16"))
    assert refusal("train.py", tmp_path) == (
        "train.py is UTF-16 text; Python reads UTF-8",
        "iconv -f UTF-16 -t UTF-8 train.py > utf8.py",
    )


def test_a_shell_script_is_told_by_its_first_line(tmp_path: Path) -> None:
    """A bash script is no Python with a syntax error."""
    (tmp_path / "job.sh").write_text("#!/bin/bash\nsrun python train.py\n")
    message, hint = refusal("job.sh", tmp_path)
    assert message.startswith(f"Python {VERSION} finds a syntax error in job.sh, line 2, column 6: invalid syntax")
    assert hint == (
        "it asks for /bin/bash in its first line; "
        f"to start a program that is not Python write: echelon run -- {tmp_path}/job.sh"
    )


@pytest.mark.parametrize(
    ("content", "place", "line", "caret"),
    [
        (b"if True:\n    x = = 1\n", "line 2, column 9: invalid syntax", "x = = 1", 4),
        (b"# coding: latin-1\nx = '\xe9' 1 +\n", "line 2, column", "x = 'é' 1 +", None),
        (b"\xef\xbb\xbfx = = 1\n", "line 1, column 5: invalid syntax", "x = = 1", 4),
        (b"return 1\n", "line 1, column 1: 'return' outside function", "return 1", 0),
        (b"# coding: latin-1\nx = '\xe9'; return\n", "line 2, column", "x = 'é'; return", 9),
    ],
)
def test_a_syntax_error_shows_the_place(
    tmp_path: Path, content: bytes, place: str, line: str, caret: int | None
) -> None:
    """File, line, column, the line as the file's encoding gives it, a caret, and the Python that judged."""
    (tmp_path / "train.py").write_bytes(content)
    message, hint = refusal("train.py", tmp_path)
    first, shown, *rest = message.split("\n")
    assert first.startswith(f"Python {VERSION} finds a syntax error in train.py, {place}")
    assert shown == "    " + line
    assert caret is None or rest == ["    " + " " * caret + "^"]
    assert hint == f"{sys.executable} -m py_compile train.py"


@pytest.mark.parametrize("content", [b"# coding: klingon\n", b"x = '\xff'\n", b"-" * 100_000 + b"1"])
def test_source_that_cannot_be_decoded_or_nested_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    """An unknown cookie, bytes outside the encoding and endless nesting are refusals, not tracebacks."""
    (tmp_path / "train.py").write_bytes(content)
    assert f"Python {VERSION}" in refusal("train.py", tmp_path)[0]


@pytest.fixture
def shared_folder():
    """A folder that another user may enter, while this process acts as one."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    for path in folder.rglob("*"):
        path.chmod(0o700)
    subprocess.run(["rm", "-r", str(folder)], check=True)


def test_a_script_without_permission_names_the_user_and_the_mode(shared_folder: Path) -> None:
    """Who asked, which mode the file has, and the repair."""
    path = shared_folder / "train.py"
    path.write_text(SHOW)
    path.chmod(0)
    (shared_folder / "closed").mkdir(mode=0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        refused, unreachable = refusal("train.py", shared_folder), refusal("closed/train.py", shared_folder)
        me = os.geteuid()
    finally:
        os.seteuid(user)
    assert refused == (f"train.py may not be read by user {me} (its mode is ----------)", f"chmod u+r {path}")
    assert unreachable[0] == (
        f"closed/train.py cannot be reached: a folder on its way gives no permission to user {me}"
    )


@pytest.mark.parametrize(
    ("target", "message", "hint"),
    [
        (
            "pkg.trian",
            "there is no module pkg.trian in the package pkg; the nearest names there are pkg.train",
            "echelon run -m pkg.train",
        ),
        (
            "pkk",
            "there is no module pkk in {cwd} or on Python's search path; the nearest names there are pkg",
            "echelon run -m pkg",
        ),
        (
            "pkg.train.x",
            "there is no module pkg.train.x: pkg.train is a module, not a package",
            "echelon run -m pkg.train",
        ),
        (
            "pkg",
            "pkg is a package without __main__, so `-m pkg` has nothing to run; its modules are pkg.train",
            "echelon run -m pkg.train",
        ),
        (
            "pkg/train.py",
            "-m takes a module's dotted name, not a path: pkg/train.py",
            "echelon run -m pkg.train   or: echelon run pkg/train.py",
        ),
        (".train", ".train is no module's full name: a part of it is empty", "echelon run -m train"),
        ("sys", "the module sys is built into Python and cannot be run", "echelon run train.py"),
    ],
)
def test_a_module_that_cannot_run_says_why(tmp_path: Path, target: str, message: str, hint: str) -> None:
    """Each wrong -m is one sentence with the names that exist and the line to paste."""
    package(tmp_path, "pkg/__init__.py", "pkg/train.py")
    assert refusal(target, tmp_path, module=True) == (message.format(cwd=tmp_path), hint)
