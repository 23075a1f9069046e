"""State shared by the parts of the engine: the table of indexes and the guard of close()."""
