"""Draft workers: a small model in a process of its own, and the driver's side of the wire.

The worker           engine      contexts in, chains out; no gRPC, no threads
                     sequences   which KV sequence a context goes to
                     batching    when one batch for several sessions pays
                     scheduler   one thread for the model, a short queue, "busy" for the rest
                     server, run gRPC in front of it, the process around it

The driver's side    interface   what the driver needs of any worker
                     connecting  an address -> a connection
                     pool        several workers as one: health checks, sessions that move
                     single, admission, session, exchange   what all connections share
                     client, stream                         our worker, over gRPC
                     llama_server, http_exchange, ...       a llama-server, over HTTP
"""
