"""Prove to the other end of a connection that one holds the run's secret, without ever sending it."""

import os

try:
    from _blake2 import blake2b  # hashlib and hmac would load OpenSSL: 4 MB in every agent
except ImportError:  # a Python that was built without it
    from hashlib import blake2b

NONCE_BYTES = 16
PROOF_BYTES = 32


def nonce() -> str:
    """Return a fresh random challenge."""
    return os.urandom(NONCE_BYTES).hex()


def proof(secret: bytes, role: str, challenge: str) -> str:
    """Return what only a holder of the run's secret (at most 64 bytes) can answer to a challenge."""
    return digest(secret, (role + ":" + challenge).encode("utf-8", "surrogatepass")).hex()


def proves(secret: bytes, role: str, challenge: str, answer: object) -> bool:
    """Say whether the answer to a challenge shows knowledge of the secret."""
    if not isinstance(answer, str):
        return False
    return is_digest(proof(secret, role, challenge).encode(), answer.encode("utf-8", "surrogatepass"))


def is_digest(wanted: bytes, answer: bytes) -> bool:
    """Say whether both are equal; how long that takes tells nothing: two digests under a key of the moment differ."""
    blind = os.urandom(NONCE_BYTES)
    return digest(blind, wanted) == digest(blind, answer)


def digest(key: bytes, text: bytes) -> bytes:
    """Return the PROOF_BYTES that only a holder of a key (at most 64 bytes) can make of a text."""
    return bytes(blake2b(text, key=key, digest_size=PROOF_BYTES).digest())
