"""Sampling: settings, sampler, penalties, grammars, rounding tolerance."""
