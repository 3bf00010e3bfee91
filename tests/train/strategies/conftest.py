"""The server of ranks imports torch while these tests do."""

from tests.train.strategies import ranks

ranks.serve()
