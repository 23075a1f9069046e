"""``suffixsvc bench record``: a real model's answers to the workloads, kept as logs.

answers.py        the file of a workload: what it holds already, and adding to it
side_by_side.py   a model that answers many tasks at once
run.py            which task is next, and where its answer goes
command.py        the verb: progress, Ctrl-C, the summary
"""
