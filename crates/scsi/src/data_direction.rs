//! Which way the data of a command goes: what a decoded command says of itself.

/// Which way a command's data goes, and how much of it at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataDirection {
    /// No data.
    None,
    /// To the initiator: at most this many bytes.
    In(u64),
    /// To the target: exactly this many bytes.
    Out(u64),
}
