"""Chat turns: messages, tools and formats to a prompt and a grammar, and the answer's text to deltas."""
