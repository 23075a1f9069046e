"""Parts that the rest of the engine uses: the guard of close(), and rows of the log."""
