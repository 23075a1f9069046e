"""verb_child.py CONSTANTS VERB ...: ``suffixsvc VERB`` with other values of modules' constants, as JSON.

For processes that need a start of their own, as with LD_PRELOAD; ``forked_verbs`` is faster.
"""

from __future__ import annotations

import importlib
import json
import sys

import suffixsvc_cli
from suffixsvc.runtime.grpc_poller import use_low_latency_poller


def main() -> int:
    use_low_latency_poller()  # before the import of gRPC, as the command does
    for name, value in json.loads(sys.argv.pop(1)).items():
        module, _, constant = name.rpartition(".")
        assert hasattr(importlib.import_module(module), constant), name
        setattr(importlib.import_module(module), constant, value)
    return suffixsvc_cli.main()


if __name__ == "__main__":
    sys.exit(main())
