//! Proves when SANITIZE is answered, and what one that fails leaves behind: with IMMED the answer comes when no crash can undo it any
//! more, and a failure lasts until the erase went on and ended, not for ever.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use strongroom_store::backend::{Backend, Io, IoDone};
use strongroom_store::{MemoryBackend, Waker};

use super::commands::{cdb_of, sense_of};
use super::*;

/// Memory that outlives the store on it. So many syncs are done at once; those after that wait, or fail.
#[derive(Clone, Default)]
struct Medium {
    memory: Arc<Mutex<MemoryBackend>>,
    syncs_left: Arc<AtomicUsize>,
    waiting: Arc<Mutex<VecDeque<u64>>>,
    fails: bool,
}

impl Medium {
    fn let_syncs(&self, count: usize) {
        self.syncs_left.store(count, Ordering::Relaxed);
    }
}

impl Backend for Medium {
    fn set_waker(&mut self, _waker: Waker) {}
    fn submit(&mut self, token: u64, io: Io) {
        match io {
            Io::Sync => self.waiting.lock().unwrap().push_back(token),
            io => self.memory.lock().unwrap().submit(token, io),
        }
    }
    fn poll(&mut self, done: &mut Vec<IoDone>) -> usize {
        let before = done.len();
        self.memory.lock().unwrap().poll(done);
        let mut waiting = self.waiting.lock().unwrap();
        while let Some(&token) = waiting.front() {
            let result = match self.syncs_left.load(Ordering::Relaxed) {
                0 if self.fails => Err(std::io::Error::other("a sync that fails")),
                0 => break,
                left => {
                    self.syncs_left.store(left - 1, Ordering::Relaxed);
                    Ok(None)
                }
            };
            waiting.pop_front();
            done.push(IoDone { token, result });
        }
        done.len() - before
    }
    fn wait(&mut self) {}
}

const ALL: usize = usize::MAX;
const SANITIZE: u8 = 0x48;
const BLOCK_ERASE: u8 = 0x02;
const IMMED: u8 = 0x80;

fn spec() -> VolumeSpec {
    VolumeSpec { block_size: BLOCK as u64, ..VolumeSpec::plain("disk", BLOCKS * BLOCK as u64) }
}

fn opened(medium: &Medium, is_new: bool) -> Bench {
    medium.let_syncs(ALL);
    medium.waiting.lock().unwrap().clear();
    Bench::serving(&spec(), |_, volume| {
        if is_new {
            Store::create_on(Box::new(medium.clone()), &volume.create_options()).unwrap();
        }
        Store::open_on(Box::new(medium.clone()), &OpenOptions::default(), Arc::new(|| {})).unwrap()
    })
}

fn read(bench: &mut Bench) -> Response {
    bench.run(cdb::read_16(Lba(0), 1), Direction::Read, BLOCK as u32, &[])
}

fn write(bench: &mut Bench) {
    assert_eq!(bench.run(cdb::write_16(Lba(0), 1, true), Direction::Write, BLOCK as u32, &[1; BLOCK]).status, 0);
}

fn until_erased(bench: &mut Bench) {
    let (mut finished, started) = (Vec::new(), Instant::now());
    while bench.unit.store().erase().progress().is_some() {
        assert!(started.elapsed() < PATIENCE, "it ends");
        bench.unit.poll(&mut finished);
    }
}

#[test]
fn an_immediate_sanitize_is_answered_when_no_crash_can_undo_it() {
    let medium = Medium::default();
    let mut bench = opened(&medium, true);
    write(&mut bench);
    // One sync settles what was before, the second makes the mark durable.
    for syncs in 0..2 {
        medium.let_syncs(syncs);
        let mut finished = Vec::new();
        if syncs == 0 {
            let command = bench.command(cdb_of(&[SANITIZE, IMMED | BLOCK_ERASE]), Direction::None, 0, &[]);
            assert!(matches!(bench.unit.submit(KEY, command, 16), Verdict::Later));
        }
        (0..100).for_each(|_| bench.unit.poll(&mut finished));
        assert!(finished.is_empty(), "nothing is durable yet");
        assert!(sense_of(&read(&mut bench)).is(&Sense::SANITIZE_IN_PROGRESS));
    }
    medium.let_syncs(1);
    let mut finished = Vec::new();
    (0..100).for_each(|_| bench.unit.poll(&mut finished));
    assert!(matches!(&finished[..], [Finished { response: Some(good), .. }] if good.status == 0), "{finished:?}");
    // The target is gone, and comes back.
    drop(bench);
    let mut bench = opened(&medium, false);
    assert!(sense_of(&read(&mut bench)).is(&Sense::SANITIZE_IN_PROGRESS), "it goes on");
    until_erased(&mut bench);
    assert_eq!(read(&mut bench).status, 0);
    assert_eq!(bench.read(0, 1), [0; BLOCK]);
}

#[test]
fn an_immediate_sanitize_that_cannot_begin_is_answered_so() {
    let medium = Medium { fails: true, ..Medium::default() };
    let mut bench = opened(&medium, true);
    write(&mut bench);
    medium.let_syncs(1);
    let failed = bench.run(cdb_of(&[SANITIZE, IMMED | BLOCK_ERASE]), Direction::None, 0, &[]);
    assert!(sense_of(&failed).is(&Sense::SANITIZE_FAILED));
}

#[test]
fn a_failure_lasts_until_the_erase_went_on_and_ended() {
    let medium = Medium { fails: true, ..Medium::default() };
    let mut bench = opened(&medium, true);
    write(&mut bench);
    // Settled and marked twice; what is overwritten cannot be made durable.
    medium.let_syncs(3);
    let failed = bench.run(cdb_of(&[SANITIZE, BLOCK_ERASE]), Direction::None, 0, &[]);
    assert!(sense_of(&failed).is(&Sense::SANITIZE_FAILED));
    assert!(sense_of(&read(&mut bench)).is(&Sense::SANITIZE_FAILED));
    // Nobody uses it any more: it is closed, and opened again.
    bench.unit.detach(KEY);
    assert!(bench.unit.is_idle(), "what cannot go on here keeps nothing open");
    let rest = bench.unit.closed();
    drop(bench);
    let mut bench = opened(&medium, false);
    bench.unit.resume(rest);
    assert!(sense_of(&read(&mut bench)).is(&Sense::SANITIZE_IN_PROGRESS));
    until_erased(&mut bench);
    assert_eq!(read(&mut bench).status, 0, "it has ended well");
    assert_eq!(bench.read(0, 1), [0; BLOCK]);
    // One that fails while it goes on has failed as well, and is forgotten when another one ends.
    bench.unit.server.sanitizer.set_status(SanitizeStatus::Failed);
    assert!(sense_of(&read(&mut bench)).is(&Sense::SANITIZE_FAILED));
    assert_eq!(bench.run(cdb_of(&[SANITIZE, BLOCK_ERASE]), Direction::None, 0, &[]).status, 0);
    assert_eq!(read(&mut bench).status, 0);
}
