//! Placeholder.

/// The disk that forgets.
pub struct ForgettingDisk;
/// What was forgotten.
pub struct Forgotten;
