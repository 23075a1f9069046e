"""Model files: a registry of known models, verified downloads, and the folder that stores them.

    get(name)      download a model if it is missing, verify it, return its path
    path(name)     path of a downloaded model (ModelNotFoundError names the command that downloads it)
    resolve(what)  path of a registry name or of any local GGUF
    list_models()  the models of the registry, with their local files

Downloaded files are never imported or executed.
"""

from suffixsvc_models.cache import get, list_models, models_dir, path, resolve
from suffixsvc_models.registry import Registry, load_registry

__all__ = ["Registry", "get", "list_models", "load_registry", "models_dir", "path", "resolve"]
