//! The sealing room: seals and opens one block, with the keys that its custody prescribes.
//!
//! `docs/sealed-block.md` is the specification; golden vectors in `tests/golden.rs` pin it. Deliberately absent: I/O,
//! threads, clocks, the operating system's randomness (random bytes come from the caller), and the loading of keys from
//! files (text in, keys out).
//!
//! | type | for |
//! |---|---|
//! | [`VolumeSealer`] | what a pipeline holds: seals and opens blocks and holes of one volume, in any custody |
//! | [`StampSource`] | names each write; its stamp is the nonce, so two writes never share one |
//! | [`BlindKeys`] | custodies `keyfile` and `keyserver`: keys that the target never sees, the stamp as nonce |
//! | [`BlockKeys`], [`KeyWrapper`] | custody `target`: a fresh key per write, wrapped for rest |
//! | [`VolumeKeyFile`] | the text form of volume and wrapping keys |
//! | [`encode_note`], [`decode_note`] | a sealed note about a volume, in a file of who works on it |

mod aead;
mod associated;
mod blind;
mod block_keys;
mod key_file;
mod note;
mod secret;
mod stamp;
mod volume;
mod xaes;

#[doc(hidden)]
pub use blind::seal_key_for_test;
pub use blind::{BlindKeys, SUB_KEYS_CACHED_MAX};
pub use block_keys::{BlockKeys, FillRandom, KEY_BATCH, KeyWrapper};
pub use key_file::{
    EPOCHS_MAX, KEY_FILE_BYTES_MAX, KEY_FILE_VOLUMES_MAX, KeyFileError, KeyId, KeyPurpose, VolumeKeyFile, VolumeRecord,
};
#[doc(hidden)]
pub use note::fuzz_note;
pub use note::{NOTE_LBA, decode_note, encode_note, fill_note, note_text};
pub use secret::{KEY_BYTES, Secret, VolumeKey, WrappingKey};
pub use stamp::{ATTACH_ID_BYTES_MAX, STAMP_CHARGE_BYTES_MIN, StampRun, StampSource};
pub use strongroom_block::{BlockKeyWrap, CryptoBytes, CryptoCounters, OpenError, Opener, WrapError};
pub use volume::{SealContext, SealerError, VolumeSealer};
#[doc(hidden)]
pub use xaes::{xaes_open_for_test, xaes_seal_for_test};
