"""Local connections to authenticated peers: peer credentials of unix sockets, gRPC channels."""
