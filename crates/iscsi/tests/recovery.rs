//! Proves error recovery level 1: data that a digest shows to be damaged, in either direction, is sent again within the command,
//! and the application of neither side notices.

mod pair;

use pair::{Pair, initiator_config};
use strongroom_block::Buffer;
use strongroom_iscsi::initiator::{Command, WriteSource};
use strongroom_iscsi::pdu::{Answer, Opcode, Request, Snack, TAG_NONE};
use strongroom_iscsi::target::{self, Response};
use strongroom_iscsi::{DigestOffer, Lun, Offer, Pdu};

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
        let snack = pair.sent_to_target.iter().find(|pdu| pdu.bhs.opcode() == Some(Opcode::Snack)).expect("asked");
        let snack = Snack::decode(&snack.bhs);
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
    let snack = Snack::decode(&snack.bhs);
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
        [(0, 5, 0, 0), (1, TAG_NONE, 0, 1), (1, TAG_NONE, 1 << 30, 1), (2, 5, 0, 1), (3, 5, 0, 0)]
    {
        let mut pair = at_level_1();
        let snack = Snack { kind, initiator_task_tag: tag, begin_run, run_length };
        assert_eq!(Snack::decode(&snack.encode()), snack);
        pair.target.handle_pdu(pair.now, Pdu::header_only(snack.encode()));
        let answer = pair.target.poll_transmit().expect("rejected");
        let Ok(Answer::Reject(reject)) = Answer::decode(&answer.bhs) else { panic!("{answer:?}") };
        assert_eq!(reject.reason, 3, "{snack:?}");
        assert!(!pair.target.is_closed());
    }
}
