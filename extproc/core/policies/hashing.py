"""Numbers that every gateway and every run gets alike: from an address, and from a prompt's hash."""

from typing import Final

MASK: Final = (1 << 64) - 1
#: FNV-1a, 64 bits (offset basis and prime), for addresses; computed once for each.
_FNV_BASIS, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3
#: Addresses remembered; a fleet that changes beyond that forgets and computes anew.
_MOST_ADDRESSES = 4096

_SEEDS: dict[str, int] = {}


def address_seed(address: str) -> int:
    """A 64-bit number for an address (FNV-1a)."""
    seed = _SEEDS.get(address)
    if seed is None:
        if len(_SEEDS) >= _MOST_ADDRESSES:
            _SEEDS.clear()
        seed = _FNV_BASIS
        for byte in address.encode():
            seed = (seed ^ byte) * _FNV_PRIME & MASK
        _SEEDS[address] = seed
    return seed


def mixed(value: int) -> int:
    """The finalizer of splitmix64: 64 bits in, 64 well mixed bits out."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
    return value ^ value >> 31
