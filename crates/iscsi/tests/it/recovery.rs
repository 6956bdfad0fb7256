//! Proves error recovery level 1: data that a digest shows to be damaged, in either direction, is sent again within the command,
//! and the application of neither side notices.

use strongroom_block::Buffer;
use strongroom_iscsi::initiator::{Command, WriteSource};
use strongroom_iscsi::pdu::{Answer, DataIn, Opcode, Request, SnackRequest, TAG_NONE, TextRequest};
use strongroom_iscsi::target::{self, Response};
use strongroom_iscsi::{DigestOffer, Lun, Offer, Pdu, Serial};
use strongroom_scsi::transport::target::Session as _;

use crate::pair::{Pair, initiator_config};

const LUN: Lun = Lun(0);

fn at_level_1() -> Pair {
    let offer = Offer {
        recv_segment_bytes_max: 4096,
        first_burst_bytes: 8192,
        max_burst_bytes: 16_384,
        header_digest: DigestOffer::Prefer,
        data_digest: DigestOffer::Prefer,
        error_recovery_level: 1,
        ..Offer::default()
    };
    let mut initiator = initiator_config();
    initiator.offer = offer.clone();
    let mut pair = Pair::logged_in(initiator, target::Config { offer, ..target::Config::default() });
    assert_eq!(pair.target.agreed().expect("in").error_recovery_level, 1);
    pair.keep = true;
    pair
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// Carries everything; PDUs towards the initiator for which `is_damaged` says so arrive with wrong data.
fn settle(pair: &mut Pair, mut to_target: impl FnMut(&Pdu) -> bool, mut to_initiator: impl FnMut(&Pdu) -> bool) {
    loop {
        let mut moved = false;
        if let Some(pdu) = pair.initiator.poll_transmit() {
            moved = true;
            pair.sent_to_target.push(pdu.clone());
            match to_target(&pdu) {
                true => pair.target.handle_corrupt_pdu(pair.now, &pdu),
                false => pair.target.handle_pdu(pair.now, pdu),
            }
        }
        if let Some(pdu) = pair.target.poll_transmit() {
            moved = true;
            pair.sent_to_initiator.push(pdu.clone());
            match to_initiator(&pdu) {
                true => pair.initiator.handle_corrupt_pdu(pair.now, &pdu),
                false => pair.initiator.handle_pdu(pair.now, pdu),
            }
        }
        if !moved {
            return;
        }
    }
}

/// Says yes to the `which`-th PDU of an opcode, once.
fn once(opcode: Opcode, which: usize) -> impl FnMut(&Pdu) -> bool {
    let mut seen = 0;
    move |pdu| {
        let is_one = pdu.bhs.opcode() == Some(opcode) && !pdu.data.is_empty();
        seen += usize::from(is_one);
        is_one && seen == which + 1
    }
}

fn never(_: &Pdu) -> bool {
    false
}

#[test]
fn damaged_read_data_comes_again() {
    let data = content(40_000);
    for damaged in 0..10 {
        let mut pair = at_level_1();
        pair.initiator.submit(Command::read(LUN, [0x28; 16], 40_000)).expect("in");
        pair.settle();
        let command = pair.command();
        pair.target.complete(command.task, Response::good_data(Buffer::copy_from(&data)));
        settle(&mut pair, never, once(Opcode::DataIn, damaged));
        let (read, completed) = pair.completed();
        assert!(read == data && completed.status == 0, "Data-In {damaged}");
        let sent = pair.sent_to_target.iter().filter(|pdu| pdu.bhs.opcode() == Some(Opcode::Snack));
        let snack = sent.map(|pdu| SnackRequest::decode(&pdu.bhs)).find(|snack| snack.kind != 2).expect("asked");
        assert_eq!((snack.kind, snack.begin_run, snack.run_length), (0, damaged as u32, 0));
    }
}

#[test]
fn damaged_data_in_front_of_a_check_condition() {
    let mut pair = at_level_1();
    pair.initiator.submit(Command::read(LUN, [0x28; 16], 8192)).expect("in");
    pair.settle();
    let command = pair.command();
    let mut response = Response::good_data(Buffer::copy_from(&content(8192)));
    (response.status, response.sense) = (2, vec![0x70; 18]);
    pair.target.complete(command.task, response);
    settle(&mut pair, never, once(Opcode::DataIn, 1));
    let (read, completed) = pair.completed();
    assert!(read == content(8192) && completed.status == 2 && completed.sense.len() == 18, "{completed:?}");
}

#[test]
fn a_damaged_answer_comes_again_and_the_next_one_is_not_lost() {
    let mut pair = at_level_1();
    let tasks = [0, 1].map(|_| pair.initiator.submit(Command::without_data(LUN, [0; 16])).expect("in"));
    pair.settle();
    for sense in [vec![0x70; 18], Vec::new()] {
        let command = pair.command();
        let response = if sense.is_empty() { Response::good() } else { Response::check_condition(sense) };
        pair.target.complete(command.task, response);
    }
    settle(&mut pair, never, once(Opcode::ScsiResponse, 0));
    let mut both = [pair.completed().1, pair.completed().1];
    both.sort_by_key(|completed| completed.task);
    let [first, second] = both;
    assert_eq!((first.task, first.sense.len()), (tasks[0], 18));
    assert_eq!((second.task, second.status), (tasks[1], 0));
    let snack = pair.sent_to_target.last().expect("sent");
    let snack = SnackRequest::decode(&snack.bhs);
    assert_eq!((snack.kind, snack.initiator_task_tag, snack.run_length), (1, TAG_NONE, 1));
}

#[test]
fn damaged_write_data_is_asked_for_again() {
    let data = content(60_000);
    for damaged in 0..14 {
        let mut pair = at_level_1();
        pair.initiator
            .submit(Command::write(LUN, [0x2a; 16], WriteSource::plain(Buffer::copy_from(&data))))
            .expect("in");
        settle(&mut pair, once(Opcode::DataOut, damaged), never);
        let command = pair.command();
        let received: Vec<u8> = command.data.iter().flat_map(|part| part.data.to_vec()).collect();
        assert!(received == data, "Data-Out {damaged}");
        let is_reject = |pdu: &&Pdu| pdu.bhs.opcode() == Some(Opcode::Reject) && pdu.bhs.0[2] == 2;
        assert_eq!(pair.sent_to_initiator.iter().filter(is_reject).count(), 1);
        pair.target.complete(command.task, Response::good());
        pair.settle();
        assert_eq!(pair.completed().1.status, 0);
    }
}

#[test]
fn a_command_with_damaged_data_is_sent_again_under_its_number() {
    let mut pair = at_level_1();
    let data = content(8192);
    for _ in 0..2 {
        let write = WriteSource::plain(Buffer::copy_from(&data));
        pair.initiator.submit(Command::write(LUN, [0x2a; 16], write)).expect("in");
    }
    settle(&mut pair, once(Opcode::ScsiCommand, 0), never);
    let numbers: Vec<u32> = pair
        .sent_to_target
        .iter()
        .filter_map(|pdu| match Request::decode(&pdu.bhs) {
            Ok(Request::ScsiCommand(command)) => Some(command.cmd_sn.0),
            _ => None,
        })
        .collect();
    assert_eq!(numbers.len(), 3);
    assert!(numbers[1..].contains(&numbers[0]), "{numbers:?}");
    for _ in 0..2 {
        let command = pair.command();
        let received: Vec<u8> = command.data.iter().flat_map(|part| part.data.to_vec()).collect();
        assert!(received == data);
        pair.target.complete(command.task, Response::good());
        pair.settle();
        assert_eq!(pair.completed().1.status, 0);
    }
}

/// What was acknowledged is not kept, and what never was cannot be had; nor is there anything to be had at level 0.
#[test]
fn a_snack_for_what_is_not_there_is_rejected() {
    for (kind, tag, begin_run, run_length) in
        [(0, 5, 0, 0), (1, TAG_NONE, 0, 1), (1, TAG_NONE, 1 << 30, 1), (3, 5, 0, 0), (4, 5, 0, 0)]
    {
        let mut pair = at_level_1();
        let snack = SnackRequest { begin_run, run_length, ..snack(kind, tag, TAG_NONE) };
        assert_eq!(SnackRequest::decode(&snack.encode()), snack);
        pair.target.handle_pdu(pair.now, Pdu::header_only(snack.encode()));
        let answer = pair.target.poll_transmit().expect("rejected");
        let Ok(Answer::Reject(reject)) = Answer::decode(&answer.bhs) else { panic!("{answer:?}") };
        assert_eq!(reject.reason, 3, "{snack:?}");
        assert!(!pair.target.is_closed());
    }
}

fn snack(kind: u8, initiator_task_tag: u32, target_transfer_tag: u32) -> SnackRequest {
    SnackRequest { kind, lun: LUN, initiator_task_tag, target_transfer_tag, begin_run: 0, run_length: 0 }
}

/// A number in a header.
fn word(pdu: &Pdu, at: usize) -> u32 {
    u32::from_be_bytes(pdu.bhs.0[at..at + 4].try_into().expect("four bytes"))
}

/// What a target answers to a PDU, all of it.
fn answers(pair: &mut Pair, request: &SnackRequest) -> Vec<Pdu> {
    pair.target.handle_pdu(pair.now, Pdu::header_only(request.encode()));
    std::iter::from_fn(|| pair.target.poll_transmit()).collect()
}

fn reject_reason(answers: &[Pdu]) -> Option<u8> {
    match Answer::decode(&answers.first()?.bhs) {
        Ok(Answer::Reject(reject)) => Some(reject.reason),
        _ => None,
    }
}

/// Of a long read the target asks once per burst whether it came, is told so, and keeps what it may still be asked for.
#[test]
fn data_is_acknowledged_burst_by_burst() {
    let mut pair = at_level_1();
    let data = content(60_000);
    pair.initiator.submit(Command::read(LUN, [0x28; 16], 60_000)).expect("in");
    pair.settle();
    let command = pair.command();
    pair.target.complete(command.task, Response::good_data(Buffer::copy_from(&data)));
    // All but the last burst; then the answers to what was asked on the way.
    let sent: Vec<Pdu> = (0..13).map(|_| pair.target.poll_transmit().expect("data")).collect();
    let tag = sent[0].bhs.initiator_task_tag();
    let asks: Vec<usize> = (0..13).filter(|at| DataIn::asked_acknowledgement(&sent[*at].bhs).is_some()).collect();
    assert_eq!(asks, [3, 7, 11]);
    sent.into_iter().for_each(|pdu| pair.initiator.handle_pdu(pair.now, pdu));
    let told: Vec<Pdu> = std::iter::from_fn(|| pair.initiator.poll_transmit()).collect();
    let told: Vec<SnackRequest> = told.iter().map(|pdu| SnackRequest::decode(&pdu.bhs)).collect();
    assert_eq!(told.iter().map(|snack| (snack.kind, snack.begin_run)).collect::<Vec<_>>(), [(2, 4), (2, 8), (2, 12)]);
    assert!(told.iter().all(|snack| snack.initiator_task_tag == TAG_NONE && snack.run_length == 0));
    // More than was sent cannot have come.
    assert_eq!(reject_reason(&answers(&mut pair, &SnackRequest { begin_run: 14, ..told[2] })), Some(3));
    pair.target.handle_pdu(pair.now, Pdu::header_only(told[1].encode()));
    let again = |begin_run| SnackRequest { begin_run, run_length: 1, ..snack(0, tag, TAG_NONE) };
    assert_eq!(reject_reason(&answers(&mut pair, &again(7))), Some(3), "it has let go of that");
    pair.target.handle_pdu(pair.now, Pdu::header_only(again(8).encode()));
    let kept = pair.target.poll_transmit().expect("it is there");
    assert_eq!((word(&kept, 36), word(&kept, 40)), (8, 8 * 4096));
}

/// An acknowledgement that crosses the end of its task harms nobody, and a task that is over is not acknowledged.
#[test]
fn an_acknowledgement_does_not_outlive_its_task() {
    let mut pair = at_level_1();
    pair.initiator.submit(Command::read(LUN, [0x28; 16], 20_000)).expect("in");
    pair.settle();
    let command = pair.command();
    pair.target.complete(command.task, Response::good_data(Buffer::copy_from(&content(20_000))));
    while let Some(pdu) = pair.target.poll_transmit() {
        pair.initiator.handle_pdu(pair.now, pdu);
    }
    assert_eq!(pair.completed().0, content(20_000));
    assert!(pair.initiator.poll_transmit().is_none(), "the status says all of it");
    assert!(answers(&mut pair, &SnackRequest { begin_run: 4, ..snack(2, TAG_NONE, 77) }).is_empty());
    assert!(!pair.target.is_closed());
}

/// The Data-In that has the status is acknowledged by its StatSN. Were it let go of before, its task would be remembered for ever.
#[test]
fn a_status_is_not_acknowledged_as_data() {
    let mut pair = at_level_1();
    pair.initiator.submit(Command::read(LUN, [0x28; 16], 8192)).expect("in");
    pair.settle();
    let command = pair.command();
    pair.target.complete(command.task, Response::good_data(Buffer::copy_from(&content(8192))));
    let sent: Vec<Pdu> = std::iter::from_fn(|| pair.target.poll_transmit()).collect();
    assert!(sent.len() == 2 && sent[1].bhs.0[1] & 1 != 0, "the status rides in the last one");
    let tag = sent[0].bhs.initiator_task_tag();
    assert_eq!(reject_reason(&answers(&mut pair, &SnackRequest { begin_run: 2, ..snack(2, TAG_NONE, tag) })), Some(3));
    assert!(answers(&mut pair, &SnackRequest { begin_run: 1, ..snack(2, TAG_NONE, tag) }).is_empty());
    let again = answers(&mut pair, &SnackRequest { begin_run: 1, run_length: 1, ..snack(0, tag, TAG_NONE) });
    assert_eq!((again.len(), word(&again[0], 36)), (1, 1), "it is there still");
}

/// Declares another MaxRecvDataSegmentLength to the target, behind the back of the pair's initiator.
fn declare_segment(pair: &mut Pair, bytes: u32) {
    let request = TextRequest {
        immediate: true,
        is_final: true,
        continues: false,
        lun: LUN,
        initiator_task_tag: 0x8000_7777,
        target_transfer_tag: TAG_NONE,
        cmd_sn: Serial(2),
        exp_stat_sn: Serial(0),
    };
    let text = Buffer::copy_from(format!("MaxRecvDataSegmentLength={bytes}\0").as_bytes());
    pair.target.handle_pdu(pair.now, Pdu::new(request.encode(), bytes::Bytes::new(), text, false));
    let answer = pair.target.poll_transmit().expect("an answer");
    assert_eq!(answer.bhs.opcode(), Some(Opcode::TextResponse));
}

/// RFC 7143 §11.16.3: an initiator that now takes shorter segments has a read divided again, from what it acknowledged on, whether its status was
/// sent before or not; a response copies the tag, and the status keeps its number.
#[test]
fn a_read_is_divided_again_for_an_initiator_that_takes_less() {
    let data = content(24_000);
    for (sent, acknowledged) in [(2, 0), (5, 0), (5, 4), (6, 0), (6, 4)] {
        let mut pair = at_level_1();
        pair.initiator.submit(Command::read(LUN, [0x28; 16], 24_000)).expect("in");
        pair.settle();
        let command = pair.command();
        pair.target.complete(command.task, Response::good_data(Buffer::copy_from(&data)));
        let first: Vec<Pdu> = (0..sent).map(|_| pair.target.poll_transmit().expect("data")).collect();
        let tag = first[0].bhs.initiator_task_tag();
        let status = first.last().filter(|pdu| pdu.bhs.0[1] & 1 != 0).map(|pdu| word(pdu, 24));
        assert_eq!(status.is_some(), sent == 6);
        if acknowledged > 0 {
            let told = SnackRequest { begin_run: acknowledged, ..snack(2, TAG_NONE, tag) };
            pair.target.handle_pdu(pair.now, Pdu::header_only(told.encode()));
        }
        declare_segment(&mut pair, 1000);
        let again = answers(&mut pair, &snack(3, tag, 0x51));
        let (response, parts) = again.split_last().expect("answered");
        let (mut data_sn, mut at) = (acknowledged, acknowledged as usize * 4096);
        for part in parts {
            let Ok(Answer::DataIn(header)) = Answer::decode(&part.bhs) else { panic!("{part:?}") };
            assert_eq!((header.data_sn, header.buffer_offset as usize, header.status), (data_sn, at, None));
            assert!(part.data.len() <= 1000 && part.data.to_vec() == data[at..at + part.data.len()]);
            (data_sn, at) = (data_sn + 1, at + part.data.len());
        }
        assert_eq!(at, data.len(), "{sent} {acknowledged}");
        let Ok(Answer::ScsiResponse(header)) = Answer::decode(&response.bhs) else { panic!("{response:?}") };
        assert_eq!((header.status, header.exp_data_sn, word(response, 20)), (0, data_sn, 0x51));
        if let Some(status) = status {
            assert_eq!(header.sequence.stat_sn.0, status, "the same answer as before");
        }
        // What can be asked for by its number is the new answer, once.
        let number = header.sequence.stat_sn.0;
        let once_more =
            answers(&mut pair, &SnackRequest { begin_run: number, run_length: 1, ..snack(1, TAG_NONE, TAG_NONE) });
        assert_eq!(once_more.len(), 1);
        assert_eq!(word(&once_more[0], 20), 0x51);
        pair.target.handle_pdu(pair.now, Pdu::header_only(snack(3, tag, 0).encode()));
        assert_eq!(reject_reason(&[pair.target.poll_transmit().expect("answered")]), Some(3), "it needs a tag");
    }
}

/// Asking again and again for the same costs the target no memory: there is one answer at a time.
#[test]
fn one_cut_at_a_time() {
    let mut pair = at_level_1();
    pair.initiator.submit(Command::read(LUN, [0x28; 16], 24_000)).expect("in");
    pair.settle();
    let command = pair.command();
    pair.target.complete(command.task, Response::good_data(Buffer::copy_from(&content(24_000))));
    let first: Vec<Pdu> = (0..6).map(|_| pair.target.poll_transmit().expect("data")).collect();
    let request = snack(3, first[0].bhs.initiator_task_tag(), 9);
    pair.target.handle_pdu(pair.now, Pdu::header_only(request.encode()));
    for _ in 0..100 {
        pair.target.handle_pdu(pair.now, Pdu::header_only(request.encode()));
    }
    let all: Vec<Pdu> = std::iter::from_fn(|| pair.target.poll_transmit()).collect();
    let is_reject = |pdu: &&Pdu| pdu.bhs.opcode() == Some(Opcode::Reject);
    assert_eq!(all.iter().filter(is_reject).count(), 100);
    assert_eq!(all.len(), 100 + 7);
    assert_eq!(pair.target.unsent_bytes(), 0);
}
