//! Proves that a runtime which polls finds by looking what it would have been woken for, tells it all the same, keeps time, and leaves
//! an idle processor alone.

#![allow(unsafe_code)] // Asks how often a thread has slept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;

/// So that waits on a busy machine are short by comparison.
const THRESHOLD: Duration = Duration::from_millis(5);

fn polling(flavour: FlavourChoice, threshold: Duration) -> Bench {
    let busy_poll = BusyPoll::UpTo(threshold);
    Bench::with(RuntimeOptions { flavour, busy_poll, ..RuntimeOptions::default() })
}

fn polls(bench: &Bench) -> PollCounters {
    bench.runtime.counters().busy_poll
}

/// How often the calling thread has slept.
fn sleeps() -> i64 {
    // SAFETY: an all-zero rusage is a valid one, and the call fills it in.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
        usage.ru_nvcsw
    }
}

/// Does something again and again, in a thread of its own, until dropped.
struct Background {
    over: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Background {
    fn every(pause: Duration, mut act: impl FnMut() + Send + 'static) -> Background {
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let thread = thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                thread::sleep(pause);
                act();
            }
        });
        Background { over, thread: Some(thread) }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(thread::JoinHandle::join);
    }
}

/// Turns the loop until `count` looks have found something without a sleep.
#[track_caller]
fn until_found(bench: &mut Bench, count: usize) {
    let (mut found, deadline) = (0, Instant::now() + PATIENCE);
    while found < count {
        assert!(Instant::now() < deadline, "{:?}", polls(bench));
        let (hits, slept) = (polls(bench).hits, sleeps());
        bench.runtime.poll(Some(PATIENCE)).unwrap();
        found += usize::from(polls(bench).hits > hits && sleeps() == slept);
        while bench.runtime.next_event().is_some() {}
    }
}

#[test]
fn what_arrives_while_it_looks_needs_no_sleep() {
    on_each_flavour(|flavour| {
        let mut bench = polling(flavour, THRESHOLD);
        let address = bench.listen();
        let mut peer = TcpStream::connect(address).unwrap();
        bench.accepted();
        let _talking = Background::every(Duration::from_micros(200), move || peer.write_all(b"x").unwrap());
        until_found(&mut bench, 20);
        let PollCounters { polls, hits, misses, contended, spent } = polls(&bench);
        assert!(polls == hits + misses + contended && spent > Duration::ZERO);
    });
}

#[test]
fn a_wake_while_it_looks_needs_no_sleep() {
    on_each_flavour(|flavour| {
        let mut bench = polling(flavour, THRESHOLD);
        let waker = bench.runtime.waker();
        let _waking = Background::every(Duration::from_micros(200), move || waker.wake());
        until_found(&mut bench, 20);
    });
}

#[test]
fn no_wake_is_lost_between_looking_and_sleeping() {
    on_each_flavour(|flavour| {
        // About as long as the pauses between wakes, so that some come while it looks, some while it sleeps, and some in between.
        let mut bench = polling(flavour, Duration::from_micros(150));
        let (asked, answered) = std::sync::mpsc::channel();
        let waker = bench.runtime.waker();
        let waking = thread::spawn(move || {
            for round in 0..3000_u64 {
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_micros(round * 7 % 300) {
                    std::hint::spin_loop();
                }
                waker.wake();
                answered.recv_timeout(PATIENCE).expect("the wake was lost");
            }
        });
        for _ in 0..3000 {
            bench.seen.clear();
            let begun = Instant::now();
            while !bench.seen.contains(&Seen::Woken) {
                bench.step(PATIENCE);
                assert!(begun.elapsed() < PATIENCE, "slept through a wake");
            }
            asked.send(()).unwrap();
        }
        waking.join().unwrap();
        assert!(polls(&bench).polls > 0);
    });
}

/// It must not read the eventfd for a second time: that would last until the next wake.
#[test]
fn a_wake_through_the_eventfd_is_told_once() {
    on_each_flavour(|flavour| {
        let (done, over) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let mut bench = Bench::with(RuntimeOptions { flavour, ..RuntimeOptions::default() });
            let waker = bench.runtime.waker();
            let waking = thread::spawn(move || {
                thread::sleep(4 * THRESHOLD);
                waker.wake();
            });
            bench.until(|bench| bench.seen.contains(&Seen::Woken));
            waking.join().unwrap();
            let Runtime { table, driver, waker, failed, .. } = &mut bench.runtime;
            waker.wake();
            let mut poller = BusyPoller::new(BusyPoll::UpTo(THRESHOLD));
            assert!(driver.look(table, waker, &mut poller, THRESHOLD, failed).unwrap());
            assert_eq!(table.pending.len(), 1);
            done.send(()).unwrap();
        });
        over.recv_timeout(PATIENCE).expect("it waits for a wake that it has told");
    });
}

#[test]
fn an_idle_runtime_does_not_look() {
    on_each_flavour(|flavour| {
        let mut bench = polling(flavour, Duration::from_millis(1));
        let idle = |bench: &mut Bench| {
            let before = polls(bench).polls;
            (0..5).for_each(|_| bench.runtime.poll(Some(Duration::from_millis(10))).unwrap());
            polls(bench).polls - before
        };
        assert_eq!(idle(&mut bench), 0, "it has never had anything to do");
        let waker = bench.runtime.waker();
        let waking = Background::every(Duration::from_micros(100), move || waker.wake());
        until_found(&mut bench, 3);
        drop(waking);
        bench.settle();
        assert_eq!(idle(&mut bench), 0, "it has nothing to do any more");
    });
}

#[test]
fn time_is_kept_while_it_looks() {
    on_each_flavour(|flavour| {
        for threshold in [Duration::from_micros(300), Duration::from_millis(10)] {
            let mut bench = polling(flavour, threshold);
            let waker = bench.runtime.waker();
            let waking = Background::every(Duration::from_micros(50), move || waker.wake());
            until_found(&mut bench, 1);
            drop(waking);
            (0..3).for_each(|_| bench.step(Duration::ZERO));
            let timeout = Duration::from_millis(3);
            let is_on_time = || {
                let begun = Instant::now();
                bench.runtime.poll(Some(timeout)).unwrap();
                let took = begun.elapsed();
                // A look that was cut short by other threads is no excuse to come early.
                assert!(took >= timeout - Duration::from_micros(100), "{took:?}");
                took < 3 * timeout
            };
            // On a busy machine another process may have the processor meanwhile, but not every time.
            assert!(std::iter::repeat_with(is_on_time).take(100).any(|is_so| is_so), "{threshold:?}");
        }
    });
}

#[test]
fn a_polling_pair_loses_nothing() {
    on_each_flavour(|flavour| {
        let mut bench = polling(flavour, THRESHOLD);
        let address = bench.listen();
        let caller = bench.runtime.connect(address).unwrap();
        let callee = bench.accepted();
        let data = pattern(2 << 20, 5);
        for part in data.chunks(10_000) {
            let _ = bench.send(caller, part);
            bench.step(Duration::from_millis(20));
        }
        bench.until(|bench| bench.bytes_of(callee).len() == data.len());
        assert!(bench.bytes_of(callee) == data);
    });
}
