"""The store that the first agent serves to the ranks of an attempt."""

import resource
import selectors
from typing import TYPE_CHECKING, Any, Dict, Optional

from .agent_spec import AgentSpec
from .secret import digest

if TYPE_CHECKING:
    from .rank_store import RankStore

OTHER_FILES = 512  # the ranks' pipes, their logs, and strangers


def attempt_key(secret: bytes, message: Dict[str, Any]) -> bytes:
    """Return the key of an attempt's ranks, which every agent derives from the run's secret."""
    return digest(secret, ("ranks of %s, attempt %d" % (message["run_id"], message["attempt"])).encode())


def _allow_connections(num_ranks: int) -> None:
    """Raise the limit on open files for the connections of many ranks; ranks that are started by exec inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * num_ranks + OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Stores:
    """The server in the agent's loop; each attempt has a new one."""

    def __init__(self, selector: selectors.BaseSelector, spec: AgentSpec) -> None:
        self._selector = selector
        self._order = spec
        self._server: Optional[RankStore] = None

    def serve(self, message: Dict[str, Any]) -> int:
        """Start the store of an attempt with several ranks, on the agent with rank 0; return its port, 0 without it."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if not message["has_first_rank"] or message["num_ranks"] == 1:
            return 0
        from .rank_store import RankStore  # only one agent needs it

        _allow_connections(message["num_ranks"])
        key = attempt_key(self._order.secret, message)
        self._server = RankStore(self._selector, self._order.store_address, key)
        return self._server.port
