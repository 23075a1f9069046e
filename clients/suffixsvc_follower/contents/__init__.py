"""What a follower holds of a namespace: outputs, segments, live text of others, and its own writes."""
