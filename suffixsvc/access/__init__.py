"""Access control: who a caller is (tokens, certificates, users), and what it may do (grants on paths)."""
