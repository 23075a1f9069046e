"""The gRPC service: what turns the embedded engine into something many processes share.

converters  request messages -> checked arguments        registry    live sessions by id, retries, expiry
handlers    message in, message out; no gRPC             interceptor errors -> statuses, in one place
servicer    gRPC methods -> handlers                     listen      addresses, stale sockets, refusals
server      assembly, health, reflection, drain          run         `suffixsvc serve` behind its options
"""
