//! Proves that a target that lies loses its session with a reason, and that arbitrary PDUs make neither side panic.

use proptest::prelude::*;
use strongroom_iscsi::{CloseReason, Lun, Pdu, Serial, target};

use crate::pair::{Pair, epoch, initiator_config, pdu};

#[test]
fn lies_of_a_target_end_the_session() {
    use strongroom_iscsi::initiator::{Command, Event};
    use strongroom_iscsi::pdu::{DataIn, R2t, ScsiResponse, Sequence};
    let tag = |pair: &mut Pair| {
        pair.initiator.submit(Command::read(Lun(0), [0; 16], 1024)).expect("logged in");
        pair.initiator.poll_transmit().expect("a command").bhs.initiator_task_tag()
    };
    let lies: [fn(u32) -> Pdu; 7] = [
        |tag| lie(DataIn { data_sn: 1, ..honest(tag) }, 512),
        |tag| lie(DataIn { buffer_offset: 512, ..honest(tag) }, 512),
        |tag| lie(honest(tag), 1025),
        |tag| lie(honest(tag), 0),
        |tag| lie(honest(tag ^ 1), 512),
        |tag| Pdu { sealed: true, ..lie(honest(tag), 512) },
        |tag| {
            let r2t = R2t {
                lun: Lun(0),
                initiator_task_tag: tag,
                target_transfer_tag: 1,
                sequence: Sequence::default(),
                r2t_sn: 0,
                buffer_offset: 0,
                desired_data_transfer_bytes: 512,
            };
            pdu(r2t.encode(), &[])
        },
    ];
    fn honest(tag: u32) -> DataIn {
        DataIn {
            is_final: true,
            status: None,
            lun: Lun(0),
            initiator_task_tag: tag,
            sequence: Sequence::default(),
            data_sn: 0,
            buffer_offset: 0,
        }
    }
    fn lie(header: DataIn, len: usize) -> Pdu {
        pdu(header.encode(), &vec![0; len])
    }
    for make in lies {
        let mut pair = Pair::logged_in(initiator_config(), target::Config::default());
        let tag = tag(&mut pair);
        pair.initiator.handle_pdu(pair.now, make(tag));
        assert!(matches!(pair.initiator.poll_event(), Some(Event::Closed(CloseReason::Misbehaved(_)))));
    }
    // A sense length that reaches past the data is cut, not believed.
    let mut pair = Pair::logged_in(initiator_config(), target::Config::default());
    let tag = tag(&mut pair);
    let header = ScsiResponse {
        response: 0,
        status: 2,
        initiator_task_tag: tag,
        sequence: Sequence { stat_sn: Serial(2), exp_cmd_sn: Serial(2), max_cmd_sn: Serial(9) },
        exp_data_sn: 0,
        residual: strongroom_iscsi::Residual::None,
    };
    pair.initiator.handle_pdu(pair.now, pdu(header.encode(), &[0xff, 0xff, 0x70]));
    assert!(matches!(pair.initiator.poll_event(), Some(Event::Completed(done)) if done.sense == [0x70]));
}

/// At error recovery level 1 answers beyond one that is missing are remembered, but not without end.
#[test]
fn stat_sns_far_beyond_a_gap_end_the_session() {
    use strongroom_iscsi::initiator::{Command, Event};
    use strongroom_iscsi::pdu::{NopIn, Request, Sequence, TAG_NONE};
    use strongroom_iscsi::{Offer, PeerMisbehaved};
    const BEYOND_MAX: u32 = 1024;
    let offer = Offer { error_recovery_level: 1, ..Offer::default() };
    let initiator = strongroom_iscsi::initiator::Config { offer: offer.clone(), ..initiator_config() };
    let mut pair = Pair::logged_in(initiator, target::Config { offer, ..target::Config::default() });
    assert_eq!(pair.target.agreed().expect("in").error_recovery_level, 1);
    let nop = |stat_sn: Serial| {
        let sequence = Sequence { stat_sn, exp_cmd_sn: Serial(1), max_cmd_sn: Serial(9) };
        let nop = NopIn { lun: Lun(0), initiator_task_tag: 5, target_transfer_tag: TAG_NONE, sequence };
        pdu(nop.encode(), &[])
    };
    pair.initiator.submit(Command::without_data(Lun(0), [0; 16])).expect("in");
    let command = pair.initiator.poll_transmit().expect("a command");
    let Ok(Request::ScsiCommand(command)) = Request::decode(&command.bhs) else { panic!("{command:?}") };
    let expected = command.exp_stat_sn;
    for steps in 1..=BEYOND_MAX {
        pair.initiator.handle_pdu(pair.now, nop(expected.plus(steps)));
        assert!(pair.initiator.poll_event().is_none());
    }
    let found = expected.plus(BEYOND_MAX + 1);
    pair.initiator.handle_pdu(pair.now, nop(found));
    let misbehaved = PeerMisbehaved::StatSn { found: found.0, expected: expected.0 };
    match pair.initiator.poll_event() {
        Some(Event::Closed(reason)) => assert_eq!(reason, CloseReason::Misbehaved(misbehaved)),
        other => panic!("expected the end, got {other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_pdus_never_break_a_target(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        strongroom_iscsi::fuzz::fuzz_target(epoch(), &bytes);
    }

    #[test]
    fn arbitrary_pdus_never_break_an_initiator(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        strongroom_iscsi::fuzz::fuzz_initiator(epoch(), &bytes);
    }

    /// No step 13, which tampers: what was written and read must be whole.
    #[test]
    fn any_script_of_sound_steps_ends_well(mut bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        bytes.iter_mut().skip(1).filter(|byte| **byte % 16 == 13).for_each(|byte| *byte = 14);
        strongroom_iscsi::fuzz::fuzz_sequences(epoch(), &bytes);
    }

    /// Steps 13 that damage data (4 of the five ways): with digests at error recovery level 1 everything arrives all the same.
    #[test]
    fn any_script_of_damage_is_recovered_from(
        shape: u8,
        steps in prop::collection::vec((prop::sample::select(vec![0u8, 2, 4, 6, 8, 10, 13, 13]), any::<u8>(), any::<u8>()), 0..300),
    ) {
        let mut bytes = vec![shape | 1];
        for (step, first, second) in steps {
            bytes.push(step);
            match step {
                0 => bytes.extend([first, second]),
                10 => bytes.push(first),
                13 => bytes.extend([(first & 0x80) | (4 + 5 * (first % 25)) & 0x7f, 0, 0]),
                _ => {}
            }
        }
        strongroom_iscsi::fuzz::fuzz_sequences(epoch(), &bytes);
    }

    #[test]
    fn any_script_of_tampering_breaks_nothing(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        strongroom_iscsi::fuzz::fuzz_sequences(epoch(), &bytes);
    }
}
