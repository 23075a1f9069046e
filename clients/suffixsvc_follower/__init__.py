"""Followers: copies of namespaces in the process that decodes, drafted from without a call.

A follower reads the log of a service on (``Watch``), keeps the outputs of the namespaces that it uses and the
live text of its siblings, drafts from them, and sends what is written here to the service in the background.
"""

from suffixsvc_follower.config import FollowerConfig
from suffixsvc_follower.connecting import connect
from suffixsvc_follower.follower import Follower
from suffixsvc_follower.namespace import FollowerNamespace
from suffixsvc_follower.session import FollowerSession
from suffixsvc_follower.stream.connection import FollowState

__all__ = ["FollowState", "Follower", "FollowerConfig", "FollowerNamespace", "FollowerSession", "connect"]
