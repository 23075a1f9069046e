"""Tools: the text of a model to calls of tools, and grammars of calls."""
