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
        PlainFramer::encode(pdu.clone(), &mut parts);
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
    PlainFramer::encode(sent.clone(), &mut parts);
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
