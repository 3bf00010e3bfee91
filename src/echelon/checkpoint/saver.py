"""Save the state of a training while it goes on: copied between two steps, written and published in the background."""

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from ..environment import memory_left
from ..pytorch import distributed
from . import exchange, host_memory, safetensors, shards, tensors_file
from .errors import CheckpointError
from .manifest import WrittenFile
from .store import Checkpoint, CheckpointStore, Draft

PATIENCE_SECONDS = 3600.0  # how long rank 0 waits for a rank that does not say that it has written
STILL_WRITTEN = "is still being written"  # why a save is skipped that comes too early
_POLL_SECONDS = 0.02
_LOCAL_ERRORS = (CheckpointError, OSError, RuntimeError, ValueError, TypeError, MemoryError)


class Durations(NamedTuple):
    """How long the newest save took, in seconds."""

    stopped_seconds: float = 0.0
    """The training waited for the copies."""
    written_seconds: float = 0.0
    """From the beginning of the save until rank 0 published it, or another rank had written its file."""


class SavedState(NamedTuple):
    """What is saved of a training, as `save` takes it."""

    tensors: Mapping[str, torch.Tensor]
    documents: Mapping[str, bytes]
    about: Mapping[str, Any]


class Save(NamedTuple):
    """A save that has begun."""

    step: int
    name: str
    """The name of the draft."""
    share: shards.RankShare
    documents: Mapping[str, bytes]
    about: Mapping[str, Any]
    began: float


class Saver:
    """Saves checkpoints of all ranks into a folder; a failure is a line, and never an error of the training.

    All ranks call the same methods at the same step. A collective that fails, because another rank is gone, raises
    what it raises in the training. `rank` and `num_ranks` are those of `process_group`; `store` is
    the torch.distributed.Store by which the ranks' threads tell rank 0 that they have written, without it the store
    of torch.distributed. `say` prints a line; only rank 0 says anything.

    >>> import tempfile
    >>> saver = Saver(tempfile.mkdtemp(), 0, 1)
    >>> saver.save(120, {"model-0/bias": torch.ones(2)}, {"journal.json": b"{}"}, {"loss": 0.5})
    True
    >>> saver.wait()
    True
    >>> saver.published.step
    120
    """

    def __init__(
        self,
        folder: str,
        rank: int,
        num_ranks: int,
        keep: int = 3,
        process_group: Any = None,
        store: Any = None,
        say: Callable[[str], None] = print,
        *,
        available_bytes: Callable[[], int] = memory_left.available_bytes,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self.published: Checkpoint | None = None
        """On rank 0: the newest checkpoint that this object has published."""
        self.durations = Durations()
        self._folder = CheckpointStore(folder, keep)
        self._rank, self._num_ranks, self._group = rank, num_ranks, process_group
        self._messages = store
        self._say = say
        self._available_bytes, self._patience_seconds = available_bytes, patience_seconds
        self._plans = shards.Plans(process_group)
        self._copies = host_memory.HostCopies()
        self._thread: threading.Thread | None = None
        self._step_in_writing = 0

    @property
    def is_writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def save(
        self, step: int, tensors: Mapping[str, torch.Tensor], documents: Mapping[str, bytes], about: Mapping[str, Any]
    ) -> bool:
        """Copy the state and begin to write it; return whether a save has begun, which is equal on all ranks.

        `tensors` may be changed as soon as it returns. `documents` are small files that rank 0 writes, `about` is JSON
        for the manifest. A save is skipped, with a line, while the one before is still written: call `wait` for both.
        """
        began = time.monotonic()
        told = self._tell_all(step, tensors, documents)
        names = [one["draft"] for one in told]
        refusal = _refusal(told, self._step_in_writing)
        share: shards.RankShare | None = None
        if not refusal:
            try:
                share = self._plans.share([one["digest"] for one in told])
                refusal = self._why_not(share, told)
            except _LOCAL_ERRORS as error:  # the same on all ranks, for all have the same plans
                refusal = text_of(error)
        if share is None or refusal:
            self._refuse(step, refusal, names[0])
            return False
        self._step_in_writing = step
        self._begin(Save(step, names[0], share, documents, about, began), [one["host"] for one in told])
        self.durations = self.durations._replace(stopped_seconds=time.monotonic() - began)
        return True

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until this rank has written, and rank 0 has published; return whether it has."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)
        return not self.is_writing

    def told_at_end(self, step: int) -> str:
        """Return a line of rank 0 about the save of `step`, which was to be the last one before the job's end."""
        if self.published is not None and self.published.step == step:
            return f"saved after step {step} and ends, as ordered before the end of the job"
        newest = f"step {self.published.step} is the newest" if self.published else "this process has saved none"
        return f"ends after step {step}, as ordered before the end of the job; it could not be saved: {newest}"

    def _words(self, step: int) -> dict[str, Any]:  # noqa: ARG002
        """Return what else this rank tells the others."""
        return {}

    @staticmethod
    def _is_busy(refusal: str) -> bool:
        """Say whether a save is skipped only because the one before is still being written."""
        return refusal.endswith(STILL_WRITTEN)

    def _why_not(self, share: shards.RankShare, told: list[dict[str, Any]]) -> str:  # noqa: ARG002
        """Return why the shares cannot be kept, equally on all ranks; empty if they can."""
        return ""

    def _tell_all(
        self, step: int, tensors: Mapping[str, torch.Tensor], documents: Mapping[str, bytes]
    ) -> list[dict[str, Any]]:
        """Return what each rank says about this save: busy, a mistake, its host, its plan; the draft of rank 0."""
        mine = {"busy": self.is_writing, "mistake": "", "draft": "", "digest": "", "host": socket.gethostname()}
        try:
            mine.update(self._words(step))
            if not mine["busy"] and not mine["mistake"]:
                for name in documents:
                    if name != name.strip("./") or "/" in name or name.endswith(".safetensors") or name in _OWN_NAMES:
                        raise CheckpointError(f"{name!r} cannot be the name of a document of a checkpoint")
                mine["digest"] = self._plans.prepare(tensors)
                mine["draft"] = self._folder.begin(step).name if self._rank == 0 else ""
        except _LOCAL_ERRORS as error:
            mine["mistake"] = text_of(error)
        return [json.loads(one) for one in exchange.gather(json.dumps(mine).encode(), self._group)]

    def _refuse(self, step: int, why: str, draft: str) -> None:
        if self._rank == 0:
            if draft:
                self._folder.join(draft).discard()
            self._say(f"the checkpoint of step {step} is skipped: {why}")

    def _begin(self, save: Save, hosts: list[str]) -> None:
        """Copy, or write in parts where the copies do not fit; then go on in a thread."""
        written: WrittenFile | None = None
        mistake = ""
        try:
            if self._fits(save.share, hosts):
                self._copies.copy(save.share.tensors, save.share.num_bytes[self._rank])
            else:
                if self._rank == hosts.index(hosts[self._rank]) == 0:
                    needed = sum(map(host_memory.needed_bytes, save.share.num_bytes))
                    self._say(
                        f"the checkpoint of step {save.step} needs {needed / 2**30:.1f} GiB of host memory for "
                        f"copies, and {self._available_bytes() / 2**30:.1f} GiB are available: "
                        "it is written in parts, and the training waits"
                    )
                self._copies = host_memory.HostCopies()
                with self._folder.join(save.name).file(save.share.file) as file:
                    safetensors.write_stream(file, save.share.specs, save.share.tensors)
                written = file.written
        except _LOCAL_ERRORS as error:
            mistake = text_of(error)
        save = save._replace(share=save.share._replace(tensors=[]))
        self._thread = threading.Thread(
            target=self._finish, args=(save, written, mistake), name="echelon-checkpoint", daemon=True
        )
        self._thread.start()

    def _fits(self, share: shards.RankShare, hosts: list[str]) -> bool:
        mine = hosts[self._rank]
        sizes = [size for size, host in zip(share.num_bytes, hosts, strict=False) if host == mine]
        needed = sum(map(host_memory.needed_bytes, sizes)) - self._copies.held_bytes * len(sizes)
        return needed <= self._available_bytes() * host_memory.SHARE_OF_AVAILABLE

    def _finish(self, save: Save, written: WrittenFile | None, mistake: str) -> None:
        """Write the copies, tell rank 0, and publish; this is the thread, in which no error may be lost."""
        try:
            if not mistake and written is None:
                written = write_copies(self._folder.join(save.name), save.share, self._copies)
        except Exception as error:  # noqa: BLE001  (whatever it is, rank 0 says it, and the training goes on)
            mistake = text_of(error)
        try:
            if self._rank == 0:
                self._publish(save, written, mistake)
            else:
                messages = self._store_of_messages()
                messages.set(_key(save.name, self._rank), json.dumps(_report_of(written, mistake)))
                messages.add(_key(save.name, "reports"), 1)
        except Exception as error:  # noqa: BLE001  (see above)
            if self._rank == 0:
                self._folder.join(save.name).discard()
                self._say(f"the checkpoint of step {save.step} was not written: {text_of(error)}")
        self.durations = self.durations._replace(written_seconds=time.monotonic() - save.began)

    def _publish(self, save: Save, written: WrittenFile | None, mistake: str) -> None:
        reports = [_report_of(written, mistake), *self._reports(save.name)]
        mistakes = [f"rank {rank}: {one['mistake']}" for rank, one in enumerate(reports) if one["mistake"]]
        if mistakes:
            raise CheckpointError(mistakes[0] if self._num_ranks > 1 else mistakes[0].partition(": ")[2])
        files = {
            f"rank-{rank}.safetensors": WrittenFile(one["bytes"], one["checksum"]) for rank, one in enumerate(reports)
        }
        draft = self._folder.join(save.name)
        for name, content in {**save.documents, tensors_file.NAME: save.share.document}.items():
            files[name] = draft.write(name, content)
        self.published = draft.publish(files, num_ranks=self._num_ranks, about=save.about, versions=versions_here())

    def _reports(self, name: str) -> list[dict[str, Any]]:
        """Return what the other ranks have written, when all have said it; no call waits inside of the store."""
        if self._num_ranks == 1:
            return []
        messages, deadline = self._store_of_messages(), time.monotonic() + self._patience_seconds
        while True:
            num_reports = messages.add(_key(name, "reports"), 0)
            if num_reports == self._num_ranks - 1:
                break
            if time.monotonic() > deadline:
                raise CheckpointError(
                    f"{self._num_ranks - 1 - num_reports} of {self._num_ranks} ranks have not written "
                    f"within {self._patience_seconds:.0f} s"
                )
            time.sleep(_POLL_SECONDS)
        reports = [json.loads(messages.get(_key(name, rank))) for rank in range(1, self._num_ranks)]
        for key in (*range(1, self._num_ranks), "reports"):
            messages.delete_key(_key(name, key))
        return reports

    def _store_of_messages(self) -> Any:
        return distributed.default_store() if self._messages is None else self._messages


def _refusal(told: list[dict[str, Any]], step_in_writing: int) -> str:
    if any(one["busy"] for one in told):
        return f"that of step {step_in_writing} {STILL_WRITTEN}"
    mistakes = [(rank, one["mistake"]) for rank, one in enumerate(told) if one["mistake"]]
    if not mistakes:
        return ""
    rank, text = mistakes[0]
    return text if len(told) == 1 else f"rank {rank}: {text}"


_OWN_NAMES = ("manifest.json", tensors_file.NAME)


def write_copies(draft: Draft, share: shards.RankShare, copies: host_memory.HostCopies) -> WrittenFile:
    with draft.file(share.file) as file:
        safetensors.write_header(file, share.specs)
        for part in copies.parts():
            file.write(part)
    return file.written


def _report_of(written: WrittenFile | None, mistake: str) -> dict[str, Any]:
    if written is None:
        return {"mistake": mistake or "nothing was written", "bytes": 0, "checksum": ""}
    return {"mistake": mistake, "bytes": written.num_bytes, "checksum": written.checksum}


def _key(name: str, what: object) -> str:
    return f"echelon/checkpoint/{name}/{what}"


def text_of(error: BaseException) -> str:
    if isinstance(error, CheckpointError):
        return error.message
    return (f"{type(error).__name__}: {error}").partition("\n")[0]


def versions_here() -> dict[str, str]:
    ours = getattr(sys.modules.get("echelon"), "__version__", "")
    return {"torch": str(torch.__version__), **({"echelon": ours} if ours else {})}
