"""Drop-in faces of other projects' APIs over the embedded engine."""
