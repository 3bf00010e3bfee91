"""The server of ranks imports torch while these tests do."""

from tests.train.parallel import ranks

ranks.serve()
