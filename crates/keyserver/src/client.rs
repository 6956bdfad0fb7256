//! The client: what initiators and `strongroom key` call. Blocking; may be used by many threads at once.

mod error;

use std::net::{TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use strongroom_block::{SealingDomain, foreign};
use strongroom_handshake::{HandshakeError, NodeKey, PublicKey};
use strongroom_seal::VolumeKeyFile;
use zeroize::Zeroizing;

pub use self::error::ClientError;
use crate::audit::{AuditHead, AuditLine};
use crate::connection::{Connection, ConnectionError};
use crate::protocol::{Answer, Encoded, Failure, KeyGrant, NewVolume, Request, ServerStatus, WAIT_MAX};
use crate::{DEFAULT_PORT, Rights, Role, VolumeInfo};

/// How long the first call of several servers waits for the slowest.
const SURVEY_PATIENCE: Duration = Duration::from_secs(2);
/// Connections that are kept for the next call.
const IDLE_MAX: usize = 4;

/// Where key servers are, who they are, and as whom we call.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// First the primary, then standbys: `host`, `host:port` or `[address]:port`.
    pub servers: Vec<String>,
    /// The public keys that they may have.
    pub server_keys: Vec<PublicKey>,
    /// As whom.
    pub node_key: Arc<NodeKey>,
    /// For connecting, and for each answer.
    pub timeout: Duration,
}

/// Calls key servers. Connects at the first call and again when a connection is lost; tries the servers in order, beginning with
/// the one that answered last; the first call of several servers asks all of them who is the newest; heeds no server of an older generation than one that it has seen.
pub struct Client {
    options: ClientOptions,
    idle: Mutex<Vec<(usize, Connection)>>,
    preferred: AtomicUsize,
    generation: AtomicU64,
    number: AtomicU32,
    surveyed: AtomicBool,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("servers", &self.options.servers).finish_non_exhaustive()
    }
}

/// A part of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditPage {
    /// The chain's head before the first line.
    pub start: AuditHead,
    /// Lines, in order; none: there are no more.
    pub lines: Vec<AuditLine>,
    /// The head of the whole log.
    pub head: AuditHead,
}

/// What one server said, or why it did not.
enum Said {
    Answer(Box<Answer>),
    Not(NotSaid),
}

enum NotSaid {
    /// Try the next one.
    Nothing(String),
    /// Likewise, and if no other one answers, this is why.
    Turned(ClientError),
}

impl Client {
    /// A client that has not connected yet.
    pub fn new(options: ClientOptions) -> Client {
        Client {
            options,
            idle: Mutex::default(),
            preferred: AtomicUsize::new(0),
            generation: AtomicU64::new(0),
            number: AtomicU32::new(1),
            surveyed: AtomicBool::new(false),
        }
    }

    /// The highest generation of servers that it has seen: give it to [`Client::expect_generation`] after a restart.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Heeds no server of an older generation.
    pub fn expect_generation(&self, generation: u64) {
        self.generation.fetch_max(generation, Ordering::SeqCst);
    }

    /// The keys of every epoch of a volume that is not destroyed. Needs the right `open`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn fetch(&self, domain: SealingDomain) -> Result<KeyGrant, ClientError> {
        self.grant_of(&Request::Fetch { domain }, self.options.timeout)
    }

    /// Waits until the volume's revision is another than `revision`, at most for `wait`; `None`: nothing changed.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::RolledBack`] if the revision is an older one.
    pub fn watch(&self, domain: SealingDomain, revision: u64, wait: Duration) -> Result<Option<KeyGrant>, ClientError> {
        let wait = wait.min(WAIT_MAX);
        let request = Request::Watch { domain, revision, wait };
        match self.call(&request, self.options.timeout + wait)? {
            Answer::Unchanged => Ok(None),
            Answer::Grant(grant) if grant.revision < revision => {
                Err(ClientError::RolledBack { known: revision, told: grant.revision })
            }
            Answer::Grant(grant) => Ok(Some(grant)),
            other => Err(unexpected(&other)),
        }
    }

    /// All keys, for a key file. Needs the right `administer`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn export(&self, domain: SealingDomain) -> Result<KeyGrant, ClientError> {
        self.grant_of(&Request::Export { domain }, self.options.timeout)
    }

    /// The volume of that name, if the caller has any right to it.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn find(&self, name: &str) -> Result<VolumeInfo, ClientError> {
        self.info_of(&Request::Find { name: name.to_owned() })
    }

    /// What is known about a volume, if the caller has any right to it.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn info(&self, domain: SealingDomain) -> Result<VolumeInfo, ClientError> {
        self.info_of(&Request::Info { domain })
    }

    /// Every volume that the caller has a right to; a server administrator sees all.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn list(&self) -> Result<Vec<VolumeInfo>, ClientError> {
        let mut all: Vec<VolumeInfo> = Vec::new();
        loop {
            let after = all.last().map_or(SealingDomain([0; 16]), |volume| volume.domain);
            match self.call(&Request::List { after }, self.options.timeout)? {
                Answer::Volumes(page) if page.is_empty() => return Ok(all),
                Answer::Volumes(page) if page.first().is_some_and(|first| first.domain > after) => all.extend(page),
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Has the server draw the first key of a new volume; the caller administers it.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn create(&self, new: NewVolume) -> Result<VolumeInfo, ClientError> {
        self.info_of(&Request::Create(new))
    }

    /// Gives keys that were made elsewhere into the server's custody; the highest epoch is the current one.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn import(&self, new: NewVolume, keys: &VolumeKeyFile) -> Result<VolumeInfo, ClientError> {
        if keys.purpose() != strongroom_seal::KeyPurpose::Volume {
            return Err(ClientError::Invalid("only volume keys can be imported".into()));
        }
        self.info_of(&Request::Import(new, keys.clone()))
    }

    /// Gives an identity these rights, and no others. Needs the right `administer`, as all that follow.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn grant(&self, domain: SealingDomain, identity: PublicKey, rights: Rights) -> Result<(), ClientError> {
        self.done(&Request::Grant { domain, identity, rights })
    }

    /// Takes every right of an identity, and draws the key of a new epoch in the same transaction, which it gives back.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn revoke(&self, domain: SealingDomain, identity: PublicKey) -> Result<u32, ClientError> {
        match self.epoch_of(&Request::Revoke { domain, identity })? {
            0 => Err(ClientError::Conflict(
                "the rights are taken, but no new epoch began, because the volume has as many as it can have: reseal it, destroy \
                 old epochs, and rotate"
                    .into(),
            )),
            epoch => Ok(epoch),
        }
    }

    /// Draws the key of a new epoch, and gives back its number.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn rotate(&self, domain: SealingDomain) -> Result<u32, ClientError> {
        self.epoch_of(&Request::Rotate { domain })
    }

    /// Destroys the key of an epoch that is not the current one: what is sealed under it is lost. Without `force` not before
    /// every lease of it has run out ([`VolumeInfo::settles_in`]).
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn destroy_epoch(&self, domain: SealingDomain, epoch: u32, force: bool) -> Result<(), ClientError> {
        self.done(&Request::DestroyEpoch { domain, epoch, force })
    }

    /// Cryptographic erase: begins a new epoch and destroys the keys of all before it, regardless of outstanding leases. What is in the volume is
    /// lost; the volume stays. Gives back the new epoch's number.
    ///
    /// # Errors
    /// [`ClientError`]; some keys may be destroyed then: call it again.
    pub fn destroy_keys(&self, domain: SealingDomain) -> Result<u32, ClientError> {
        // First those that are old already: a volume that has as many as it can have has room for another one then.
        self.destroy_old_epochs(domain)?;
        self.rotate(domain)?;
        self.destroy_old_epochs(domain)
    }

    fn destroy_old_epochs(&self, domain: SealingDomain) -> Result<u32, ClientError> {
        let info = self.info(domain)?;
        for (epoch, _) in info.epochs.iter().filter(|(epoch, _)| *epoch != info.current_epoch) {
            self.destroy_epoch(domain, *epoch, true)?;
        }
        Ok(info.current_epoch)
    }

    /// Destroys all keys of a volume: what is in it is lost.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn destroy(&self, domain: SealingDomain) -> Result<(), ClientError> {
        self.done(&Request::Destroy { domain })
    }

    /// Lines of the audit log from number `from` (the first is 1) on. For server administrators, as all that follow.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn audit(&self, from: u64) -> Result<AuditPage, ClientError> {
        match self.call(&Request::Audit { from }, self.options.timeout)? {
            Answer::Failure(Failure::Refused) => Err(ClientError::NotAdministrator),
            Answer::Lines { start, head, lines } => {
                let start = AuditHead { lines: from.saturating_sub(1), hash: start };
                Ok(AuditPage { start, lines, head })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// How the server is; for every identity that it knows.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn status(&self) -> Result<ServerStatus, ClientError> {
        match self.call(&Request::Status, self.options.timeout)? {
            Answer::Status(status) => Ok(status),
            other => Err(unexpected(&other)),
        }
    }

    /// A backup, sealed under the server's master key, piece by piece.
    ///
    /// # Errors
    /// [`ClientError`]; also what `sink` gives back.
    pub fn backup(&self, mut sink: impl FnMut(&[u8]) -> Result<(), std::io::Error>) -> Result<(), ClientError> {
        match self.pieces(&Request::Backup, &mut |piece| sink(piece).map_err(ClientError::Output)) {
            Err(ClientError::Refused) => Err(ClientError::NotAdministrator),
            outcome => outcome,
        }
    }

    /// Makes a standby the primary.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn promote(&self) -> Result<ServerStatus, ClientError> {
        match self.call(&Request::Promote, self.options.timeout)? {
            Answer::Failure(Failure::Refused) => Err(ClientError::NotAdministrator),
            Answer::Status(status) => Ok(status),
            other => Err(unexpected(&other)),
        }
    }

    /// Tells an old primary that one of this generation has taken its place.
    pub(crate) fn fence(&self, database: [u8; 16], generation: u64) -> Result<(), ClientError> {
        self.done(&Request::Fence { database, generation })
    }

    /// An answer of many parts.
    pub(crate) fn pieces(
        &self,
        request: &Request,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        let mut answer = self.call_keeping(request, self.options.timeout)?;
        loop {
            match answer.1 {
                Answer::Part { last, bytes } => {
                    sink(&bytes)?;
                    if last {
                        self.keep(answer.0);
                        return Ok(());
                    }
                }
                other => return Err(unexpected(&other)),
            }
            let (server, mut connection) = answer.0;
            let deadline = Instant::now() + self.options.timeout;
            let (_, next) = receive(&mut connection, None, deadline).map_err(|error| ClientError::Unreachable {
                tried: format!("{}: {error}", self.options.servers[server]),
            })?;
            answer = ((server, connection), next);
        }
    }

    fn grant_of(&self, request: &Request, patience: Duration) -> Result<KeyGrant, ClientError> {
        match self.call(request, patience)? {
            Answer::Grant(grant) => Ok(grant),
            other => Err(unexpected(&other)),
        }
    }

    fn info_of(&self, request: &Request) -> Result<VolumeInfo, ClientError> {
        match self.call(request, self.options.timeout)? {
            Answer::Info(info) => Ok(info),
            other => Err(unexpected(&other)),
        }
    }

    fn epoch_of(&self, request: &Request) -> Result<u32, ClientError> {
        match self.call(request, self.options.timeout)? {
            Answer::Epoch(epoch) => Ok(epoch),
            other => Err(unexpected(&other)),
        }
    }

    fn done(&self, request: &Request) -> Result<(), ClientError> {
        match self.call(request, self.options.timeout)? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn call(&self, request: &Request, patience: Duration) -> Result<Answer, ClientError> {
        let (connection, answer) = self.call_keeping(request, patience)?;
        self.keep(connection);
        Ok(answer)
    }

    fn keep(&self, connection: (usize, Connection)) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
    }

    fn call_keeping(
        &self,
        request: &Request,
        patience: Duration,
    ) -> Result<((usize, Connection), Answer), ClientError> {
        let servers = self.options.servers.len();
        if servers > 1 && !self.surveyed.swap(true, Ordering::SeqCst) {
            self.survey();
        }
        let first = self.preferred.load(Ordering::Relaxed);
        let (mut tried, mut turned) = (Vec::new(), None);
        for server in (0..servers).map(|step| (first + step) % servers) {
            let (connection, said) = self.ask(server, request, patience);
            match (said, connection) {
                (Said::Answer(answer), Some(connection)) => {
                    self.preferred.store(server, Ordering::Relaxed);
                    return Ok(((server, connection), *answer));
                }
                (Said::Not(NotSaid::Turned(error)), _) => {
                    tried.push(format!("{}: {error}", self.options.servers[server]));
                    turned = turned.or(Some(error));
                }
                (Said::Not(NotSaid::Nothing(why)), _) => tried.push(format!("{}: {why}", self.options.servers[server])),
                (Said::Answer(_), None) => unreachable!("an answer comes with its connection"),
            }
        }
        Err(match turned {
            Some(error) if tried.len() == 1 || !error.is_temporary() => error,
            _ if tried.is_empty() => ClientError::Invalid("no key server was given; name one with --key-server".into()),
            _ => ClientError::Unreachable { tried: tried.join("; ") },
        })
    }

    /// Before the first call: asks all servers at once who is of the newest generation, for a short while. An old primary that does
    /// not know that it was replaced is not to be the first one that is heeded.
    fn survey(&self) {
        let patience = self.options.timeout.min(SURVEY_PATIENCE);
        thread::scope(|scope| {
            for server in 0..self.options.servers.len() {
                scope.spawn(move || {
                    let number = self.number.fetch_add(1, Ordering::Relaxed);
                    let encoded = Encoded { message: Request::Status.encode(number), bulk: Zeroizing::default() };
                    let deadline = Instant::now() + patience;
                    let Ok(mut connection) = self.connect(server, deadline) else { return };
                    if connection.send(&encoded, deadline).is_err() {
                        return;
                    }
                    if let Ok((generation, Answer::Status(status))) = receive(&mut connection, Some(number), deadline) {
                        let known = self.generation.fetch_max(generation, Ordering::SeqCst);
                        if status.role == Role::Primary && generation >= known {
                            self.preferred.store(server, Ordering::Relaxed);
                        }
                        self.keep((server, connection));
                    }
                });
            }
        });
    }

    /// Asks one server: over a connection that is there, or a new one. What changes something goes over a new one, so that
    /// it is never sent twice.
    fn ask(&self, server: usize, request: &Request, patience: Duration) -> (Option<Connection>, Said) {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let encoded = Encoded { message: request.encode(number), bulk: Zeroizing::default() };
        if request.is_repeatable() {
            while let Some(mut connection) = self.take_idle(server) {
                let deadline = Instant::now() + patience;
                let answer = connection
                    .send(&encoded, deadline)
                    .map_err(|error| error.to_string())
                    .and_then(|()| receive(&mut connection, Some(number), deadline));
                // One that was ended meanwhile is no news.
                if let Ok((generation, answer)) = answer {
                    return (Some(connection), self.judge(generation, answer));
                }
            }
        }
        let mut connection = match self.connect(server, Instant::now() + self.options.timeout) {
            Ok(connection) => connection,
            Err(said) => return (None, Said::Not(said)),
        };
        let deadline = Instant::now() + patience;
        let answer = connection
            .send(&encoded, deadline)
            .map_err(|error| error.to_string())
            .and_then(|()| receive(&mut connection, Some(number), deadline));
        match answer {
            Ok((generation, answer)) => (Some(connection), self.judge(generation, answer)),
            Err(why) if request.is_repeatable() => (None, Said::Not(NotSaid::Nothing(why))),
            // Another server must not be asked for what this one may have done.
            Err(why) => (None, Said::Not(NotSaid::Turned(ClientError::Unknown(why)))),
        }
    }

    fn take_idle(&self, server: usize) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let at = idle.iter().position(|(of, _)| *of == server)?;
        Some(idle.swap_remove(at).1)
    }

    fn connect(&self, server: usize, deadline: Instant) -> Result<Connection, NotSaid> {
        let nothing = |why: String| NotSaid::Nothing(why);
        let (host, port) = host_and_port(&self.options.servers[server]);
        let addresses = (host.as_str(), port)
            .to_socket_addrs()
            .map_err(|error| nothing(format!("no address is known for this name ({error})")))?;
        let mut why = "no address is known for this name".to_owned();
        for address in addresses {
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => {
                    let (node, expected) = (&self.options.node_key, &self.options.server_keys);
                    return Connection::connect(stream, node, expected, deadline).map_err(|error| self.turned(error));
                }
                Err(error) => why = format!("{address}: {error}"),
            }
        }
        Err(nothing(why))
    }

    fn turned(&self, error: ConnectionError) -> NotSaid {
        NotSaid::Turned(match error {
            ConnectionError::NotAdmitted(own) => ClientError::NotAdmitted { own },
            ConnectionError::Handshake(HandshakeError::WrongTarget { presented }) => {
                ClientError::WrongServer { presented }
            }
            ConnectionError::Handshake(HandshakeError::NoCommonScheme) => ClientError::NotAKeyServer,
            ConnectionError::Handshake(
                HandshakeError::NotConfirmed { own } | HandshakeError::RefusedByTarget { own },
            ) => {
                return NotSaid::Nothing(format!(
                    "it ended the connection instead of confirming it: most likely it does not admit this node; ask who \
                     administers the volume for: strongroom key grant VOLUME '{own}'"
                ));
            }
            other => return NotSaid::Nothing(other.to_string()),
        })
    }

    fn judge(&self, generation: u64, answer: Answer) -> Said {
        let known = self.generation.fetch_max(generation, Ordering::SeqCst);
        if generation < known {
            return Said::Not(NotSaid::Turned(ClientError::Superseded { generation, known }));
        }
        match answer {
            Answer::Failure(Failure::NotPrimary(text)) => {
                Said::Not(NotSaid::Turned(ClientError::Unavailable(foreign(&text).to_string())))
            }
            answer => Said::Answer(Box::new(answer)),
        }
    }
}

fn receive(connection: &mut Connection, number: Option<u32>, deadline: Instant) -> Result<(u64, Answer), String> {
    let left = deadline.saturating_duration_since(Instant::now());
    let message = connection.receive(deadline, left).map_err(|error| error.to_string())?;
    let message = message.ok_or("the key server ended the connection")?;
    let (answered, generation, answer) = Answer::decode(message.bytes(), &message.bulk)
        .map_err(|_| "the key server's answer is malformed; run compatible versions on both ends".to_owned())?;
    if number.is_some_and(|number| number != answered) {
        return Err("the key server answered another request; run compatible versions on both ends".into());
    }
    Ok((generation, answer))
}

fn unexpected(answer: &Answer) -> ClientError {
    match answer {
        Answer::Failure(failure) => match failure {
            Failure::Refused => ClientError::Refused,
            Failure::Conflict(text) => ClientError::Conflict(foreign(text).to_string()),
            Failure::Unavailable(text) | Failure::NotPrimary(text) => {
                ClientError::Unavailable(foreign(text).to_string())
            }
            Failure::TooMany => ClientError::TooMany,
            Failure::Malformed => ClientError::Protocol("the key server does not understand the request"),
            Failure::Invalid(text) => ClientError::Invalid(foreign(text).to_string()),
        },
        _ => ClientError::Protocol("the key server's answer does not fit the request"),
    }
}

fn host_and_port(server: &str) -> (String, u16) {
    let bare = |host: &str| host.trim_start_matches('[').trim_end_matches(']').to_owned();
    match server.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => match port.parse() {
            Ok(port) => (bare(host), port),
            Err(_) => (bare(server), DEFAULT_PORT),
        },
        _ => (bare(server), DEFAULT_PORT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_may_be_named_in_each_usual_way() {
        for (text, host, port) in [
            ("keys.example", "keys.example", DEFAULT_PORT),
            ("keys.example:9", "keys.example", 9),
            ("::1", "::1", DEFAULT_PORT),
            ("[::1]", "::1", DEFAULT_PORT),
            ("[::1]:9", "::1", 9),
            ("10.0.0.1:9", "10.0.0.1", 9),
        ] {
            assert_eq!(host_and_port(text), (host.to_owned(), port), "{text}");
        }
    }
}
