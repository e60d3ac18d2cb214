"""The pure core: no I/O, clock, randomness, logging or metrics. Time and random numbers are arguments."""
