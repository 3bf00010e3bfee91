"""Every message is grammatical whatever the numbers are, and never shows that a fact is missing."""

import dataclasses
import re
from collections.abc import Iterator

import pytest
from tests.lint.linting import MACHINES, TODAY, example
from tests.lint.seeding import FILES, given

from echelon.lint.pages import all_pages, default_name, files
from echelon.lint.run import lint
from echelon.lint.table import CODES
from echelon.machines.machine import Machine, Partition

PAGES = all_pages()
NOUNS = "node|task|rank|device|core|processe|worker|thread|mask|step|line|machine|sample|second|minute|space"
ONE_OF_SEVERAL = re.compile(rf"(?<![\d.,=/-])1 (?:visible )?(?:{NOUNS})s\b")
NODE_TYPE = MACHINES["lumi"].node_types[0]
OPTIONAL = [field.name for field in dataclasses.fields(NODE_TYPE) if field.default is None]
NUMBER = re.compile(r"(?<=[= ])\d+(?=[\s:]|$)")


def bad_texts(text: str) -> list[str]:
    """Return what is wrong with the wording of a message or a repair."""
    return [found.group() for found in (*ONE_OF_SEVERAL.finditer(text), *re.finditer(r"\bNone\b", text))]


def said(sources: dict[str, str], machine: Machine | None) -> list[str]:
    linted = lint({name: text.encode() for name, text in sources.items()}, today=TODAY, machine=machine)
    return [text for finding in linted.findings for text in (finding.message, finding.repair)]


def with_ones(text: str) -> Iterator[str]:
    """Yield a script with one of its numbers, and with all of them, replaced by 1."""
    for found in NUMBER.finditer(text):
        yield f"{text[: found.start()]}1{text[found.end() :]}"
    yield NUMBER.sub("1", text)


def without_facts(machine: Machine) -> Iterator[Machine]:
    """Yield a machine of which one optional fact about nodes, or every limit of partitions, is not known."""
    for name in OPTIONAL:
        kinds = tuple(dataclasses.replace(kind, **{name: None}) for kind in machine.node_types)
        yield dataclasses.replace(machine, node_types=kinds)
    limits = {field.name: None for field in dataclasses.fields(Partition) if field.name.startswith(("max_", "min_"))}
    yield dataclasses.replace(
        machine,
        partitions=tuple(dataclasses.replace(row, **limits) for row in machine.partitions),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("code", CODES)
def test_message_of_one_thing_is_singular(code: str) -> None:
    """Whichever number of a bad example becomes 1, no message speaks of 1 nodes."""
    page = PAGES[code]
    if code[3] == "6":
        return  # numbers of a settings file are no numbers of things
    for text in with_ones(page.bad):
        for finding in example(page, text).findings:
            assert not bad_texts(finding.message), finding


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".sh")])
def test_message_about_a_script_of_ones_is_singular(name: str) -> None:
    """The same holds for whole scripts whose numbers are all 1."""
    sources = given(name)
    machine = MACHINES.get(FILES[name].get("machine", ""))
    messages = said({**sources, name: NUMBER.sub("1", sources[name])}, machine)
    assert [bad for message in messages for bad in bad_texts(message)] == []


def test_wrong_wording_is_recognised() -> None:
    """What these tests look for is found where it stands."""
    assert bad_texts("1 tasks in all, but 1 nodes × 2 tasks = 2") == ["1 tasks", "1 nodes"]
    assert bad_texts("8 cores for 1 of None devices") == ["None"]
    assert bad_texts("11 nodes, 1 node, --nodes=1") == []


@pytest.mark.parametrize("code", [code for code in CODES if PAGES[code].machine])
def test_message_about_a_machine_with_fewer_facts_names_no_missing_one(code: str) -> None:
    """A machine file may lack any optional fact: no message prints it as None."""
    page = PAGES[code]
    for machine in without_facts(MACHINES[page.machine]):
        messages = said(files(page.bad, default_name(code)), machine)
        assert [message for message in messages if bad_texts(message)] == []
