"""The demo: agents on a real model answer database questions, and a real service remembers what they wrote.

database.py    the SQLite shop the questions are about, and read-only execution
questions.py   two passes of different questions of the same kind
agents.py      prompts of the four agents, and reading what they answer
pipeline.py    planner -> SQL writer -> executor -> reporter -> Python writer
brain.py       one call on the real model, with drafts or plain
paired.py      A B A B comparisons and what they say
remembered.py  what the service drafts of an earlier answer
recording.py   every call as a line of JSON
report.py      report.html
show.py        what is printed while it works
run.py         the order of events
"""
