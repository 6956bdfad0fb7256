//! Guests that lie about lengths and addresses, build loops, and change what they have asked for.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::guest::{
    DEVICE_WRITES, Guest, NEXT, QUEUE_SIZE, READ, SLOTS, WRITE, data_address, header_address, status_address,
};
use super::{SERIAL, Served, connected, eventually, pattern, served};
use crate::front::vhost::VhostOptions;

/// The broken queue stays silent, the other one works, and the next front end begins afresh.
fn only_its_queue_is_broken(served: Served, mut guest: Guest) {
    guest.kick(0);
    guest.write(1, 0, &pattern(1, 4096));
    std::thread::sleep(Duration::from_millis(20));
    guest.ask(0, SLOTS - 1, READ, 0, b"", 512);
    assert!(guest.read(1, 0, 4096) == pattern(1, 4096));
    assert!(guest.next_answer(0).is_none() && guest.status(0, SLOTS - 1) == 0xee);
    drop(guest);
    let mut next = connected(&served, 2);
    assert!(next.read(0, 0, 4096) == pattern(1, 4096));
    drop(next);
    served.server.finish().unwrap();
}

fn guest() -> (Served, Guest) {
    let served = served(VhostOptions::new(SERIAL));
    let guest = connected(&served, 2);
    (served, guest)
}

#[test]
fn attack_vhost_user_chains_break_their_queue_only() {
    let header = |slot| (header_address(0, slot), 16, 0);
    let status = |slot| (status_address(0, slot), 1, DEVICE_WRITES);
    let attacks: [fn(&mut Guest); 7] = [
        // A loop.
        |guest| {
            guest.descriptor(0, 0, (header_address(0, 0), 16, NEXT, 1));
            guest.descriptor(0, 1, (data_address(0, 0), 512, NEXT, 0));
        },
        // A successor outside of the table.
        |guest| guest.descriptor(0, 0, (header_address(0, 0), 16, NEXT, QUEUE_SIZE)),
        // An indirect table outside of memory, and one of an odd length.
        |guest| guest.descriptor(0, 0, (0xffff_ffff_f000, 64, 4, 0)),
        |guest| guest.descriptor(0, 0, (data_address(0, 0), 40, 4, 0)),
        // No status, one of no length, and one outside of memory.
        |guest| guest.descriptor(0, 0, (header_address(0, 0), 16, 0, 0)),
        |guest| {
            guest.descriptor(0, 0, (header_address(0, 0), 16, NEXT, 1));
            guest.descriptor(0, 1, (status_address(0, 0), 0, DEVICE_WRITES, 0));
        },
        |guest| {
            guest.descriptor(0, 0, (header_address(0, 0), 16, NEXT, 1));
            guest.descriptor(0, 1, (u64::MAX, 1, DEVICE_WRITES, 0));
        },
    ];
    for attack in attacks {
        let (served, mut guest) = guest();
        guest.write_header(0, 0, READ, 0);
        attack(&mut guest);
        guest.push(0, 0);
        only_its_queue_is_broken(served, guest);
    }
    // Data of the driver behind those of the device.
    let (served, mut guest) = guest();
    guest.write_header(0, 0, WRITE, 0);
    guest.chain(0, 0, &[header(0), status(0), (data_address(0, 0), 512, 0)]);
    guest.push(0, 0);
    only_its_queue_is_broken(served, guest);
}

#[test]
fn attack_vhost_user_heads_and_indexes_that_lie() {
    // A head outside of the ring.
    let (served, mut guest) = guest();
    guest.push(0, QUEUE_SIZE);
    only_its_queue_is_broken(served, guest);
    // More requests than the ring has.
    let (served, mut guest) = self::guest();
    guest.set_available(0, QUEUE_SIZE + 1);
    only_its_queue_is_broken(served, guest);
    // The same request twice.
    let (served, mut guest) = self::guest();
    served.device.hold();
    guest.ask(0, 3, WRITE, 0, &pattern(0, 512), 0);
    eventually("it is in flight", || served.device.held_count() == 1);
    guest.push(0, 3 * 4);
    guest.kick(0);
    std::thread::sleep(Duration::from_millis(50));
    served.device.release();
    assert_eq!((guest.wait_for_answer(0), guest.status(0, 3)), (3, 0), "the first one is answered");
    only_its_queue_is_broken(served, guest);
}

#[test]
fn attack_vhost_user_requests_that_lie_get_an_error() {
    let (served, mut guest) = guest();
    guest.write(0, 0, &pattern(7, 4096));
    let mut status = |kind, parts: &[(u64, u32, u16)]| {
        guest.write_header(0, 15, kind, 0);
        let parts = [parts, &[(status_address(0, 15), 1, DEVICE_WRITES)]].concat();
        guest.chain(0, 60 - parts.len() as u16, &parts);
        guest.push(0, 60 - parts.len() as u16);
        guest.kick(0);
        guest.wait_for_answer(0);
        guest.status(0, 15)
    };
    let (header, data) = (header_address(0, 15), data_address(0, 15));
    // Headers that are too short, or nowhere.
    assert_eq!(status(READ, &[(header, 15, 0)]), 1);
    assert_eq!(status(READ, &[(header, 0, 0), (data, 512, DEVICE_WRITES)]), 1);
    assert_eq!(status(READ, &[(0x10, 16, 0), (data, 512, DEVICE_WRITES)]), 1);
    // Data outside of memory, across its end, and of any length.
    for address in [0, 0xffff_ffff_ffff_f000, 0x10_0000 + (16 << 20) - 256] {
        assert_eq!(status(READ, &[(header, 16, 0), (address, 512, DEVICE_WRITES)]), 1);
        assert_eq!(status(WRITE, &[(header, 16, 0), (address, 512, 0)]), 1);
        assert_eq!(status(READ, &[(header, 16, 0), (address, 0xffff_fe00, DEVICE_WRITES)]), 1);
    }
    assert_eq!(status(READ, &[(header, 16, 0), (data, 513, DEVICE_WRITES)]), 1);
    assert_eq!(status(WRITE, &[(header, 16, 0)]), 1);
    // The same memory again and again: 64 MiB in one request.
    let large = [(data, 4 << 20, 0); 16];
    assert_eq!(status(WRITE, &[&[(header, 16, 0)], &large[..]].concat()), 1);
    let large = [(data, 4 << 20, DEVICE_WRITES); 16];
    assert_eq!(status(READ, &[&[(header, 16, 0)], &large[..]].concat()), 1);
    assert!(guest.read(0, 0, 4096) == pattern(7, 4096));
    drop(guest);
    served.server.finish().unwrap();
}

/// The memory for requests is limited, also for a guest that has all its queues full.
#[test]
fn attack_vhost_user_more_in_flight_than_there_is_memory_for() {
    let served = served(VhostOptions::new(SERIAL));
    let queues = 12;
    let mut guest = connected(&served, queues);
    served.device.hold();
    for queue in 0..queues {
        for slot in 0..SLOTS {
            guest.ask(queue, slot, WRITE, 0, &vec![1; 256 << 10], 0);
        }
    }
    eventually("the limit is reached", || served.device.held_count() == 128);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(served.device.held_count(), 128, "32 MiB");
    served.device.release();
    for queue in 0..queues {
        for _ in 0..SLOTS {
            guest.wait_for_answer(queue);
        }
    }
    drop(guest);
    served.server.finish().unwrap();
}

/// Messages of something that is no front end end its connection, and nothing else.
#[test]
fn attack_vhost_user_garbage_on_the_socket() {
    let served = served(VhostOptions::new(SERIAL));
    let message = |request: u32, body: &[u8]| {
        let fields = [request, 1, body.len() as u32].into_iter().flat_map(u32::to_ne_bytes);
        fields.chain(body.iter().copied()).collect::<Vec<u8>>()
    };
    for garbage in [
        vec![0; 12],
        vec![0xff; 4096],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        // Huge bodies; numbers of queues that there are not; a kick without a descriptor; a base of a queue that was never set up is answered.
        [message(5, b"")[..8].to_vec(), u32::MAX.to_ne_bytes().to_vec()].concat(),
        message(8, &[&4711_u32.to_ne_bytes()[..], &128_u32.to_ne_bytes()].concat()),
        message(8, &[&0_u32.to_ne_bytes()[..], &100_u32.to_ne_bytes()].concat()),
        message(12, &0_u64.to_ne_bytes()),
        message(18, &[&0_u32.to_ne_bytes()[..], &7_u32.to_ne_bytes()].concat()),
        message(21, b""),
        message(32, &[0; 20]),
    ] {
        let mut stream = UnixStream::connect(&served.path).unwrap();
        stream.write_all(&garbage).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let ended = stream.read(&mut [0; 64]);
        assert!(
            ended.as_ref().is_ok_and(|len| *len == 0)
                || ended.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset),
            "{garbage:x?}"
        );
        let mut guest = connected(&served, 1);
        guest.write(0, 0, &pattern(0, 512));
    }
    // One that breaks off within a message.
    let mut stream = UnixStream::connect(&served.path).unwrap();
    stream.write_all(&message(1, b"")[..5]).unwrap();
    drop(stream);
    drop(connected(&served, 1));
    served.server.finish().unwrap();
}
