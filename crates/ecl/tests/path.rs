//! Proves what both ends do about their path. Where its packets must become shorter in the midst of transfers, nothing is lost: both ends find
//! out, say so once, use the longest size that passes, and all blocks arrive as they were sent. Where it marks packets, less is sent at once.

#[path = "hostile/pair.rs"]
mod pair;

use std::net::SocketAddr;
use std::time::Duration;

use pair::{Pair, address, datagram};
use strongroom_block::{
    AttachId, Buffer, Mode, RecordFlags, SealRecord, Stamp, StoreSequence, Suite, keyless_checksum,
};
use strongroom_ecl::initiator::EclEvent;
use strongroom_ecl::{Config, CongestionAlgorithm, Datagram, EclKeys, Ecn, PathReduction, Scheme};
use strongroom_scsi::transport::initiator::{Command, DataContent, Event, WriteRecords, WriteSource};
use strongroom_scsi::transport::target::{self as unit, ReadPart, Response};
use strongroom_scsi::transport::{Lun, StoredRecords};

const BLOCK: usize = 4096;
const BLOCKS: usize = 64;
const LONG: Path = Path { packet_bytes_max: usize::MAX, ecn: Ecn::Capable0 };
/// An MTU of 2400, less the headers of IP and UDP.
const SHORT: Path = Path { packet_bytes_max: 2372, ecn: Ecn::Capable0 };
const REDUCTION: PathReduction = PathReduction { from_bytes: 4272, to_bytes: 2224 };

/// What a path does to packets: it loses longer ones, and marks those to the target.
#[derive(Clone, Copy)]
struct Path {
    packet_bytes_max: usize,
    ecn: Ecn,
}

fn config(peer: SocketAddr) -> Config {
    Config::new(EclKeys::new([7; 32], Scheme::Lazy, Suite::Aes256Gcm), 1, peer, BLOCK as u32)
}

/// Different in every block.
fn data() -> Vec<u8> {
    (0..BLOCKS * BLOCK).map(|at| (at / BLOCK * 7 + at / 11) as u8).collect()
}

fn records(data: &[u8]) -> Vec<SealRecord> {
    let record = |(block, counter): (&[u8], u64)| {
        let stamp = Stamp { attach_id: AttachId([7; 16]), counter };
        let sum = keyless_checksum(block);
        SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, RecordFlags::default(), 3, stamp, sum, [5; 16])
    };
    data.chunks(BLOCK).zip(1..).map(record).collect()
}

/// What the two ends have said of the path.
#[derive(Debug, Default, PartialEq, Eq)]
struct Reductions {
    initiator: Vec<PathReduction>,
    target: Vec<PathReduction>,
}

impl Pair {
    /// Carries packets by a path while time passes, until a command has arrived or been completed.
    fn carry(&mut self, path: Path, reductions: &mut Reductions) -> (Option<unit::Command>, Vec<u8>, bool) {
        let (mut returned, mut is_completed) = (Vec::new(), false);
        for _ in 0..5_000 {
            while let Some(transmit) = self.initiator.poll_transmit(self.now) {
                if transmit.len_bytes() <= path.packet_bytes_max {
                    let arriving = datagram(address(1, 5000), &transmit);
                    self.target.handle_datagram(self.now, Datagram { ecn: path.ecn, ..arriving });
                }
            }
            while let Some(transmit) = self.target.poll_transmit(self.now) {
                if transmit.len_bytes() <= path.packet_bytes_max {
                    self.give_to_initiator(&transmit);
                }
            }
            let mut command = None;
            while let Some(event) = self.target.poll_event() {
                match event {
                    unit::Event::Command(arrived) => command = Some(arrived),
                    unit::Event::Transport(reduction) => reductions.target.push(reduction),
                    other => panic!("nothing else was asked for: {other:?}"),
                }
            }
            while let Some(event) = self.initiator.poll_event() {
                match event {
                    Event::DataIn(part) => match part.content {
                        DataContent::Sealed { data, .. } => returned.extend_from_slice(&data),
                        other => panic!("only sealed blocks were asked for: {other:?}"),
                    },
                    Event::Completed(completed) => is_completed = completed.status == 0,
                    Event::Transport(EclEvent::PathReduced(reduction)) => reductions.initiator.push(reduction),
                    other => panic!("nothing else was asked for: {other:?}"),
                }
            }
            if command.is_some() || is_completed {
                return (command, returned, is_completed);
            }
            self.now += Duration::from_millis(2);
            self.initiator.handle_timeout(self.now);
            self.target.handle_timeout(self.now);
        }
        panic!("nothing arrives: {:?}, {:?}", self.initiator.statistics(), self.target.statistics());
    }

    fn write(&mut self, path: Path, reductions: &mut Reductions) {
        let data = data();
        let bytes: Vec<u8> = records(&data).iter().flat_map(|record| record.as_bytes().to_vec()).collect();
        let (block_bytes, record_bytes) = (BLOCK as u32, SealRecord::BASE_BYTES as u32);
        let records = WriteRecords { block_bytes, record_bytes, bytes: bytes.into() };
        let mut cdb = [0; 16];
        (cdb[0], cdb[13]) = (0x8a, BLOCKS as u8);
        let source = WriteSource { data: Buffer::copy_from(&data), records: Some(records) };
        self.initiator.submit(Command::write(Lun(0), cdb, source)).expect("taken");
        let (Some(command), ..) = self.carry(path, reductions) else { panic!("the write arrives") };
        assert!(command.gather()[..] == data, "as it was sent");
        self.target.complete(command.task, Response::good());
        assert!(self.carry(path, reductions).2);
    }

    fn read(&mut self, path: Path, reductions: &mut Reductions) {
        let mut cdb = [0; 16];
        (cdb[0], cdb[13]) = (0x88, BLOCKS as u8);
        let mut command = Command::read(Lun(0), cdb, (BLOCKS * BLOCK) as u32);
        command.sealed_block_bytes = Some(BLOCK as u32);
        self.initiator.submit(command).expect("taken");
        let (Some(command), ..) = self.carry(path, reductions) else { panic!("the command arrives") };
        let data = data();
        let records = records(&data);
        let entries = records.iter().map(|record| (StoreSequence(9), record)).collect::<Vec<_>>().into_iter();
        let records = StoredRecords::new(8 + SealRecord::BASE_BYTES, entries, false);
        let part = ReadPart::Sealed { data: Buffer::copy_from(&data), records };
        self.target.complete(command.task, Response { data: vec![part], ..Response::good() });
        let (_, returned, is_completed) = self.carry(path, reductions);
        assert!(is_completed && returned == data, "as it was stored");
    }
}

#[test]
fn a_path_that_shrinks_loses_nothing_and_both_ends_say_so_once() {
    let mut pair = Pair::established(config);
    let mut reductions = Reductions::default();
    pair.write(LONG, &mut reductions);
    pair.read(LONG, &mut reductions);
    let sizes = |pair: &Pair| [pair.initiator.statistics(), pair.target.statistics()].map(|end| end.packet_bytes);
    assert_eq!((sizes(&pair), &reductions), ([4272, 4272], &Reductions::default()));
    // A write finds it out at the initiator, a read at the target. Many packets of the old size are on their way by then.
    pair.write(SHORT, &mut reductions);
    assert_eq!(reductions, Reductions { initiator: vec![REDUCTION], target: vec![] });
    pair.read(SHORT, &mut reductions);
    assert_eq!(reductions, Reductions { initiator: vec![REDUCTION], target: vec![REDUCTION] });
    pair.write(SHORT, &mut reductions);
    pair.read(SHORT, &mut reductions);
    assert_eq!((reductions.initiator.len(), reductions.target.len()), (1, 1), "no more than once for one change");
    assert_eq!(sizes(&pair), [2224, 2224], "the longest that passes");
    for end in [pair.initiator.statistics(), pair.target.statistics()] {
        assert_eq!(end.black_holes, 1, "{end:?}");
    }
}

#[test]
fn packets_that_the_network_marks_keep_the_window_small() {
    for congestion in [CongestionAlgorithm::Cubic, CongestionAlgorithm::Bbr] {
        let window = |ecn: Ecn| {
            let mut pair = Pair::established(|peer| Config { congestion, ..config(peer) });
            let mut reductions = Reductions::default();
            let before = pair.initiator.statistics().window_bytes;
            (0..8).for_each(|_| pair.write(Path { ecn, ..LONG }, &mut reductions));
            assert_eq!(pair.initiator.statistics().packets_lost, 0);
            (before, pair.initiator.statistics().window_bytes)
        };
        let ((before, free), (_, marked)) = (window(Ecn::Capable0), window(Ecn::CongestionExperienced));
        // CUBIC goes back at each mark; BBR goes by the bandwidth that it measures, and by marks only where they are many.
        let marked_max = if congestion == CongestionAlgorithm::Cubic { before } else { free / 4 };
        assert!(
            free > 2 * before && marked <= marked_max,
            "{congestion:?}: from {before} to {free} bytes, marked to {marked}"
        );
    }
}
