//! Proves that a wire that damages bits costs time and nothing else: with digests what was damaged comes again, within the
//! command or over a new connection.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

use crate::support::{Host, SIZE};
use strongroom_block::{Buffer, Lba};
use strongroom_initiator::{DigestOffer, RemoteDevice, VolumeUrl, read_blocking, write_blocking};
use strongroom_target::VolumeSpec;

/// A bit is flipped in every this many bytes, each way.
const FLIP_EVERY_BYTES: usize = 150_001;

/// A wire to `there` that flips bits behind the first 4096 bytes, so that logins go through.
fn bad_wire(there: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let Ok(far) = TcpStream::connect(there) else { return };
            for (from, to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)] {
                std::thread::spawn(move || pass(from, to));
            }
        }
    });
    here
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let (mut buffer, mut passed) = (vec![0; 65_536], 0);
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        for (at, byte) in (passed..).zip(&mut buffer[..count]) {
            *byte ^= u8::from(at > 4096 && at % FLIP_EVERY_BYTES == 0) << (at % 8);
        }
        passed += count;
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

#[test]
fn everything_arrives_whole_in_the_end() {
    let host = Host::start(&[VolumeSpec::plain("disk", SIZE)]);
    let url: VolumeUrl =
        format!("iscsi://{}/iqn.2026-11.org.strongroom:disk/0", bad_wire(host.address)).parse().unwrap();
    let mut options = host.options(url);
    options.iscsi.digests = DigestOffer::Require;
    let device = RemoteDevice::attach(options).unwrap();
    let piece = |index: u64| (0..65_536u64).map(|at| (at * 7 + at / 4096 + index) as u8).collect::<Vec<u8>>();
    for index in 0..64 {
        write_blocking(&device, Lba(index * 16), Buffer::copy_from(&piece(index)), false).unwrap();
    }
    for index in 0..64 {
        assert!(read_blocking(&device, Lba(index * 16), 16).unwrap()[..] == piece(index)[..], "piece {index}");
    }
    device.detach().unwrap();
    let direct = RemoteDevice::attach(host.options(host.plain_url("disk"))).unwrap();
    for index in 0..64 {
        assert!(read_blocking(&direct, Lba(index * 16), 16).unwrap()[..] == piece(index)[..], "as stored: {index}");
    }
    direct.detach().unwrap();
}
