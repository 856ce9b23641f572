"""Checks whether a rate limiter does what it promises."""

__version__ = "0.1.0"
