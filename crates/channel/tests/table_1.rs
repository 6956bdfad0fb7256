//! The lazy-crypto paper's Table 1, as far as the channel does it: bytes of header and body that each end encrypts,
//! decrypts and authenticates with the communication key. What initiators do to blocks with block keys is `seal`'s.

use std::sync::Arc;

use strongroom_block::{Buffer, CryptoBytes, CryptoCounters, Suite};
use strongroom_channel::{Channel, ChannelKeys, ChannelLimits, FrameKind, Scheme};

const BHS: usize = 48;

/// What both ends counted for one PDU: `(sender, receiver)`.
fn counted(
    (scheme, suite): (Scheme, Suite),
    kind: FrameKind,
    header: usize,
    data: usize,
) -> (CryptoBytes, CryptoBytes) {
    let keys = || ChannelKeys::new([3; 32], scheme).with_suite(suite);
    let (at_initiator, at_target) = (Arc::new(CryptoCounters::new()), Arc::new(CryptoCounters::new()));
    let mut wire = Vec::new();
    let mut target = Channel::target(keys(), ChannelLimits::default(), at_target.clone(), &mut wire);
    let mut initiator = Channel::initiator(keys(), ChannelLimits::default(), at_initiator.clone());
    initiator.handle_input(&wire[0]).unwrap();
    let before = (at_initiator.snapshot(), at_target.snapshot());
    wire.clear();
    initiator.encode(kind, &vec![1; header], Buffer::copy_from(&vec![2; data]), &mut wire).unwrap();
    for bytes in &wire {
        assert_eq!(target.handle_input(bytes), Ok(bytes.len()));
    }
    let frame = target.poll_frame().expect("one PDU");
    assert_eq!((frame.header.len(), frame.data.len()), (header, data));
    let since = |counters: &CryptoCounters, before: CryptoBytes| {
        let now = counters.snapshot();
        CryptoBytes {
            encrypted: now.encrypted - before.encrypted,
            decrypted: now.decrypted - before.decrypted,
            mac_made: now.mac_made - before.mac_made,
            mac_checked: now.mac_checked - before.mac_checked,
        }
    };
    (since(&at_initiator, before.0), since(&at_target, before.1))
}

/// `E` over `encrypted` bytes and `HMAC` over `authenticated` bytes at both ends, for every suite: the paper's own too.
fn assert_row(scheme: Scheme, kind: FrameKind, (header, data): (usize, usize), encrypted: usize, authenticated: usize) {
    let (encrypted, authenticated) = (encrypted as u64, authenticated as u64);
    let sender = CryptoBytes { encrypted, mac_made: authenticated, ..CryptoBytes::default() };
    let receiver = CryptoBytes { decrypted: encrypted, mac_checked: authenticated, ..CryptoBytes::default() };
    for suite in Suite::ALL {
        let counted = counted((scheme, suite), kind, header, data);
        assert_eq!(counted, (sender, receiver), "{scheme} {suite} {kind:?} {header} + {data}");
    }
}

const SEALED: FrameKind = FrameKind::Sealed;
const PROTECTED: FrameKind = FrameKind::Protected;
/// Basic header segment and one seal record's segment; and a body of 64 KiB.
const H: usize = BHS + 60;
const B: usize = 65536;

/// IPsec AH: `M = (H + B), HMAC_Ck(H + B)`. Records in additional header segments would be encrypted; the paper has none.
#[test]
fn table_1_ipsec_ah() {
    for kind in [PROTECTED, SEALED] {
        assert_row(Scheme::MacAll, kind, (BHS, B), 0, BHS + B);
        assert_row(Scheme::MacAll, kind, (H, B), H - BHS, H + B);
    }
}

/// IPsec ESP: `eM = E_Ck(H + B), HMAC_Ck(eM)`.
#[test]
fn table_1_ipsec_esp() {
    for kind in [PROTECTED, SEALED] {
        assert_row(Scheme::EncryptAll, kind, (H, B), H + B, H + B);
    }
}

/// Lazy Auth.: `HMAC_Ck(H)`, and the block keys in the additional header segment encrypted under Ck (section 3.2.1).
#[test]
fn table_1_lazy_auth() {
    assert_row(Scheme::LazyAuth, SEALED, (H, B), H - BHS, H);
    assert_row(Scheme::LazyAuth, PROTECTED, (BHS, 0), 0, BHS);
    assert_row(Scheme::LazyAuth, PROTECTED, (BHS, 512), 0, BHS + 512);
}

/// IPsec AH + Lazy Dec.: `eH = E_Ck(H), HMAC_Ck(eH + eB)`.
#[test]
fn table_1_lazy_decryption_with_ipsec_ah() {
    assert_row(Scheme::LazyDecrypt, SEALED, (H, B), H, H + B);
    assert_row(Scheme::LazyDecrypt, PROTECTED, (BHS, 512), BHS + 512, BHS + 512);
}

/// Lazy Auth + Lazy Dec.: `eH = E_Ck(H), HMAC_Ck(eH)`: nothing that grows with the body.
#[test]
fn table_1_lazy_both() {
    assert_row(Scheme::Lazy, SEALED, (H, B), H, H);
    assert_row(Scheme::Lazy, PROTECTED, (BHS, 512), BHS + 512, BHS + 512);
}
