"""Options, progress bars and log output that several verbs share.

:mod:`suffixsvc.verb_options` makes the options of a verb of a dataclass, for this package and the benchmarks.
"""
