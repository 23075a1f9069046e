"""Measures what building caches costs and what the caches are worth."""

from suffixsvc_bench.build_bench.options import SECTIONS, BuildBenchOptions
from suffixsvc_bench.build_bench.run import run_build_bench

__all__ = ["SECTIONS", "BuildBenchOptions", "run_build_bench"]
