//! Proves that looking for work begins after short waits, ends after few long ones, makes way for other threads, and keeps within its time.

use proptest::prelude::*;

use super::*;

const THRESHOLD: Duration = Duration::from_micros(100);
const LONG: Duration = Duration::from_secs(1);
const SHORT: Duration = Duration::from_micros(50);

fn after(waits: &[Duration]) -> WaitEstimator {
    let mut estimator = WaitEstimator::new(THRESHOLD);
    waits.iter().for_each(|wait| estimator.waited(*wait));
    estimator
}

#[test]
fn short_waits_begin_it_and_long_ones_end_it() {
    assert_eq!(after(&[]).look(), None, "nothing is known yet");
    let mut estimator = after(&[]);
    let waits = std::iter::repeat_with(|| estimator.waited(SHORT));
    assert!(waits.take(10).count() == 10 && estimator.look().is_none(), "a few short waits are chance");
    (0..10).for_each(|_| estimator.waited(SHORT));
    assert_eq!(estimator.look(), Some(THRESHOLD));
    let misses = (1..).find(|_| {
        estimator.waited(LONG);
        estimator.look().is_none()
    });
    assert!(misses.unwrap() <= 3, "an idle thread looks {misses:?} times more");
}

#[test]
fn keep_alives_do_not_begin_it() {
    // A ping now and then, and its answer soon after.
    let mut estimator = after(&[]);
    for _ in 0..1000 {
        estimator.waited(LONG);
        estimator.waited(Duration::from_micros(5));
        assert_eq!(estimator.look(), None);
    }
}

#[test]
fn contention_is_left_alone_longer_each_time() {
    let mut estimator = after(&[SHORT; 64]);
    let mut skipped = Vec::new();
    for _ in 0..12 {
        estimator.contended();
        skipped.push((0..).take_while(|_: &u32| estimator.look().is_none()).count());
    }
    assert_eq!(skipped, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024]);
    estimator.hit();
    estimator.contended();
    assert_eq!((estimator.look(), estimator.look()), (None, Some(THRESHOLD)), "forgiven");
}

proptest! {
    #[test]
    fn what_came_before_does_not_matter_for_long(before in proptest::collection::vec(0_u64..10_000_000, 0..100)) {
        let before: Vec<Duration> = before.into_iter().map(Duration::from_micros).collect();
        let mut idle = after(&before);
        (0..3).for_each(|_| idle.waited(LONG));
        prop_assert_eq!(idle.look(), None);
        let mut busy = after(&before);
        (0..20).for_each(|_| busy.waited(SHORT));
        prop_assert_eq!(busy.look(), Some(THRESHOLD));
    }

    #[test]
    fn no_look_unless_the_waits_were_short(waits in proptest::collection::vec(100_u64..100_000, 1..200)) {
        let waits: Vec<Duration> = waits.into_iter().map(Duration::from_micros).collect();
        prop_assert_eq!(after(&waits).look(), None);
    }
}

#[test]
fn settings_are_read_back() {
    for (text, threshold) in [("off", None), ("auto", Some(BusyPoll::AUTO)), ("250", Some(Duration::from_micros(250)))]
    {
        let setting: BusyPoll = text.parse().unwrap();
        assert_eq!((setting.to_string().as_str(), setting.threshold()), (text, threshold));
    }
    for wrong in ["", "on", "0", "10001", "-5", "5us"] {
        let error = wrong.parse::<BusyPoll>().unwrap_err().to_string();
        assert!(error.contains("give off, auto, or"), "{error}");
    }
    assert_eq!(BusyPoll::UpTo(LONG).threshold(), Some(BusyPoll::MAX));
}

#[test]
fn a_look_keeps_within_its_time() {
    let mut poller = BusyPoller::new(BusyPoll::Auto);
    let mut asked = 0;
    let mut third = || {
        asked += 1;
        asked == 3
    };
    // Others may want the processor, but not for ever.
    let begun = Instant::now();
    let mut tries = std::iter::repeat_with(|| std::thread::sleep(Duration::from_millis(1)))
        .take_while(|()| begun.elapsed() < Duration::from_secs(60));
    assert!(tries.any(|()| poller.look(LONG, &mut third) == Look::Hit));
    let limit = Duration::from_millis(2);
    let missed = tries.any(|()| {
        let begun = Instant::now();
        poller.look(limit, || false) == Look::Missed && begun.elapsed() >= limit
    });
    let PollCounters { polls, hits, misses, contended, spent } = poller.counters;
    assert!(missed && hits == 1 && misses == 1, "{polls} {hits} {misses}");
    assert!(polls == hits + misses + contended && spent >= limit, "{polls} {contended} {spent:?}");
}

#[test]
fn off_means_off() {
    let mut poller = BusyPoller::new(BusyPoll::Off);
    for _ in 0..100 {
        assert_eq!(poller.begin(), None);
        poller.end(true);
    }
    assert_eq!(poller.counters, PollCounters::default());
}

#[test]
fn a_wait_in_pieces_is_one() {
    // What ends a wait with nothing to do, such as a send that completes, does not make it look short.
    let mut poller = BusyPoller::new(BusyPoll::UpTo(Duration::from_millis(1)));
    for _ in 0..50 {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(2) {
            assert_eq!(poller.begin(), None);
            poller.end(false);
        }
        poller.end(true);
    }
}
