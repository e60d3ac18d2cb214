"""Benchmarks: each file says how to run it; docs/performance.md holds the last figures."""
