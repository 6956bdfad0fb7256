//! The entry point of the fuzz target that feeds a target's link.

use std::sync::Arc;
use std::time::Instant;

use strongroom_handshake::{NodeKey, PublicKey};

use super::{Admission, Link, LinkOptions};

/// Feeds any bytes to a target's link in pieces, for fuzzing: none may panic, hang or be taken for a channel.
pub fn fuzz_link(bytes: &[u8], now: Instant) {
    let admission = Admission {
        identity: Some(Arc::new(NodeKey::from_seed(&[1; 32]))),
        peers: Arc::new(|_: &PublicKey| false),
        allow_plain: true,
    };
    let mut link = Link::target(admission, LinkOptions::default(), now);
    for piece in bytes.chunks(1 + usize::from(bytes.first().copied().unwrap_or(0) % 61)) {
        link.handle_input(piece);
        while link.poll_event().is_some() {}
        link.poll_transmit(&mut Vec::new());
    }
    link.handle_eof();
    assert!(!link.in_channel(), "nobody was admitted");
}
