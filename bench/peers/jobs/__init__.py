"""Workers as people write them in Python, one module a library, each with two verbs.

`fill` puts jobs where the library's own way of asking for them puts them; `work` does them in this process: each is a
function that does nothing, and is acked, durably, after it ran.
"""
