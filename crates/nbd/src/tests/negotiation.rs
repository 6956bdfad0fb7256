//! The handshake.

use proptest::prelude::*;

use super::{export, hex};
use crate::{Export, Negotiation, NegotiationError, Progress, ReplyFormat, TlsMode, Transmission};

const ACK: u32 = 1;
const ERR_UNSUP: u32 = 0x8000_0001;
const ERR_POLICY: u32 = 0x8000_0002;
const ERR_INVALID: u32 = 0x8000_0003;
const ERR_TLS_REQD: u32 = 0x8000_0005;
const ERR_UNKNOWN: u32 = 0x8000_0006;
const ERR_EXT_HEADER_REQD: u32 = 0x8000_000a;

/// A client that has sent its flags.
struct Client(Negotiation);

impl Client {
    fn new(tls: TlsMode) -> Client {
        Client::of(export(), tls)
    }

    fn of(export: Export, tls: TlsMode) -> Client {
        let mut negotiation = Negotiation::new(export, tls);
        negotiation.take_output();
        assert_eq!(negotiation.handle_input(&hex("00000003")), Ok((4, Progress::Incomplete)));
        assert!(negotiation.take_output().is_empty());
        Client(negotiation)
    }

    /// Sends an option; the types and data of the replies to it.
    fn send(&mut self, option: u32, data: &[u8]) -> (Progress, Vec<(u32, Vec<u8>)>) {
        let sent = option_bytes(option, data);
        let (used, progress) = self.0.handle_input(&sent).expect("it is well-formed");
        assert_eq!(used, sent.len());
        let output = self.0.take_output();
        let mut rest = &output[..];
        let mut replies = Vec::new();
        while !rest.is_empty() {
            assert_eq!(rest[..8], hex("0003e889045565a9"));
            let field = |at: usize| u32::from_be_bytes(rest[at..at + 4].try_into().unwrap());
            assert_eq!(field(8), option, "a reply names its option");
            let (kind, end) = (field(12), 20 + field(16) as usize);
            replies.push((kind, rest[20..end].to_vec()));
            rest = &rest[end..];
        }
        (progress, replies)
    }

    /// The type of the last reply.
    fn outcome(&mut self, option: u32, data: &[u8]) -> u32 {
        self.send(option, data).1.last().expect("there is a reply").0
    }
}

fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend_from_slice(&option.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// Of NBD_OPT_INFO and NBD_OPT_GO.
fn export_query(name: &str, infos: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(infos.len() as u16).to_be_bytes());
    infos.iter().for_each(|info| data.extend_from_slice(&info.to_be_bytes()));
    data
}

/// Of the options for metadata contexts.
fn context_query(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = Vec::new();
    let mut string = |text: &str, count: Option<usize>| {
        data.extend_from_slice(&(text.len() as u32).to_be_bytes());
        data.extend_from_slice(text.as_bytes());
        if let Some(count) = count {
            data.extend_from_slice(&(count as u32).to_be_bytes());
        }
    };
    string(name, Some(queries.len()));
    queries.iter().for_each(|query| string(query, None));
    data
}

#[test]
fn the_greeting_and_export_name_byte_for_byte() {
    let mut negotiation = Negotiation::new(export(), TlsMode::Off);
    assert_eq!(negotiation.take_output(), hex("4e42444d41474943 49484156454f5054 0003"));
    // Flags, and NBD_OPT_EXPORT_NAME, as one piece: 1 GiB; flags for flush, FUA, trim, zeros, fast zeros and several connections.
    let sent = hex("00000003 49484156454f5054 00000001 00000005 7661756c74");
    let transmission =
        Transmission { format: ReplyFormat::Simple, has_allocation: false, read_only: false, fast_zero: true };
    assert_eq!(negotiation.handle_input(&sent), Ok((sent.len(), Progress::Done(transmission))));
    assert_eq!(negotiation.take_output(), hex("0000000040000000 096d"));
    // A client that takes the zeros gets them.
    let mut negotiation = Negotiation::new(export(), TlsMode::Off);
    negotiation.take_output();
    let sent = hex("00000001 49484156454f5054 00000001 00000000");
    assert_eq!(negotiation.handle_input(&sent), Ok((sent.len(), Progress::Done(transmission))));
    let output = negotiation.take_output();
    assert_eq!((output.len(), &output[10..]), (10 + 124, &[0; 124][..]));
}

#[test]
fn go_byte_for_byte() {
    let mut client = Client::new(TlsMode::Off);
    // Wants the name, the block sizes, and something that nobody knows.
    let sent = hex("49484156454f5054 00000007 0000000c 00000000 0003 0001 0003 7777");
    let transmission =
        Transmission { format: ReplyFormat::Simple, has_allocation: false, read_only: false, fast_zero: true };
    assert_eq!(client.0.handle_input(&sent), Ok((sent.len(), Progress::Done(transmission))));
    let export = "0003e889045565a9 00000007 00000003 0000000c 0000 0000000040000000 096d";
    let name = "0003e889045565a9 00000007 00000003 00000007 0001 7661756c74";
    let sizes = "0003e889045565a9 00000007 00000003 0000000e 0003 00001000 00001000 02000000";
    let ack = "0003e889045565a9 00000007 00000001 00000000";
    assert_eq!(client.0.take_output(), hex(&[export, name, sizes, ack].concat()));
}

#[test]
fn info_tells_as_much_as_go_and_stays() {
    let mut client = Client::new(TlsMode::Off);
    let (progress, replies) = client.send(6, &export_query("vault", &[3]));
    assert_eq!(
        (progress, replies.iter().map(|reply| reply.0).collect::<Vec<_>>()),
        (Progress::Incomplete, vec![3, 3, ACK])
    );
    let (progress, replies) = client.send(6, &export_query("vault", &[]));
    assert_eq!((progress, replies.len()), (Progress::Incomplete, 2), "what was not asked for is not told");
    assert_eq!(client.outcome(6, &export_query("other", &[])), ERR_UNKNOWN);
    assert_eq!(client.outcome(7, &export_query("vault2", &[])), ERR_UNKNOWN);
    assert!(matches!(client.send(7, &export_query("vault", &[])).0, Progress::Done(_)));
}

#[test]
fn list_abort_and_what_is_unknown() {
    let mut client = Client::new(TlsMode::Off);
    let (_, replies) = client.send(3, b"");
    assert_eq!(replies, [(2, hex("00000005 7661756c74")), (ACK, Vec::new())]);
    assert_eq!(client.outcome(3, b"x"), ERR_INVALID);
    for unknown in [0, 4, 12, 77, u32::MAX] {
        assert_eq!(client.outcome(unknown, b"anything"), ERR_UNSUP);
    }
    assert_eq!(client.outcome(5, b""), ERR_POLICY, "there is no TLS");
    assert_eq!(client.send(2, b"ignored"), (Progress::Aborted, vec![(ACK, Vec::new())]));
}

#[test]
fn formats_are_agreed_on_once_and_extended_headers_prevail() {
    let mut client = Client::new(TlsMode::Off);
    assert_eq!(client.outcome(8, b"x"), ERR_INVALID);
    assert_eq!(client.outcome(8, b""), ACK);
    assert_eq!(client.outcome(8, b""), ERR_INVALID);
    assert_eq!(client.outcome(11, b""), ACK);
    assert_eq!(client.outcome(11, b""), ERR_INVALID);
    assert_eq!(client.outcome(8, b""), ERR_EXT_HEADER_REQD);
    let (progress, replies) = client.send(7, &export_query("", &[]));
    let Progress::Done(transmission) = progress else { panic!("{progress:?}") };
    assert_eq!(transmission.format, ReplyFormat::Extended);
    assert_eq!(replies[0].1[10..], hex("09ed"), "NBD_FLAG_SEND_DF");
    let mut client = Client::new(TlsMode::Off);
    assert_eq!(client.outcome(11, b""), ACK);
    let ended = client.0.handle_input(&option_bytes(1, b"vault"));
    assert_eq!(ended, Err(NegotiationError::ExportNameWithExtendedHeaders));
}

#[test]
fn metadata_contexts_are_listed_and_selected() {
    let mut client = Client::new(TlsMode::Off);
    let all = context_query("vault", &["base:allocation"]);
    assert_eq!(client.outcome(10, &all), ERR_INVALID, "structured replies come first");
    assert_eq!(client.outcome(8, b""), ACK);
    let context = |id: u32| (4, [&id.to_be_bytes()[..], b"base:allocation"].concat());
    for queries in [&[][..], &["base:"], &["base:allocation"], &["qemu:", "base:"]] {
        assert_eq!(client.send(9, &context_query("", queries)).1, [context(0), (ACK, Vec::new())], "{queries:?}");
    }
    for queries in [&["base:other"][..], &["qemu:dirty-bitmap:x"], &["x-1:y", "nonsense"]] {
        assert_eq!(client.send(9, &context_query("", queries)).1, [(ACK, Vec::new())], "{queries:?}");
    }
    assert_eq!(client.send(10, &all).1, [context(1), (ACK, Vec::new())]);
    let selected = |client: &mut Client| match client.send(7, &export_query("", &[])).0 {
        Progress::Done(transmission) => transmission.has_allocation,
        progress => panic!("{progress:?}"),
    };
    assert!(selected(&mut client));
    // A later selection replaces it, one that fails too.
    for (queries, outcome) in [
        (context_query("vault", &[]), ACK),
        (context_query("vault", &["base:"]), ACK),
        (context_query("other", &["base:allocation"]), ERR_UNKNOWN),
        (vec![0, 0, 0, 9], ERR_INVALID),
    ] {
        let mut client = Client::new(TlsMode::Off);
        assert_eq!(client.outcome(8, b""), ACK);
        assert_eq!(client.outcome(10, &all), ACK);
        assert_eq!(client.outcome(10, &queries), outcome);
        assert!(!selected(&mut client), "{queries:?}");
    }
}

#[test]
fn lengths_inside_options_cannot_lead_out_of_them() {
    let mut client = Client::new(TlsMode::Off);
    assert_eq!(client.outcome(8, b""), ACK);
    for option in [6, 7] {
        for data in [
            hex(""),
            hex("000000"),
            hex("ffffffff 0000"),
            hex("00000001 0000"),
            hex("00000000 0002 0001"),
            hex("00000000 0000 00"),
            hex("00000000 ffff"),
        ] {
            assert_eq!(client.outcome(option, &data), ERR_INVALID, "{data:x?}");
        }
    }
    for option in [9, 10] {
        for data in [
            hex(""),
            hex("00000000"),
            hex("00000000 ffffffff"),
            hex("00000000 00000001 00000005 62"),
            hex("00000000 00000000 00"),
        ] {
            assert_eq!(client.outcome(option, &data), ERR_INVALID, "{data:x?}");
        }
    }
}

#[test]
fn misbehaviour_ends_the_connection() {
    let ended = |sent: &[u8]| {
        let mut negotiation = Negotiation::new(export(), TlsMode::Off);
        negotiation.handle_input(sent).expect_err("it ends")
    };
    assert_eq!(ended(&hex("00000004")), NegotiationError::ClientFlags(4));
    assert_eq!(ended(&hex("80000003")), NegotiationError::ClientFlags(0x8000_0003));
    assert_eq!(ended(&hex("00000003 0000000000000000 0000000000000000")), NegotiationError::OptionMagic(0));
    assert_eq!(ended(&hex("00000003 49484156454f5054 00000007 00008001")), NegotiationError::OptionLength(0x8001));
    assert_eq!(ended(&hex("00000003 49484156454f5054 00000001 00000001 78")), NegotiationError::UnknownExport);
    let mut endless = hex("00000003");
    (0..257).for_each(|_| endless.extend(option_bytes(3, b"")));
    assert_eq!(ended(&endless), NegotiationError::TooManyOptions);
}

#[test]
fn where_tls_is_required_nothing_goes_before_it() {
    let mut client = Client::new(TlsMode::Required);
    for (option, data) in
        [(3, &b""[..]), (6, &export_query("", &[])), (7, &export_query("vault", &[])), (8, b""), (11, b""), (99, b"")]
    {
        assert_eq!(client.outcome(option, data), ERR_TLS_REQD);
    }
    assert_eq!(client.outcome(5, b"x"), ERR_INVALID);
    assert_eq!(client.send(5, b""), (Progress::StartTls, vec![(ACK, Vec::new())]));
    client.0.tls_established();
    assert_eq!(client.outcome(5, b""), ERR_INVALID);
    let Progress::Done(transmission) = client.send(7, &export_query("", &[])).0 else { panic!("it goes on") };
    assert_eq!(transmission.format, ReplyFormat::Simple, "nothing was agreed on before TLS");
    assert_eq!(Client::new(TlsMode::Required).send(2, b"").0, Progress::Aborted);
    let refused = Client::new(TlsMode::Required).0.handle_input(&option_bytes(1, b"vault"));
    assert_eq!(refused, Err(NegotiationError::TlsRequired));
    // A client without fixed newstyle cannot begin TLS.
    let refused = Negotiation::new(export(), TlsMode::Required).handle_input(&hex("00000000"));
    assert_eq!(refused, Err(NegotiationError::TlsRequired));
}

/// Who can put bytes into the connection before TLS must not have them taken for the client's own.
#[test]
fn attack_nbd_options_injected_behind_starttls() {
    let mut client = Client::new(TlsMode::Required);
    let injected = [option_bytes(5, b""), option_bytes(7, &export_query("vault", &[]))].concat();
    assert_eq!(client.0.handle_input(&injected), Err(NegotiationError::DataBehindStartTls));
    let mut client = Client::new(TlsMode::Required);
    let injected = [option_bytes(5, b""), b"I".to_vec()].concat();
    assert_eq!(client.0.handle_input(&injected), Err(NegotiationError::DataBehindStartTls));
}

#[test]
fn a_read_only_export_says_so() {
    let mut client = Client::of(Export { read_only: true, ..export() }, TlsMode::Off);
    let (progress, replies) = client.send(7, &export_query("", &[]));
    assert_eq!(replies[0].1[10..], hex("010f"));
    let Progress::Done(transmission) = progress else { panic!("{progress:?}") };
    assert!(transmission.read_only && !transmission.fast_zero);
    let mut client = Client::of(Export { fast_zero: false, ..export() }, TlsMode::Off);
    assert_eq!(client.send(7, &export_query("", &[])).1[0].1[10..], hex("016d"));
}

proptest! {
    /// However the bytes are cut on the way, the answers are the same.
    #[test]
    fn pieces_make_no_difference(cuts in proptest::collection::vec(1_usize..40, 1..30)) {
        let sent = [
            hex("00000003"),
            option_bytes(8, b""),
            option_bytes(10, &context_query("vault", &["base:allocation"])),
            option_bytes(9, b"malformed"),
            option_bytes(7, &export_query("vault", &[1, 3])),
        ]
        .concat();
        let mut whole = Negotiation::new(export(), TlsMode::Off);
        let expected = whole.handle_input(&sent).unwrap();
        let mut negotiation = Negotiation::new(export(), TlsMode::Off);
        let (mut input, mut given, mut progress) = (Vec::new(), 0, Progress::Incomplete);
        for cut in cuts.iter().cycle() {
            let end = (given + cut).min(sent.len());
            input.extend_from_slice(&sent[given..end]);
            given = end;
            let (used, now) = negotiation.handle_input(&input).unwrap();
            input.drain(..used);
            progress = now;
            if given == sent.len() {
                break;
            }
        }
        prop_assert_eq!((sent.len() - input.len(), progress), expected);
        prop_assert_eq!(negotiation.take_output(), whole.take_output());
    }
}
