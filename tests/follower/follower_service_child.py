"""follower_service_child.py ADDRESS FOLDER LEASE: a service with a lease of so many seconds."""

from __future__ import annotations

import sys
import time

from suffixsvc import SuffixCache
from suffixsvc.service.listeners.listen import parse_address
from suffixsvc.service.server import SuffixServer


def main() -> None:
    address, folder, lease = sys.argv[1:]
    with SuffixCache(folder) as cache:
        SuffixServer(cache, [parse_address(address)], lease_seconds=float(lease)).start()
        print("ready", flush=True)
        time.sleep(3600)


if __name__ == "__main__":
    main()
