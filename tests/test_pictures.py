"""The pictures of terminals in docs/pictures show what echelon shows now, and nothing of the machine that drew them."""

import html
import re
import socket
from pathlib import Path

import pytest
from docs.pictures import draw
from tests.container.fixture import require_bubblewrap

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
NAMES = sorted(path.stem for path in PICTURES.glob("*.svg"))
STEADY = ("failure", "lint", "plan")
"""Scenes that show the same each time, but for times and names of runs."""


def words(svg: str) -> list[str]:
    """Return the texts of a picture, without what changes from run to run."""
    return [steady(html.unescape(text)) for text in re.findall(r">([^<>]*)</text>", svg)]


def steady(text: str) -> str:
    """Return a text without what changes from run to run."""
    return re.sub(r"\d{8}-\d{6}|train-[0-9a-f]{4}|\b\d+\.\d s\b", "CHANGING", text)


@pytest.mark.parametrize("name", STEADY)
def test_picture_shows_what_echelon_shows_now(name: str) -> None:
    """Drawn anew, the picture has the same words; `make pictures` writes it."""
    require_bubblewrap()
    screen = draw.played(draw.SCENES[name])
    assert words(draw.svg(screen.shown(), screen.columns)) == words((PICTURES / f"{name}.svg").read_text("utf-8"))


def test_each_scene_has_its_picture_and_its_page() -> None:
    """Each picture is that of a scene, begins with its command, and stands on a page with a text for the blind."""
    assert sorted(draw.SCENES) == NAMES
    pages = "\n".join(path.read_text("utf-8") for path in ROOT.glob("docs/*.md"))
    for name in NAMES:
        text = " ".join(words((PICTURES / f"{name}.svg").read_text("utf-8")))
        assert text.startswith(steady(f"$ {draw.SCENES[name].command}"))
        assert re.search(rf"!\[[^\]]{{40,}}\]\(pictures/{name}\.svg\)", pages), name


@pytest.mark.parametrize("name", NAMES)
def test_picture_names_no_machine_and_no_folder_of_it(name: str) -> None:
    """Paths are those of /home/me/training, and the machine is called laptop."""
    text = " ".join(words((PICTURES / f"{name}.svg").read_text("utf-8")))
    assert socket.gethostname() not in text
    paths = re.findall(r"(?<![\w.~])/[a-z]\w*/\S+", text)
    assert [path for path in paths if not path.startswith("/home/me/training/")] == []


def test_screen_is_that_of_a_terminal() -> None:
    """A bar is drawn over itself, a line that is cleared is gone, colours end, and a long line breaks at the edge."""
    screen = draw.Screen(10)
    screen.write("1/2 [# ]\r2/2 [##]\r\nstarting\r\x1b[2K\x1b[31;1mred\x1b[0m\r\n0123456789ab\r\n\r\n")
    assert ["".join(letter for letter, _ in line) for line in screen.shown()] == ["2/2 [##]", "red", "0123456789", "ab"]
    assert [style for _, style in screen.shown()[1]] == ["31;1"] * 3
