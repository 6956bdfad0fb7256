//! Back ends that are killed, and front ends that connect again.

use std::time::Duration;

use super::guest::{FLUSH, Guest, READ, WRITE};
use super::{SERIAL, SIZE, connected, eventually, pattern, served};
use crate::completion::lock;
use crate::front::vhost::VhostOptions;

/// As far as the guest can tell, its back end was killed: nothing of it answers any more.
#[test]
fn requests_of_a_killed_back_end_are_executed_again_in_their_order() {
    let killed = served(VhostOptions::new(SERIAL));
    let mut guest = connected(&killed, 2);
    guest.write(0, 0, &pattern(9, 4096));
    killed.device.hold();
    // The slots are not in the order of the requests.
    for (at, slot) in [7, 3, 5, 1].into_iter().enumerate() {
        guest.ask(0, slot, WRITE, 80 * (at as u64 + 1), &pattern(at, 4096), 0);
    }
    guest.ask(1, 0, READ, 0, b"", 4096);
    eventually("all are in flight", || killed.device.held_count() == 5);
    guest.disconnect();
    let next = served(VhostOptions::new(SERIAL));
    // Two that no back end has seen.
    guest.place(0, 9, WRITE, 800, &pattern(10, 512), 0);
    guest.push(0, 9 * 4);
    guest.connect(&next.path);
    guest.ask(0, 10, FLUSH, 0, b"", 0);
    let answered: Vec<u16> = (0..6).map(|_| guest.wait_for_answer(0)).collect();
    assert_eq!(answered, [7, 3, 5, 1, 9, 10]);
    assert!(answered.iter().all(|slot| guest.status(0, *slot) == 0));
    assert_eq!(*lock(&next.device.written), [10, 20, 30, 40], "in the order in which they were taken");
    assert_eq!((guest.wait_for_answer(1), guest.status(1, 0)), (0, 0));
    for at in 0..4 {
        assert!(guest.read(1, 80 * (at as u64 + 1), 4096) == pattern(at, 4096));
    }
    // What the killed one had answered is not executed again.
    assert_eq!(guest.read(1, 0, 4096), [0; 4096]);
    drop(guest);
    next.server.finish().unwrap();
    killed.device.release();
    killed.server.finish().unwrap();
}

/// What the front end before has in flight could take effect after what this one is answered.
#[test]
fn nothing_is_taken_while_requests_of_the_connection_before_are_in_flight() {
    let served = served(VhostOptions::new(SERIAL));
    let mut guest = connected(&served, 1);
    served.device.hold();
    guest.ask(0, 0, WRITE, 0, &pattern(1, 4096), 0);
    guest.ask(0, 1, READ, 8, b"", 4096);
    eventually("they are in flight", || served.device.held_count() == 2);
    guest.disconnect();
    guest.connect(&served.path);
    assert_eq!(guest.size_bytes(), SIZE, "messages are answered meanwhile");
    guest.ask(0, 2, WRITE, 0, &pattern(2, 4096), 0);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(served.device.held_count(), 2);
    assert_eq!(guest.status(0, 0), 0xee);
    served.device.release();
    assert_eq!([0, 1, 2].map(|_| guest.wait_for_answer(0)), [0, 1, 2]);
    assert!(guest.read(0, 0, 4096) == pattern(2, 4096));
    assert_eq!(*lock(&served.device.written), [0, 0, 0], "the first one twice, then the second one");
    drop(guest);
    served.server.finish().unwrap();
}

/// A restart in order: nothing is in flight afterwards.
#[test]
fn a_guest_goes_on_with_the_next_server() {
    let first = served(VhostOptions::new(SERIAL));
    let mut guest = connected(&first, 1);
    for round in 0..5 {
        guest.write(0, round * 8, &pattern(round as usize, 4096));
    }
    first.server.finish().unwrap();
    // It does not know yet that its back end has gone.
    guest.ask(0, 6, WRITE, 48, &pattern(6, 4096), 0);
    let second = served(VhostOptions::new(SERIAL));
    guest.connect(&second.path);
    assert_eq!((guest.wait_for_answer(0), guest.status(0, 6)), (6, 0));
    assert_eq!(*lock(&second.device.written), [6]);
    second.server.abandon();
}

/// A buffer that contradicts the rings: nobody knows what was answered.
#[test]
fn attack_vhost_user_an_inflight_buffer_that_does_not_fit() {
    let first = served(VhostOptions::new(SERIAL));
    let mut guest = connected(&first, 1);
    first.device.hold();
    guest.ask(0, 0, WRITE, 0, &pattern(0, 4096), 0);
    eventually("it is in flight", || first.device.held_count() == 1);
    guest.disconnect();
    // Another queue's in-flight buffer, and rings that have gone on for long.
    let second = served(VhostOptions::new(SERIAL));
    guest.set_used(0, 4711);
    assert!(guest.try_connect(&second.path).is_err());
    guest.set_used(0, 0);
    guest.connect(&second.path);
    assert_eq!((guest.wait_for_answer(0), guest.status(0, 0)), (0, 0));
    // A file that is too short would end this process.
    guest.truncate_inflight();
    assert!(guest.try_connect(&second.path).is_err());
    let mut other = Guest::new(1);
    other.connect(&second.path);
    assert!(other.read(0, 0, 4096) == pattern(0, 4096));
    first.device.release();
    first.server.abandon();
    second.server.abandon();
}
