"""Everything that touches the outside: transports, metrics, admin port, registry, collector."""
