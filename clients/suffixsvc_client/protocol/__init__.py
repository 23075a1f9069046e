"""Client logic without I/O: procedures yield effects, which the clients perform over a transport."""
