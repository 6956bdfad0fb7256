//! Proves that a sealed unit executes what we send at most once and in its own order, no matter what was lost, sent again, sealed again or
//! replayed, and that an attach id is registered before it is used and never again after the unit has forgotten it.

use strongroom_block::SealRecord;
use strongroom_scsi::transport;
use strongroom_scsi::transport::initiator::Command as ScsiCommand;

use super::epochs::sealer;
use super::*;
use crate::pipeline::operation::{ConditionalWrite, ResealBlock};
use crate::pipeline::sealing::SealedBlocks;

fn rig() -> Rig {
    let mut rig = Rig::new(true, Limits::default());
    rig.write(0, 1, 8).unwrap();
    rig.flush().unwrap();
    rig
}

impl Rig {
    /// Another initiator writes one block.
    fn other_writes(&mut self, lba: u64, mark: u8) {
        let work = self.write_work(lba, &[mark; BLOCK], false);
        self.unit.write_by_another(&work);
    }

    /// Submits a request whose next command is executed and whose response is lost; then another initiator writes a block, and the
    /// connection comes back.
    fn executed_and_unanswered(&mut self, operation: impl Into<Operation>, other: u64) -> u64 {
        let token = self.submit(operation);
        self.lose_the_response();
        self.other_writes(other, 9);
        self.reconnect(false);
        token
    }

    fn lose_the_response(&mut self) -> ScsiCommand {
        let (_, command) = self.engine.next_command().unwrap();
        let (_, completed) = self.unit.execute(&command);
        assert_eq!(completed.status, 0);
        command
    }
}

fn first_stamp(command: &ScsiCommand) -> strongroom_block::Stamp {
    let records = &command.write.as_ref().unwrap().records.as_ref().unwrap().bytes;
    SealRecord::decode(&records[..56]).unwrap().stamp()
}

#[test]
fn a_write_that_was_executed_is_not_executed_over_what_another_initiator_wrote() {
    let mut rig = rig();
    let write = rig.write_work(2, &[5; 3 * BLOCK], false);
    let token = rig.executed_and_unanswered(write, 3);
    rig.run();
    rig.result(token).unwrap();
    assert_eq!(rig.marks()[..8], [1, 1, 5, 9, 5, 1, 1, 1]);
    assert_eq!(rig.engine.counters.writes_repeated, 1);
    assert_eq!(rig.engine.unflushed_bytes(), 0, "a repeat is durable, and is never replayed");
    rig.reconnect(true);
    assert_eq!(rig.marks()[..8], [1, 1, 5, 9, 5, 1, 1, 1]);
}

#[test]
fn a_hole_that_was_executed_is_not_executed_over_what_another_initiator_wrote() {
    let mut rig = rig();
    let hole = rig.discard_work(2, 3);
    let token = rig.executed_and_unanswered(hole, 3);
    rig.run();
    rig.result(token).unwrap();
    assert_eq!(rig.marks()[..8], [1, 1, 0, 9, 0, 1, 1, 1]);
    assert_eq!(rig.engine.unflushed_bytes(), 0);
}

#[test]
fn an_executed_conditional_write_is_done_even_if_another_initiator_wrote_since() {
    for reseals in [false, true] {
        let mut rig = rig();
        let Write { lba, data, records: Some(records), .. } = rig.write_work(3, &[5; BLOCK], false) else {
            panic!("a sealed write")
        };
        let expected = rig.unit.blocks[&3].record[8..32].try_into().unwrap();
        let work: Operation = match reseals {
            true => ResealBlock::new(lba, expected, SealedBlocks { data, records }).into(),
            false => ConditionalWrite::new(lba, expected, SealedBlocks { data, records }).into(),
        };
        let token = rig.executed_and_unanswered(work, 3);
        rig.run();
        let answer = rig.result(token).unwrap();
        assert!(matches!(answer, Answer::Resealed(true) | Answer::Done), "{answer:?}");
        assert_eq!(rig.marks()[..8], [1, 1, 1, 9, 1, 1, 1, 1]);
    }
}

/// Merging it again into what another initiator wrote since would execute it twice.
#[test]
fn part_of_a_block_that_was_executed_is_not_merged_again() {
    for flushing in [false, true] {
        let mut rig = rig();
        let token = rig.submit(Rig::part(3, 0, &[7; 4]));
        assert_eq!(rig.exchange(1), 1, "read");
        if flushing {
            assert_eq!(rig.exchange(1), 1, "written");
            assert!(rig.engine.next_command().is_some(), "the flush is lost");
        } else {
            rig.lose_the_response();
        }
        rig.other_writes(3, 9);
        rig.reconnect(false);
        rig.run();
        rig.result(token).unwrap();
        assert_eq!(rig.read(3, 1).unwrap(), vec![9; BLOCK], "flushing: {flushing}");
        assert_eq!(rig.engine.counters.guarded_retries, 0);
    }
}

#[test]
fn a_resend_under_a_new_key_epoch_keeps_its_operation_id() {
    let mut rig = rig();
    let hold = |rig: &Rig, current, epochs: &[u32]| {
        rig.sealing.as_ref().unwrap().keys().replace(sealer(current, epochs), true);
    };
    hold(&rig, 1, &[1]);
    let write = rig.write_work(2, &[5; 3 * BLOCK], false);
    let token = rig.submit(write);
    let id = first_stamp(&rig.lose_the_response());
    rig.other_writes(3, 9);
    for epoch in 2..4 {
        hold(&rig, epoch, &[epoch, epoch - 1]);
        rig.reconnect(false);
        let (_, again) = rig.engine.next_command().unwrap();
        assert_eq!(again.parameters.operation, Some(Ok(transport::Operation { id, replay: None })), "epoch {epoch}");
        assert_ne!(first_stamp(&again), id, "sealed again");
        let records = &again.write.unwrap().records.unwrap().bytes;
        assert_eq!(SealRecord::decode(&records[..56]).unwrap().epoch(), epoch);
    }
    rig.reconnect(false);
    rig.run();
    rig.result(token).unwrap();
    let stored: Vec<u32> =
        (2..5).map(|lba| SealRecord::decode(&rig.unit.blocks[&lba].record).unwrap().epoch()).collect();
    assert_eq!(stored, [1, 1, 1], "as it was executed, with the other's write in it");
    assert_eq!(rig.engine.counters.writes_repeated, 1);
}

#[test]
fn a_replay_leaves_alone_what_another_initiator_wrote_after_the_crash() {
    let mut rig = rig();
    rig.write(2, 5, 3).unwrap();
    rig.discard(5, 2).unwrap();
    rig.unit.crash();
    rig.other_writes(3, 9);
    rig.other_writes(6, 9);
    rig.engine.disconnected();
    rig.engine.connected(Arc::new(description(true)), true);
    rig.run();
    assert_eq!(rig.marks()[..8], [1, 1, 5, 9, 5, 0, 9, 1]);
    assert_eq!((rig.engine.counters.blocks_replayed, rig.engine.counters.blocks_superseded), (5, 2));
}

/// What it replays has the place that it had, before what the other initiator replays.
#[test]
fn replays_restore_the_order_from_before_the_crash() {
    let mut rig = rig();
    rig.write(2, 5, 3).unwrap();
    rig.other_writes(3, 9);
    let others = rig.unit.blocks[&3].clone();
    rig.reconnect(true);
    // The other initiator's replay comes first.
    rig.unit.blocks.insert(3, others);
    rig.run();
    assert_eq!(rig.marks()[..8], [1, 1, 5, 9, 5, 1, 1, 1]);
}

/// The write survived the crash, another initiator's after it did too: nothing may be written.
#[test]
fn a_replay_of_what_survived_is_a_repeat() {
    let mut rig = rig();
    rig.write(2, 5, 3).unwrap();
    rig.other_writes(3, 9);
    rig.unit.flush();
    let written = rig.unit.writes;
    rig.reconnect(true);
    rig.run();
    assert_eq!(rig.unit.writes, written);
    assert_eq!(rig.marks()[..8], [1, 1, 5, 9, 5, 1, 1, 1]);
    assert_eq!(rig.engine.counters.writes_repeated, 1);
}

#[test]
fn an_attach_id_is_registered_once_and_only_for_writes() {
    let mut rig = rig();
    assert_eq!(rig.unit.registrations.len(), 1);
    rig.write(0, 2, 8).unwrap();
    rig.discard(3, 1).unwrap();
    rig.do_now(Rig::part(5, 0, &[7])).unwrap();
    assert_eq!(rig.unit.registrations.len(), 1);
    rig.reconnect(false);
    rig.read(0, 8).unwrap();
    rig.flush().unwrap();
    assert_eq!(rig.unit.registrations.len(), 1, "nothing was written under the new one");
    rig.write(0, 3, 1).unwrap();
    rig.write(1, 3, 1).unwrap();
    assert_eq!(rig.unit.registrations.len(), 2);
    assert_eq!(rig.engine.counters.registrations, 2);
}

/// Whether it was registered is unknown, and nothing was sent under it: it is registered again.
#[test]
fn a_registration_that_is_not_answered_is_repeated() {
    let mut rig = rig();
    rig.reconnect(false);
    let work = rig.write_work(2, &[5; BLOCK], false);
    let token = rig.submit(work);
    let (_, registration) = rig.engine.next_command().unwrap();
    assert_eq!(registration.cdb[..2], [0xc1, 6]);
    assert!(rig.engine.next_command().is_none(), "no write goes out before it is answered");
    rig.unit.execute(&registration);
    rig.reconnect(false);
    rig.run();
    rig.result(token).unwrap();
    assert_eq!(rig.marks()[2], 5);
}

#[test]
fn what_waits_for_a_registration_that_is_refused_fails_with_its_error() {
    let mut rig = rig();
    rig.reconnect(false);
    rig.unit.fail_next = vec![Sense::WRITE_PROTECTED];
    let tokens: Vec<u64> = (0..3)
        .map(|lba| {
            let work = rig.write_work(lba, &[5; BLOCK], false);
            rig.submit(work)
        })
        .collect();
    let written = rig.unit.writes;
    rig.run();
    for token in tokens {
        assert_eq!(rig.result(token).unwrap_err().kind, DeviceErrorKind::ReadOnly);
    }
    assert_eq!(rig.unit.writes, written);
    rig.write(0, 6, 1).unwrap();
    assert_eq!(rig.marks()[..3], [6, 1, 1], "it is tried again for the next write");
}

#[test]
fn what_was_never_sent_goes_out_under_another_attach_id_when_the_unit_forgets() {
    let mut rig = rig();
    rig.unit.forget_attachments();
    rig.write(2, 5, 3).unwrap();
    rig.discard(3, 1).unwrap();
    rig.do_now(Rig::part(7, 0, &[7])).unwrap();
    assert_eq!(rig.marks()[..7], [1, 1, 5, 0, 5, 1, 1]);
    let ids = &rig.unit.registrations;
    assert_eq!(ids.len(), 2);
    assert_ne!(ids[0], ids[1], "one that was used is never registered again");
}

#[test]
fn a_write_whose_outcome_is_unknown_fails_when_the_unit_forgets_its_attach_id() {
    for executed in [false, true] {
        let mut rig = rig();
        let work = rig.write_work(2, &[5; 3 * BLOCK], false);
        let token = rig.submit(work);
        let (_, command) = rig.engine.next_command().unwrap();
        if executed {
            rig.unit.execute(&command);
        }
        rig.other_writes(3, 9);
        rig.unit.forget_attachments();
        rig.reconnect(false);
        rig.run();
        let error = rig.result(token).unwrap_err();
        assert_eq!((error.kind, error.lba), (DeviceErrorKind::Hardware, Some(Lba(2))), "{error}");
        assert!(error.message.contains("unknown"), "{error}");
        let expected = if executed { [5, 9, 5] } else { [1, 9, 1] };
        assert_eq!(rig.marks()[2..5], expected, "it is not executed now");
        rig.write(4, 6, 1).unwrap();
        assert_eq!(rig.marks()[4], 6, "the attachment goes on");
    }
}

/// A unit that was repaired knows no attach ids; the sequences say what may be restored.
#[test]
fn a_replay_is_not_lost_when_the_unit_has_forgotten_its_attach_id() {
    let mut rig = rig();
    rig.write(2, 5, 3).unwrap();
    rig.unit.forget_attachments();
    rig.unit.crash();
    rig.other_writes(3, 9);
    rig.engine.disconnected();
    rig.engine.connected(Arc::new(description(true)), true);
    rig.run();
    assert_eq!(rig.marks()[..8], [1, 1, 5, 9, 5, 1, 1, 1]);
    rig.flush().unwrap();
}

/// Found by the simulation of the whole system: a flush that waited for the connection promised what its replay had lost.
#[test]
fn a_flush_that_waits_for_a_replay_fails_with_it() {
    let mut rig = rig();
    rig.write(2, 5, 1).unwrap();
    rig.engine.disconnected();
    let waiting = [rig.submit(Flush), rig.submit(Flush)];
    rig.unit.crash();
    rig.unit.fail_next = vec![Sense::INTERNAL_FAILURE];
    rig.engine.connected(Arc::new(description(true)), true);
    rig.run();
    assert_eq!(rig.marks()[2], 1, "the write is lost");
    for flush in waiting {
        let error = rig.result(flush).unwrap_err();
        assert!(error.message.contains("may be lost"), "{error}");
    }
    rig.flush().unwrap();
}

#[test]
fn attack_target_keeps_forgetting_attach_ids() {
    let mut rig = rig();
    rig.unit.forget_attachments();
    rig.unit.forgets_at_once = true;
    let error = rig.write(2, 5, 1).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::Hardware);
    assert!(rig.unit.registrations.len() < 20, "{}", rig.unit.registrations.len());
}

#[test]
fn attack_target_does_not_say_where_it_stored_a_write() {
    let mut rig = rig();
    rig.unit.says_nothing = true;
    let error = rig.write(2, 5, 1).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::Hardware);
    assert!(error.message.contains("where it stored"), "{error}");
}

/// Of the hook that the simulation uses: without it nothing is lost.
#[test]
fn a_flush_mark_that_is_taken_too_late_loses_a_write() {
    for late in [false, true] {
        let mut rig = rig();
        rig.engine.flushes.marks_late = late;
        rig.submit(Flush);
        let (flush, command) = rig.engine.next_command().unwrap();
        let (_, flushed) = rig.unit.execute(&command);
        let work = rig.write_work(2, &[5; BLOCK], false);
        rig.submit(work);
        rig.exchange(1);
        rig.engine.completed(rig.now, flush, &flushed);
        rig.reconnect(true);
        assert_eq!(rig.marks()[2], if late { 1 } else { 5 });
    }
}
