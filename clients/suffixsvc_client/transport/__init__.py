"""Transports of the client: gRPC, blocking and asyncio."""
