"""gRPC service that shares one embedded engine between processes.

run        `suffixsvc serve`                            handlers   request handlers, without gRPC
server     assembly, health, reflection, drain          sessions   live sessions by id: retries, expiry
servicer   gRPC methods -> handlers                     messages   messages <-> checked values
calls      admission, deadlines, error statuses         listeners  addresses and sockets
"""
