//! Proves that an initiator that breaks the rules is answered, or loses its session with a reason; and that it cannot pin more
//! than the limits say. A hostile target, and arbitrary PDUs, are in `hostile_target`.

mod logins;
mod memory;

use strongroom_block::Buffer;
use strongroom_iscsi::pdu::{
    Answer, Attribute, DataOut, LoginRequest, NopOut, RejectReason, ScsiCommand, TAG_NONE, TextRequest,
};
use strongroom_iscsi::target::{self, Event, Response};
use strongroom_iscsi::{Bhs, CloseReason, LoginStatus, Lun, Offer, Pdu, PeerMisbehaved, Serial};

use crate::pair::{TARGET, Target, epoch, pdu};

/// A target session in full-feature phase, and a way to say anything to it.
struct Victim {
    session: Target,
    now: std::time::Instant,
    cmd_sn: u32,
}

fn login(flags: u8, cmd_sn: u32) -> LoginRequest {
    LoginRequest {
        transit: flags & 0x80 != 0,
        continues: flags & 0x40 != 0,
        current_stage: flags >> 2 & 3,
        next_stage: flags & 3,
        cmd_sn: Serial(cmd_sn),
        ..LoginRequest::one_step([0; 6])
    }
}

impl Victim {
    fn fresh(config: target::Config) -> Victim {
        let now = epoch();
        Victim { session: Target::new(now, config), now, cmd_sn: 100 }
    }

    fn logged_in(config: target::Config, keys: &str) -> Victim {
        let mut victim = Victim::fresh(config);
        let text = format!("InitiatorName=iqn.x:a\0TargetName={TARGET}\0{keys}");
        victim.say(login(0x87, 100).encode(), text.as_bytes());
        victim.session.requested();
        victim.session.accept(victim.now, 1);
        assert!(victim.session.is_logged_in());
        assert!(matches!(victim.hear(), Some((Answer::Login(answer), _)) if answer.status == LoginStatus::SUCCESS));
        victim
    }

    fn say(&mut self, bhs: Bhs, data: &[u8]) {
        self.session.handle_pdu(self.now, pdu(bhs, data));
    }

    fn hear(&mut self) -> Option<(Answer, Pdu)> {
        let pdu = self.session.poll_transmit()?;
        Some((Answer::decode(&pdu.bhs).expect("we send sound headers"), pdu))
    }

    fn write(&mut self, tag: u32, expected: u32, is_final: bool, data: &[u8]) {
        let command = ScsiCommand {
            immediate: false,
            is_final,
            read: false,
            write: true,
            attribute: Attribute::Simple,
            lun: Lun(0),
            initiator_task_tag: tag,
            expected_data_transfer_bytes: expected,
            cmd_sn: Serial(self.cmd_sn),
            exp_stat_sn: Serial(0),
            cdb: [0; 16],
        };
        self.cmd_sn += 1;
        self.say(command.encode(), data);
    }

    fn data_out(&mut self, tag: u32, ttt: u32, data_sn: u32, buffer_offset: u32, is_final: bool, data: &[u8]) {
        let header = DataOut {
            is_final,
            lun: Lun(0),
            initiator_task_tag: tag,
            target_transfer_tag: ttt,
            exp_stat_sn: Serial(0),
            data_sn,
            buffer_offset,
        };
        self.say(header.encode(), data);
    }

    fn r2t(&mut self) -> strongroom_iscsi::pdu::R2t {
        match self.hear() {
            Some((Answer::R2t(r2t), _)) => r2t,
            other => panic!("expected an R2T, got {other:?}"),
        }
    }

    /// A write that the target asks the data of.
    fn asked_write(&mut self, tag: u32, expected: u32) -> strongroom_iscsi::pdu::R2t {
        self.write(tag, expected, true, &[]);
        self.r2t()
    }

    fn expect_sense(&mut self, tag: u32, key: u8, code: [u8; 2]) {
        match self.hear() {
            Some((Answer::ScsiResponse(answer), pdu)) => {
                assert_eq!((answer.status, answer.initiator_task_tag), (2, tag));
                assert_eq!((pdu.data[2 + 2] & 15, &pdu.data[2 + 12..2 + 14]), (key, &code[..]));
            }
            other => panic!("expected CHECK CONDITION, got {other:?}"),
        }
    }

    fn expect_reject(&mut self, reason: RejectReason) {
        match self.hear() {
            Some((Answer::Reject(answer), pdu)) => {
                assert_eq!(answer.reason, reason as u8);
                assert_eq!(pdu.data.len(), 48, "with the header that was rejected");
            }
            other => panic!("expected a reject, got {other:?}"),
        }
    }

    fn expect_alive(&mut self) {
        assert!(!self.session.is_closed());
        let tag = 0x7000_0000 + self.cmd_sn;
        self.write(tag, 0, true, &[]);
        match self.session.poll_event() {
            Some(Event::Command(command)) => assert!(self.session.complete(command.task, Response::good())),
            other => panic!("expected a command, got {other:?}"),
        }
        assert!(matches!(self.hear(), Some((Answer::ScsiResponse(answer), _)) if answer.status == 0));
        assert!(self.hear().is_none());
    }

    fn closed(&mut self) -> CloseReason {
        self.session.closed().expect("it is over")
    }
}

fn small() -> target::Config {
    let offer = Offer { first_burst_bytes: 1024, max_burst_bytes: 2048, ..Offer::default() };
    target::Config { offer, transfer_bytes_max: 65536, ..target::Config::default() }
}

const KEYS: &str = "InitialR2T=No\0ImmediateData=Yes\0FirstBurstLength=1024\0MaxBurstLength=2048\0";

#[test]
fn gaps_overlaps_and_overlong_data_end_the_command_alone() {
    // What is said in answer to an R2T for 2048 bytes at 0: DataSN, offset, final, length.
    let wrong: [(u32, u32, bool, usize); 6] = [
        (1, 0, false, 512),
        (0, 512, false, 512),
        (0, 0, false, 2049),
        (0, 0, true, 512),
        (0, 0, false, 0),
        (0, u32::MAX - 3, false, 512),
    ];
    for (data_sn, offset, is_final, len) in wrong {
        let mut victim = Victim::logged_in(small(), KEYS);
        let r2t = victim.asked_write(9, 4096);
        assert_eq!((r2t.buffer_offset, r2t.desired_data_transfer_bytes), (0, 2048));
        victim.data_out(9, r2t.target_transfer_tag, data_sn, offset, is_final, &vec![0; len]);
        victim.expect_sense(9, 0x0b, [0x0c, 0x0d]);
        // The rest of the burst was on its way already: dropped without a word.
        victim.data_out(9, r2t.target_transfer_tag, 2, 1024, true, &[0; 1024]);
        assert!(victim.hear().is_none());
        victim.expect_alive();
    }
}

#[test]
fn a_second_data_sn_must_follow_the_first() {
    let mut victim = Victim::logged_in(small(), KEYS);
    let ttt = victim.asked_write(9, 2048).target_transfer_tag;
    victim.data_out(9, ttt, 0, 0, false, &[0; 512]);
    victim.data_out(9, ttt, 2, 512, false, &[0; 512]);
    victim.expect_sense(9, 0x0b, [0x0c, 0x0d]);
    victim.expect_alive();
}

#[test]
fn unsolicited_data_where_none_is_allowed_ends_the_command() {
    let mut victim = Victim::logged_in(small(), "InitialR2T=Yes\0ImmediateData=No\0");
    victim.write(1, 4096, true, &[0; 512]);
    victim.expect_sense(1, 0x0b, [0x0c, 0x0c]);
    victim.write(2, 4096, false, &[]);
    victim.expect_sense(2, 0x0b, [0x0c, 0x0c]);
    victim.asked_write(3, 2048);
    victim.data_out(3, TAG_NONE, 0, 0, false, &[0; 512]);
    victim.expect_sense(3, 0x0b, [0x0c, 0x0c]);
    victim.expect_alive();
}

#[test]
fn immediate_data_beyond_burst_or_transfer_ends_the_command() {
    let mut victim = Victim::logged_in(small(), KEYS);
    victim.write(1, 4096, true, &[0; 1025]);
    victim.expect_sense(1, 0x0b, [0x0c, 0x0d]);
    victim.write(2, 100, true, &[0; 101]);
    victim.expect_sense(2, 0x0b, [0x0c, 0x0d]);
    victim.write(3, 65537, true, &[0; 512]);
    victim.expect_sense(3, 0x05, [0x24, 0x00]);
    victim.write(4, u32::MAX, false, &[]);
    victim.expect_sense(4, 0x05, [0x24, 0x00]);
    victim.data_out(4, TAG_NONE, 0, 0, true, &[0; 512]);
    victim.expect_alive();
}

#[test]
fn tags_that_name_nothing_are_rejected() {
    let mut victim = Victim::logged_in(small(), KEYS);
    let ttt = victim.asked_write(9, 2048).target_transfer_tag;
    victim.data_out(9, ttt ^ 1, 0, 0, false, &[0; 512]);
    victim.expect_reject(RejectReason::InvalidPduField);
    victim.data_out(10, ttt, 0, 0, false, &[0; 512]);
    victim.expect_reject(RejectReason::InvalidPduField);
    victim.write(9, 512, true, &[]);
    victim.expect_reject(RejectReason::TaskInProgress);
    victim.write(TAG_NONE, 512, true, &[]);
    victim.expect_reject(RejectReason::InvalidPduField);
    victim.data_out(9, ttt, 0, 0, true, &[7; 2048]);
    assert!(matches!(victim.session.poll_event(), Some(Event::Command(command)) if command.gather()[..] == [7; 2048]));
    victim.expect_alive();
}

#[test]
fn a_tag_of_an_earlier_write_never_meets_a_later_one() {
    let mut victim = Victim::logged_in(small(), KEYS);
    let mut tags = std::collections::HashSet::new();
    for round in 0..50 {
        let ttt = victim.asked_write(9, 2048).target_transfer_tag;
        assert!(tags.insert(ttt), "round {round}: a tag came back");
        victim.data_out(9, ttt, 0, 0, true, &[0; 2048]);
        let Some(Event::Command(command)) = victim.session.poll_event() else { panic!("a command") };
        victim.session.complete(command.task, Response::good());
        victim.hear();
    }
}

#[test]
fn an_aborted_write_is_not_asked_for() {
    use strongroom_iscsi::pdu::{TaskFunction, TaskManagementRequest, TaskManagementResult};
    let mut victim = Victim::logged_in(small(), KEYS);
    victim.write(9, 2048, true, &[]);
    let abort = TaskManagementRequest {
        immediate: true,
        function: TaskFunction::AbortTask as u8,
        lun: Lun(0),
        initiator_task_tag: 10,
        referenced_task_tag: 9,
        cmd_sn: Serial(victim.cmd_sn),
        exp_stat_sn: Serial(0),
        ref_cmd_sn: Serial(100),
        exp_data_sn: 0,
    };
    for result in [TaskManagementResult::Complete, TaskManagementResult::TaskDoesNotExist] {
        victim.say(abort.encode(), &[]);
        assert!(matches!(victim.hear(), Some((Answer::TaskManagement(answer), _)) if answer.result == result));
    }
    for (function, result) in
        [(8, TaskManagementResult::ReassignNotSupported), (99, TaskManagementResult::NotSupported)]
    {
        victim.say(TaskManagementRequest { function, ..abort }.encode(), &[]);
        assert!(matches!(victim.hear(), Some((Answer::TaskManagement(answer), _)) if answer.result == result));
    }
    victim.expect_alive();
}

/// A target session at error recovery level 1.
fn at_level_1() -> Victim {
    let mut config = small();
    config.offer.error_recovery_level = 1;
    Victim::logged_in(config, &format!("{KEYS}ErrorRecoveryLevel=1\0"))
}

/// Else each command that is aborted leaves its R2Ts behind.
#[test]
fn what_was_sent_for_an_aborted_task_is_not_kept() {
    use strongroom_iscsi::pdu::{SnackRequest, TaskFunction, TaskManagementRequest, TaskManagementResult};
    for function in [TaskFunction::AbortTask, TaskFunction::ClearTaskSet, TaskFunction::LogicalUnitReset] {
        let mut victim = at_level_1();
        victim.asked_write(9, 2048);
        let snack = SnackRequest {
            kind: 0,
            lun: Lun(0),
            initiator_task_tag: 9,
            target_transfer_tag: TAG_NONE,
            begin_run: 0,
            run_length: 1,
        };
        victim.say(snack.encode(), &[]);
        victim.r2t();
        let abort = TaskManagementRequest {
            immediate: true,
            function: function as u8,
            lun: Lun(0),
            initiator_task_tag: 10,
            referenced_task_tag: 9,
            cmd_sn: Serial(victim.cmd_sn),
            exp_stat_sn: Serial(0),
            ref_cmd_sn: Serial(100),
            exp_data_sn: 0,
        };
        victim.say(abort.encode(), &[]);
        if let Some(Event::TaskManagement(request)) = victim.session.poll_event() {
            victim.session.answer_task_management(request.id, TaskManagementResult::Complete.into());
        }
        assert!(
            matches!(victim.hear(), Some((Answer::TaskManagement(answer), _)) if answer.result == TaskManagementResult::Complete)
        );
        victim.say(snack.encode(), &[]);
        victim.expect_reject(RejectReason::SnackReject);
        victim.expect_alive();
    }
}

#[test]
fn data_that_is_damaged_for_ever_ends_the_session() {
    const DAMAGED_MAX: u32 = 4096;
    let mut victim = at_level_1();
    victim.write(9, 4, true, &[]);
    let damage = |victim: &mut Victim| {
        let header = DataOut {
            is_final: true,
            lun: Lun(0),
            initiator_task_tag: 9,
            target_transfer_tag: victim.r2t().target_transfer_tag,
            exp_stat_sn: Serial(0),
            data_sn: 0,
            buffer_offset: 0,
        };
        victim.session.handle_corrupt_pdu(victim.now, &pdu(header.encode(), &[0; 4]));
    };
    for _ in 0..DAMAGED_MAX {
        damage(&mut victim);
        victim.expect_reject(RejectReason::DataDigestError);
    }
    assert!(!victim.session.is_closed());
    damage(&mut victim);
    assert_eq!(victim.closed(), CloseReason::Damaged);
}

#[test]
fn recovery_and_unknown_requests_are_rejected() {
    let mut victim = Victim::logged_in(small(), KEYS);
    let mut header = [0; 48];
    header[0] = 0x10;
    header[1] = 0x80;
    victim.say(Bhs(header), &[]);
    victim.expect_reject(RejectReason::SnackReject);
    for opcode in [0x1f, 0x21, 0x3f, 0x07] {
        header[0] = opcode;
        victim.say(Bhs(header), &[]);
        victim.expect_reject(RejectReason::CommandNotSupported);
    }
    victim.say(login(0x87, 0).encode(), &[]);
    victim.expect_reject(RejectReason::ProtocolError);
    victim.expect_alive();
}

#[test]
fn a_flood_of_pings_that_nobody_reads_ends_the_session() {
    let mut victim = Victim::logged_in(small(), KEYS);
    let nop = NopOut {
        immediate: true,
        lun: Lun(0),
        initiator_task_tag: 5,
        target_transfer_tag: TAG_NONE,
        cmd_sn: Serial(100),
        exp_stat_sn: Serial(0),
    };
    let mut asked_to_stop = false;
    for _ in 0..=target::ANSWERS_MAX {
        victim.say(nop.encode(), &[1; 64]);
        asked_to_stop |= !victim.session.accepts_input();
    }
    assert!(asked_to_stop, "the driver is asked to stop reading first");
    assert!(matches!(victim.closed(), CloseReason::Misbehaved(PeerMisbehaved::Flood { .. })));
}

#[test]
fn a_flood_of_large_pings_is_counted_in_bytes() {
    let mut victim = Victim::logged_in(small(), "MaxRecvDataSegmentLength=262144\0");
    let nop = NopOut {
        immediate: true,
        lun: Lun(0),
        initiator_task_tag: 5,
        target_transfer_tag: TAG_NONE,
        cmd_sn: Serial(100),
        exp_stat_sn: Serial(0),
    };
    let mut said = 0;
    while !victim.session.is_closed() {
        said += 1;
        victim.say(nop.encode(), &vec![1; 262_144]);
        assert!(said < 4 || !victim.session.accepts_input());
    }
    assert_eq!(said * 262_144, target::ANSWERS_BYTES_MAX + 262_144);
    assert!(matches!(victim.closed(), CloseReason::Misbehaved(PeerMisbehaved::Flood { .. })));
}

#[test]
fn a_second_question_waits_for_the_answer_to_the_first() {
    let mut victim = Victim::logged_in(small(), KEYS);
    let text = TextRequest {
        immediate: true,
        is_final: true,
        continues: false,
        lun: Lun(0),
        initiator_task_tag: 3,
        target_transfer_tag: TAG_NONE,
        cmd_sn: Serial(100),
        exp_stat_sn: Serial(0),
    };
    victim.say(text.encode(), b"SendTargets=\0");
    victim.say(text.encode(), b"SendTargets=\0");
    victim.expect_reject(RejectReason::ProtocolError);
    assert!(matches!(victim.session.poll_event(), Some(Event::SendTargets(..))));
    assert!(victim.session.poll_event().is_none());
    victim.session.send_targets(&[]);
    assert!(matches!(victim.hear(), Some((Answer::Text(answer), _)) if answer.is_final));
}

/// An initiator that declares less than a block gets an error, and no PDU that it does not take.
#[test]
fn a_sealed_block_that_does_not_fit_is_not_sent() {
    use strongroom_block::{AttachId, Mode, RecordFlags, SealRecord, Stamp, StoreSequence, Suite};
    use strongroom_iscsi::target::ReadPart;
    use strongroom_scsi::transport::StoredRecords;
    let config = target::Config { in_channel: true, ..small() };
    let mut victim = Victim::logged_in(config, "MaxRecvDataSegmentLength=512\0");
    assert_eq!(victim.session.sealed_blocks_max(4096, 64), 0);
    let command = ScsiCommand {
        immediate: false,
        is_final: true,
        read: true,
        write: false,
        attribute: Attribute::Simple,
        lun: Lun(0),
        initiator_task_tag: 1,
        expected_data_transfer_bytes: 4096,
        cmd_sn: Serial(100),
        exp_stat_sn: Serial(0),
        cdb: [0; 16],
    };
    victim.cmd_sn += 1;
    victim.say(command.encode(), &[]);
    let Some(Event::Command(command)) = victim.session.poll_event() else { panic!("a command") };
    let stamp = Stamp { attach_id: AttachId([1; 16]), counter: 1 };
    let record = SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, RecordFlags(0), 1, stamp, 0, [0; 16]);
    let records = StoredRecords::new(64, [(StoreSequence(1), &record)].into_iter(), false);
    let part = ReadPart::Sealed { data: Buffer::copy_from(&[0; 4096]), records };
    victim.session.complete(command.task, Response { data: vec![part], ..Response::good() });
    victim.expect_sense(1, 0x05, [0x26, 0x02]);
    victim.expect_alive();
}

#[test]
fn a_sealed_pdu_outside_a_channel_or_without_records_ends_the_session() {
    for in_channel in [false, true] {
        let mut victim = Victim::logged_in(target::Config { in_channel, ..small() }, KEYS);
        let command = ScsiCommand {
            immediate: false,
            is_final: true,
            read: false,
            write: true,
            attribute: Attribute::Simple,
            lun: Lun(0),
            initiator_task_tag: 1,
            expected_data_transfer_bytes: 512,
            cmd_sn: Serial(100),
            exp_stat_sn: Serial(0),
            cdb: [0; 16],
        };
        let sealed = Pdu { sealed: true, ..pdu(command.encode(), &[0; 512]) };
        victim.session.handle_pdu(victim.now, sealed);
        assert!(matches!(victim.closed(), CloseReason::Misbehaved(_)));
    }
}
