"""Building caches from logs: what ``suffixsvc build`` does."""

from suffixsvc_caches.building.files import Written
from suffixsvc_caches.building.lookup_caches import LookupCaches, LookupFiles, LookupSpec, Provenance
from suffixsvc_caches.building.run import BuildResult, BuildWatch, build
from suffixsvc_caches.building.spec import BuildSpec, CorpusTarget

__all__ = [
    "BuildResult",
    "BuildSpec",
    "BuildWatch",
    "CorpusTarget",
    "LookupCaches",
    "LookupFiles",
    "LookupSpec",
    "Provenance",
    "Written",
    "build",
]
