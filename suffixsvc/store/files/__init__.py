"""Files of a data folder: lock, verified data file, rollback journal of meta pages."""
