"""Whole fleets in virtual time: no process is started, but each takes a while; `make test` plays them with others."""
