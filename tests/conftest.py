"""Makes tests/support importable: pytest puts the folder of a conftest on sys.path."""
