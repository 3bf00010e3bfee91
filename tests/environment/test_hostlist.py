import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from echelon.environment import hostlist
from echelon.environment.hostlist import HostlistError

WRITTEN = {
    "": [],
    "login1": ["login1"],
    "node[7]": ["node7"],
    "n[1-2]-ib[0-1]": ["n1-ib0", "n1-ib1", "n2-ib0", "n2-ib1"],
    "rack[1-2]n3": ["rack1n3", "rack2n3"],
    "nid[005000-005003,5010]": ["nid005000", "nid005001", "nid005002", "nid005003", "nid5010"],
    "a,b[1-2],c": ["a", "b1", "b2", "c"],
    "n[08-10]": ["n08", "n09", "n10"],
    "n[8-010]": ["n8", "n9", "n10"],
    "a[1-2][3-4]": ["a13", "a14", "a23", "a24"],
    "a[0-1]b[0-1]c[5-6]": [
        *("a0b0c5", "a0b0c6", "a1b0c5", "a1b0c6"),
        *("a0b1c5", "a0b1c6", "a1b1c5", "a1b1c6"),
    ],
    "n[2,1]": ["n2", "n1"],
    "a,,b,": ["a", "b"],
}


@pytest.mark.parametrize("text", WRITTEN, ids=lambda text: text or "empty")
def test_expand_of_a_written_list(text):
    """Every form that Slurm prints becomes the names in Slurm's order."""
    assert hostlist.expand(text) == WRITTEN[text]


@pytest.mark.parametrize("text", [text for text in WRITTEN if text])
def test_first_is_the_first_of_expand(text):
    """The cheap way to the first node gives the same name as the whole list."""
    assert hostlist.first(text) == WRITTEN[text][0]


def test_first_of_a_huge_range_does_not_write_it_out():
    """A billion nodes cost nothing when one is asked for."""
    assert hostlist.first("n[0-999999999]") == "n0"


def test_first_of_nothing():
    """An empty list has no first node, and says so."""
    with pytest.raises(HostlistError, match="there is no node"):
        hostlist.first("")


@pytest.mark.parametrize(
    ("text", "position"),
    [("x[1-2", 1), ("x]", 1), ("a[1[2]]", 3), ("x[]", 2), ("x[3-1]", 2), ("x[1,a-b]", 4), ("n[1--2]", 2)],
)
def test_expand_of_unbalanced_text_names_text_and_position(text, position):
    """What cannot be read is refused with the text and the place, never half expanded."""
    with pytest.raises(HostlistError) as caught:
        hostlist.expand(text)
    assert (caught.value.text, caught.value.position) == (text, position)
    assert repr(text) in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(("text", "counts"), [("4(x2),8", [4, 4, 8]), ("1", [1]), ("", []), ("5,1(x2)", [5, 1, 1])])
def test_counts_of_a_written_list(text, counts):
    """Slurm's task counts become one number per node."""
    assert hostlist.expand_counts(text) == counts


@pytest.mark.parametrize("text", ["4(x2", "x", "4,,8", "4(x)", "-1"])
def test_counts_of_unreadable_text(text):
    """A count that is no count is refused."""
    with pytest.raises(HostlistError):
        hostlist.expand_counts(text)


@given(st.lists(st.integers(0, 200), max_size=20))
def test_counts_survive_compression(counts):
    """Writing counts as Slurm does and reading them gives the same counts."""
    assert hostlist.expand_counts(hostlist.compress_counts(counts)) == counts


_letters = st.text("abxyz-", min_size=1, max_size=4).filter(lambda text: text[0] != "-")


@st.composite
def _bracket(draw):
    words = []
    for _ in range(draw(st.integers(1, 3))):
        low = draw(st.integers(0, 120))
        low_text = str(low).zfill(draw(st.integers(1, 5)))
        words.append(draw(st.sampled_from([low_text, f"{low_text}-{low + draw(st.integers(0, 4))}"])))
    return f"[{','.join(words)}]"


@st.composite
def _item(draw):
    text = draw(_letters)
    for _ in range(draw(st.integers(0, 3))):
        text += draw(_bracket()) + draw(_letters)
    # Slurm 22.05 itself refuses a name that goes on after its last bracket.
    return draw(st.sampled_from([draw(_letters), text + draw(_bracket())]))


@pytest.mark.skipif(not shutil.which("scontrol"), reason="scontrol is not installed")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(items=st.lists(_item(), min_size=1, max_size=4))
def test_expand_agrees_with_scontrol(tmp_path, items):
    """For whatever list, the names and their order are those of Slurm itself."""
    text = ",".join(items)
    assert hostlist.expand(text) == _scontrol(tmp_path, text)
    assert hostlist.first(text) == hostlist.expand(text)[0]


def _scontrol(folder: Path, text: str) -> list[str]:
    conf = folder / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\n")
    command = ["scontrol", "show", "hostnames", text]
    environ = {**os.environ, "SLURM_CONF": str(conf)}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["nid005000", "nid005003", "nid005001"], "nid[005000-005001,005003]"),
        (["node7"], "node7"),
        (["a9", "a10", "login"], "a9,a10,login"),
        (["7", "n" + "1" * 16], "7,n" + "1" * 16),
    ],
)
def test_compress_of_names(names, text):
    """Names become as short a list as Slurm takes."""
    assert hostlist.compress(names) == text


@given(st.lists(st.from_regex(r"\A[a-z]{1,4}-?[0-9]{0,6}[a-z]?\Z"), min_size=1, max_size=40, unique=True))
def test_node_lists_are_what_slurm_reads(names):
    """What is written as a list is read as the same nodes."""
    assert sorted(hostlist.expand(hostlist.compress(names))) == sorted(names)
