//! Who may write: what an attachment asks of its target, and what it says when somebody else has the volume. The lease itself is kept and
//! enforced by the target (`docs/vendor-cdbs.md`, "Writer leases"); talking about it is in `session`.

use std::fmt;
use std::time::Duration;

use strongroom_block::foreign;
use strongroom_scsi::vendor::lease::{LeaseMode, Standing, Writer, WriterRole};

use crate::ReservationKey;

/// How an attachment wants to have the volume for itself, at a target that keeps writer leases. One that is read-only asks for nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseOptions {
    /// Whether it is asked for one at all: not as an initiator that knows nothing of leases, whose writes fail while another one has the volume.
    pub is_claimed: bool,
    /// For what.
    pub mode: LeaseMode,
    /// The current holder loses the lease: what it has not written yet fails there.
    pub take_over: bool,
    /// Refused while any other session is logged in to the volume, readers too.
    pub sole: bool,
    /// How long the target keeps the volume for us while it does not hear of us.
    pub duration: Duration,
    /// Who we are, for people at another initiator: the host, the process, what it does.
    pub description: String,
    /// The key by which this node of a cluster is registered at the volume while it is attached for writing, so that other nodes can fence it.
    pub reservation_key: Option<ReservationKey>,
}

impl Default for LeaseOptions {
    fn default() -> LeaseOptions {
        LeaseOptions {
            is_claimed: true,
            mode: LeaseMode::Exclusive,
            take_over: false,
            sole: false,
            duration: Duration::from_secs(60),
            description: describe_process(""),
            reservation_key: None,
        }
    }
}

impl LeaseOptions {
    /// The same for writers that coordinate: each of them has to say so.
    pub fn shared() -> LeaseOptions {
        LeaseOptions { mode: LeaseMode::Shared, ..LeaseOptions::default() }
    }
}

/// `host web1, pid 4711`, and what it does.
pub fn describe_process(purpose: &str) -> String {
    let process = name_process(std::process::id());
    if purpose.is_empty() { process } else { format!("{process}, {purpose}") }
}

/// Whether a writer has described itself as that process of this machine, with [`describe_process`].
pub fn is_process(writer: &Writer, pid: u32) -> bool {
    let rest = writer.description.strip_prefix(&name_process(pid));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(','))
}

fn name_process(pid: u32) -> String {
    format!("host {}, pid {pid}", rustix::system::uname().nodename().to_string_lossy())
}

/// Others use the volume in a way that what was asked for cannot stand beside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriterConflict {
    /// What the URL calls the volume.
    pub volume: String,
    /// What was asked for.
    pub wanted: LeaseMode,
    /// Nobody else was to be there.
    pub sole: bool,
    /// Everybody whom the target named.
    pub writers: Vec<Writer>,
}

impl WriterConflict {
    /// Those that stand against what was asked for.
    pub fn blockers(&self) -> impl Iterator<Item = &Writer> {
        let holds = |writer: &Writer| matches!(writer.role, WriterRole::Holder(_));
        let is_held = self.writers.iter().any(|writer| self.stands_against(writer) && holds(writer));
        // Where somebody has a lease, a session without one is not what is in the way.
        self.writers
            .iter()
            .filter(move |writer| self.stands_against(writer) && (self.sole || !is_held || holds(writer)))
    }

    fn stands_against(&self, writer: &Writer) -> bool {
        use LeaseMode::{Exclusive, Maintenance, Reader, Shared};
        match writer.role {
            _ if writer.is_asker => false,
            WriterRole::Holder(_) | WriterRole::Reader | WriterRole::Unleased if self.sole => true,
            WriterRole::Holder(held) => match (held, self.wanted) {
                (Maintenance | Reader, _) | (_, Maintenance | Reader) => false,
                (Shared, Shared) => false,
                (Exclusive | Shared, Exclusive | Shared) => true,
            },
            WriterRole::Unleased => self.wanted == Exclusive,
            WriterRole::Reader | WriterRole::TookOver | WriterRole::Ended => false,
        }
    }

    /// How long it takes until nobody stands against it any more, if those that do have all gone and do not come back.
    pub fn ends_in(&self) -> Option<Duration> {
        let mut blockers = self.blockers().peekable();
        blockers.peek()?;
        let left = blockers.map(|writer| match writer.standing {
            Standing::Connected => None,
            Standing::Gone { left_s, .. } => Some(Duration::from_secs(left_s.into())),
        });
        left.collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    /// Whether only sessions are in the way, and no lease: they may have been about to go, or to say what they want.
    pub(crate) fn may_pass(&self) -> bool {
        let is_lease = |writer: &Writer| matches!(writer.role, WriterRole::Holder(_));
        !self.blockers().any(is_lease)
    }
}

impl fmt::Display for WriterConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blockers: Vec<String> = self.blockers().map(describe).collect();
        if blockers.is_empty() {
            return write!(f, "{} is attached for writing elsewhere", foreign(&self.volume));
        }
        let how = if self.sole { "in use" } else { "attached for writing" };
        write!(f, "{} is {how} by {}", foreign(&self.volume), blockers.join("; "))
    }
}

impl std::error::Error for WriterConflict {}

/// `iqn… (host web1, pid 4711; connected)`.
pub fn describe(writer: &Writer) -> String {
    let name = foreign(&writer.initiator_name);
    let mut facts = Vec::new();
    if !writer.description.is_empty() {
        facts.push(foreign(&writer.description).to_string());
    }
    match (writer.role, writer.standing) {
        (WriterRole::Reader, _) => facts.push("reading".to_owned()),
        (WriterRole::Unleased, _) => facts.push("without a writer lease; connected".to_owned()),
        (WriterRole::TookOver | WriterRole::Ended, _) => {}
        (WriterRole::Holder(_), Standing::Connected) => facts.push("connected".to_owned()),
        (WriterRole::Holder(_), Standing::Gone { since_s, left_s: 0 }) => {
            facts.push(format!("not connected for {since_s} s"));
        }
        (WriterRole::Holder(_), Standing::Gone { since_s, left_s }) => {
            facts.push(format!("not connected for {since_s} s; its lease ends in {left_s} s"));
        }
    }
    if facts.is_empty() { name.to_string() } else { format!("{name} ({})", facts.join("; ")) }
}

#[cfg(test)]
mod tests {
    //! Proves who is named as being in the way, and that nothing that a peer said of itself moves a terminal's cursor.
    use super::*;

    fn writer(role: WriterRole, standing: Standing) -> Writer {
        Writer {
            role,
            is_asker: false,
            standing,
            initiator_name: "iqn.b".into(),
            description: "host b\u{1b}[2J".into(),
        }
    }

    fn conflict(wanted: LeaseMode, sole: bool, writers: &[Writer]) -> WriterConflict {
        WriterConflict { volume: "vault".into(), wanted, sole, writers: writers.to_vec() }
    }

    #[test]
    fn a_process_is_known_by_what_it_says() {
        let with = |description: String| Writer { description, ..writer(WriterRole::Reader, Standing::Connected) };
        let pid = std::process::id();
        assert!(
            is_process(&with(describe_process("")), pid) && is_process(&with(describe_process("attach, ...")), pid)
        );
        assert!(!is_process(&with(describe_process("")), pid + 1));
        assert!(!is_process(&with(format!("{}1", describe_process(""))), pid), "a longer number");
        assert!(!is_process(&with(format!("host elsewhere.example, pid {pid}")), pid));
    }

    #[test]
    fn those_in_the_way_are_named() {
        let held = writer(WriterRole::Holder(LeaseMode::Exclusive), Standing::Connected);
        let reader = writer(WriterRole::Reader, Standing::Connected);
        let stock = writer(WriterRole::Unleased, Standing::Connected);
        let found = conflict(LeaseMode::Exclusive, false, &[held.clone(), reader.clone(), stock.clone()]);
        assert_eq!(found.to_string(), "vault is attached for writing by iqn.b (host b\\u{1b}[2J; connected)");
        assert_eq!((found.ends_in(), found.may_pass()), (None, false));
        let found = conflict(LeaseMode::Exclusive, false, &[reader.clone(), stock]);
        assert!(found.to_string().ends_with("(host b\\u{1b}[2J; without a writer lease; connected)"), "{found}");
        assert!(found.may_pass());
        let found = conflict(LeaseMode::Exclusive, true, &[reader]);
        assert!(found.to_string().contains("in use by iqn.b (host b\\u{1b}[2J; reading)"), "{found}");
        let gone = |left_s| writer(WriterRole::Holder(LeaseMode::Shared), Standing::Gone { since_s: 9, left_s });
        let found = conflict(LeaseMode::Exclusive, false, &[gone(5), gone(7)]);
        assert_eq!(found.ends_in(), Some(Duration::from_secs(7)));
        assert!(found.to_string().contains("not connected for 9 s; its lease ends in 7 s"), "{found}");
        assert_eq!(conflict(LeaseMode::Exclusive, false, &[gone(5), held]).ends_in(), None);
        assert_eq!(conflict(LeaseMode::Shared, false, &[gone(5)]).blockers().count(), 0);
    }
}
