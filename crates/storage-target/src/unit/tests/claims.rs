//! Proves that a claim is answered when nothing that it forbids is at work any more, and that sessions that write without a lease wait for
//! lapsed ones to be gone from the disk.

use strongroom_block::VolumeId;
use strongroom_scsi::copy::{Segment, encode};
use strongroom_scsi::inquiry;
use strongroom_scsi::vendor::lease::{Claim, LeaseId, LeaseMode};
use strongroom_store::Outcome;

use super::*;
use crate::names::VolumeName;
use crate::volume::tests::sample;

const OTHER: SessionKey = SessionKey(2);

impl Bench {
    fn attach_other(&mut self) {
        let nexus = NexusId { initiator_name: "iqn.b".into(), isid: [0; 6], target_portal_group: 1 };
        self.unit.attach(OTHER, nexus, here(), false);
        let command = self.command(cdb::test_unit_ready(), Direction::None, 0, &[]);
        self.unit.submit(OTHER, command, 16);
    }

    fn submit_claim(&mut self, session: SessionKey, id: u8, take_over: bool) -> (TaskId, Verdict) {
        let claim = Claim {
            id: LeaseId([id; 16]),
            mode: LeaseMode::Exclusive,
            take_over,
            sole: false,
            resume: false,
            seconds: 60,
            description: String::new(),
        };
        let list = claim.encode();
        let cdb = VendorCommand::ClaimLease { parameter_list_len: list.len() as u32 }.encode();
        let command = self.command(cdb, Direction::Write, list.len() as u32, &list);
        let task = command.task;
        (task, self.unit.submit(session, command, 16))
    }

    fn write_of(&mut self, session: SessionKey) -> Option<u8> {
        let command = self.command(cdb::write_16(Lba(0), 1, false), Direction::Write, BLOCK as u32, &[7; BLOCK]);
        let task = command.task;
        match self.unit.submit(session, command, 16) {
            Verdict::Answer(response) => Some(response.status),
            Verdict::Later => Some(self.finish(task).status),
            Verdict::Violation(_) => None,
        }
    }
}

/// A copy to another unit is at work for as long as that one does not answer.
fn begin_copy(bench: &mut Bench) -> TaskId {
    let mut other = sample(strongroom_block::Custody::KeyFile);
    (other.name, other.id, other.sealed) = (VolumeName::new("other").unwrap(), VolumeId([9; 16]), None);
    other.geometry = bench.unit.volume().geometry;
    bench.unit.server.identity.environment().open_units.enter(&other, 1);
    let naa = |id| inquiry::identification(id, "iqn.x", 1)[8..16].try_into().unwrap();
    let units = [naa(bench.unit.volume().id), naa(other.id)];
    let segment = Segment { blocks: 8, source: 0u16, from: Lba(0), destination: 1, to: Lba(0) };
    let list = encode(&units, BLOCK as u32, &[segment]);
    let mut cdb = [0; 16];
    cdb[0] = 0x83;
    cdb[10..14].copy_from_slice(&(list.len() as u32).to_be_bytes());
    let command = bench.command(cdb, Direction::Write, list.len() as u32, &list);
    let task = command.task;
    assert!(matches!(bench.unit.submit(KEY, command, 16), Verdict::Later));
    task
}

#[test]
fn a_take_over_is_answered_when_what_it_aborted_is_over() {
    let mut bench = Bench::plain();
    let (task, _) = bench.submit_claim(KEY, 1, false);
    assert_eq!(bench.finish(task).status, 0);
    let copy = begin_copy(&mut bench);
    let (mut finished, mut outward) = (Vec::new(), Vec::new());
    while outward.is_empty() {
        bench.unit.poll(&mut finished);
        outward = bench.unit.take_outgoing();
    }
    bench.attach_other();
    let (claim, verdict) = bench.submit_claim(OTHER, 2, true);
    assert!(matches!(verdict, Verdict::Later));
    let file = bench._dir.path().join("disk/leases.toml");
    let is_kept = || std::fs::read_to_string(&file).is_ok_and(|text| text.contains(&"02".repeat(16)));
    let begun = Instant::now();
    while !is_kept() || bench.unit.server.access.leases.is_writing() {
        assert!(begun.elapsed() < PATIENCE);
        bench.unit.poll(&mut finished);
    }
    (0..100).for_each(|_| bench.unit.poll(&mut finished));
    assert!(finished.is_empty(), "{finished:?}");
    assert_eq!(bench.write_of(KEY), Some(2), "a unit attention says that it was preempted");
    assert_eq!(bench.write_of(KEY), Some(Status::ReservationConflict as u8));
    let written = Outcome::Written { first: strongroom_block::StoreSequence(1), repeated: 0, superseded: 0 };
    bench.unit.take_reply(outward.remove(0).token, Ok(written));
    while finished.len() < 2 {
        assert!(begun.elapsed() < PATIENCE);
        bench.unit.poll(&mut finished);
    }
    let status_of = |task| finished.iter().find(|one| one.task == task).unwrap().response.as_ref().unwrap().status;
    assert_eq!((status_of(copy), status_of(claim)), (Status::TaskAborted as u8, 0));
    assert_eq!(bench.write_of(OTHER), Some(0));
}

#[test]
fn a_lapsed_lease_is_gone_from_the_disk_before_another_session_writes() {
    let mut bench = Bench::plain();
    bench.attach_other();
    let (_, verdict) = bench.submit_claim(OTHER, 2, false);
    assert!(matches!(verdict, Verdict::Answer(response) if response.status == Status::ReservationConflict as u8));
    bench.unit.detach(KEY);
    let (task, _) = bench.submit_claim(OTHER, 2, false);
    assert_eq!(bench.finish(task).status, 0);
    let nexus = NexusId { initiator_name: "iqn.a".into(), isid: [0; 6], target_portal_group: 1 };
    bench.unit.attach(KEY, nexus, here(), false);
    assert_eq!(bench.write_of(KEY), Some(2), "power on");
    let now = Instant::now();
    bench.unit.tick(now);
    bench.unit.detach(OTHER);
    bench.unit.tick(now + Duration::from_secs(59));
    assert_eq!(bench.write_of(KEY), Some(Status::ReservationConflict as u8));
    bench.unit.tick(now + Duration::from_secs(60));
    let file = bench._dir.path().join("disk/leases.toml");
    assert_eq!(bench.write_of(KEY), Some(Status::Busy as u8));
    let begun = Instant::now();
    while bench.write_of(KEY) == Some(Status::Busy as u8) {
        assert!(begun.elapsed() < PATIENCE);
        bench.unit.poll(&mut Vec::new());
    }
    assert!(!file.exists());
    assert_eq!(bench.write_of(KEY), Some(0));
}
