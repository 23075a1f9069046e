"""Draft workers: a small model in a separate process, and its clients.

server/        the worker process
    engine     drafts chains for contexts; no gRPC, no threads
    batching   measured costs of batches, and the width that pays
    scheduler  one thread for the model, a short queue, "busy" for further requests
    servicer   the gRPC server; run: the process around it
client/        connections to one worker
    interface  the interface that layers use
    single, vocabulary_check, session, channel   shared by all connections
    grpc_client, grpc_stream                     our worker, over gRPC
llama_server/  an unmodified llama-server, over HTTP
pool/          several workers as one: health checks, sessions that move; connecting: address -> connection
"""
