"""Search: messages whose payload, key, headers or JSON fields are what somebody looks for, over a range.

The way of a message: a `search` has the bodies of batches sent as they stand, `wanted` finds in each the messages that
may be meant by their bytes, and looks at the fields of those alone, as a `condition` says. `searches` are those that
are asked over HTTP, each in a thread, so many at a time.
"""
