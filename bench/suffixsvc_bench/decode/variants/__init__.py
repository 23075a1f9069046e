"""Variants of decoding that `bench decode` compares: layer stacks, peers, llama.cpp programs."""
