//! Tests against a real kernel, as root.
