"""A whole stack of real processes on one machine: for `kvsteer demo`, for tests and for benchmarks."""
