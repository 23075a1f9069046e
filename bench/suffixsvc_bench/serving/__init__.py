"""`bench http`: the OpenAI-compatible server beside llama-server, through HTTP, in paired measurements.

command.py    the parts of a run in order
figures.py    ratios with confidence intervals, and the requirements that they meet
results.py    results as data
tables.py     results as tables
servers/      servers as processes, the driver called directly, a client that times streams
phases/       what is measured: one client, several clients, a conversation, JSON schemas
"""
