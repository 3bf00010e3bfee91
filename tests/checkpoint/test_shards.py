"""Tensors of any dtype and any sharding come back bit by bit, on any number of ranks."""

import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from tests.checkpoint import training
from tests.train.strategies import ranks

from echelon.checkpoint import safetensors as ours
from echelon.checkpoint import shards, tensors_file
from echelon.checkpoint.errors import CheckpointError, FormatError, MismatchError

FLOATS = [
    name for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e8m0fnu") if hasattr(torch, name)
]


def bits(tensor: torch.Tensor) -> bytes:
    return b"".join(bytes(part) for part in ours.raw_parts(tensor))


def all_kinds() -> dict[str, torch.Tensor]:
    """Return a tensor of each dtype and of each unusual form."""
    torch.manual_seed(0)
    kinds = {
        f"model-0/{dtype}": torch.randint(0, 100, (3, 4)).to(dtype)
        for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool, torch.uint16)
    }
    kinds |= {
        f"model-0/{dtype}": torch.randn(3, 4, dtype=torch.float64).to(dtype)
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    }
    kinds |= {f"model-0/{name}": torch.rand(3, 4).to(getattr(torch, name)) for name in FLOATS}
    complex_one = torch.randn(3, 4, dtype=torch.complex128)
    tied = torch.randn(4)
    return kinds | {
        "complex64": torch.randn(3, dtype=torch.complex64),
        "complex128": complex_one,
        "conjugated": complex_one.conj(),
        "negated": complex_one.conj().imag,
        "scalar": torch.tensor(1.5),
        "scalar of complex128": torch.tensor(2j, dtype=torch.complex128),
        "empty": torch.empty(0, 3),
        "empty of complex128": torch.empty(2, 0, dtype=torch.complex128),
        "transposed": torch.randn(3, 5).t(),
        "strided": torch.randn(10)[::3],
        "expanded": torch.randn(1, 3).expand(4, 3),
        "tied": tied,
        "tied/again": tied,
        "nan": torch.tensor([float("nan"), -0.0, float("inf")]),
        "requires grad": torch.randn(2, requires_grad=True),
        "a@0": torch.ones(1),
        'ünicode " name': torch.ones(1),
    }


def test_each_kind_of_tensor(tmp_path: Path) -> None:
    """Every dtype and form comes back with the same bits, without a process group."""
    saved = all_kinds()
    shards.save(saved, str(tmp_path))
    loaded = {name: torch.zeros(one.shape, dtype=one.dtype) for name, one in saved.items()}
    assert shards.load(loaded, str(tmp_path)) == []
    assert {name: bits(one) for name, one in loaded.items()} == {name: bits(one) for name, one in saved.items()}
    assert sorted(os.listdir(tmp_path)) == ["rank-0.safetensors", "tensors.json"]


def test_file_of_a_rank_is_read_by_the_package(tmp_path: Path) -> None:
    """The package safetensors reads the files; dtypes that it does not know are bytes."""
    saved = {"a": torch.randn(3, 4).bfloat16(), "b": torch.tensor(True), "c": torch.ones(2, dtype=torch.complex128)}
    shards.save(saved, str(tmp_path))
    read = safetensors.torch.load_file(tmp_path / "rank-0.safetensors")
    assert torch.equal(read["a"], saved["a"])
    assert torch.equal(read["b"], saved["b"])
    assert (read["c"].dtype, read["c"].shape) == (torch.uint8, (2, 16))


def test_strided_target(tmp_path: Path) -> None:
    """A tensor that is loaded may lie in memory in another way than the saved one."""
    shards.save({"a": torch.arange(12).reshape(3, 4), "b": torch.tensor([True, False])}, str(tmp_path))
    target = torch.zeros(4, 3, dtype=torch.int64).t()
    flags = torch.zeros(4, dtype=torch.bool)[::2]
    shards.load({"a": target, "b": flags}, str(tmp_path))
    assert target.tolist() == torch.arange(12).reshape(3, 4).tolist()
    assert flags.tolist() == [True, False]


def test_torch_itself_uses_writer_and_reader(tmp_path: Path) -> None:
    """torch.distributed.checkpoint.save and load work with both classes."""
    saved = {"a": torch.randn(5), "b": torch.randn(2, 2)}
    dcp.save(saved, storage_writer=shards.ShardWriter(str(tmp_path)))
    loaded = {name: torch.zeros_like(one) for name, one in saved.items()}
    dcp.load(loaded, storage_reader=shards.ShardReader(str(tmp_path)))
    assert all(torch.equal(loaded[name], one) for name, one in saved.items())


MOVES = [
    (1, "plain", 1, "plain"), (1, "plain", 2, "fsdp"), (2, "plain", 2, "plain"), (2, "fsdp", 1, "plain"),
    (2, "fsdp", 4, "fsdp"), (4, "fsdp", 2, "fsdp"), (4, "hsdp", 2, "fsdp"), (4, "plain", 4, "hsdp"),
]  # fmt: skip


@pytest.mark.parametrize(("num_writers", "written", "num_readers", "read"), MOVES)
def test_model_on_another_number_of_ranks(
    num_writers: int, written: str, num_readers: int, read: str, tmp_path: Path
) -> None:
    """A model of any sharding is read in any other; each rank has written one file."""
    names = ranks.run(num_writers, training.save, written, str(tmp_path / "c"))
    assert names[0][-1] == "tensors.json"
    assert len(os.listdir(tmp_path / "c")) == num_writers + 1
    assert ranks.run(num_readers, training.load, read, str(tmp_path / "c")) == [True] * num_readers


def test_replicated_tensor_is_written_once(tmp_path: Path) -> None:
    """The bytes of all files are those of one model, whatever the number of ranks."""
    ranks.run(4, training.save, "plain", str(tmp_path / "c"))
    ranks.run(1, training.save, "plain", str(tmp_path / "alone"))

    def num_bytes(folder: Path) -> int:
        saved = tensors_file.read(str(folder))
        readers = [ours.MappedFile(str(path)) for path in folder.glob("*.safetensors")]
        assert len(saved) == sum(len(reader.names) for reader in readers)
        return sum(len(bits(reader.tensor(name))) for reader in readers for name in reader.names)

    assert num_bytes(tmp_path / "c") == num_bytes(tmp_path / "alone")


@pytest.mark.parametrize(("num_writers", "num_readers"), [(2, 4), (4, 2), (4, 3)])
def test_placements_change(num_writers: int, num_readers: int, tmp_path: Path) -> None:
    """Rows are read as columns, columns as copies, copies as rows."""
    ranks.run(num_writers, training.save_dtensors, str(tmp_path / "c"))
    assert ranks.run(num_readers, training.load_dtensors, str(tmp_path / "c")) == [True] * num_readers


def test_no_rank_holds_the_whole(tmp_path: Path) -> None:
    """Neither saving nor loading takes a second copy of a rank's shard."""
    for while_saving, after_loading in ranks.run(4, training.peak_of_sharded, str(tmp_path / "c"), 48):
        assert while_saving < 24 << 20
        assert after_loading < 24 << 20


def test_other_model_is_one_error(tmp_path: Path) -> None:
    """The error names up to five tensors with both shapes, and how many more there are; nothing was changed."""
    shards.save({"a": torch.ones(2, 3), "b": torch.ones(2), "extra": torch.ones(1)}, str(tmp_path))
    asked = {"a": torch.zeros(3, 3), "b": torch.zeros(2).half(), "c": torch.zeros(4)}
    with pytest.raises(MismatchError) as caught:
        shards.load(asked, str(tmp_path))
    text = caught.value.message
    assert "3 of 3 tensors do not fit" in text
    assert "a: the checkpoint has float32 [2, 3], and the training has float32 [3, 3]" in text
    assert "b: the checkpoint has float32 [2], and the training has float16 [2]" in text
    assert "c: the checkpoint lacks it; the training has float32 [4]" in text
    assert not any(one.any() for one in asked.values())
    with pytest.raises(MismatchError) as caught:
        shards.load({f"x{index}": torch.zeros(1) for index in range(7)}, str(tmp_path))
    assert caught.value.message.endswith("and 2 more")
    bias = torch.zeros(2)
    assert shards.load({"b": bias}, str(tmp_path)) == ["a", "extra"]
    assert bias.tolist() == [1, 1]


def test_tensor_that_cannot_be_saved(tmp_path: Path) -> None:
    """It is named, on all ranks, also where one rank alone has it."""
    for tensor, told in (
        (torch.ones(2).to_sparse(), "a has the layout torch.sparse_coo"),
        (torch.ones(2, device="meta"), "a is on the meta device"),
        ([1, 2], "a is a list; only tensors can be saved"),
    ):
        with pytest.raises(CheckpointError, match=told):
            shards.save({"a": tensor}, str(tmp_path / "c"))  # type: ignore[dict-item]
    told = ranks.run(2, training.fail_on_one_rank, str(tmp_path / "c"))
    assert [text.partition(" has")[0] for text in told] == ["rank 0: a"] * 2
    assert all("partial sums" in text for text in ranks.run(2, training.save_partial, str(tmp_path / "c")))


def test_damaged_files_are_named(tmp_path: Path) -> None:
    """Missing, truncated and foreign files are errors that name them."""
    tensors = {"a": torch.ones(2)}
    with pytest.raises(FormatError, match=r"tensors\.json cannot be read: No such file"):
        shards.load(tensors, str(tmp_path))
    shards.save(tensors, str(tmp_path))
    content = (tmp_path / "rank-0.safetensors").read_bytes()
    for damaged, told in (
        (content[:-1], "truncated: 1 bytes are missing"), (b"", "not a safetensors file"),
        (b"\xff" * 100, "not a safetensors file"), (content[:8] + b"x" + content[9:], "header is damaged"),
        (content.replace(b"[2]", b"[9]"), "header of a is damaged"),
    ):  # fmt: skip
        (tmp_path / "rank-0.safetensors").write_bytes(damaged)
        with pytest.raises(FormatError, match=told):
            shards.load(tensors, str(tmp_path))
    (tmp_path / "rank-0.safetensors").unlink()
    with pytest.raises(FormatError, match="No such file"):
        shards.load(tensors, str(tmp_path))
    for text in ("{}", "[", '{"format": 1, "tensors": {"a": {"dtype": "float32", "shape": [-1], "chunks": []}}}'):
        (tmp_path / "tensors.json").write_text(text)
        with pytest.raises(FormatError, match=r"tensors\.json is damaged"):
            shards.load(tensors, str(tmp_path))
    (tmp_path / "tensors.json").write_text('{"format": 2}')
    with pytest.raises(FormatError, match="has format 2; this version of echelon reads 1"):
        shards.load(tensors, str(tmp_path))


def test_numbers_are_aligned(tmp_path: Path) -> None:
    """Ours begin at multiples of their size; a file of another program in which they do not is read too."""
    tensors = {"flag": torch.tensor(True), "c": torch.arange(3).to(torch.complex128), "f": torch.arange(3.0)}
    shards.save(tensors, str(tmp_path))
    ours.write(str(tmp_path / "a.safetensors"), tensors)
    for name in ("rank-0", "a"):
        reader = ours.MappedFile(str(tmp_path / f"{name}.safetensors"))
        mapped = [reader._mapped[entry.first :] for entry in reader._entries.values()]
        addresses = [torch.frombuffer(part, dtype=torch.uint8).data_ptr() for part in mapped]
        assert [address % size for address, size in zip(addresses, (16, 4, 1), strict=True)] == [0, 0, 0]
    specs = [ours.Spec(name, one.dtype, tuple(one.shape)) for name, one in tensors.items()]
    with open(tmp_path / "b.safetensors", "wb") as file:
        ours.write_stream(file, specs, tensors.values())
    read = ours.read(str(tmp_path / "b.safetensors"))
    assert all(read[name].data_ptr() % one.element_size() == 0 for name, one in tensors.items())
    assert all(torch.equal(read[name], one) for name, one in tensors.items())


def test_slice_reads_a_part(tmp_path: Path) -> None:
    """A slice of a mapped tensor, of any dtype."""
    whole = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
    ours.write(str(tmp_path / "a"), {"a": whole, "c": whole.to(torch.complex128)})
    reader = ours.MappedFile(str(tmp_path / "a"))
    assert torch.equal(reader.slice("a", (1, 0, 2), (1, 2, 2)), whole[1:, :2, 2:])
    assert torch.equal(reader.slice("c", (0, 1, 0), (2, 1, 4)), whole[:, 1:2].to(torch.complex128))
    with pytest.raises(FormatError, match="has no tensor b"):
        reader.tensor("b")
