"""Recording of a real model's answers to the workloads, as logs: ``suffixsvc bench record``.

answers.py           file of a workload: what it contains, and appending to it
batch_generator.py   a model that answers many tasks in one batch
run.py               order of tasks, and the files of their answers
command.py           the verb: progress, signals, summary
"""
