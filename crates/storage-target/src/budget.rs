//! One budget for the memory of a process: what sessions, commands, caches and stores hold, charged to one account, and what new work may
//! still take.
//!
//! Work that was accepted is charged even if nothing is left: a part of the budget is reserved for it, and for opening, flushing and cleaning
//! stores. Only new work is held back: commands wait, caches shrink, logins are refused, and stores that fill the budget with their
//! indexes accept no writes. A session without anything in flight may always start one command, so that each goes on.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::config::Limits;

/// What a session takes without any command: machine, buffers, its entries in tables, and its share of a connection's, in bytes.
pub(crate) const SESSION_BYTES: u64 = 64 << 10;
/// The share of the budget that new work leaves free.
const RESERVE_DIVISOR: u64 = 8;
/// Least budget that can be configured, in bytes.
pub(crate) const BUDGET_BYTES_MIN: u64 = 64 << 20;
/// A session may have this much in flight however little is left, in bytes.
const COMMANDS_BYTES_MIN: u64 = 1 << 20;

/// The share of what is not promised yet that one association is promised at most.
const PROMISE_DIVISOR: u64 = 32;

/// Who holds memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryClass {
    /// Sessions and their connections.
    Sessions,
    /// Data of commands: on its way in, in the queues of stores, on its way out.
    Commands,
    /// Caches of stores.
    Caches,
    /// Indexes, holes, versions and tables of stores, and what cleaning reads.
    Stores,
}

/// The budget and what is used of it, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// All of it, in bytes.
    pub budget_bytes: u64,
    /// What new work leaves to work that was accepted.
    pub reserve_bytes: u64,
    /// Sessions and connections (estimated from their number).
    pub sessions_bytes: u64,
    /// Data of commands.
    pub commands_bytes: u64,
    /// Caches of stores.
    pub caches_bytes: u64,
    /// Indexes, holes, versions and tables of stores, and what cleaning reads.
    pub stores_bytes: u64,
}

impl MemoryReport {
    /// What is used.
    pub fn used_bytes(&self) -> u64 {
        self.sessions_bytes + self.commands_bytes + self.caches_bytes + self.stores_bytes
    }
}

/// The account.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    total_bytes: AtomicU64,
    /// By [`MemoryClass`].
    used: [AtomicU64; 4],
    /// Write data that initiators may send without asking.
    promised: AtomicU64,
}

impl MemoryBudget {
    pub(crate) fn new(total_bytes: u64) -> MemoryBudget {
        MemoryBudget { total_bytes: AtomicU64::new(total_bytes), used: Default::default(), promised: AtomicU64::new(0) }
    }

    /// The budget of a configuration: by default half of the memory that this process may have.
    pub(crate) fn bytes_of(limits: &Limits) -> u64 {
        limits.memory_bytes.unwrap_or_else(|| (machine_bytes() / 2).max(BUDGET_BYTES_MIN))
    }

    /// Another configuration holds.
    pub(crate) fn set_total(&self, total_bytes: u64) {
        self.total_bytes.store(total_bytes, Ordering::Relaxed);
    }

    /// Charges memory, even if nothing is left.
    pub(crate) fn charge(self: &Arc<Self>, class: MemoryClass, bytes: u64) -> Charge {
        self.used[class as usize].fetch_add(bytes, Ordering::Relaxed);
        Charge { budget: Arc::clone(self), class, bytes }
    }

    /// Charges memory for new work; `None` if there is too little.
    pub(crate) fn try_charge(self: &Arc<Self>, class: MemoryClass, bytes: u64) -> Option<Charge> {
        let charge = self.charge(class, bytes);
        (self.used_bytes() <= self.usable_bytes()).then_some(charge)
    }

    /// What commands of a session may hold together, in bytes: no more than is free, so that sessions which ask for much share what there
    /// is (see `store_queue`).
    pub(crate) fn commands_bytes_max(&self, limit_bytes: u64) -> u64 {
        let free = self.usable_bytes().saturating_sub(self.used_bytes());
        limit_bytes.min(free.max(COMMANDS_BYTES_MIN))
    }

    /// Promises an association memory for write data, which its initiator sends without asking: `limit_bytes`, or less where others have been
    /// promised much. All promises together are half of what new work may fill, and beyond that as much for each as any session may have.
    pub(crate) fn promise(self: &Arc<Self>, limit_bytes: u64) -> WritePromise {
        let left = (self.usable_bytes() / 2).saturating_sub(self.promised.load(Ordering::Relaxed));
        let bytes = limit_bytes.min((left / PROMISE_DIVISOR).max(COMMANDS_BYTES_MIN));
        self.promised.fetch_add(bytes, Ordering::Relaxed);
        WritePromise { budget: Arc::clone(self), bytes }
    }

    /// What the caches of one of `volumes` open volumes may hold, in bytes: of records, and of data.
    pub(crate) fn cache_bytes(&self, limits: &Limits, volumes: u64) -> (usize, usize) {
        let held = self.used(MemoryClass::Stores) + self.used(MemoryClass::Sessions);
        let of_one = self.usable_bytes().saturating_sub(held) / 2 / volumes.max(1);
        let (records, data) = (limits.record_cache_bytes as u64, limits.data_cache_bytes as u64);
        let share = |wanted: u64| {
            let of_this = u128::from(of_one) * u128::from(wanted) / u128::from((records + data).max(1));
            wanted.min(u64::try_from(of_this).unwrap_or(u64::MAX)) as usize
        };
        (share(records), share(data))
    }

    /// Whether indexes may still grow: they cannot be made smaller, and all else needs room too.
    pub(crate) fn stores_may_grow(&self) -> bool {
        self.used(MemoryClass::Stores) <= self.usable_bytes() / 4 * 3
    }

    pub(crate) fn report(&self) -> MemoryReport {
        MemoryReport {
            budget_bytes: self.total_bytes.load(Ordering::Relaxed),
            reserve_bytes: self.total_bytes.load(Ordering::Relaxed) / RESERVE_DIVISOR,
            sessions_bytes: self.used(MemoryClass::Sessions),
            commands_bytes: self.used(MemoryClass::Commands),
            caches_bytes: self.used(MemoryClass::Caches),
            stores_bytes: self.used(MemoryClass::Stores),
        }
    }

    fn used(&self, class: MemoryClass) -> u64 {
        self.used[class as usize].load(Ordering::Relaxed)
    }

    fn used_bytes(&self) -> u64 {
        self.used.iter().map(|used| used.load(Ordering::Relaxed)).sum()
    }

    /// What new work may fill.
    fn usable_bytes(&self) -> u64 {
        let total = self.total_bytes.load(Ordering::Relaxed);
        total - total / RESERVE_DIVISOR
    }
}

/// Memory that somebody holds; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<MemoryBudget>,
    class: MemoryClass,
    bytes: u64,
}

impl Charge {
    /// It is so much now.
    pub(crate) fn set(&mut self, bytes: u64) {
        let used = &self.budget.used[self.class as usize];
        match bytes.checked_sub(self.bytes) {
            Some(0) => return,
            Some(more) => used.fetch_add(more, Ordering::Relaxed),
            None => used.fetch_sub(self.bytes - bytes, Ordering::Relaxed),
        };
        self.bytes = bytes;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.used[self.class as usize].fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Memory for write data that was promised; free for others when it is dropped.
#[derive(Debug)]
pub(crate) struct WritePromise {
    budget: Arc<MemoryBudget>,
    bytes: u64,
}

impl WritePromise {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for WritePromise {
    fn drop(&mut self) {
        self.budget.promised.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The memory that this process may have: the machine's, or less where a control group bounds it.
fn machine_bytes() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let machine = physical_bytes(&meminfo).unwrap_or(4 << 30);
    group_bytes(&groups, Path::new("/sys/fs/cgroup")).map_or(machine, |group| group.min(machine))
}

/// `MemTotal` of `/proc/meminfo`.
fn physical_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// The least limit of the control groups that `/proc/self/cgroup` names, and of those that they are in.
fn group_bytes(groups: &str, mount: &Path) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        // Version 2 has one hierarchy, without a list of controllers.
        let (root, file) = match controllers {
            "" => (mount.to_owned(), "memory.max"),
            list if list.split(',').any(|controller| controller == "memory") => {
                (mount.join("memory"), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let group = root.join(path.trim_start_matches('/'));
        // Inside a container the path may be that of the host, and the mount the container's own group.
        let up = group.ancestors().take_while(|above| above.starts_with(&root)).map(Path::to_owned);
        let read = |above: std::path::PathBuf| fs::read_to_string(above.join(file)).ok()?.trim().parse::<u64>().ok();
        up.filter_map(read).min()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    //! Proves what is held back when memory is short, and that what was accepted is not.
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn new_work_leaves_the_reserve_and_accepted_work_may_use_it() {
        let budget = Arc::new(MemoryBudget::new(80 * MIB));
        let mut sessions = Vec::new();
        while let Some(session) = budget.try_charge(MemoryClass::Sessions, MIB) {
            sessions.push(session);
        }
        assert_eq!(sessions.len(), 70);
        assert_eq!(budget.report().used_bytes(), 70 * MIB, "a refused charge is given back");
        let accepted = budget.charge(MemoryClass::Commands, 20 * MIB);
        assert_eq!(budget.report().used_bytes(), 90 * MIB);
        // Each session still gets on.
        assert_eq!(budget.commands_bytes_max(64 * MIB), COMMANDS_BYTES_MIN);
        drop((accepted, sessions));
        assert_eq!(budget.report().used_bytes(), 0);
        assert_eq!(budget.commands_bytes_max(64 * MIB), 64 * MIB);
        let mut commands = budget.charge(MemoryClass::Commands, 40 * MIB);
        assert_eq!(budget.commands_bytes_max(64 * MIB), 30 * MIB, "no more than is free");
        commands.set(10 * MIB);
        commands.set(12 * MIB);
        assert_eq!(budget.report().commands_bytes, 12 * MIB);
    }

    #[test]
    fn what_associations_are_promised_is_bounded_in_total() {
        let budget = Arc::new(MemoryBudget::new(8 << 30));
        let first = budget.promise(64 * MIB);
        assert_eq!(first.bytes(), 64 * MIB, "as configured");
        let many: Vec<WritePromise> = (0..1000).map(|_| budget.promise(64 * MIB)).collect();
        assert_eq!(many.last().map(WritePromise::bytes), Some(MIB), "each gets on");
        let total: u64 = many.iter().map(WritePromise::bytes).sum();
        assert!(total <= budget.usable_bytes() / 2 + 1000 * MIB, "{total}");
        drop(many);
        assert_eq!(budget.promise(64 * MIB).bytes(), 64 * MIB, "they are over");
    }

    #[test]
    fn caches_share_what_indexes_leave() {
        let limits = Limits { record_cache_bytes: 32 << 20, data_cache_bytes: 96 << 20, ..Limits::default() };
        let budget = Arc::new(MemoryBudget::new(1024 * MIB));
        assert_eq!(budget.cache_bytes(&limits, 1), (32 << 20, 96 << 20), "as configured");
        assert_eq!(budget.cache_bytes(&limits, 100), ((448 << 20) / 100 / 4, (448 << 20) / 100 / 4 * 3));
        let mut index = budget.charge(MemoryClass::Stores, 600 * MIB);
        assert!(budget.stores_may_grow());
        index.set(700 * MIB);
        assert!(!budget.stores_may_grow());
        assert_eq!(budget.cache_bytes(&limits, 1), (98 * (1 << 20) / 4, 98 * (1 << 20) / 4 * 3));
        index.set(2000 * MIB);
        assert_eq!(budget.cache_bytes(&limits, 1), (0, 0));
    }

    #[test]
    fn the_machine_and_its_groups_are_asked() {
        assert_eq!(physical_bytes("MemFree: 1 kB\nMemTotal:       16 kB\n"), Some(16 << 10));
        assert!(machine_bytes() > 0);
        let mount = tempfile::tempdir().unwrap();
        let group = mount.path().join("system.slice/strongroom.service");
        fs::create_dir_all(&group).unwrap();
        let groups = "0::/system.slice/strongroom.service\n";
        assert_eq!(group_bytes(groups, mount.path()), None);
        fs::write(group.join("memory.max"), "max\n").unwrap();
        fs::write(group.parent().unwrap().join("memory.max"), "1000\n").unwrap();
        assert_eq!(group_bytes(groups, mount.path()), Some(1000), "that of a group around it");
        fs::write(group.join("memory.max"), "500\n").unwrap();
        assert_eq!(group_bytes(groups, mount.path()), Some(500));
        // Version 1.
        let group = mount.path().join("memory/docker/1");
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("memory.limit_in_bytes"), "700\n").unwrap();
        assert_eq!(group_bytes("5:cpu:/\n4:memory:/docker/1\n", mount.path()), Some(700));
    }
}
