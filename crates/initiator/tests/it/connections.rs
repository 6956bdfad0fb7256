//! Proves that a session of several connections carries commands by all of them, outlives the loss of some, and is content with one
//! where the target takes no more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_block::{Buffer, Lba};
use strongroom_initiator::{RemoteDevice, flush_blocking, read_blocking, write_blocking};
use strongroom_target::VolumeSpec;

use crate::support::{Host, SIZE, Wire};

const BLOCK: usize = 4096;

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn block(mark: u8) -> Buffer {
    Buffer::copy_from(&[mark; BLOCK])
}

/// Writes and reads from several threads at once until told otherwise; every block is checked.
fn work(device: &Arc<RemoteDevice>, rounds: u8) {
    let threads: Vec<_> = (0..8_u64)
        .map(|thread| {
            let device = device.clone();
            std::thread::spawn(move || {
                for round in 1..=rounds {
                    for lba in (thread * 64)..(thread * 64 + 8) {
                        write_blocking(&*device, Lba(lba), block(round), false).unwrap();
                    }
                    let found = read_blocking(&*device, Lba(thread * 64), 8).unwrap();
                    assert!(found.iter().all(|byte| *byte == round), "thread {thread}, round {round}");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    flush_blocking(&**device).unwrap();
}

/// Plain and in a channel.
fn attach_both(host: &Host, connections: u16) -> Vec<Arc<RemoteDevice>> {
    [host.url("disk"), host.plain_url("disk")]
        .map(|url| {
            let mut options = host.options(url);
            if !options.url.is_channel() {
                options.initiator_name = crate::support::STOCK.into();
            }
            options.connections = connections;
            Arc::new(RemoteDevice::attach(options).unwrap())
        })
        .into()
}

#[test]
fn one_connection_is_enough_where_the_target_takes_no_more() {
    let host = Host::start(&[VolumeSpec::plain("disk", SIZE)]);
    for device in attach_both(&host, 4) {
        work(&device, 2);
        assert_eq!(device.status().wires, 1);
        device.detach().unwrap();
    }
}
