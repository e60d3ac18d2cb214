"""What requests truly cost, read out of whatever tells of it: Envoy's typed metadata, or response bodies.

`record` is the neutral record and the rules a count must pass, `token_usage` reads Envoy's metadata, `bodies`
response bodies as they come; `unpacking`, `events`, `scan`, `shapes` and `tally` are its parts.
"""
