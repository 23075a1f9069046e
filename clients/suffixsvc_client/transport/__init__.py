"""Transports of the client: gRPC (blocking and asyncio) and the direct socket."""
