//! Proves that a stream is cut into the same PDUs however its bytes arrive, that limits hold before anything is allocated,
//! and that block data lands in aligned memory.

use proptest::prelude::*;
use strongroom_block::BUFFER_ALIGN;

use super::*;

fn pdu(opcode: Opcode, ahs: &[u8], data: &[u8]) -> Pdu {
    let mut pdu = Pdu::new(Bhs::new(opcode), Bytes::copy_from_slice(ahs), Buffer::copy_from(data), false);
    pdu.bhs.0[4] = (ahs.len() / 4) as u8;
    pdu
}

fn stream(pdus: &[Pdu]) -> Vec<u8> {
    let mut parts = Vec::new();
    for pdu in pdus {
        PlainFramer::encode(pdu.clone(), Digests::default(), &mut parts);
    }
    parts.iter().flat_map(|part| part.to_vec()).collect()
}

#[test]
fn golden_bytes_of_a_framed_pdu() {
    let bytes = stream(&[pdu(Opcode::DataOut, &[0, 1, 9, 7], &[1, 2, 3, 4, 5])]);
    assert_eq!(bytes.len(), 48 + 4 + 8);
    assert_eq!(bytes[..8], [5, 0, 0, 0, 1, 0, 0, 5]);
    assert_eq!(bytes[48..], [0, 1, 9, 7, 1, 2, 3, 4, 5, 0, 0, 0]);
}

#[test]
fn payloads_are_shared_on_the_way_out_and_aligned_on_the_way_in() {
    let sent = pdu(Opcode::DataIn, &[], &[7; 8192]);
    let mut parts = Vec::new();
    PlainFramer::encode(sent.clone(), Digests::default(), &mut parts);
    assert_eq!(parts[1].as_ptr(), sent.data.as_ptr());
    let mut framer = PlainFramer::new(8192);
    for part in &parts {
        assert_eq!(framer.handle_input(part), Ok(part.len()));
    }
    let received = framer.poll_pdu().expect("whole");
    assert_eq!(received.data.as_ptr() as usize % BUFFER_ALIGN, 0);
    assert_eq!(received, sent);
}

#[test]
fn a_driver_may_read_into_place() {
    let sent = pdu(Opcode::DataIn, &[], &(0..10_001).map(|at| at as u8).collect::<Vec<u8>>());
    let bytes = stream(std::slice::from_ref(&sent));
    let mut framer = PlainFramer::new(65536);
    assert!(framer.payload_space().is_none());
    assert_eq!(framer.handle_input(&bytes[..100]), Ok(100));
    let mut at = 100;
    while let Some(space) = framer.payload_space() {
        let count = space.len().min(3000);
        space[..count].copy_from_slice(&bytes[at..at + count]);
        framer.payload_filled(count);
        at += count;
    }
    assert_eq!(bytes.len() - at, 3, "the padding is left");
    assert!(framer.poll_pdu().is_none());
    assert_eq!(framer.handle_input(&bytes[at..]), Ok(3));
    assert_eq!(framer.poll_pdu(), Some(sent));
    assert!(framer.is_between_pdus());
}

#[test]
fn limits_hold_before_memory_is_taken() {
    let mut framer = PlainFramer::new(0);
    let mut bhs = Bhs::new(Opcode::DataOut);
    bhs.set_data_segment_bytes(LOGIN_SEGMENT_BYTES as usize + 1);
    let error = framer.handle_input(&bhs.0).unwrap_err();
    assert!(matches!(error, PduError::DataTooLong { len_bytes: 8193, max_bytes: 8192 }));
    assert_eq!(framer.handle_input(&[0]), Err(error), "the stream is lost");
    assert!(framer.poll_pdu().is_none());
}

#[test]
fn garbage_is_refused_at_once() {
    let mut framer = PlainFramer::default();
    assert!(matches!(framer.handle_input(&[0x17; 48]), Err(PduError::Opcode(0x17))));
    let mut framer = PlainFramer::default();
    let mut header = Bhs::new(Opcode::ScsiCommand).0;
    header[4] = 1;
    assert_eq!(framer.handle_input(&header), Ok(48));
    assert!(matches!(framer.handle_input(&[0, 0, 1, 0]), Err(PduError::Ahs(_))));
}

proptest! {
    #[test]
    fn pieces_do_not_matter(
        lengths in prop::collection::vec((0usize..40, 0usize..3000), 1..8),
        cuts in prop::collection::vec(1usize..700, 1..40),
    ) {
        let opcodes = [Opcode::DataIn, Opcode::TextRequest, Opcode::ScsiCommand, Opcode::ScsiResponse];
        let pdus: Vec<Pdu> = lengths
            .iter()
            .enumerate()
            .map(|(at, (ahs, data))| {
                let mut segments = Vec::new();
                if *ahs > 0 {
                    crate::ahs::push(&mut segments, crate::ahs::AhsKind(9), &[&vec![at as u8; *ahs]]);
                }
                pdu(opcodes[at % 4], &segments, &vec![at as u8; *data])
            })
            .collect();
        let bytes = stream(&pdus);
        let mut framer = PlainFramer::default();
        let (mut at, mut received) = (0, Vec::new());
        for cut in cuts.iter().cycle() {
            if at == bytes.len() {
                break;
            }
            let piece = &bytes[at..(at + cut).min(bytes.len())];
            at += framer.handle_input(piece).expect("sound");
            received.extend(framer.poll_pdu());
        }
        prop_assert!(received == pdus);
        prop_assert!(framer.is_between_pdus());
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(
        mut bytes in prop::collection::vec(any::<u8>(), 0..400),
        opcode in 0u8..7,
        len in any::<u8>(),
    ) {
        fuzz_framer(&bytes);
        // Nearly right: a known opcode and short lengths.
        if bytes.len() > 8 {
            bytes[0] = opcode;
            bytes[4] &= 3;
            bytes[5..8].copy_from_slice(&[0, 0, len]);
        }
        fuzz_framer(&bytes);
    }
}

const BOTH: Digests = Digests { header: true, data: true };

/// RFC 7143 Appendix B.4.
#[test]
fn digests_agree_with_the_published_vectors() {
    assert_eq!(digest(&[&[0; 32]]), [0xaa, 0x36, 0x91, 0x8a]);
    assert_eq!(digest(&[&[0xff; 32]]), [0x43, 0xab, 0xa8, 0x62]);
    let ascending: Vec<u8> = (0..32).collect();
    assert_eq!(digest(&[&ascending]), [0x4e, 0x79, 0xdd, 0x46]);
    assert_eq!(digest(&[&ascending[..7], &ascending[7..]]), [0x4e, 0x79, 0xdd, 0x46]);
    let read_10 = [
        0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0x14, 0, 0, 0, 0x18,
        0x28, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(digest(&[&read_10]), [0x56, 0x3a, 0x96, 0xd9]);
}

#[test]
fn digests_lie_behind_header_and_padding() {
    let sent = pdu(Opcode::DataOut, &[0, 1, 9, 7], &[1, 2, 3, 4, 5]);
    let mut parts = Vec::new();
    PlainFramer::encode(sent.clone(), BOTH, &mut parts);
    let bytes: Vec<u8> = parts.iter().flat_map(|part| part.to_vec()).collect();
    assert_eq!(bytes.len(), 48 + 4 + 4 + 8 + 4);
    assert_eq!(bytes[52..56], digest(&[&bytes[..52]]));
    assert_eq!(bytes[56..64], [1, 2, 3, 4, 5, 0, 0, 0]);
    assert_eq!(bytes[64..], digest(&[&bytes[56..64]]));
    // No data, no digest of it; nor any on a login.
    let count = |pdu: Pdu| {
        let mut parts = Vec::new();
        PlainFramer::encode(pdu, BOTH, &mut parts);
        parts.iter().map(|part| part.len()).sum::<usize>()
    };
    assert_eq!(count(pdu(Opcode::NopIn, &[], &[])), 52);
    assert_eq!(count(pdu(Opcode::LoginRequest, &[], &[1; 4])), 52);
    assert_eq!(count(pdu(Opcode::LoginResponse, &[], &[1; 4])), 52);
}

proptest! {
    /// However the bytes are cut, intact PDUs arrive; a flipped bit of the header ends the stream, one of data, padding or their
    /// digest is told, and the next PDU is found again.
    #[test]
    fn a_flipped_bit_is_noticed(len in 0usize..40, header: bool, data: bool, flip in any::<prop::sample::Index>(), cut in 1usize..30) {
        let digests = Digests { header, data };
        let sent = pdu(Opcode::DataIn, &[0, 1, 9, 7], &vec![7; len]);
        let mut parts = Vec::new();
        PlainFramer::encode(sent.clone(), digests, &mut parts);
        let first_bytes: usize = parts.iter().map(|part| part.len()).sum();
        PlainFramer::encode(sent.clone(), digests, &mut parts);
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.to_vec()).collect();
        let header_bytes = 52 + if header { 4 } else { 0 };
        for flipped in [None, Some(flip.index(first_bytes * 8))] {
            let is_in_header = flipped.is_some_and(|bit| bit / 8 < header_bytes);
            if is_in_header && !header {
                continue; // Nothing would tell.
            }
            let mut bytes = bytes.clone();
            flipped.into_iter().for_each(|bit| bytes[bit / 8] ^= 1 << (bit % 8));
            let mut framer = PlainFramer::new(8192);
            framer.set_digests(digests);
            let (mut whole, mut corrupt, mut end) = (0, 0, None);
            'stream: for piece in bytes.chunks(cut) {
                let mut rest = piece;
                while !rest.is_empty() {
                    match framer.handle_input(rest) {
                        Ok(taken) => rest = &rest[taken..],
                        Err(error) => { end = Some(error); break 'stream; }
                    }
                    corrupt += usize::from(framer.poll_corrupt().is_some());
                    whole += usize::from(framer.poll_pdu().is_some());
                }
            }
            let is_told = flipped.is_some() && !is_in_header && data;
            if is_in_header {
                // A wrong length may ask for more bytes than there are before the digest is seen.
                prop_assert!(end.is_some() || whole + corrupt == 0, "{end:?}");
            } else {
                prop_assert_eq!((whole, corrupt, end), (2 - usize::from(is_told), usize::from(is_told), None));
            }
        }
    }
}
