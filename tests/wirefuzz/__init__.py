"""Generative tests of what Weir reads and writes: HTTP/1.1 requests, upstream responses, HTTP/2 sessions.

Each case is generated from a seed, played against the real binary on loopback sockets, and judged by readers of this
package that follow the RFCs to the letter and share no code with Weir. `tests/wire-fuzz --help` has the options.
"""
