"""Ways to draft, side by side: ours and what a user would pick instead, each behind one interface."""

from suffixsvc_bench.methods import ours, prompt_lookup
from suffixsvc_bench.methods.base import Method, MethodSpec, Settings

__all__ = ["Method", "MethodSpec", "Settings", "known_methods", "missing_methods"]


def known_methods() -> dict[str, MethodSpec]:
    """Every method that can run here, by key, in the order of the tables."""
    specs = (*ours.SPECS, *prompt_lookup.SPECS)
    return {spec.key: spec for spec in specs}


def missing_methods() -> dict[str, str]:
    """Methods that cannot run here, by name: why, and what to do about it."""
    return {}
