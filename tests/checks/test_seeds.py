"""Every misconfiguration is found, with its remedy."""

from dataclasses import replace

import pytest
from tests.checks import nodes
from tests.checks.seeds import SEEDS, Seed

from echelon.checks import network
from echelon.checks.finding import Finding
from echelon.node.survey.nouns import Survey

BAD_NODE = 2  # of several


def test_there_are_enough_seeds() -> None:
    """At least 60 misconfigurations, each of its own name."""
    assert len({seed.name for seed in SEEDS}) == len(SEEDS) >= 60


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: seed.name)
def test_a_misconfiguration_is_found(forest: nodes.Forest, seed: Seed) -> None:
    """The right check says what is wrong, how bad it is and what to do; and hardly anything else is found."""
    surveys = surveys_of(seed, forest)
    findings = nodes.judge(nodes.BY_NAME[seed.node], surveys, **seed.wanted)
    found = [each for each in findings if each.check == seed.check and seed.says in each.message]
    assert found, listed(findings)
    assert found[0].severity == seed.severity, listed(findings)
    assert seed.remedy in found[0].remedy, listed(findings)
    if seed.is_one:
        assert {each.node for each in found} == {"nid005002"}
    others = {each.message for each in findings if each.severity != "note"} - {each.message for each in found}
    assert len(others) <= 2, listed(findings)  # what follows from it


def surveys_of(seed: Seed, forest: nodes.Forest) -> list[Survey]:
    """Make the node with what is wrong, alone, or among good ones, or several times."""
    good = nodes.BY_NAME[seed.node]
    bad = one_of(seed, replace(good, options={**good.options, **seed.options}), forest)
    if seed.num_nodes == 1:
        return [bad]
    if not seed.is_one:
        return nodes.several(bad, seed.num_nodes)
    fine = one_of(replace(seed, tree=None, change=None), good, forest)
    surveys = nodes.several(fine, seed.num_nodes)
    surveys[BAD_NODE] = bad._replace(node=surveys[BAD_NODE].node)
    return surveys


def one_of(seed: Seed, good: nodes.Good, forest: nodes.Forest) -> Survey:
    path = forest.tree(good)
    changed = {**good.environ, **seed.environ}
    environ = {name: value for name, value in changed.items() if value is not None}
    binds = tuple(nodes.wanted(good).binds)
    tree = nodes.Changed(path)
    if seed.tree is not None:
        seed.tree(tree)
    try:
        survey = nodes.survey(good, path, environ, search_path=(forest.packages(seed.packages),), binds=binds)
    finally:
        tree.restore()
    return seed.change(survey) if seed.change is not None else survey


def listed(findings: list[Finding]) -> str:
    return "\n".join(f"{each.severity} {each.node} [{each.check}] {each.message} → {each.remedy}" for each in findings)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hsn", ["hsn0", "hsn1"]), ("=hsn", []), ("=hsn1,nmn0", ["nmn0", "hsn1"]), ("^hsn", ["nmn0"]),
        ("^=hsn0, nmn", ["nmn0", "hsn1"]), ("lo", ["lo"]), ("^", ["nmn0", "hsn0", "hsn1"]),
    ],
)  # fmt: skip
def test_a_value_selects_interfaces(text: str, expected: list[str]) -> None:
    """As NCCL does: by prefix, after = by exact name, after ^ all others but loopback."""
    assert network.chosen(text, ["lo", "nmn0", "hsn0", "hsn1"]) == expected
