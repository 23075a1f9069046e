"""Generated from proto/suffixsvc/v1 by tools/gen_proto.py. Never edited."""
