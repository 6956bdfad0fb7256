//! A client that sends anything, for the fuzzer: through the negotiation and the requests behind it, in pieces of any length.

use strongroom_block::{BlockSize, Buffer};

use crate::{
    Decoded, Export, Extent, INPUT_BYTES_MAX, Negotiation, PAYLOAD_BYTES_MAX, Progress, ReplyEncoder, RequestDecoder,
    TlsMode, Transmission,
};

/// What the negotiation may have to say at once, for each byte of input.
const OUTPUT_BYTES_FOR_ONE: usize = 32;
const EXPORT_BYTES: u64 = 1 << 40;

/// The first byte chooses what is offered, the second one how long the pieces are.
pub fn fuzz_server(bytes: &[u8]) {
    let [choice, piece, stream @ ..] = bytes else { return };
    let export = Export {
        name: "vault".to_owned(),
        size_bytes: EXPORT_BYTES,
        block_size: BlockSize::DEFAULT,
        read_only: choice & 1 != 0,
        fast_zero: choice & 2 != 0,
    };
    let tls = if choice & 4 != 0 { TlsMode::Required } else { TlsMode::Off };
    let mut negotiation = Negotiation::new(export, tls);
    assert_eq!(negotiation.take_output().len(), 18);
    let mut input: Vec<u8> = Vec::new();
    let mut pieces = stream.chunks(usize::from(*piece).max(1));
    loop {
        let Ok((used, progress)) = negotiation.handle_input(&input) else { return };
        assert!(negotiation.take_output().len() <= OUTPUT_BYTES_FOR_ONE * (used + 16), "an answer without a question");
        input.drain(..used);
        match progress {
            Progress::Done(transmission) => {
                input.extend(pieces.flatten());
                return fuzz_requests(transmission, &input);
            }
            Progress::Aborted => return,
            Progress::StartTls => negotiation.tls_established(),
            Progress::Incomplete => {}
        }
        assert!(input.len() < INPUT_BYTES_MAX, "it waits for more than it says");
        let Some(piece) = pieces.next() else { return };
        input.extend_from_slice(piece);
    }
}

fn fuzz_requests(transmission: Transmission, mut input: &[u8]) {
    let (decoder, encoder) = (RequestDecoder::new(transmission), ReplyEncoder::new(transmission.format));
    while let Some((header, rest)) = input.split_at_checked(decoder.header_bytes()) {
        input = match decoder.decode(header, EXPORT_BYTES) {
            Err(_) | Ok(Decoded::Disconnect) => return,
            Ok(Decoded::Refused { id, skip_bytes, refusal }) => {
                assert!(skip_bytes <= PAYLOAD_BYTES_MAX);
                assert!(!encoder.error(id, refusal.error, refusal.reason).head.is_empty());
                rest.get(skip_bytes as usize..).unwrap_or_default()
            }
            Ok(Decoded::Request(request)) => {
                assert!(request.id.offset + request.len_bytes <= EXPORT_BYTES);
                let data = [Buffer::copy_from(&rest[..rest.len().min(8192)])];
                let sent = encoder.read(request.id, &data, BlockSize::DEFAULT, false);
                assert!(sent.iter().map(|message| message.body.len()).sum::<usize>() <= data[0].len());
                encoder.block_status(request.id, &[Extent { len_bytes: request.len_bytes, is_hole: true }]);
                let payload =
                    if matches!(request.command, crate::Command::Write { .. }) { request.len_bytes } else { 0 };
                rest.get(payload as usize..).unwrap_or_default()
            }
        };
    }
}
