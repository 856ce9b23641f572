//! Limits on memory: windows, the output buffer and header sections.
