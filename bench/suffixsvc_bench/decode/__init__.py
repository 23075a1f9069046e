"""Decoding on a real model: plain and with drafts, in pairs, over settings.

jobs.py       what the model is asked, by workload          rig.py      model, service, draft worker
variants.py   ways to answer                                 run.py      every job in every way, in turns
figures.py    speedups with their intervals                  tables.py   ... as tables, charts.py as pictures
forecast.py   what the replay says the same calls would give
priced.py     the same drafts at supplied prices             prepared.py what was written before a run
llama_server.py, programs.py, peers.py   llama.cpp's own programs, as further ways to answer
"""
