//! Asks a target which volumes it has for us (SendTargets, RFC 7143 Appendix C), through a channel or over plain iSCSI.
//!
//! One question in a conversation. Absent: attaching.

use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_handshake::{NodeKey, PublicKey};
use strongroom_iscsi::initiator::{Event, SendTargets};

use crate::AttachError;
use crate::chap::ChapAccount;
use crate::conversation::Conversation;
use crate::url::parse_target_address;

/// Redirections followed in a row.
const HOPS_MAX: u32 = 8;

/// Whom to ask, and as whom.
#[derive(Clone, Debug)]
pub struct DiscoverOptions {
    /// Host name or address.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Our iSCSI name.
    pub initiator_name: String,
    /// Our identity, for a channel; without it the question goes over plain iSCSI.
    pub node_key: Option<Arc<NodeKey>>,
    /// Our account, for a plain target that wants one.
    pub chap: Option<ChapAccount>,
    /// The target's identity, any of these; needed for a channel.
    pub target_keys: Vec<PublicKey>,
    /// How long the whole may take.
    pub timeout: Duration,
}

/// A target that we may use, by its name, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredTarget {
    /// The iSCSI target name.
    pub name: String,
    /// Each `host:port,portal-group`.
    pub addresses: Vec<String>,
}

/// Asks for all targets that this initiator may use.
///
/// # Errors
/// [`AttachError`]: not reachable, refused, or no answer in time.
pub fn discover(options: &DiscoverOptions) -> Result<Vec<DiscoveredTarget>, AttachError> {
    let deadline = Instant::now() + options.timeout;
    following(options, |options| ask(options, deadline))
}

/// Asks there, and wherever the target sends us.
pub(crate) fn following<T>(
    options: &DiscoverOptions,
    mut ask: impl FnMut(&DiscoverOptions) -> Result<T, AttachError>,
) -> Result<T, AttachError> {
    let mut options = options.clone();
    for _ in 0..HOPS_MAX {
        match ask(&options) {
            Err(AttachError::Moved { address, is_permanent }) => match parse_target_address(&address) {
                Some(elsewhere) => (options.host, options.port) = elsewhere,
                None => return Err(AttachError::Moved { address, is_permanent }),
            },
            answer => return answer,
        }
    }
    Err(AttachError::Moved { address: format!("{}:{}", options.host, options.port), is_permanent: false })
}

/// Asks at one address.
fn ask(options: &DiscoverOptions, deadline: Instant) -> Result<Vec<DiscoveredTarget>, AttachError> {
    let mut conversation = Conversation::begin(options, deadline, "asking for targets")?;
    let mut answer: Option<Vec<DiscoveredTarget>> = None;
    loop {
        match conversation.next() {
            Ok(Event::LoggedIn { .. }) => {
                let asked = conversation.session()?.send_targets(&SendTargets::All);
                asked.map_err(|error| AttachError::Unsupported(error.to_string()))?;
            }
            Ok(Event::TargetsListed(entries)) => {
                let target = |entry: strongroom_iscsi::target::TargetEntry| DiscoveredTarget {
                    name: entry.name,
                    addresses: entry.addresses,
                };
                answer = Some(entries.into_iter().map(target).collect());
                conversation.session()?.logout(Instant::now());
            }
            Ok(Event::Closed(reason)) => {
                return answer.ok_or_else(|| AttachError::Unreachable(reason.to_string()));
            }
            Ok(_) => {}
            // The answer is there, and a goodbye is not worth an error.
            Err(error) => return answer.ok_or(error),
        }
    }
}
