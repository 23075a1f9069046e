"""Published runs of namespaces with ``min_principals``: what their readers without a full grant draft from."""
