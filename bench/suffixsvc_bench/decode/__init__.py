"""Decoding on a real model, plain and with drafts, as paired measurements over several settings.

run.py               every job in every variant, interleaved
command.py           the runs of `bench decode` in order
figures.py           speedups with confidence intervals
tables.py, charts.py results as tables and as plots
workload/            calls that are measured, their replay, and the answers that are kept between runs
variants/            variants of decoding: plain, with drafts, llama.cpp's own programs
pricing/             the same drafts at costs of other machines
"""
