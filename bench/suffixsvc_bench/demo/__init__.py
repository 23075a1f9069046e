"""The demo: agents on a real model answer database questions, and a real service drafts from their outputs.

database.py      the SQLite shop that the questions are about, and read-only execution
questions.py     two passes of different questions of the same kind
agents.py        prompts of the four agents, and parsers of their answers
pipeline.py      planner -> SQL writer -> executor -> reporter -> Python writer
agent_runner.py  one call on the real model, with drafts or plain
paired.py        speedups over paired plain runs
recall.py        tokens of an earlier answer that the service still drafts
recording.py     every call as a line of JSON
report.py        report.html
show.py          terminal output
setup.py         choice of models, check of output files
fixture.py       model, service, client and draft worker
run.py           the stages in order
"""
