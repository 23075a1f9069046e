"""Cost model of verification steps by width: curves, their files, online estimation, speedup estimates."""
