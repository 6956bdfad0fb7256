//! Proves that a target which polls does so while a volume is in use, says so, and leaves the processor alone while it is only attached.

use std::time::Duration;

use strongroom_target::{BusyPoll, VolumeSpec};

use crate::support::{Host, eventually};

fn host(busy_poll: BusyPoll) -> Host {
    Host::start_with(&[VolumeSpec::plain("disk", 16 << 20)], |config| config.busy_poll = busy_poll)
}

#[test]
fn an_attached_volume_that_is_idle_causes_no_polling() {
    // So long that waits on a busy machine are short by comparison.
    let host = host(BusyPoll::UpTo(BusyPoll::MAX));
    let mut alice = host.plain("disk");
    let polls = || host.handle().stats().busy_poll;
    // Three long waits end it. What still wakes an idle worker, such as its store's timers, may begin one look before each of these; a worker that
    // went on looking would begin hundreds in this time.
    let idle = || {
        let before = polls().polls;
        std::thread::sleep(Duration::from_secs(3));
        polls().polls - before
    };
    let looks_max = 4;
    assert!(idle() <= looks_max, "nothing has happened yet: {:?}", polls());
    eventually("looks find commands", || {
        (0..10).for_each(|_| assert_eq!(alice.try_write(0, &[7; 4096]).status, 0));
        polls().hits > 10
    });
    let found = polls();
    assert!(found.spent_us > 0 && found.polls >= found.hits + found.misses + found.contended, "{found:?}");
    assert!(idle() <= looks_max, "{:?}", polls());
    assert_eq!(alice.try_write(0, &[8; 4096]).status, 0, "and it wakes up");
}

#[test]
fn a_target_that_was_not_told_to_does_not_poll() {
    let host = host(BusyPoll::Off);
    let mut alice = host.plain("disk");
    (0..200).for_each(|_| assert_eq!(alice.try_write(0, &[7; 4096]).status, 0));
    assert_eq!(host.handle().stats().busy_poll.polls, 0);
}
