"""What a simulation keeps of every request, in arrays: 1 million requests take some 50 MB."""

from array import array

from extproc.sim.jobs import Job, Status


class Outcome:
    """Requests in the order they were over, and what each replica did in every minute.

    Attributes:
        number, arrived, ttft, tpot: by request; TTFT -1 without a first token, TPOT -1 for under two tokens.
        tokens, hit, output: its prompt tokens, those found in the cache, and tokens answered.
        status: as `Status`.
        busy: replica -> seconds in steps with prompt work, by bucket of `span` seconds.
        hits, computed: prompt tokens found and computed over all replicas, by bucket.
        arrivals: requests that arrived.
    """

    def __init__(self, span: float = 60.0) -> None:
        self.span = span
        self.number = array("q")
        self.arrived = array("d")
        self.ttft = array("d")
        self.tpot = array("d")
        self.tokens = array("q")
        self.hit = array("q")
        self.output = array("q")
        self.status = array("b")
        self.busy: dict[str, list[float]] = {}
        self.load: dict[str, list[int]] = {}
        self.hits: list[int] = []
        self.computed: list[int] = []
        self.arrivals = 0
        self.troubles: dict[str, int] = {}
        self.duration = 0.0

    def add(self, job: Job) -> None:
        """Note a request that is over, or that the end of the simulation left unfinished."""
        answered = job.status is Status.FINISHED
        self.number.append(job.number)
        self.arrived.append(job.arrived)
        self.ttft.append(job.first - job.arrived if job.first >= 0 else -1.0)
        steps = job.row.output - 1
        self.tpot.append((job.finished - job.first) / steps if answered and steps else -1.0)
        self.tokens.append(job.row.tokens)
        self.hit.append(job.hit)
        self.output.append(job.row.output if answered else 0)
        self.status.append(job.status)
