//! Proves that one memory budget bounds what all sessions and volumes of a target hold, that work waits for it rather than fails, and that
//! `status` tells it.

use strongroom_block::Lba;
use strongroom_iscsi::initiator::Command;
use strongroom_scsi::cdb;
use strongroom_target::VolumeSpec;

use crate::support::keeper::status;
use crate::support::{ALICE, BLOCK, BOB, Host, Initiator, LUN, MIB, eventually, normal, pattern};

const BUDGET: u64 = 64 * MIB;
/// An eighth is reserved.
const USABLE: u64 = BUDGET / 8 * 7;

fn host() -> Host {
    let volumes = ["disk", "other"].map(|name| VolumeSpec::plain(name, 64 * MIB));
    Host::start_with(&volumes, |config| config.limits.memory_bytes = Some(BUDGET))
}

#[test]
fn commands_beyond_the_budget_wait_their_turn() {
    let host = host();
    let mut sessions = [(ALICE, "disk"), (BOB, "other")]
        .map(|(initiator, volume)| Initiator::log_in(&host, None, normal(initiator, volume)).expect("admitted"));
    let blocks = (2 * MIB / BLOCK as u64) as u32;
    sessions.iter_mut().for_each(|session| session.write(0, &pattern(3, blocks as usize)));
    // 256 MiB are asked for at once, and nobody reads the answers yet.
    let tasks = [0, 1].map(|at| {
        let session: &mut Initiator = &mut sessions[at];
        let read = || Command::read(LUN, cdb::read_16(Lba(0), blocks), blocks * BLOCK as u32);
        let tasks: Vec<_> = (0..64).map(|_| session.submit(read())).collect();
        session.flush();
        tasks
    });
    eventually("both have begun", || status(&host).memory.commands_bytes >= 8 * MIB);
    for _ in 0..20 {
        let memory = status(&host).memory;
        // One command of each session may go beyond.
        assert!(memory.used_bytes() <= USABLE + 4 * MIB, "{memory:?}");
        assert_eq!((memory.budget_bytes, memory.reserve_bytes), (BUDGET, BUDGET / 8));
        assert!(memory.sessions_bytes > 0 && memory.stores_bytes > 0, "{memory:?}");
    }
    for (session, tasks) in sessions.iter_mut().zip(&tasks) {
        for task in tasks {
            assert_eq!(session.wait(*task).good(), pattern(3, blocks as usize));
        }
    }
    eventually("all is given back", || status(&host).memory.commands_bytes == 0);
}

#[test]
fn caches_share_the_budget() {
    let host = host();
    let cache_bytes_max = |volume: usize| {
        let store = status(&host).volumes[volume].store;
        store.record_cache_bytes_max + store.data_cache_bytes_max
    };
    let mut first = host.plain("disk");
    assert!(cache_bytes_max(0) <= USABLE / 2, "{}", cache_bytes_max(0));
    let second = Initiator::log_in(&host, None, normal(BOB, "other")).expect("admitted");
    eventually("the first one's caches shrink", || {
        first.read(0, 1);
        cache_bytes_max(0) <= USABLE / 4 && cache_bytes_max(1) <= USABLE / 4
    });
    drop(second);
}
