"""The place of one rank among all ranks."""

from typing import NamedTuple


class Place(NamedTuple):
    """The place of a rank, and the address of rank 0."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    num_nodes: int
    master_addr: str
    """Host name or address of the node on which rank 0 runs."""
    master_port: int
