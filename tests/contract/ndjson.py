"""What schemathesis does not know by itself: a body of one JSON value a line."""

import json

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def one_line(context, value):
    return value if isinstance(value, bytes) else json.dumps(value).encode() + b"\n"
