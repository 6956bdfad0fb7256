//! Proves that a session of several connections carries commands by all of them, outlives the loss of some, and is content with one
//! where the target takes no more.

use std::sync::Arc;
use std::time::Duration;

use strongroom_block::{BlockDevice, Buffer, BufferMut, Lba, Request, Token};
use strongroom_initiator::{RemoteDevice, flush_blocking};
use strongroom_target::VolumeSpec;

use crate::support::{Host, SIZE};

const BLOCK: usize = 4096;

fn block(mark: u8) -> Buffer {
    Buffer::copy_from(&[mark; BLOCK])
}

/// Rounds of 64 writes and reads in flight at once; every block is checked.
fn work(device: &RemoteDevice, rounds: u8) {
    for round in 1..=rounds {
        complete(device, |lba| Request::Write { lba: Lba(lba), data: block(round), fua: false });
        let read = complete(device, |lba| Request::Read { lba: Lba(lba), buffer: BufferMut::zeroed(BLOCK) });
        assert!(read.iter().flat_map(|buffer| buffer.iter()).all(|byte| *byte == round), "round {round}");
    }
    flush_blocking(device).unwrap();
}

fn complete(device: &RemoteDevice, request: impl Fn(u64) -> Request) -> Vec<BufferMut> {
    (0..64).for_each(|at| device.submit(Token(at), request(7 * at)));
    let (mut completions, mut buffers, mut left) = (Vec::new(), Vec::new(), 64);
    while left > 0 {
        device.wait(Some(Duration::from_secs(1)));
        device.poll_completions(&mut completions);
        for completion in completions.drain(..) {
            left -= 1;
            buffers.extend(completion.result.unwrap());
        }
    }
    buffers
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
