"""Drop-in replacements for the classes of other projects, implemented by the embedded engine."""
