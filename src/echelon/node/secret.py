"""Prove to the other end of a connection that one holds the run's secret, without ever sending it."""

import os

try:
    from _blake2 import blake2b  # hashlib and hmac would load OpenSSL: 4 MB in every agent
except ImportError:  # a Python that was built without it
    from hashlib import blake2b


def nonce() -> str:
    """Return a fresh random challenge."""
    return os.urandom(16).hex()


def proof(secret: bytes, role: str, challenge: str) -> str:
    """Return what only a holder of the run's secret (at most 64 bytes) can answer to a challenge."""
    return str(_mac(secret, (role + ":" + challenge).encode("utf-8", "surrogatepass")).hex())


def proves(secret: bytes, role: str, challenge: str, answer: object) -> bool:
    """Say whether the answer to a challenge shows knowledge of the secret."""
    if not isinstance(answer, str):
        return False
    blind = os.urandom(16)  # two digests under a key of the moment: how long they compare tells nothing
    wanted = proof(secret, role, challenge).encode()
    return _mac(blind, wanted) == _mac(blind, answer.encode("utf-8", "surrogatepass"))


def _mac(key: bytes, text: bytes) -> bytes:
    return bytes(blake2b(text, key=key, digest_size=32).digest())
