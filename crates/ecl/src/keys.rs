//! From the handshake's exporter secret to the keys of each direction and generation, and which keys a packet is opened with.

use std::fmt;
use std::time::{Duration, Instant};

use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use strongroom_block::Suite;
use strongroom_cipher::{AeadKey, KEY_BYTES, NONCE_BYTES};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::error::{Dropped, PeerMisbehaved};
use crate::header::TAG_BYTES;
use crate::scheme::Scheme;

/// Bytes of exporter secret that an association is made from.
pub const EXPORTER_BYTES: usize = 32;
/// The label of the TLS exporter that they come from; its context is the one of the channel (`docs/protocol.md`).
pub const EXPORTER_LABEL: &[u8] = b"EXPORTER-strongroom-ecl";
/// A receiver ends an association when one generation of keys has served for this many packets. Senders change far earlier.
pub(crate) const GENERATION_PACKETS_CAP: u64 = 1 << 23;

const SALT: &[u8] = b"strongroom-ecl/1";
/// How long packets of the generation before are still opened: longer than any packet is on its way in a network that is not broken.
const PREVIOUS_KEPT: Duration = Duration::from_secs(3);

/// Which way a packet goes. Each way has its own keys, so that nothing can be reflected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Direction {
    ToTarget = 1,
    ToInitiator = 2,
}

/// The secret that both ends took from their handshake, and what it is for.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct EclKeys {
    exporter: [u8; EXPORTER_BYTES],
    #[zeroize(skip)]
    scheme: Scheme,
    #[zeroize(skip)]
    suite: Suite,
}

impl fmt::Debug for EclKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EclKeys({}, {})", self.scheme, self.suite)
    }
}

impl EclKeys {
    /// From a TLS exporter's output; the caller wipes its own copy. Scheme and suite are bound into every key: two ends that do not
    /// agree never understand each other.
    pub fn new(exporter: [u8; EXPORTER_BYTES], scheme: Scheme, suite: Suite) -> EclKeys {
        EclKeys { exporter, scheme, suite }
    }

    /// What the packets protect.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// For the golden vectors.
    #[cfg(test)]
    pub(crate) fn secret_and_iv(&self, direction: Direction, connection_id: u32, generation: u64) -> Vec<u8> {
        let keys = (0..generation).fold(self.direction(direction, connection_id), |keys, _| keys.next());
        [&keys.secret[..], &keys.iv[..]].concat()
    }

    fn direction(&self, direction: Direction, connection_id: u32) -> GenerationKeys {
        let root = Salt::new(HKDF_SHA256, SALT).extract(&self.exporter);
        let mut secret = Box::new([0; KEY_BYTES]);
        let way = [self.scheme as u8, direction as u8, self.suite as u8];
        expand(&root, &[b"direction", &way, &connection_id.to_be_bytes()], &mut secret[..]);
        GenerationKeys::from_secret(secret, self.suite)
    }
}

/// The keys of one direction in one generation, and the secret that the next generation comes from. The ratchet is one-way.
struct GenerationKeys {
    /// In one place until it is wiped: a value that moves leaves copies behind.
    secret: Box<[u8; KEY_BYTES]>,
    suite: Suite,
    aead: AeadKey,
    iv: [u8; NONCE_BYTES],
}

impl Drop for GenerationKeys {
    fn drop(&mut self) {
        self.secret.zeroize();
        self.iv.zeroize();
    }
}

impl GenerationKeys {
    fn from_secret(secret: Box<[u8; KEY_BYTES]>, suite: Suite) -> GenerationKeys {
        let prk = Prk::new_less_safe(HKDF_SHA256, &secret[..]);
        let mut key = [0; KEY_BYTES];
        expand(&prk, &[b"key"], &mut key);
        let mut iv = [0; NONCE_BYTES];
        expand(&prk, &[b"iv"], &mut iv);
        let aead = AeadKey::new(suite, &key);
        key.zeroize();
        GenerationKeys { secret, suite, aead, iv }
    }

    fn next(&self) -> GenerationKeys {
        let mut next = Box::new([0; KEY_BYTES]);
        expand(&Prk::new_less_safe(HKDF_SHA256, &self.secret[..]), &[b"next"], &mut next[..]);
        GenerationKeys::from_secret(next, self.suite)
    }

    /// IV xor packet number, as in QUIC. Packet numbers go on over generations and are never used twice.
    fn nonce(&self, number: u64) -> [u8; NONCE_BYTES] {
        let mut nonce = self.iv;
        for (byte, number) in nonce[NONCE_BYTES - 8..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= number;
        }
        nonce
    }
}

/// When a sender changes its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RekeyLimits {
    /// After this many packets; at most 2^22, half of what a receiver accepts.
    pub packets: u64,
    /// After this many bytes that were encrypted or authenticated.
    pub bytes: u64,
}

impl Default for RekeyLimits {
    fn default() -> RekeyLimits {
        RekeyLimits { packets: 1 << 20, bytes: 64 << 30 }
    }
}

/// The sending direction.
pub(crate) struct SendKeys {
    keys: GenerationKeys,
    scheme: Scheme,
    limits: RekeyLimits,
    generation: u64,
    packets: u64,
    bytes: u64,
    /// The first packet of this generation: until one of them is acknowledged, the peer may not have these keys, and there is no other change.
    first_number: Option<u64>,
    is_confirmed: bool,
}

impl SendKeys {
    pub(crate) fn new(keys: &EclKeys, direction: Direction, connection_id: u32, limits: RekeyLimits) -> SendKeys {
        SendKeys {
            keys: keys.direction(direction, connection_id),
            scheme: keys.scheme,
            limits: RekeyLimits { packets: limits.packets.clamp(1, GENERATION_PACKETS_CAP / 2), ..limits },
            generation: 0,
            packets: 0,
            bytes: 0,
            first_number: None,
            is_confirmed: false,
        }
    }

    /// How often the keys have changed.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// The generation byte of the next packet, with the keys changed if it is time.
    pub(crate) fn generation_byte(&mut self) -> u8 {
        let is_used = self.packets >= self.limits.packets || self.bytes >= self.limits.bytes;
        if is_used && self.is_confirmed {
            self.keys = self.keys.next();
            self.generation += 1;
            (self.packets, self.bytes, self.first_number, self.is_confirmed) = (0, 0, None, false);
        }
        self.generation as u8
    }

    /// Protects header and body in place and appends the tag.
    pub(crate) fn seal(&mut self, number: u64, head: &mut Vec<u8>) {
        self.first_number.get_or_insert(number);
        self.packets += 1;
        self.bytes += head.len() as u64;
        let (clear, text) = head.split_at_mut(self.scheme.clear_bytes());
        let tag = self.keys.aead.seal(self.keys.nonce(number), clear, text);
        head.extend_from_slice(&tag);
    }

    /// The peer has acknowledged a packet: it has its keys.
    pub(crate) fn acknowledged(&mut self, number: u64) {
        self.is_confirmed |= self.first_number.is_some_and(|first| number >= first);
    }
}

/// The receiving direction.
pub(crate) struct ReceiveKeys {
    scheme: Scheme,
    current: GenerationKeys,
    /// Made beforehand, so that a forged generation costs no derivation.
    next: GenerationKeys,
    previous: Option<(GenerationKeys, Instant)>,
    generation: u64,
    packets: u64,
    /// The first packet number that was opened with the current keys.
    first_number: u64,
}

impl ReceiveKeys {
    pub(crate) fn new(keys: &EclKeys, direction: Direction, connection_id: u32) -> ReceiveKeys {
        let current = keys.direction(direction, connection_id);
        let next = current.next();
        ReceiveKeys { scheme: keys.scheme, current, next, previous: None, generation: 0, packets: 0, first_number: 0 }
    }

    /// How often the peer has changed its keys.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Opens header, body and tag in place.
    ///
    /// # Errors
    /// [`Dropped::NotAuthentic`]; nothing has changed. `Ok(Err)`: an authentic packet too many under these keys.
    pub(crate) fn open(
        &mut self,
        now: Instant,
        generation: u8,
        number: u64,
        head: &mut [u8],
    ) -> Result<Result<(), PeerMisbehaved>, Dropped> {
        let is_current = generation == self.generation as u8;
        let is_next = generation == (self.generation + 1) as u8;
        let keys = match (is_current, is_next, &self.previous) {
            (true, ..) => &self.current,
            (_, true, _) => &self.next,
            (_, _, Some((keys, until)))
                if generation == self.generation.wrapping_sub(1) as u8
                    && *until > now
                    && number < self.first_number =>
            {
                keys
            }
            _ => return Err(Dropped::NotAuthentic),
        };
        let (text, tag) = head.split_last_chunk_mut::<TAG_BYTES>().ok_or(Dropped::Malformed)?;
        let (clear, text) = text.split_at_mut_checked(self.scheme.clear_bytes()).ok_or(Dropped::Malformed)?;
        keys.aead.open(keys.nonce(number), clear, tag, text).map_err(|_| Dropped::NotAuthentic)?;
        if is_next {
            let next = self.next.next();
            let current = std::mem::replace(&mut self.next, next);
            let previous = std::mem::replace(&mut self.current, current);
            self.previous = Some((previous, now + PREVIOUS_KEPT));
            self.generation += 1;
            (self.packets, self.first_number) = (0, number);
        }
        self.packets += 1;
        Ok(if self.packets > GENERATION_PACKETS_CAP { Err(PeerMisbehaved::RekeyOverdue) } else { Ok(()) })
    }
}

struct Len(usize);

impl KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

fn expand(prk: &Prk, info: &[&[u8]], out: &mut [u8]) {
    prk.expand(info, Len(out.len())).and_then(|material| material.fill(out)).expect("far below 255 hashes of output");
}

#[cfg(test)]
mod tests {
    //! Proves that the keys change as `docs/ecl.md` says, and what is opened meanwhile.
    use super::*;
    use crate::header::HEADER_BYTES;

    /// The time does not matter, but it has to come from somewhere.
    #[allow(clippy::disallowed_methods)]
    fn test_now() -> Instant {
        Instant::now()
    }

    fn pair(packets: u64) -> (SendKeys, ReceiveKeys) {
        let keys = EclKeys::new([7; EXPORTER_BYTES], Scheme::Lazy, Suite::Aes256Gcm);
        let limits = RekeyLimits { packets, ..RekeyLimits::default() };
        (SendKeys::new(&keys, Direction::ToTarget, 9, limits), ReceiveKeys::new(&keys, Direction::ToTarget, 9))
    }

    fn sealed(sender: &mut SendKeys, number: u64) -> (u8, Vec<u8>) {
        let generation = sender.generation_byte();
        let mut head = vec![5; HEADER_BYTES];
        sender.seal(number, &mut head);
        (generation, head)
    }

    #[test]
    fn keys_change_only_when_the_peer_has_the_last_ones() {
        let now = test_now();
        let (mut sender, mut receiver) = pair(2);
        let packets: Vec<(u8, Vec<u8>)> = (0..4).map(|number| sealed(&mut sender, number)).collect();
        assert!(packets.iter().all(|(generation, _)| *generation == 0), "nothing was acknowledged");
        sender.acknowledged(0);
        let (generation, mut changed) = sealed(&mut sender, 4);
        assert_eq!(generation, 1);
        assert_eq!(receiver.open(now, 1, 4, &mut changed), Ok(Ok(())));
        assert_eq!(receiver.generation(), 1);
        // Packets from before are on their way; for a while.
        assert_eq!(receiver.open(now, 0, 3, &mut packets[3].1.clone()), Ok(Ok(())));
        let late = now + PREVIOUS_KEPT;
        assert_eq!(receiver.open(late, 0, 2, &mut packets[2].1.clone()), Err(Dropped::NotAuthentic));
    }

    #[test]
    fn a_forged_generation_changes_nothing() {
        let now = test_now();
        let (mut sender, mut receiver) = pair(2);
        let (_, good) = sealed(&mut sender, 0);
        for generation in [1, 2, 255] {
            assert_eq!(receiver.open(now, generation, 0, &mut good.clone()), Err(Dropped::NotAuthentic));
        }
        assert_eq!(receiver.generation(), 0);
        assert_eq!(receiver.open(now, 0, 0, &mut good.clone()), Ok(Ok(())));
    }
}
