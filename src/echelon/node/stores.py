"""The stores that the first agent serves to the ranks of an attempt: echelon's own, and Horovod's."""

import resource
import selectors
from typing import Any, Dict, List

from .agent_spec import AgentSpec
from .secret import digest
from .server import Server

OTHER_FILES = 512  # the ranks' pipes, their logs, and strangers


def attempt_key(secret: bytes, message: Dict[str, Any]) -> bytes:
    """Return the key of an attempt's ranks, which every agent derives from the run's secret."""
    return digest(secret, ("ranks of %s, attempt %d" % (message["run_id"], message["attempt"])).encode())


def horovod_token(secret: bytes, message: Dict[str, Any]) -> str:
    """Return the token that Horovod's ranks include in the address of each request."""
    return digest(attempt_key(secret, message), b"token of horovod").hex()


def _allow_connections(num_ranks: int) -> None:
    """Raise the limit on open files for the connections of many ranks; ranks that are started by exec inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * num_ranks + OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Stores:
    """The servers in the agent's loop; each attempt has new ones."""

    def __init__(self, selector: selectors.BaseSelector, spec: AgentSpec) -> None:
        self._selector = selector
        self._order = spec
        self._servers: List[Server] = []

    def serve(self, message: Dict[str, Any]) -> Dict[str, int]:
        """Start the servers that the attempt needs, on the agent with rank 0; return the ports by name."""
        for server in self._servers:
            server.close()
        self._servers = []
        ports = {}
        if message["has_first_rank"] and message["num_ranks"] > 1:
            from .rank_store import RankStore  # only one agent needs it

            _allow_connections(message["num_ranks"])
            secret, address = self._order.secret, self._order.store_address
            self._servers.append(RankStore(self._selector, address, attempt_key(secret, message)))
            ports["ranks"] = self._servers[-1].port
            if self._order.serves_horovod:
                from .horovod import Store  # most scripts do not need it

                token = horovod_token(secret, message)
                self._servers.append(Store(self._selector, address, token, message["num_ranks"]))
                ports["horovod"] = self._servers[-1].port
        return ports
