//! Proves that a volume which is never idle is scrubbed too, for its share of time, and only if it is given one.

use std::time::{Duration, Instant};

use strongroom_target::VolumeSpec;

use crate::support::keeper::status;
use crate::support::{Host, MIB, PATIENCE, pattern};

/// Works on a volume without a pause, until some of it was scrubbed or `patience` is over. How much was.
fn scrubbed_beside_work(scrub_share: u8, patience: Duration) -> u64 {
    let host = Host::start_with(&[VolumeSpec::plain("disk", 64 * MIB)], |config| {
        config.limits.scrub_share = scrub_share;
    });
    let mut session = host.plain("disk");
    // More than a segment, so that closed ones are there.
    for at in 0..32 {
        session.write(at * 256, &pattern(at as u8, 256));
    }
    let until = Instant::now() + patience;
    loop {
        for at in 0..20 {
            session.read(at * 256, 16);
        }
        let scrubbed = status(&host).volumes[0].store.scrubbed_bytes;
        if scrubbed > 0 || Instant::now() >= until {
            return scrubbed;
        }
    }
}

#[test]
fn a_volume_that_is_never_idle_is_scrubbed_for_its_share_of_time() {
    assert_eq!(scrubbed_beside_work(0, Duration::from_secs(3)), 0, "it is never idle");
    assert_ne!(scrubbed_beside_work(50, PATIENCE), 0);
}
