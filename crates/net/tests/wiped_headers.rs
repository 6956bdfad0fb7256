//! Proves that no memory that held a block key on its way through a link and a channel is given back with the key in it: the allocator of
//! this program looks into every piece of memory that is freed. (`realloc` of the standard trait frees the old piece, and is seen too.)

#![allow(unsafe_code)] // An allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use strongroom_block::{Buffer, wiped};
use strongroom_channel::Scheme;
use strongroom_handshake::{NodeKey, PublicKey};
use strongroom_iscsi::pdu::{Bhs, Opcode};
use strongroom_iscsi::{Digests, Pdu};
use strongroom_net::{Admission, Link, LinkEvent, LinkOptions};

/// What stands for a block key.
const KEY: [u8; 32] = *b"\xa5block key that nobody may find\x5a";

static FOUND: AtomicUsize = AtomicUsize::new(0);

struct Searching;

// SAFETY: everything is passed on to the system's allocator; memory is only read, before it is freed.
unsafe impl GlobalAlloc for Searching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Cleared, so that all of it may be read later.
        // SAFETY: as the caller's.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller owns `layout.size()` bytes here, and they were initialised when they were allocated.
        let bytes = unsafe { std::slice::from_raw_parts(pointer, layout.size()) };
        if bytes.windows(KEY.len()).any(|window| window == KEY) {
            FOUND.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: as the caller's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Searching = Searching;

fn exchange(from: &mut Link, to: &mut Link) {
    let mut out = Vec::new();
    from.poll_transmit(&mut out);
    for bytes in out {
        // In pieces, as sockets give them.
        bytes.chunks(1000).for_each(|piece| to.handle_input(piece));
    }
}

fn links(scheme: Scheme) -> [Link; 2] {
    let (node, target) = (NodeKey::from_seed(&[1; 32]), NodeKey::from_seed(&[2; 32]));
    let options = LinkOptions { schemes: vec![scheme], ..LinkOptions::default() };
    let now = Instant::now();
    let mut initiator = Link::initiator_channel(&node, &[target.public()], options.clone(), now).unwrap();
    let admission =
        Admission { identity: Some(Arc::new(target)), peers: Arc::new(|_: &PublicKey| true), allow_plain: false };
    let mut target = Link::target(admission, options, now);
    for _ in 0..4 {
        exchange(&mut initiator, &mut target);
        exchange(&mut target, &mut initiator);
    }
    for link in [&mut initiator, &mut target] {
        assert!(matches!(link.poll_event(), Some(LinkEvent::Established { peer: Some(_) })));
        link.login_finished(Digests::default());
    }
    [initiator, target]
}

/// A header segment with a key in it; what it was built from is wiped.
fn segment() -> bytes::Bytes {
    let content_bytes = 1 + KEY.len();
    let mut segment = Vec::with_capacity(64);
    segment.extend_from_slice(&(content_bytes as u16).to_be_bytes());
    segment.extend_from_slice(&[0x30, 0]);
    segment.extend_from_slice(&KEY);
    wiped(segment)
}

fn pdu(opcode: Opcode, ahs: bytes::Bytes, data: Buffer, sealed: bool) -> Pdu {
    let mut bhs = [0; 48];
    bhs[0] = opcode as u8;
    bhs[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
    Pdu::new(Bhs(bhs), ahs, data, sealed)
}

fn send(from: &mut Link, to: &mut Link, sent: Pdu) {
    from.send_pdu(sent);
    exchange(from, to);
    match to.poll_event() {
        Some(LinkEvent::Pdu(arrived)) => {
            let in_header = arrived.ahs.windows(KEY.len()).any(|window| window == KEY);
            let in_data = arrived.data.windows(KEY.len()).any(|window| window == KEY);
            assert!(in_header || in_data, "the key arrived");
            // As a session keeps it: the last reference is what counts.
            let kept = arrived.ahs.clone();
            drop(arrived);
            drop(kept);
        }
        other => panic!("{other:?}"),
    }
}

/// How many pieces of memory are freed with a key in them.
fn freed_with_a_key(scheme: Scheme, wipes: bool) -> usize {
    let [mut initiator, mut target] = links(scheme);
    if wipes {
        initiator.wipe_headers();
        target.wipe_headers();
    }
    initiator.conceal_parameters();
    FOUND.store(0, Ordering::Relaxed);
    let block = || Buffer::copy_from(&[7; 4096]);
    // A write with its seal record, a read's answer, a command without data, and a list of parameters with a key in it.
    send(&mut initiator, &mut target, pdu(Opcode::ScsiCommand, segment(), block(), true));
    send(&mut target, &mut initiator, pdu(Opcode::DataIn, segment(), block(), true));
    send(&mut initiator, &mut target, pdu(Opcode::ScsiCommand, segment(), Buffer::empty(), false));
    let list = Buffer::from(wiped(KEY.to_vec()));
    send(&mut initiator, &mut target, pdu(Opcode::DataOut, bytes::Bytes::new(), list, false));
    drop((initiator, target));
    FOUND.load(Ordering::Relaxed)
}

#[test]
fn headers_that_hold_block_keys_are_wiped() {
    for scheme in Scheme::ALL {
        assert_eq!(freed_with_a_key(*scheme, true), 0, "{scheme:?}");
        assert_ne!(freed_with_a_key(*scheme, false), 0, "{scheme:?}: the search finds what is not wiped");
    }
}
