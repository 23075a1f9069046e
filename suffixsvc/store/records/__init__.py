"""Records of the store: byte layouts (docs/format.md), validation of arguments."""
