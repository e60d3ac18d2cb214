"""Admission: who goes, who waits, who is refused, for a whole fleet of gateways and every tenant.

    identity   where a request's identity comes from, of sources a client can't write
    tenants    identity -> tenant, and what it was promised
    meter      runtime tokens of replicas and pools, and what they can bear
    adapt      the total budget follows that
    shares     a budget divided among tenants and gateways
    board      what all gateways share: leases and rates; the same in Redis is io/budget_store.py
    budget     what this gateway was leased, spent and settled
    queue      who waits, in which order, and for how long
    scaling    what a fleet should be like soon
    answers    what is said, with its reason and numbers
    gate       a pool's admission, put together of these
    wire       refusals and bodies as they are sent
    desk       all pools', as an exchange asks it

All amounts are runtime tokens: prompt and bounded expected output of requests in flight.
"""
