"""Drafting methods behind one interface: ours, and the alternatives that users have."""

from suffixsvc_bench.methods import arctic, compat, ngram_cache, ngram_mod, ours, prompt_lookup
from suffixsvc_bench.methods.base import Method, MethodSpec, Settings

__all__ = ["Method", "MethodSpec", "Settings", "known_methods", "missing_methods"]


def known_methods() -> dict[str, MethodSpec]:
    """Every method that can run here, by key, in the order of tables."""
    modules = (ours, compat, prompt_lookup, ngram_cache, ngram_mod)
    specs = [*(spec for module in modules for spec in module.SPECS), *arctic.specs()]
    return {spec.key: spec for spec in specs}


def missing_methods() -> dict[str, str]:
    """Methods that cannot run here, by name, with the reason and a remedy."""
    if arctic.find_python() is not None:
        return {}
    return {arctic.FAMILY: "Arctic Inference is not installed; make peers builds the part of it that drafts"}
