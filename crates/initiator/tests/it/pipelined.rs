//! Proves the pipeline against a real target: at every depth, what was written is read, in order where it must be; connections may be
//! cut and targets restarted meanwhile; reads are fetched ahead, and never show what was before a write of ours.

use std::collections::HashMap;

use strongroom_block::{BlockDevice, Buffer, BufferMut, Completion, Lba, Request, Token};
use strongroom_initiator::{Pipeline, RemoteDevice, flush_blocking, read_blocking, write_blocking};
use strongroom_target::VolumeSpec;

use crate::support::{Host, SIZE, Wire};

const BLOCK: usize = 4096;

fn attach(host: &Host, pipeline: Pipeline, readahead: bool) -> RemoteDevice {
    let mut options = host.options(host.url("vault"));
    (options.pipeline, options.readahead) = (pipeline, readahead);
    let device = RemoteDevice::attach(options).unwrap();
    device.format().unwrap();
    device
}

fn wait_for(device: &RemoteDevice, mut count: usize) -> Vec<Completion> {
    let mut completions = Vec::new();
    while count > 0 {
        device.wait(None);
        count -= device.poll_completions(&mut completions);
    }
    completions
}

#[test]
fn any_depth_writes_the_same() {
    for pipeline in [
        Pipeline::Fixed { depth: 1, workers: 1 },
        Pipeline::Fixed { depth: 5, workers: 3 },
        Pipeline::Fixed { depth: 64, workers: 2 },
        Pipeline::Auto,
    ] {
        let host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
        let device = attach(&host, pipeline, false);
        // Small and large ones, some over others that are still under way.
        let mut expected = vec![0_u8; 2048];
        let writes =
            (1..=120_u64).map(|mark| ((mark * 37) % 1200, if mark % 5 == 0 { 300 } else { 1 + mark % 9 }, mark as u8));
        for (token, (lba, count, mark)) in (0..).zip(writes) {
            let data = Buffer::copy_from(&vec![mark; count as usize * BLOCK]);
            device.submit(Token(token), Request::Write { lba: Lba(lba), data, fua: mark % 7 == 0 });
            expected[lba as usize..(lba + count) as usize].fill(mark);
        }
        assert!(wait_for(&device, 120).iter().all(|completion| completion.result.is_ok()));
        flush_blocking(&device).unwrap();
        let is = read_blocking(&device, Lba(0), 2048).unwrap();
        assert!(is.chunks(BLOCK).map(|block| block[0]).eq(expected.iter().copied()), "{pipeline}");
        device.detach().unwrap();
    }
}

#[test]
fn cuts_and_a_restart_in_the_middle_lose_nothing() {
    let mut host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    let wire = Wire::before(&host);
    let mut options = host.options(wire.url("vault"));
    options.pipeline = Pipeline::Fixed { depth: 6, workers: 2 };
    let device = RemoteDevice::attach(options).unwrap();
    device.format().unwrap();
    for round in 0..4_u64 {
        for at in 0..24 {
            let data = Buffer::copy_from(&vec![(round * 24 + at + 1) as u8; 64 * BLOCK]);
            device.submit(Token(at), Request::Write { lba: Lba(at * 64), data, fua: false });
        }
        match round {
            0 | 2 => wire.cut(),
            1 => {
                host.stop();
                host.start_again();
            }
            _ => {}
        }
        assert!(wait_for(&device, 24).iter().all(|completion| completion.result.is_ok()), "round {round}");
        let is = read_blocking(&device, Lba(0), 24 * 64).unwrap();
        let marks = is.chunks(64 * BLOCK).map(|write| write[0]);
        assert!(marks.eq((0..24).map(|at| (round * 24 + at + 1) as u8)), "round {round}");
    }
}

#[test]
fn reads_are_fetched_ahead_and_show_our_own_writes() {
    let host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    let device = attach(&host, Pipeline::Auto, true);
    let blocks = 2000_u64;
    for at in 0..blocks / 100 {
        let data: Vec<u8> = (0..100 * BLOCK).map(|byte| (at * 100 + (byte / BLOCK) as u64) as u8).collect();
        write_blocking(&device, Lba(at * 100), Buffer::copy_from(&data), false).unwrap();
    }
    let before = device.status().engine.commands_sent;
    for lba in 0..blocks {
        assert_eq!(read_blocking(&device, Lba(lba), 1).unwrap()[..], [lba as u8; BLOCK], "{lba}");
    }
    let commands = device.status().engine.commands_sent - before;
    assert!(commands < blocks / 4, "{commands} commands for {blocks} reads");

    // Eight reads under way, and writes in between: each read sees the writes that ended before it.
    let mut marks: Vec<u8> = (0..blocks).map(|lba| lba as u8).collect();
    let mut reads: HashMap<u64, u64> = HashMap::new();
    let mut completions = Vec::new();
    let mut lba = 0;
    while lba < blocks || !reads.is_empty() {
        while lba < blocks && reads.len() < 8 && (lba % 40 != 0 || reads.is_empty()) {
            device.submit(Token(lba), Request::Read { lba: Lba(lba), buffer: BufferMut::zeroed(BLOCK) });
            reads.insert(lba, lba);
            lba += 1;
        }
        device.wait(None);
        device.poll_completions(&mut completions);
        for completion in completions.drain(..) {
            let at = reads.remove(&completion.token.0).expect("each ends once");
            assert_eq!(completion.result.unwrap().unwrap()[..], [marks[at as usize]; BLOCK], "{at}");
        }
        if reads.is_empty() && lba + 30 < blocks {
            // Right ahead of the reads, where blocks were fetched already.
            for ahead in [lba, lba + 7, lba + 29] {
                marks[ahead as usize] = 255;
                write_blocking(&device, Lba(ahead), Buffer::copy_from(&[255; BLOCK]), false).unwrap();
            }
        }
    }
    assert!(marks.contains(&255));
    // What is gone is not served from what was fetched.
    strongroom_initiator::discard_blocking(&device, Lba(10), 100).unwrap();
    for lba in 0..20 {
        let expected = if lba < 10 { marks[lba as usize] } else { 0 };
        assert_eq!(read_blocking(&device, Lba(lba), 1).unwrap()[..], [expected; BLOCK]);
    }
    device.detach().unwrap();
}
