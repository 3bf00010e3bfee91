"""The shell's words are read as the shell reads them, and nothing breaks the reader."""

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lint.linting import texts

from echelon.lint.pages import all_pages, default_name, files
from echelon.lint.shell import parse
from echelon.lint.table import CODES

WORDS = st.lists(st.text(alphabet="ab $\"'\\#;|\n(`", min_size=0, max_size=6), min_size=1, max_size=4)
PIECES = st.sampled_from(
    [*" \n\t'\"\\$(){}`;&|<>#=-", "srun", "#SBATCH --nodes=", "$(", "${", "<<EOF\n", "bash -c ", "2"]
)


@given(WORDS)
@settings(max_examples=200, deadline=None)
def test_quoted_words_come_back(words: list[str]) -> None:
    """What is quoted for a shell is read back as it was."""
    command = parse("echo " + shlex.join(words)).commands[0]
    assert [word.text for word in command.words[1:]] == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("srun \\\n  -n 2 a # b", ["srun", "-n", "2", "a"]),
        ("a > b 2>&1 < c", ["a"]),
        ("x=1 y='2 3' run", ["x=1", "y=2 3", "run"]),
        ('echo "$(date +"%F")" `x y`', ["echo", '$(date +"%F")', "`x y`"]),
        ('a "\\$X"', ["a", "$X"]),
        ("ARGS=(1 2 'b c')", ["ARGS=(1 2 'b c')"]),
    ],
)
def test_first_command(text: str, words: list[str]) -> None:
    """Quotes, continuations, redirections and substitutions are those of the shell."""
    assert [word.text for word in parse(text).commands[0].words] == words


def test_what_the_shell_expands_is_known() -> None:
    """Single quotes and a backslash keep a variable from the shell that reads it; double quotes do not."""
    first = parse("""a '$A' "$B" "\\$C" $D""").commands[0]
    assert [("$" in word.live) for word in first.words[1:]] == [False, True, False, True]


def test_place_inside_of_bash_c() -> None:
    """A command in the quotes of bash -c has its place in the file."""
    inner = parse("srun bash -c '\n  export A=1\n  run'").commands[2]
    assert (inner.words[0].text, inner.words[0].line, inner.words[0].column) == ("run", 3, 3)


@given(st.lists(PIECES, max_size=40).map("".join))
@settings(max_examples=300, deadline=1000)
def test_any_text_is_read(text: str) -> None:
    """No text of the shell's own signs breaks the linter or holds it up."""
    texts({"job.sh": text}, machine="lumi")


@given(st.sampled_from(CODES), st.randoms(use_true_random=False), st.integers(1, 4))
@settings(max_examples=300, deadline=2000)
def test_any_change_of_a_script_is_read(code: str, random: object, times: int) -> None:
    """Scripts from which pieces are cut, or into which signs are put, break nothing."""
    page = all_pages()[code]
    sources = files(page.bad, default_name(code))
    for name, text in sources.items():
        for _ in range(times):
            at, until = sorted((random.randrange(len(text) + 1), random.randrange(len(text) + 1)))  # type: ignore[attr-defined]
            text = (
                text[:at]
                + random.choice(["", "'", '"', "$(", "\\", "(", "\n", "\x00 "]).replace("\x00", "")
                + text[min(until, at + 9) :]
            )  # type: ignore[attr-defined]
        sources[name] = text
    texts(sources, machine=page.machine)
