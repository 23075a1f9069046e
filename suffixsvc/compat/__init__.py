"""Drop-in faces of other projects' interfaces over this engine. None is built yet."""
