//! Requests and replies.

use proptest::prelude::*;
use strongroom_block::{BlockSize, Buffer};

use super::hex;
use crate::{
    Command, Decoded, Extent, Message, NbdError, PAYLOAD_BYTES_MAX, ProtocolError, ReplyEncoder, ReplyFormat, Request,
    RequestDecoder, RequestId, Transmission,
};

const EXPORT_BYTES: u64 = 1 << 40;
const ID: RequestId = RequestId { cookie: 0x1122_3344_5566_7788, offset: 0x1000 };

fn decoder(format: ReplyFormat) -> RequestDecoder {
    RequestDecoder::new(Transmission { format, has_allocation: true, read_only: false, fast_zero: true })
}

fn compact(flags: u16, kind: u16, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = hex("25609513");
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&ID.cookie.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes
}

fn extended(flags: u16, kind: u16, offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = compact(flags, kind, offset, 0);
    bytes.truncate(24);
    bytes[..4].copy_from_slice(&hex("21e41c71"));
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes
}

fn decoded(flags: u16, kind: u16, offset: u64, len: u32) -> Decoded {
    decoder(ReplyFormat::Structured).decode(&compact(flags, kind, offset, len), EXPORT_BYTES).unwrap()
}

#[track_caller]
fn refused(decoded: Decoded, error: NbdError, skip_bytes: u32) {
    match decoded {
        Decoded::Refused { id, skip_bytes: skipped, refusal } => {
            assert_eq!((id.cookie, refusal.error, skipped), (ID.cookie, error, skip_bytes), "{}", refusal.reason);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn requests_byte_for_byte() {
    let decode = |text: &str| decoder(ReplyFormat::Structured).decode(&hex(text), EXPORT_BYTES).unwrap();
    let request = |offset: u64, len_bytes, command| {
        Decoded::Request(Request { id: RequestId { cookie: ID.cookie, offset }, len_bytes, command })
    };
    let cookie = "1122334455667788";
    for (text, expected) in [
        ("0000 0000 C 0000000000001000 00000200", request(0x1000, 512, Command::Read { dont_fragment: false })),
        ("0004 0000 C 0000000000001000 00000200", request(0x1000, 512, Command::Read { dont_fragment: true })),
        ("0001 0001 C 0000000000000001 00000001", request(1, 1, Command::Write { fua: true })),
        ("0000 0003 C 0000000000000000 00000000", request(0, 0, Command::Flush)),
        ("0001 0004 C 0000000000000000 ffffffff", request(0, 0xffff_ffff, Command::Trim { fua: true })),
        (
            "0012 0006 C 0000000000000000 00001000",
            Decoded::Refused {
                id: RequestId { cookie: ID.cookie, offset: 0 },
                skip_bytes: 0,
                refusal: crate::Refusal {
                    error: NbdError::NotSupported,
                    reason: "zeros that take space are not written faster than data",
                },
            },
        ),
        (
            "0010 0006 C 0000000000000000 00001000",
            request(0, 4096, Command::WriteZeroes { fua: false, no_hole: false }),
        ),
        ("0003 0006 C 0000000000000000 00001000", request(0, 4096, Command::WriteZeroes { fua: true, no_hole: true })),
        ("0008 0007 C 0000000000000000 80000000", request(0, 1 << 31, Command::BlockStatus { only_one: true })),
        ("0000 0002 C 0000000000000000 00000000", Decoded::Disconnect),
    ] {
        assert_eq!(decode(&format!("25609513 {}", text.replace('C', cookie))), expected, "{text}");
    }
    // Extended headers: 64-bit lengths, and a flag for data.
    let decode = |text: &str| decoder(ReplyFormat::Extended).decode(&hex(text), EXPORT_BYTES).unwrap();
    let head = "21e41c71 0000 0004 1122334455667788 0000000000000000";
    let trim = request(0, 1 << 40, Command::Trim { fua: false });
    assert_eq!(decode(&format!("{head} 0000010000000000")), trim);
    let write = "21e41c71 0020 0001 1122334455667788 0000000000000000 0000000000001000";
    assert_eq!(decode(write), request(0, 4096, Command::Write { fua: false }));
}

#[test]
fn what_cannot_be_done_is_refused_and_its_data_skipped() {
    use NbdError::{Invalid, NoSpace, NotPermitted, Overflow};
    // Unknown commands, flags that a command does not have, and lengths of nothing.
    for kind in [5, 8, 9, 0xffff] {
        refused(decoded(0, kind, 0, 4096), Invalid, 0);
    }
    for (flags, kind) in [(2, 0), (8, 0), (16, 4), (32, 0), (0x8000, 3), (4, 7), (0x40, 6)] {
        refused(decoded(flags, kind, 0, if kind == 3 { 0 } else { 4096 }), Invalid, 0);
    }
    refused(decoded(0x20, 1, 0, 4096), Invalid, 4096);
    for kind in [0, 1, 4, 6, 7] {
        refused(decoded(0, kind, 0, 0), Invalid, 0);
    }
    refused(decoded(0, 3, 0, 1), Invalid, 0);
    refused(decoded(0, 3, 1, 0), Invalid, 0);
    // Beyond the end, also where the sum overflows.
    for (kind, error, data) in [(0, Invalid, 0), (1, NoSpace, 4096), (4, Invalid, 0), (6, NoSpace, 0), (7, Invalid, 0)]
    {
        for offset in [EXPORT_BYTES, EXPORT_BYTES - 4095, u64::MAX, u64::MAX - 4095] {
            refused(decoded(0, kind, offset, 4096), error, data);
        }
        assert!(matches!(decoded(0, kind, EXPORT_BYTES - 4096, 4096), Decoded::Request(_)));
    }
    // Reads that are too long; other commands have no such limit.
    refused(decoded(0, 0, 0, PAYLOAD_BYTES_MAX + 1), Overflow, 0);
    let simple = decoder(ReplyFormat::Simple);
    refused(simple.decode(&compact(0, 0, 0, u32::MAX), EXPORT_BYTES).unwrap(), Invalid, 0);
    refused(simple.decode(&compact(4, 0, 0, 4096), EXPORT_BYTES).unwrap(), Invalid, 0);
    // A read-only export, and one without fast zeros or a context.
    let bare = Transmission { format: ReplyFormat::Simple, has_allocation: false, read_only: true, fast_zero: false };
    let bare = RequestDecoder::new(bare);
    for (kind, data) in [(1, 4096), (4, 0), (6, 0)] {
        refused(bare.decode(&compact(0, kind, 0, 4096), EXPORT_BYTES).unwrap(), NotPermitted, data);
    }
    refused(bare.decode(&compact(0x10, 6, 0, 4096), EXPORT_BYTES).unwrap(), Invalid, 0);
    refused(bare.decode(&compact(0, 7, 0, 4096), EXPORT_BYTES).unwrap(), Invalid, 0);
    // With extended headers a write says that it has data, and what has none says so.
    let all = decoder(ReplyFormat::Extended);
    refused(all.decode(&extended(0, 1, 0, 4096), EXPORT_BYTES).unwrap(), Invalid, 0);
    for kind in [0, 3, 4, 6, 7] {
        refused(all.decode(&extended(0x20, kind, 0, 4096), EXPORT_BYTES).unwrap(), Invalid, 4096);
    }
}

#[test]
fn attack_nbd_requests_of_impossible_lengths() {
    let too_long = PAYLOAD_BYTES_MAX + 1;
    for len in [too_long, u32::MAX] {
        let ended = decoder(ReplyFormat::Simple).decode(&compact(0, 1, 0, len), EXPORT_BYTES);
        assert_eq!(ended, Err(ProtocolError::PayloadLength(len.into())));
    }
    for len in [u64::from(too_long), u64::MAX] {
        // Also where the command is unknown, or would be refused: its data cannot be skipped.
        for kind in [1, 0, 77] {
            let ended = decoder(ReplyFormat::Extended).decode(&extended(0x20, kind, 0, len), EXPORT_BYTES);
            assert_eq!(ended, Err(ProtocolError::PayloadLength(len)));
        }
        refused(
            decoder(ReplyFormat::Extended).decode(&extended(0, 4, 1, len.max(EXPORT_BYTES)), EXPORT_BYTES).unwrap(),
            NbdError::Invalid,
            0,
        );
    }
    for magic in ["25609514", "67446698", "21e41c71", "00000000"] {
        let mut bytes = compact(0, 0, 0, 4096);
        bytes[..4].copy_from_slice(&hex(magic));
        let ended = decoder(ReplyFormat::Structured).decode(&bytes, EXPORT_BYTES);
        assert!(matches!(ended, Err(ProtocolError::Magic(_))), "{ended:?}");
    }
}

fn sent(messages: &[Message]) -> Vec<u8> {
    messages.iter().flat_map(|message| [&message.head[..], &message.body[..]].concat()).collect()
}

#[test]
fn replies_byte_for_byte() {
    let [simple, structured, all] =
        [ReplyFormat::Simple, ReplyFormat::Structured, ReplyFormat::Extended].map(ReplyEncoder::new);
    let cookie = "1122334455667788";
    assert_eq!(simple.done(ID).head, hex(&format!("67446698 00000000 {cookie}")));
    assert_eq!(structured.done(ID), simple.done(ID), "where there are no data");
    let none = format!("6e8a278c 0001 0000 {cookie} 0000000000001000 0000000000000000");
    assert_eq!(all.done(ID).head, hex(&none));
    assert_eq!(simple.error(ID, NbdError::NoSpace, "x").head, hex(&format!("67446698 0000001c {cookie}")));
    let error = format!("668e33ef 0001 8001 {cookie} 0000000b 00000005 0005 776f726e21");
    assert_eq!(structured.error(ID, NbdError::Io, "worn!").head, hex(&error));
    let error = format!("6e8a278c 0001 8001 {cookie} 0000000000001000 0000000000000006 0000005f 0000");
    assert_eq!(all.error(ID, NbdError::NotSupported, "").head, hex(&error));
    let long = structured.error(ID, NbdError::Io, &"ä".repeat(5000)).head;
    assert_eq!((long.len(), &long[16..20]), (26 + 1024, &1030_u32.to_be_bytes()[..]), "a text is cut between letters");

    let data = [Buffer::copy_from(b"abc"), Buffer::copy_from(b"de")];
    let block = BlockSize::DEFAULT;
    assert_eq!(sent(&simple.read(ID, &data, block, false)), hex(&format!("67446698 00000000 {cookie} 6162636465")));
    let chunk = format!("668e33ef 0001 0001 {cookie} 0000000d 0000000000001000 6162636465");
    assert_eq!(sent(&structured.read(ID, &data, block, true)), hex(&chunk));
    let chunk = format!("6e8a278c 0001 0001 {cookie} 0000000000001000 000000000000000d 0000000000001000 6162636465");
    assert_eq!(sent(&all.read(ID, &data, block, true)), hex(&chunk));

    let extents = [Extent { len_bytes: 8192, is_hole: true }, Extent { len_bytes: 4096, is_hole: false }];
    let status = format!("668e33ef 0001 0005 {cookie} 00000014 00000001 00002000 00000003 00001000 00000000");
    assert_eq!(structured.block_status(ID, &extents).head, hex(&status));
    let status = format!(
        "6e8a278c 0001 0006 {cookie} 0000000000001000 0000000000000028 00000001 00000002 \
         0000000000002000 0000000000000003 0000000000001000 0000000000000000"
    );
    assert_eq!(all.block_status(ID, &extents).head, hex(&status));
}

#[test]
fn zeros_become_holes_in_chunks() {
    let block = BlockSize::DEFAULT;
    let mut data = vec![0; 5 * 4096];
    data[4096] = 1;
    data[2 * 4096 + 4095] = 1;
    let messages = ReplyEncoder::new(ReplyFormat::Structured).read(ID, &[Buffer::copy_from(&data)], block, false);
    let cookie = "1122334455667788";
    let hole =
        |flags: &str, offset: &str, len: &str| hex(&format!("668e33ef {flags} 0002 {cookie} 0000000c {offset} {len}"));
    assert_eq!(messages[0].head, hole("0000", "0000000000001000", "00001000"));
    assert_eq!(messages[1].head, hex(&format!("668e33ef 0000 0001 {cookie} 00002008 0000000000002000")));
    assert_eq!(messages[1].body.len(), 8192);
    assert_eq!(messages[2].head, hole("0001", "0000000000004000", "00002000"));
    assert_eq!(messages.len(), 3);
    // In one chunk, or without chunks, zeros are sent.
    for (format, dont_fragment) in [(ReplyFormat::Structured, true), (ReplyFormat::Simple, false)] {
        let messages = ReplyEncoder::new(format).read(ID, &[Buffer::copy_from(&data)], block, dont_fragment);
        assert_eq!((messages.len(), messages[0].body.len()), (1, data.len()));
    }
}

proptest! {
    /// The chunks of a read are what was read: in order, without gap or overlap, the last one marked.
    #[test]
    fn chunks_are_the_data(
        blocks in proptest::collection::vec(0_u8..3, 1..12),
        skip in 0_usize..4096,
        cut in 0_usize..4096,
        parts in 1_usize..4,
        is_extended: bool,
    ) {
        let whole: Vec<u8> = blocks.iter().flat_map(|byte| vec![*byte; 4096]).collect();
        let data = &whole[skip..(whole.len() - cut).max(skip + 1)];
        let id = RequestId { offset: skip as u64, ..ID };
        // Cut where the device's requests are: at blocks.
        let border = (4096 - skip) + 4096 * (parts - 1);
        let buffers: Vec<Buffer> = match data.split_at_checked(border) {
            Some((first, rest)) if !rest.is_empty() => vec![Buffer::copy_from(first), Buffer::copy_from(rest)],
            _ => vec![Buffer::copy_from(data)],
        };
        let format = if is_extended { ReplyFormat::Extended } else { ReplyFormat::Structured };
        let messages = ReplyEncoder::new(format).read(id, &buffers, BlockSize::DEFAULT, false);
        let mut found = Vec::new();
        for (at, message) in messages.iter().enumerate() {
            let head_bytes = if is_extended { 32 } else { 20 };
            let (head, fields) = message.head.split_at(head_bytes);
            prop_assert_eq!(head[5] == 1, at + 1 == messages.len());
            let len = u32::from_be_bytes(head[head_bytes - 4..].try_into().unwrap()) as usize;
            prop_assert_eq!(len, fields.len() + message.body.len());
            prop_assert_eq!(u64::from_be_bytes(fields[..8].try_into().unwrap()), (skip + found.len()) as u64);
            if head[7] == 2 {
                let hole = u32::from_be_bytes(fields[8..].try_into().unwrap()) as usize;
                prop_assert!(message.body.is_empty() && hole.is_multiple_of(4096) && hole > 0);
                found.resize(found.len() + hole, 0);
            } else {
                prop_assert!(!message.body.is_empty());
                found.extend_from_slice(&message.body);
            }
        }
        prop_assert!(found == data);
    }

    /// What is executed lies inside the export.
    #[test]
    fn requests_stay_inside(flags: u16, kind in 0_u16..10, offset: u64, len: u64, is_extended: bool, end in 1_u64..1 << 50) {
        let format = if is_extended { ReplyFormat::Extended } else { ReplyFormat::Structured };
        let header = if is_extended { extended(flags, kind, offset, len) } else { compact(flags, kind, offset, len as u32) };
        if let Ok(Decoded::Request(request)) = decoder(format).decode(&header, end) {
            prop_assert!(request.id.offset + request.len_bytes <= end);
            if matches!(request.command, Command::Read { .. } | Command::Write { .. }) {
                prop_assert!(request.len_bytes <= u64::from(PAYLOAD_BYTES_MAX));
            }
        }
    }
}
