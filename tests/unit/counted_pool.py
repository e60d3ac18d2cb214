"""A pool that tells how much it did."""

from extproc.core.pool import Pool


class Counted(Pool):
    """A pool that counts how often it arranged its replicas anew."""

    arranged = 0

    def _arrange(self) -> None:
        before = self.replicas
        super()._arrange()
        self.arranged += self.replicas is not before
