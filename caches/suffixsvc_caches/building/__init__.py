"""Builds of caches from logs, as run by ``suffixsvc build``."""

from suffixsvc_caches.building.files import WrittenFile
from suffixsvc_caches.building.lookup_caches import LookupCaches, LookupFiles, LookupSpec, Provenance
from suffixsvc_caches.building.run import BuildObserver, BuildResult, build
from suffixsvc_caches.building.spec import BuildSpec, CorpusTarget

__all__ = [
    "BuildObserver",
    "BuildResult",
    "BuildSpec",
    "CorpusTarget",
    "LookupCaches",
    "LookupFiles",
    "LookupSpec",
    "Provenance",
    "WrittenFile",
    "build",
]
