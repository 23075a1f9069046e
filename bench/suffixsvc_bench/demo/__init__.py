"""The demo: agents on a real model answer database questions, and a real service drafts from their outputs.

database.py      the SQLite shop that the questions are about, and read-only execution
prompts.toml     prompts of the agents, and questions
questions.py     passes of different questions of the same kind
agents.py        prompts of the four agents, and parsers of their answers
pipeline.py      planner -> SQL writer -> executor -> reporter -> Python writer
agent_runner.py  one call on the real model, with drafts or plain, and its record
two_processes.py two processes that write in turns, drafting from each other's live text
report.py        report.html
show.py          terminal output
options.py       options of the verb
setup.py         choice of models
fixture.py       model, service, client and draft worker
run.py           the stages in order
"""
