"""The draft worker: a small model in a process of its own, and the driver's side of the wire.

engine    sessions, KV reuse, drafting; no gRPC        server    gRPC in front of the engine
stream    one long-lived stream with a timer           client    describe, vocabulary check, session
"""
