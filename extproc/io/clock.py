"""The clock everything outside the core reads."""

import time

#: Seconds that only go forward; comparable within this process alone.
monotonic = time.monotonic
#: Seconds since the epoch, for people to read.
wall = time.time
