"""What happens in a rank: each event is hooked once, and its listeners are called in the order that is stated here.

Who watches a training, and computes nothing in its place, listens. Who computes something else replaces names itself
(`patches`): `replay.stubs` repeats steps without computing, `replay.scalers` asks one optimizer whether a scaler let it
step, `local_sgd.hooks` counts a step that a scaler leaves out, and `tracing.course` gives steps other closures.
"""

from typing import Any, Callable, List, NamedTuple, Optional, Tuple

from . import patches

OPTIMIZERS = "torch.optim.optimizer"
Listener = Callable[..., Optional[bool]]


class _Entry(NamedTuple):
    place: int
    listener: Listener
    why: str


class Event:
    """Something that happens again and again."""

    def __init__(self, *places: str) -> None:
        self._places = places
        self._entries: List[_Entry] = []
        self._listeners: Tuple[Listener, ...] = ()

    def listen(self, place: str, listener: Listener, *, why: str = "") -> None:
        """Call a listener from now on, after those of earlier places; if it returns True, later ones are left out."""
        self._entries.append(_Entry(self._places.index(place), listener, why))
        self._entries.sort(key=lambda entry: entry.place)
        self._listeners = tuple(entry.listener for entry in self._entries)

    def __call__(self, *arguments: Any) -> None:
        """Tell the listeners."""
        for listener in self._listeners:
            if listener(*arguments):
                return


class _Steps(Event):
    """The begin or the end of each step of each optimizer; a listener gets the optimizer."""

    def __init__(self, register: str, *places: str) -> None:
        super().__init__(*places)
        self._register = register
        self._hook: Optional[patches.Hook] = None

    def listen(self, place: str, listener: Listener, *, why: str = "") -> None:
        if self._hook is not None and not self._hook.is_installed:
            self._hook, self._entries = None, []
        super().listen(place, listener, why=why)
        patches.Hooks().when_imported(OPTIMIZERS, self._begin, why=why)

    def _begin(self, module: Any) -> None:
        """Hook all optimizers, the first time; the reasons of the listeners are those of the hook."""
        whole = " ".join(dict.fromkeys(entry.why for entry in self._entries if entry.why))
        if self._hook is None:
            self._hook = patches.hook(getattr(module, self._register), self, why=whole)
        self._hook.why = whole

    def __call__(self, optimizer: Any, *_: Any) -> None:
        for listener in self._listeners:
            if listener(optimizer):
                return


class Span:
    """The begin and the end of what takes a while: `with computing:`."""

    def __init__(self, *places: str) -> None:
        self.begin, self.end = Event(*places), Event(*places)

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *_: object) -> None:
        self.end()


before_step = _Steps(
    "register_optimizer_step_pre_hook",
    "measuring",
    "nudge",  # a rehearsal moves the gradients of a rank by their last bits
    "row trials",
    "children",  # of the script, which may not train; those that load samples leave out what follows
    "parallelism",
    "draws",
    "record",
    "first step",
    "later steps",
)
after_step = _Steps(
    "register_optimizer_step_post_hook",
    "pulse",  # first: the agent's times of steps leave out what other listeners do
    "measuring",
    "bench",
    "record",  # before the parallelism, which may give all ranks other weights
    "parallelism",
    "pace",
    "rehearsal",
    "profile",
)
batch = Event("later steps", "record")
"""The script gets a batch that ranks share: the batch of this rank, and the indices of all its samples."""
stream = Event("later steps")
"""All ranks have read the same batch of a stream."""
call = Event("later steps")
"""A model is about to compute a batch: its own call, the module, its arguments, those of each shard, and their rows."""
loss = Event("record")
"""The gradients of a loss are those of the whole batch."""
loading, computing = Span("pace"), Span("pace")
"""A batch is loaded; a model, or its backward pass, computes."""
