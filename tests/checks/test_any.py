"""Whatever nodes answer, the checks judge it and the report can be written."""

import json
from typing import Any, get_type_hints

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.checks import nodes

from echelon.checks.examine import examine
from echelon.checks.report import as_json, text
from echelon.node.survey import nouns
from echelon.spec.severity import SEVERITIES

WORDS = st.sampled_from(
    ["", "0", "-1", "0,1", "0,0", "8", "GPU-1", "hsn0", "^hsn", "=lo", "amd", "nvidia", "gfx90a", "0000:c1:00.0",
     "$(x)", "/tmp", "lustre", "bind:0", "1-7", "none", "{0}", "é\n", "a" * 300, "127.0.0.1", "slingshot", "infiniband"]
)  # fmt: skip
NUMBERS = st.integers(-1, 1 << 62) | st.sampled_from([0, 1, 8, 10, 12, 64, 1 << 30])
NAMES = st.sampled_from(["NCCL_SOCKET_IFNAME", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES",
                         "OMP_NUM_THREADS", "NCCL_DEBUG", "NCLL_DEBUG", "NCCL_IB_HCA", "GPU_DEVICE_ORDINAL", "torch",
                         "NCCL_NET_PLUGIN", "NCCL_", "_", "", "FI_PROVIDER", "HOME", "NCCL_DEBUG_FILE"])  # fmt: skip
PARTS = ("settings", "cores", "devices", "healths", "network", "limits", "software", "folders")


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Return anything of a field's type."""
    if hasattr(hint, "_fields"):
        return st.builds(hint, **{name: values(each) for name, each in get_type_hints(hint).items()})
    plain = {int: NUMBERS, str: WORDS, bool: st.booleans(), float: st.floats(-1e9, 1e9)}
    if hint in plain:
        return plain[hint]
    inner = hint.__args__
    if hint.__origin__ is tuple:
        return st.lists(values(inner[0]), max_size=2).map(tuple)
    return st.dictionaries(NAMES, WORDS, max_size=4)


SURVEYS = st.builds(
    nouns.Survey,
    node=st.sampled_from(["nid1", "nid2", "a", "x-9-y"]),
    seconds=st.floats(0, 9),
    time=st.floats(0, 1e10),
    answered=st.lists(st.sampled_from(PARTS), unique=True).map(tuple),
    silent=st.dictionaries(st.sampled_from([*PARTS, "node", "topology"]), WORDS, max_size=2),
    ahead_seconds=st.floats(-1e6, 1e6),
    unreached=st.dictionaries(st.sampled_from(["nid1", "nid2", "other"]), WORDS, max_size=2),
    **{name: values(get_type_hints(nouns.Survey)[name]) for name in PARTS},
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(SURVEYS, min_size=1, max_size=2, unique_by=lambda survey: survey.node), st.sampled_from(nodes.GOOD))
def test_no_answer_breaks_the_checks(surveys: list[nouns.Survey], good: nodes.Good) -> None:
    """Surveys with any values are judged; each finding has its words and a remedy; both reports are written."""
    findings = nodes.judge(good, surveys)
    for finding in findings:
        assert finding.severity in SEVERITIES
        assert finding.message
        assert finding.remedy
        assert finding.check
    assert text(surveys, findings, seconds=1.0, with_colour=False).strip()
    json.loads(as_json(surveys, findings, exclude=[], seconds=1.0, more={}))
    assert examine(surveys, nodes.wanted(good)) is not None
