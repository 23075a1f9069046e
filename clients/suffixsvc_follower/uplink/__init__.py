"""What a follower writes, sent to its service in the background."""
