"""Client of one draft worker: connections, channels and sessions."""
