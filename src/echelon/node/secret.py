"""Prove to the other end of a connection that this process holds the run's secret, without sending it."""

import os

try:
    from _blake2 import blake2b  # hashlib and hmac would load OpenSSL: 4 MB in every agent
except ImportError:  # this Python was built without blake2
    from hashlib import blake2b

NONCE_BYTES = 16
PROOF_BYTES = 32


def nonce() -> str:
    """Return a fresh random challenge."""
    return os.urandom(NONCE_BYTES).hex()


def proof(secret: bytes, role: str, challenge: str) -> str:
    """Return the answer to a challenge; only a holder of the run's secret (at most 64 bytes) can compute it."""
    return digest(secret, (role + ":" + challenge).encode("utf-8", "surrogatepass")).hex()


def proves(secret: bytes, role: str, challenge: str, answer: object) -> bool:
    """Say whether an answer proves the secret."""
    if not isinstance(answer, str):
        return False
    return is_digest(proof(secret, role, challenge).encode(), answer.encode("utf-8", "surrogatepass"))


def is_digest(wanted: bytes, answer: bytes) -> bool:
    """Compare two digests in constant time: compare their digests under a random key."""
    blind = os.urandom(NONCE_BYTES)
    return digest(blind, wanted) == digest(blind, answer)


def digest(key: bytes, text: bytes) -> bytes:
    """Return a keyed digest of PROOF_BYTES; the key has at most 64 bytes."""
    return bytes(blake2b(text, key=key, digest_size=PROOF_BYTES).digest())
