//! Keys as values: wiped when dropped, never shown, compared in constant time.

use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Bytes in every key of this room.
pub const KEY_BYTES: usize = 32;

/// Secret bytes. `Debug` shows only how many there are.
///
/// A move copies the bytes and leaves the old place unwiped, as everywhere in Rust: keep secrets where they are made
/// (behind an `Arc` or in a struct that stays) and pass references.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Secret<const N: usize>([u8; N]);

impl<const N: usize> Secret<N> {
    /// Takes the bytes over; the caller wipes any copy of its own.
    pub fn new(bytes: [u8; N]) -> Secret<N> {
        Secret(bytes)
    }

    /// Secret bytes from `fill`, written in their final place.
    pub fn filled(fill: impl FnOnce(&mut [u8; N])) -> Secret<N> {
        let mut secret = Secret([0; N]);
        fill(&mut secret.0);
        secret
    }

    /// The bytes, named so that every use is easy to find.
    pub fn expose(&self) -> &[u8; N] {
        &self.0
    }

    pub(crate) fn expose_mut(&mut self) -> &mut [u8; N] {
        &mut self.0
    }
}

impl<const N: usize> PartialEq for Secret<N> {
    fn eq(&self, other: &Self) -> bool {
        verify_slices_are_equal(&self.0, &other.0).is_ok()
    }
}

impl<const N: usize> Eq for Secret<N> {}

impl<const N: usize> fmt::Debug for Secret<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({N} bytes)")
    }
}

/// The root of one volume's (or several volumes') keys in the blind custodies. Only initiators hold it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeKey(pub(crate) Secret<KEY_BYTES>);

impl VolumeKey {
    /// A key of these bytes; draw them from the operating system's generator.
    pub fn new(bytes: [u8; KEY_BYTES]) -> VolumeKey {
        VolumeKey(Secret::new(bytes))
    }

    /// The bytes.
    pub fn expose(&self) -> &[u8; KEY_BYTES] {
        self.0.expose()
    }
}

/// What a trusted target wraps block keys under, for rest (custody `target`). Lives outside the store; destroying it
/// erases the volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WrappingKey(pub(crate) Secret<KEY_BYTES>);

impl WrappingKey {
    /// A key of these bytes; draw them from the operating system's generator.
    pub fn new(bytes: [u8; KEY_BYTES]) -> WrappingKey {
        WrappingKey(Secret::new(bytes))
    }

    /// The bytes.
    pub fn expose(&self) -> &[u8; KEY_BYTES] {
        self.0.expose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_byte() {
        let shown = format!("{:?} {:?}", VolumeKey::new([0xa7; 32]), WrappingKey::new([0xa7; 32]));
        assert_eq!(shown, "VolumeKey(Secret(32 bytes)) WrappingKey(Secret(32 bytes))");
    }

    #[test]
    fn wiping_wipes() {
        let mut secret = Secret::new([0xa7; 32]);
        secret.zeroize();
        assert_eq!(secret.expose(), &[0; 32]);
    }

    #[test]
    fn equality_is_of_bytes() {
        assert_eq!(VolumeKey::new([1; 32]), VolumeKey::new([1; 32]));
        let mut other = [1; 32];
        other[31] = 2;
        assert_ne!(VolumeKey::new([1; 32]), VolumeKey::new(other));
    }
}
