//! Proves that a session is read on as soon as there is room for what it asks, and that sessions which ask for very much at once leave
//! room to each other. By hand: everything is sent before anything is read.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use bytes::Bytes;
use strongroom_block::{Buffer, Lba};
use strongroom_iscsi::pdu::{Answer, Attribute, LoginRequest, NopOut, ScsiCommand, TAG_NONE};
use strongroom_iscsi::{Bhs, Digests, LoginStatus, Pdu, PlainFramer, Serial};
use strongroom_scsi::cdb;
use strongroom_target::VolumeSpec;

use crate::support::{ALICE, BLOCK, Host, LUN, MIB, PATIENCE, target_name};

struct Speaker {
    stream: TcpStream,
    cmd_sn: u32,
    out: Vec<u8>,
}

impl Speaker {
    fn log_in(host: &Host, which: u8) -> Speaker {
        let stream = TcpStream::connect(host.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut speaker = Speaker { stream, cmd_sn: 1, out: Vec::new() };
        let text = format!("InitiatorName={ALICE}\0TargetName={}\0SessionType=Normal\0", target_name("disk"));
        speaker.put(LoginRequest::one_step([0x80, 0, 0, 0, 0, which]).encode(), text.as_bytes());
        speaker.say();
        match speaker.hear() {
            Answer::Login(answer) => assert_eq!(answer.status, LoginStatus::SUCCESS),
            other => panic!("{other:?}"),
        }
        // The unit attention for power on.
        speaker.command(0, cdb::test_unit_ready(), &[]);
        speaker.say();
        assert_eq!(speaker.status(), 2);
        speaker
    }

    fn put(&mut self, bhs: Bhs, data: &[u8]) {
        let mut parts = Vec::new();
        let pdu = Pdu::new(bhs, Bytes::new(), Buffer::copy_from(data), false);
        PlainFramer::encode(pdu, Digests::default(), &mut parts);
        parts.iter().for_each(|part| self.out.extend_from_slice(part));
    }

    fn command(&mut self, tag: u32, cdb: [u8; 16], data: &[u8]) {
        let command = ScsiCommand {
            immediate: false,
            is_final: true,
            read: false,
            write: !data.is_empty(),
            attribute: Attribute::Simple,
            lun: LUN,
            initiator_task_tag: tag,
            expected_data_transfer_bytes: data.len() as u32,
            cmd_sn: Serial(self.cmd_sn),
            exp_stat_sn: Serial(0),
            cdb,
        };
        self.cmd_sn += 1;
        self.put(command.encode(), data);
    }

    fn nop(&mut self, tag: u32) {
        let nop = NopOut {
            immediate: true,
            lun: LUN,
            initiator_task_tag: tag,
            target_transfer_tag: TAG_NONE,
            cmd_sn: Serial(self.cmd_sn),
            exp_stat_sn: Serial(0),
        };
        self.put(nop.encode(), &[]);
    }

    fn say(&mut self) {
        self.stream.write_all(&std::mem::take(&mut self.out)).unwrap();
    }

    #[track_caller]
    fn hear(&mut self) -> Answer {
        let mut header = [0; 48];
        self.stream.read_exact(&mut header).expect("an answer in time");
        let bhs = Bhs(header);
        let mut data = vec![0; bhs.data_segment_bytes().next_multiple_of(4)];
        self.stream.read_exact(&mut data).expect("the rest of it");
        Answer::decode(&bhs).expect("a sound answer")
    }

    #[track_caller]
    fn status(&mut self) -> u8 {
        match self.hear() {
            Answer::ScsiResponse(answer) => answer.status,
            other => panic!("{other:?}"),
        }
    }
}

/// More answers at once than a session may have waiting: they have left when the session is looked at, and it is read on.
#[test]
fn a_burst_of_answers_does_not_stop_reading() {
    let host = Host::start_with(&[VolumeSpec::plain("disk", 16 * MIB)], |config| config.limits.ping_after_s = 3600);
    let mut speaker = Speaker::log_in(&host, 1);
    for round in 0..3 {
        (0..700).for_each(|tag| speaker.nop(round * 1000 + tag));
        speaker.say();
        for _ in 0..700 {
            assert!(matches!(speaker.hear(), Answer::NopIn(_)));
        }
    }
}

/// Together they ask for twice as much as a store takes in at once: flushes, which take a place and move nothing, and here and there a
/// write that gives them something to wait for.
#[test]
fn attack_fill_the_queue_of_a_store() {
    const SESSIONS: u8 = 8;
    const COMMANDS: u32 = 990;
    let host = Host::start_with(&[VolumeSpec::plain("disk", 16 * MIB)], |config| config.limits.ping_after_s = 3600);
    for immediate in [false, true] {
        let mut speakers: Vec<Speaker> = (0..SESSIONS).map(|which| Speaker::log_in(&host, which)).collect();
        for speaker in &mut speakers {
            for tag in 0..COMMANDS {
                let mut flush = cdb::synchronize_cache_16(Lba(0), 0);
                flush[1] |= u8::from(immediate) << 1;
                match tag % 10 {
                    0 => speaker.command(tag, cdb::write_16(Lba(tag.into()), 1, false), &[7; BLOCK]),
                    _ => speaker.command(tag, flush, &[]),
                }
            }
        }
        speakers.iter_mut().for_each(Speaker::say);
        for speaker in &mut speakers {
            for _ in 0..COMMANDS {
                assert_eq!(speaker.status(), 0, "nobody is told BUSY");
            }
        }
    }
}
