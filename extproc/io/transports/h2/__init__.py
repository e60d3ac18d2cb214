"""A server's side of HTTP/2 (RFC 9113) and gRPC, bytes in and bytes out: no sockets, no clocks, no asyncio."""
