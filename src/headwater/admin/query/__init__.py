"""SQL over HTTP: one select over topics, answered by DuckDB in a process of its own.

`queries` are those that are asked, so many at a time; each is answered `aside`, and its process ends with it.
"""
