"""The benchmarks of scaling change scripts as the guides say, and compare what was really left behind."""

import ast
import re
from pathlib import Path

import pytest
import torch
from benchmarks import scale
from benchmarks.peers_tools import compare, tables
from benchmarks.peers_tools.compare import Done
from benchmarks.peers_tools.guides import GUIDES, Accelerate, Fabric, Guide
from benchmarks.peers_tools.rewrite import NeedsMore, in_file_order, rewrite

CORPUS = sorted(path for path in (Path(__file__).parent / "scripts").glob("*.py") if not path.stem.startswith("test_"))
SCRIPT = """import torch
from torch.utils.data import DataLoader
loader = DataLoader(data, batch_size=16, shuffle=True)
test_loader = DataLoader(data, batch_size=16)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
for batch in loader:
    loss = model(batch).mean()
    loss.backward()
torch.save(model.state_dict(), 'model.pt')
"""
ACCELERATE = """import torch
from torch.utils.data import DataLoader
from accelerate import Accelerator, DataLoaderConfiguration
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True))
loader = DataLoader(data, batch_size=16, shuffle=True)
test_loader = DataLoader(data, batch_size=16)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for batch in loader:
    loss = model(batch).mean()
    accelerator.backward(loss)
if accelerator.is_main_process:
    torch.save(model.state_dict(), 'model.pt')
accelerator.wait_for_everyone()
"""
FABRIC = """import torch
from torch.utils.data import DataLoader
from lightning.fabric import Fabric
fabric = Fabric(accelerator='cpu', devices=2, strategy='ddp')
fabric.launch()
loader = fabric.setup_dataloaders(DataLoader(data, batch_size=16 // fabric.world_size, shuffle=True))
test_loader = DataLoader(data, batch_size=16)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
model, optimizer = fabric.setup(model, optimizer)
for batch in loader:
    loss = model(batch).mean()
    fabric.backward(loss)
if fabric.is_global_zero:
    torch.save(model.state_dict(), 'model.pt')
fabric.barrier()
"""


@pytest.mark.parametrize(("guide", "expected", "num_changed"), [(Accelerate(), ACCELERATE, 7), (Fabric(), FABRIC, 9)])
def test_a_plain_script_gets_the_lines_of_the_guide(guide: Guide, expected: str, num_changed: int) -> None:
    """Loader, models with their optimizer, backward and the write are changed; the loader of the test is not."""
    changed = rewrite(SCRIPT, guide, 2)
    assert changed.text == expected
    assert changed.num_changed == num_changed


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_no_backward_of_the_corpus_is_forgotten(path: Path, guide: Guide) -> None:
    """In each script every backward() is the tool's, and a loader and an optimizer are prepared."""
    try:
        text = rewrite(path.read_text(), guide, 2).text
    except NeedsMore as reason:
        assert {*str(reason).split("; ")} <= {"no loader is trained from", "no backward() is called"}
        return
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    backwards = [ast.unparse(one.func) for one in calls if ast.unparse(one.func).endswith(".backward")]
    assert set(backwards) == {f"{guide.variable}.backward"}
    given = {ast.unparse(one) for call in calls for one in call.args if is_call_of(call, guide.variable)}
    assigned = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Assign)]
    loaders = {ast.unparse(one.targets[0]) for one in assigned if "DataLoader(" in ast.unparse(one.value)}
    assert loaders & given or any("DataLoader(" in one for one in given)
    assert any(re.search(r"(?i)optim|^opt|^one$", one) for one in given)


def is_call_of(call: ast.Call, variable: str) -> bool:
    return ast.unparse(call.func).startswith(f"{variable}.") and not ast.unparse(call.func).endswith("backward")


def test_a_script_without_a_loader_needs_more() -> None:
    """What has no place for a step of the guide is not changed by a guess."""
    with pytest.raises(NeedsMore, match="no loader is trained from"):
        rewrite(SCRIPT.replace("DataLoader(data, batch_size=16, shuffle=True)", "data"), Accelerate(), 2)


def test_file_order_shuffles_nowhere() -> None:
    """Keywords and entries of a configuration are both found."""
    text = in_file_order("loader = DataLoader(x, shuffle=True)\nconfig = {'shuffle': True, 'drop_last': True}\n")
    assert text == "loader = DataLoader(x, shuffle=False)\nconfig = {'shuffle': False, 'drop_last': True}\n"


def test_losses_are_equal_within_rounding_alone() -> None:
    """A digit that float32 has is a difference, and so is a step that is missing."""
    alone = compare.read_losses("step 0 loss 1.00000000\nstep 1 of 9 loss 0.50000000\n")
    assert alone == [(0, 1.0), (1, 0.5)]
    assert compare.are_losses_equal([(0, 1.000005), (1, 0.5)], alone)
    assert not compare.are_losses_equal([(0, 1.00005), (1, 0.5)], alone)
    assert not compare.are_losses_equal([(0, 1.0)], alone)


def test_weights_are_compared_without_the_name_of_a_wrapper(tmp_path: Path) -> None:
    """`module.` in a name is no difference; a thousandth of a weight is one, and so is a missing file."""
    alone, same, other = (str(tmp_path / name) for name in ("alone.pt", "same.pt", "other.pt"))
    torch.save({"model": {"0.weight": torch.ones(4)}}, alone)
    torch.save({"model": {"module.0.weight": torch.ones(4)}}, same)
    torch.save({"model": {"0.weight": torch.ones(4) * 1.001}}, other)
    assert compare.difference_of_weights(same, alone)[0]
    are_equal, difference = compare.difference_of_weights(other, alone)
    assert not are_equal
    assert difference == pytest.approx(0.001, rel=1e-2)
    assert not compare.difference_of_weights(str(tmp_path / "none.pt"), alone)[0]


def test_a_failure_is_read_from_the_log_of_the_first_rank(tmp_path: Path) -> None:
    """The error of the rank that failed first counts, and who raised it."""
    (tmp_path / "rank-0.log").write_text("RuntimeError: Connection closed by peer\n")
    (tmp_path / "rank-1.log").write_text(
        'Traceback (most recent call last):\n  File "script.py", line 3, in <module>\n    prepare()\n'
        '  File "x/accelerate/data_loader.py", line 9, in prepare\n    raise ValueError(\nValueError: not a multiple\n'
    )
    done = Done(folder="", returncode=1, out="", err="echelon: rank 1 on here (local rank 1) failed first: …")
    failure = compare.read_failure(done, str(tmp_path))
    assert failure.reason == "ValueError: not a multiple"
    assert Accelerate.package in failure.is_raised_by


def test_the_section_is_written_into_its_place(tmp_path: Path) -> None:
    """The first time it gets a heading before the method; then only what is between the marks is replaced."""
    page = tmp_path / "performance.md"
    page.write_text(f"# Title\n\n{scale.NEXT_HEADING}\n\nIn turns.\n")
    scale.write(str(page), "| one |")
    assert (
        page.read_text().index(scale.HEADING) < page.read_text().index("| one |") < page.read_text().index("In turns.")
    )
    scale.write(str(page), "| two |")
    assert "| one |" not in page.read_text()
    assert page.read_text().count(scale.HEADING) == 1


def test_tables_name_the_scripts_that_cannot_be_equal() -> None:
    """The list comes from the tests of the corpus."""
    assert {"augmentation", "cnn_batchnorm"} <= tables._drawn_in_steps() <= {path.stem for path in CORPUS}
