"""The process that serves: a server with all its protocols and channels, and the process beside it for HTTP."""
