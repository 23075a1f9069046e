"""Answers of calls: their text, log probabilities and end, and the responses that are made of them."""
