"""Records of the store: byte layouts (docs/format.md), validation, edits of the manifest."""
