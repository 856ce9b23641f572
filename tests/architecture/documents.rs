//! What the documentation says, held against the program.
