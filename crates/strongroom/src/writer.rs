//! Who writes to a volume, as commands ask for it: the arguments, waiting for a holder that is away, and what to do about one that is there.
//!
//! Absent: what a writer lease is (the target's), and how it is claimed (the initiator's).

use std::fmt::Display;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use strongroom_initiator::{
    AttachError, AttachOptions, LeaseMode, LeaseOptions, RemoteDevice, ReservationKey, Writer, WriterConflict,
    describe_process, is_process,
};

use crate::sd_notify;
use crate::units::{parse_duration, show_duration};

/// How often to retry while waiting for a holder that is disconnected.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Waited beyond the end of the lease: clocks differ, and messages take time.
const SLACK: Duration = Duration::from_secs(3);

/// One writer is the rule.
#[derive(Args, Clone)]
pub(crate) struct WriterArgs {
    /// Others may write to the volume at the same time, if all of them say so: for file systems of clusters, and programs that coordinate. An
    /// ordinary file system that is mounted twice is destroyed.
    #[arg(long)]
    shared: bool,
    /// The node that writes to the volume now loses its lease: its unfinished writes fail, and it writes nothing more.
    #[arg(long)]
    take_over: bool,
    /// Register this node at the volume by this key, 1 to 16 hexadecimal digits, while it is attached, so that other nodes of a cluster can fence it
    /// (`strongroom fence`). Each node needs a key of its own; once one is registered, unregistered nodes cannot write.
    #[arg(long, value_name = "KEY")]
    reservation_key: Option<ReservationKey>,
    /// How long to wait for an initiator that has the volume and is away [default: until its lease ends]; 0 does not wait.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    wait: Option<Duration>,
    /// How long the target keeps the volume for this initiator while it does not hear of it; at most 1h.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    lease: Duration,
    /// The process that had the volume before this one, of this machine, and has died.
    #[arg(skip)]
    predecessor: Option<u32>,
}

impl WriterArgs {
    /// Whose lease is taken over, if nobody else has one: that process has died.
    pub(crate) fn succeed(&mut self, pid: u32) {
        self.predecessor = Some(pid);
    }

    /// What is asked of the target. `purpose`: what this process is for, for people elsewhere.
    pub(crate) fn options(&self, purpose: &str) -> LeaseOptions {
        let mode = if self.shared { LeaseMode::Shared } else { LeaseMode::Exclusive };
        let (take_over, duration, reservation_key) = (self.take_over, self.lease, self.reservation_key);
        LeaseOptions { mode, take_over, duration, reservation_key, ..lease(mode, purpose) }
    }

    /// What to do if another initiator has the volume.
    pub(crate) fn way_out(&self) -> WayOut {
        WayOut {
            wait: self.wait.unwrap_or(Duration::MAX),
            advice: "to write from both: --shared on both (an ordinary file system that is \
            mounted twice is destroyed); to take it over from there: --take-over",
            predecessor: self.predecessor,
        }
    }
}

/// What is asked of the target by a command that has no such arguments.
pub(crate) fn lease(mode: LeaseMode, purpose: &str) -> LeaseOptions {
    LeaseOptions { mode, description: describe_process(purpose), ..LeaseOptions::default() }
}

/// What to do where somebody else has the volume.
#[derive(Clone, Copy)]
pub(crate) struct WayOut {
    /// How long to wait for one that is away, at most.
    pub(crate) wait: Duration,
    /// What a person can do.
    pub(crate) advice: &'static str,
    /// A process of this machine that has died: its lease is taken over. That also ends what it had under way at the target.
    pub(crate) predecessor: Option<u32>,
}

impl WayOut {
    /// Of a command that does not wait.
    pub(crate) fn of(advice: &'static str) -> WayOut {
        WayOut { wait: Duration::ZERO, advice, predecessor: None }
    }

    fn refusal(self, conflict: &WriterConflict) -> anyhow::Error {
        anyhow!("{conflict}. Detach it there; {}", self.advice)
    }
}

/// Attaches; waits for the lease of a holder that is away to end.
pub(crate) fn attach(mut options: AttachOptions, way_out: WayOut) -> Result<RemoteDevice> {
    let (url, began) = (options.url.clone(), Instant::now());
    let mut patience = None;
    let mut is_told = false;
    loop {
        let conflict = match RemoteDevice::attach(options.clone()) {
            Err(AttachError::InUse(conflict)) => conflict,
            outcome => return outcome.with_context(|| format!("cannot attach {url}")),
        };
        if !options.lease.take_over && way_out.predecessor.is_some_and(|pid| is_left_by(pid, &conflict, &options)) {
            options.lease.take_over = true;
            continue;
        }
        let Some(left) = conflict.ends_in().filter(|_| !way_out.wait.is_zero()) else {
            return Err(way_out.refusal(&conflict)).with_context(|| format!("cannot attach {url}"));
        };
        let patience = *patience.get_or_insert_with(|| way_out.wait.min(left + SLACK));
        let Some(rest) = patience.checked_sub(began.elapsed()).filter(|rest| !rest.is_zero()) else {
            return Err(way_out.refusal(&conflict)).with_context(|| format!("cannot attach {url}"));
        };
        if !std::mem::replace(&mut is_told, true) {
            let rest = show_duration(rest);
            tell(&format_args!(
                "{conflict}; waiting for it up to {rest}. To take the volume over at once: --take-over"
            ));
        }
        std::thread::sleep(LOOK_EVERY.min(rest));
    }
}

/// Whether only that process of this machine is in the way.
fn is_left_by(pid: u32, conflict: &WriterConflict, options: &AttachOptions) -> bool {
    let is_its = |writer: &Writer| {
        writer.initiator_name.eq_ignore_ascii_case(&options.iscsi.initiator_name) && is_process(writer, pid)
    };
    let mut blockers = conflict.blockers().peekable();
    blockers.peek().is_some() && blockers.all(is_its)
}

/// Where somebody sees it: here, or at the command that started this process in the background.
fn tell(what: &dyn Display) {
    if !sd_notify::notify(&format!("STATUS={what}")) {
        eprintln!("{what}");
    }
}

#[cfg(test)]
mod tests {
    //! Proves whose lease is taken over without being asked to.
    use strongroom_initiator::{Standing, VolumeUrl, WriterRole};

    use super::*;

    #[test]
    fn only_the_lease_of_the_dead_process_is_taken_over() {
        let url: VolumeUrl = "strongroom://storage/vault".parse().unwrap();
        let mut options = AttachOptions::new(url);
        options.iscsi.initiator_name = "iqn.2026-11.test:Alice".into();
        let pid = std::process::id();
        let its = Writer {
            role: WriterRole::Holder(LeaseMode::Exclusive),
            is_asker: false,
            standing: Standing::Connected,
            initiator_name: "iqn.2026-11.test:alice".into(),
            description: describe_process("attach, mounted on /mnt"),
        };
        let other = Writer { description: "host other.example, pid 1".into(), ..its.clone() };
        let of_a_stranger = Writer { initiator_name: "iqn.2026-11.test:bob".into(), ..its.clone() };
        let conflict = |writers: &[&Writer]| WriterConflict {
            volume: "vault".into(),
            wanted: LeaseMode::Exclusive,
            sole: false,
            writers: writers.iter().map(|&writer| writer.clone()).collect(),
        };
        assert!(is_left_by(pid, &conflict(&[&its]), &options));
        assert!(!is_left_by(pid + 1, &conflict(&[&its]), &options));
        let nobody: &[&Writer] = &[];
        for others in [nobody, &[&other], &[&its, &other], &[&of_a_stranger]] {
            assert!(!is_left_by(pid, &conflict(others), &options), "{others:?}");
        }
    }
}
