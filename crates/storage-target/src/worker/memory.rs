//! This worker's part of the memory budget: its sessions are held back, and its stores are charged and bounded.

use std::sync::atomic::Ordering;
use std::time::Duration;

use strongroom_store::Admission;

use super::Worker;
use super::connection::Connection;
use super::session::Session;
use super::units::Slot;
use crate::budget::{MemoryClass, SESSION_BYTES};

/// How often stores are asked what they hold, at most.
const STORES_EVERY: Duration = Duration::from_millis(100);

impl Worker {
    /// Takes memory for the session that a login makes; whether there is some.
    pub(super) fn reserve_session(&self, connection: &mut Connection) -> bool {
        connection.session_memory = self.shared.budget.try_charge(MemoryClass::Sessions, SESSION_BYTES);
        connection.session_memory.is_some()
    }

    /// What reads of one session may pin now, in bytes.
    pub(super) fn read_bytes_max(&self) -> u64 {
        self.shared.budget.commands_bytes_max(self.settings.config.limits.read_memory_bytes)
    }

    /// Charges what a session's commands hold, and bounds what more of them may.
    pub(super) fn bound_memory(&self, session: &mut Session) {
        session.charge_memory();
        let limit_bytes = self.settings.config.limits.write_memory_bytes;
        session.machine.set_write_memory_max(self.shared.budget.commands_bytes_max(limit_bytes));
    }

    /// Charges what the stores here hold, and bounds their caches and their growth, if that was some time ago. What an idle store holds
    /// does not change.
    pub(super) fn bound_stores(&mut self) {
        if self.now < self.stores_bounded_at + STORES_EVERY {
            return;
        }
        self.stores_bounded_at = self.now;
        let (budget, limits) = (&self.shared.budget, &self.settings.config.limits);
        let volumes = self.shared.counters.volumes_open.load(Ordering::Relaxed);
        let cache_bytes = budget.cache_bytes(limits, volumes);
        let admission = if budget.stores_may_grow() { Admission::All } else { Admission::NoGrowth };
        for (name, slot) in &mut self.units {
            let Slot::Open(open) = slot else { continue };
            // A clone or a snapshot has its volume's store.
            let Some(memory) = &mut open.memory else { continue };
            let used = open.unit.store().memory();
            memory.caches.set(used.cache_bytes);
            // Data of requests is charged to their sessions.
            memory.store.set(used.total() - used.cache_bytes - used.request_bytes);
            if memory.cache_bytes_max != cache_bytes {
                memory.cache_bytes_max = cache_bytes;
                open.unit.store().set_cache_bytes(cache_bytes.0, cache_bytes.1);
            }
            if memory.admission != admission {
                tracing::warn!(volume = %name, ?admission, "the memory of all indexes: what a store accepts changes");
                memory.admission = admission;
                open.unit.store().set_admission(admission);
            }
        }
    }
}
