"""The live page: answers as they are generated, and numbers of the whole server, for viewers in browsers.

    engine's threads               event loop
    Observer ──> Feed ──> Viewer, one for each open page ──> server-sent events

The engine's threads only append. Viewers read what has changed since their last read, so that neither their
number nor their speed delays a lane, and nothing waits for a viewer: what it has not read when it is replaced
is lost to it, and counted.
"""
