//! Proves that what an initiator can have the target hold of write data is what the limits say, in memory and not in bytes that were sent.

use strongroom_iscsi::pdu::{Answer, TAG_NONE};
use strongroom_iscsi::target::{Config, Event, Response, TaskId};
use strongroom_iscsi::{CloseReason, Offer};
use strongroom_scsi::transport::target::Session as _;

use super::{KEYS, Victim, small};

/// What each PDU's data takes at least.
const PAGE: u64 = 4096;

fn with_pages(pages: u64) -> Victim {
    Victim::logged_in(Config { write_memory_bytes_max: pages * PAGE, ..small() }, KEYS)
}

impl Victim {
    fn started(&mut self) -> TaskId {
        match self.session.poll_event() {
            Some(Event::Command(command)) => command.task,
            other => panic!("expected a command, got {other:?}"),
        }
    }

    #[track_caller]
    fn expect_status(&mut self, tag: u32, status: u8) {
        match self.hear() {
            Some((Answer::ScsiResponse(answer), _)) => {
                assert_eq!((answer.status, answer.initiator_task_tag), (status, tag));
            }
            other => panic!("expected an answer, got {other:?}"),
        }
    }
}

const TASK_SET_FULL: u8 = 0x28;

/// The largest block data that one initiator can have the target hold: what the limits say.
#[test]
fn solicited_writes_wait_for_memory() {
    let mut config = small();
    config.write_memory_bytes_max = 16_384;
    let mut victim = Victim::logged_in(config, KEYS);
    for tag in 0..3 {
        victim.write(tag, 8192, true, &[]);
    }
    let mut r2t = victim.r2t();
    for tag in 0..3u32 {
        for part in 0..4 {
            assert_eq!((r2t.initiator_task_tag, r2t.buffer_offset), (tag, part * 2048), "one write at a time");
            assert!(victim.hear().is_none(), "one R2T at a time");
            victim.data_out(tag, r2t.target_transfer_tag, 0, part * 2048, true, &[0; 2048]);
            if part < 3 {
                r2t = victim.r2t();
            }
        }
        let Some(Event::Command(command)) = victim.session.poll_event() else { panic!("a command") };
        assert!(victim.hear().is_none(), "the application holds the memory");
        assert!(victim.session.complete(command.task, Response::good()));
        if tag < 2 {
            r2t = victim.r2t();
        }
        assert!(matches!(victim.hear(), Some((Answer::ScsiResponse(answer), _)) if answer.status == 0));
    }
    // A write that ends early gives its memory back too.
    victim.write(7, 8192, true, &[]);
    victim.write(8, 8192, true, &[]);
    let ttt = victim.r2t().target_transfer_tag;
    victim.data_out(7, ttt, 1, 0, true, &[0; 2048]);
    assert_eq!(victim.r2t().initiator_task_tag, 8);
    victim.expect_sense(7, 0x0b, [0x0c, 0x0d]);
}

/// Sessions that share memory are bounded by less while there is less of it.
#[test]
fn a_smaller_bound_holds_further_writes_back() {
    let mut victim = Victim::logged_in(Config { write_memory_bytes_max: 32_768, ..small() }, KEYS);
    victim.session.set_write_memory_max(16_384);
    victim.write(0, 8192, true, &[]);
    victim.write(1, 8192, true, &[]);
    assert_eq!(victim.r2t().initiator_task_tag, 0);
    assert!(victim.hear().is_none(), "the second one waits");
    assert_eq!(victim.session.memory_bytes(), 16_384);
    victim.session.set_write_memory_max(u64::MAX);
    assert_eq!(victim.r2t().initiator_task_tag, 1);
    victim.write(2, 8192, true, &[]);
    assert!(victim.hear().is_none(), "no more than was configured");
    assert_eq!(victim.session.memory_bytes(), 32_768);
}

/// As much again that nobody asked for; then the driver is asked to stop reading, and who goes on is told that there is no room. A byte
/// takes as much as a page.
#[test]
fn attack_unsolicited_data_is_bounded() {
    for len in [1024, 1] {
        let mut victim = with_pages(8);
        let mut commands = Vec::new();
        for tag in 0..8 {
            assert_eq!(victim.session.accepts_input(), tag <= 6, "{tag}");
            victim.write(tag, len, true, &vec![7; len as usize]);
            commands.push(victim.started());
        }
        for tag in 8..600 {
            // Some that promise more, which then comes.
            let is_final = tag % 2 == 0;
            let expected = if is_final { len } else { 4096 };
            victim.write(tag, expected, is_final, &vec![7; (len as usize).min(512)]);
            victim.expect_status(tag, TASK_SET_FULL);
            if !is_final {
                victim.data_out(tag, TAG_NONE, 0, len.min(512), true, &[7; 512]);
                assert!(victim.hear().is_none(), "dropped without a word");
            }
            assert!(victim.session.poll_event().is_none());
        }
        // Room is given back with the answer, which the initiator may not take for long.
        for task in &commands {
            assert!(victim.session.complete(*task, Response::good()));
        }
        assert!(victim.session.accepts_input());
        (0..8).for_each(|tag| victim.expect_status(tag, 0));
        // A write that lacks data is read on for however full it is.
        for tag in 0..7 {
            victim.write(1000 + tag, len, true, &vec![7; len as usize]);
        }
        assert!(!victim.session.accepts_input());
        victim.write(2000, 1024, false, &[7; 512]);
        assert!(victim.session.accepts_input());
    }
}

/// What came in more PDUs than was to be expected is counted as it comes.
#[test]
fn attack_short_unsolicited_pdus_are_counted() {
    let mut victim = with_pages(4);
    for tag in 0..2 {
        victim.write(tag, 1024, false, &[7; 1]);
    }
    for data_sn in 0..2 {
        victim.data_out(0, TAG_NONE, data_sn, 1 + data_sn, false, &[7]);
        assert!(victim.hear().is_none(), "{data_sn}");
    }
    victim.data_out(1, TAG_NONE, 0, 1, false, &[7]);
    victim.expect_status(1, TASK_SET_FULL);
    // With the other one gone there is room, and who is alone goes through in any case.
    let rest = 1024 - 3;
    for at in 0..4 {
        victim.data_out(0, TAG_NONE, 2 + at, 3 + at, false, &[7]);
    }
    victim.data_out(0, TAG_NONE, 6, 7, true, &vec![7; rest - 4]);
    let task = victim.started();
    assert!(!victim.session.accepts_input());
    assert!(victim.session.complete(task, Response::good()) && victim.session.accepts_input());
    victim.expect_status(0, 0);
    assert!(victim.session.poll_event().is_none() && victim.hear().is_none());
}

/// The same of data that was asked for, once that has taken twice what the limit is.
#[test]
fn attack_short_solicited_pdus_are_counted() {
    let mut victim = with_pages(4);
    victim.write(0, 2048, true, &[]);
    victim.write(1, 2048, true, &[]);
    let ttts = [victim.r2t().target_transfer_tag, victim.r2t().target_transfer_tag];
    for at in 0..7 {
        victim.data_out(0, ttts[0], at, at, false, &[7]);
        assert!(victim.hear().is_none(), "{at}");
    }
    victim.data_out(0, ttts[0], 7, 7, false, &[7]);
    victim.expect_status(0, TASK_SET_FULL);
    victim.data_out(1, ttts[1], 0, 0, true, &[7; 2048]);
    let task = victim.started();
    assert!(victim.session.complete(task, Response::good()));
    victim.expect_status(1, 0);
}

/// No write comes in more PDUs than the shortest MaxRecvDataSegmentLength makes of it, asked for or not.
#[test]
fn attack_write_data_in_crumbs() {
    for asks in [false, true] {
        let mut victim = with_pages(1000);
        victim.write(3, 1024, asks, &[]);
        let ttt = if asks { victim.r2t().target_transfer_tag } else { TAG_NONE };
        let most = 1024 / 512 + u32::from(asks) + 16;
        for at in 0..most {
            victim.data_out(3, ttt, at, at, false, &[7]);
            assert!(victim.hear().is_none(), "{at}");
        }
        victim.data_out(3, ttt, most, most, false, &[7]);
        victim.expect_sense(3, 0x0b, [0x0c, 0x0d]);
        victim.expect_alive();
    }
}

/// Which is what a sound initiator may do.
#[test]
fn a_write_may_come_in_the_shortest_segments() {
    let offer = Offer { recv_segment_bytes_max: 512, ..small().offer };
    let config = Config { offer, write_memory_bytes_max: 4 * PAGE, ..small() };
    // Bursts that are no multiple of it: each ends with a short one.
    let mut victim = Victim::logged_in(config, "InitialR2T=No\0FirstBurstLength=600\0MaxBurstLength=600\0");
    let expected = 64_000;
    victim.write(5, expected, false, &[1; 512]);
    victim.data_out(5, TAG_NONE, 0, 512, true, &[1; 88]);
    let mut at = 600;
    while at < expected {
        let r2t = victim.r2t();
        assert_eq!(r2t.buffer_offset, at);
        let len = r2t.desired_data_transfer_bytes;
        for (data_sn, part) in vec![1; len as usize].chunks(512).enumerate() {
            let offset = at + data_sn as u32 * 512;
            let is_final = offset + part.len() as u32 == at + len;
            victim.data_out(5, r2t.target_transfer_tag, data_sn as u32, offset, is_final, part);
        }
        at += len;
    }
    let task = victim.started();
    assert!(victim.session.complete(task, Response::good()));
    victim.expect_status(5, 0);
}

/// Behind a command that never comes no more data is kept than a session may hold.
#[test]
fn attack_data_behind_a_missing_command_is_bounded() {
    for len in [1024, 1] {
        let mut victim = with_pages(8);
        victim.cmd_sn += 1;
        for tag in 0..8 {
            victim.write(tag, len, true, &vec![7; len as usize]);
            assert!(!victim.session.is_closed(), "{tag}");
        }
        victim.write(9, len, true, &vec![7; len as usize]);
        assert!(matches!(victim.closed(), CloseReason::Misbehaved(_)));
    }
}

/// Nor are PDUs that have none.
#[test]
fn attack_empty_pdus_behind_a_missing_command_are_bounded() {
    let mut victim = with_pages(8);
    victim.cmd_sn += 1;
    for tag in 0..8 {
        victim.write(tag, 1024, false, &[]);
    }
    for tag in 0..8 {
        victim.data_out(tag, TAG_NONE, 0, 0, false, &[]);
        assert!(!victim.session.is_closed(), "{tag}");
    }
    victim.data_out(0, TAG_NONE, 1, 0, false, &[]);
    assert!(matches!(victim.closed(), CloseReason::Misbehaved(_)));
}

/// What was held counts no longer once its turn has come.
#[test]
fn memory_for_what_is_held_is_given_back() {
    let mut victim = with_pages(8);
    for _ in 0..20 {
        let missing = victim.cmd_sn;
        victim.cmd_sn += 1;
        for tag in 0..4 {
            victim.write(tag, 1024, false, &[7; 512]);
            victim.data_out(tag, TAG_NONE, 0, 512, true, &[7; 512]);
        }
        let next = std::mem::replace(&mut victim.cmd_sn, missing);
        victim.write(9, 0, true, &[]);
        victim.cmd_sn = next;
        assert!(!victim.session.is_closed());
        for tag in [9, 0, 1, 2, 3] {
            let task = victim.started();
            assert!(victim.session.complete(task, Response::good()));
            victim.expect_status(tag, 0);
        }
    }
}
