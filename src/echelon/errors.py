"""Every error that echelon raises on purpose.

EchelonError                 something failed that is not the user's input (exit code 1)
├── UsageError               the input is wrong and nothing was started (exit code 2)
└── RunError                 a run could not be started or carried on
"""


class EchelonError(Exception):
    """A failure in one line; `hint` is a repair to paste, `details` are lines of facts.

    >>> print(EchelonError("the job has no nodes", hint="salloc --nodes=2", details="slurmctld: draining"))
    the job has no nodes
    slurmctld: draining
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", details: str = "") -> None:
        super().__init__(f"{message}\n{details}" if details else message)
        self.message = message
        self.hint = hint
        self.details = details


class UsageError(EchelonError):
    """The command line, a file that it names or the environment is wrong; nothing was started."""

    exit_code = 2


class RunError(EchelonError):
    """A run could not be started, or broke for another reason than a failing rank."""


def seen(text: str) -> str:
    """Return a value as a message shows it: an empty value shows as ''."""
    return text or "''"
