"""Generative tests of Weir's protocol handling: HTTP/1.1 requests, upstream responses, HTTP/2 sessions.

Each case is generated from a seed and played against the real binary over loopback sockets. The results are checked
with parsers in this package, which follow the RFCs strictly and share no code with Weir. `tests/wire-fuzz --help` lists
the options.
"""
