"""Pool of draft workers: several workers behind the interface of one."""
