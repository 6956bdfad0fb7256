//! Proves that I/O smaller than what is sealed as one (the lazy-crypto paper's block sets: 4 KiB in 64 KiB) is safe: initiators that write
//! parts of one block at the same time lose none of each other's updates, and a target that is restarted in between leaves every part as
//! it was or as it was to be.

use std::sync::atomic::{AtomicBool, Ordering};

use strongroom_block::{BlockDevice, Buffer, Custody, Lba};
use strongroom_initiator::{RemoteDevice, read_blocking, write_part_blocking};
use strongroom_target::{SealedSpec, VolumeSpec};

use crate::support::{Host, SIZE, trusted};

const PART: usize = 4096;
const PARTS: usize = 16;
const ROUNDS: u64 = 12;

/// Blocks of 64 KiB, in each custody.
fn volumes() -> [VolumeSpec; 2] {
    let large = |spec: VolumeSpec| VolumeSpec { block_size: (PART * PARTS) as u64, ..spec };
    [large(VolumeSpec::sealed("vault", SIZE)), large(trusted())]
}

/// A part that says whose it is, and of which round.
fn part(writer: u64, round: u64) -> Vec<u8> {
    (writer << 32 | round).to_be_bytes().repeat(PART / 8)
}

/// Who wrote a part, in which round; every word of it says the same.
fn read_part(block: &[u8], index: usize) -> (u64, u64) {
    let part = &block[index * PART..(index + 1) * PART];
    let word = u64::from_be_bytes(*part.first_chunk().unwrap());
    assert!(part.chunks_exact(8).all(|other| other == word.to_be_bytes()), "part {index} is torn");
    (word >> 32, word & 0xffff_ffff)
}

#[test]
fn initiators_that_write_parts_of_one_block_lose_nothing() {
    let host = Host::start(&volumes());
    for volume in ["vault", "trusted"] {
        let first = host.attach(volume);
        first.format().unwrap();
        assert_eq!(first.geometry().block_size.len(), PART * PARTS);
        let second = RemoteDevice::attach(host.bobs_options(host.url(volume))).unwrap();
        // One has the even parts of two blocks, the other the odd ones.
        std::thread::scope(|scope| {
            for (writer, device) in (0u64..).zip([&first, &second]) {
                scope.spawn(move || {
                    for round in 1..=ROUNDS {
                        for index in (writer as usize..PARTS).step_by(2) {
                            for lba in [Lba(1), Lba(2)] {
                                let data = Buffer::copy_from(&part(writer, round));
                                write_part_blocking(device, lba, (index * PART) as u32, data).unwrap();
                            }
                        }
                    }
                });
            }
        });
        for device in [&first, &second] {
            for lba in [Lba(1), Lba(2)] {
                let block = read_blocking(device, lba, 1).unwrap();
                for index in 0..PARTS {
                    assert_eq!(
                        read_part(&block, index),
                        (index as u64 % 2, ROUNDS),
                        "{volume}, part {index} of block {lba}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_target_that_is_restarted_in_between_tears_no_part() {
    let mut host = Host::start(&volumes());
    for volume in ["vault", "trusted"] {
        let device = host.attach(volume);
        device.format().unwrap();
        let done = AtomicBool::new(false);
        let acknowledged = std::thread::scope(|scope| {
            let (device, done) = (&device, &done);
            let writer = scope.spawn(move || {
                let mut round = 0;
                while !done.load(Ordering::Relaxed) {
                    round += 1;
                    for index in 0..PARTS {
                        let data = Buffer::copy_from(&part(7, round));
                        write_part_blocking(device, Lba(0), (index * PART) as u32, data).unwrap();
                    }
                }
                round
            });
            for _ in 0..3 {
                host.stop();
                host.start_again();
            }
            done.store(true, Ordering::Relaxed);
            writer.join().unwrap()
        });
        let block = read_blocking(&device, Lba(0), 1).unwrap();
        for index in 0..PARTS {
            assert_eq!(read_part(&block, index), (7, acknowledged), "{volume}: an acknowledged part is durable");
        }
        device.detach().unwrap();
    }
}

/// From 512 bytes to 64 KiB.
#[test]
fn every_block_size_seals_in_either_custody() {
    for size in (9..=16).map(|shift| 1u64 << shift) {
        let of = |custody| {
            let wrapping_key = (custody == Custody::Target).then(|| "/nonexistent/wrap.key".into());
            let name = if custody == Custody::Target { "trusted" } else { "vault" };
            let sealed = SealedSpec { wrapping_key, ..SealedSpec::new(custody) };
            VolumeSpec { block_size: size, sealed: Some(sealed), ..VolumeSpec::plain(name, SIZE) }
        };
        let host = Host::start(&[of(Custody::KeyFile), of(Custody::Target)]);
        for volume in ["vault", "trusted"] {
            let device = host.attach(volume);
            device.format().unwrap();
            let blocks = SIZE / size;
            let data: Vec<u8> = (0..4 * size).map(|at| (at % 251) as u8).collect();
            strongroom_initiator::write_blocking(&device, Lba(blocks - 4), Buffer::copy_from(&data), false).unwrap();
            assert!(read_blocking(&device, Lba(blocks - 4), 4).unwrap()[..] == data, "{volume}, blocks of {size}");
            assert!(read_blocking(&device, Lba(0), 1).unwrap().iter().all(|byte| *byte == 0));
        }
    }
}
