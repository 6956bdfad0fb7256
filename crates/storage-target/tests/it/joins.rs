//! Proves over sockets that a further connection joins a session only for the node that made it: with its names, its handle, its proof, and from
//! where it came; and that a session which others try to join or to end does not notice. On whichever worker it is.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use strongroom_block::Buffer;
use strongroom_iscsi::chap::{Algorithm, Challenge, Credentials, Secret};
use strongroom_iscsi::initiator::{ChapLogin, Command, Config as SessionConfig, ConnectionId, Event};
use strongroom_iscsi::pdu::{Answer, LoginRequest};
use strongroom_iscsi::{Bhs, CloseReason, Digests, LoginStatus, Pdu, PlainFramer};
use strongroom_net::{Link, LinkEvent, LinkOptions};
use strongroom_scsi::cdb;
use strongroom_target::config::ChapRule;
use strongroom_target::{ChapSecrets, VolumeSpec};

use crate::support::keeper::status;
use crate::support::{ALICE, BLOCK, Host, Initiator, LUN, MIB, PATIENCE, eventually, normal, pattern, target_name};

const EVE: &str = "iqn.2026-11.org.example:eve";
const SECRETS: [(&str, &[u8]); 2] = [("bob", b"bob's own secret"), ("eve", b"eve has one too")];

/// Any initiator may use `open` and `other`; `disk` is for bob and eve, who have to prove themselves. IPv4 and IPv6.
fn host() -> Host {
    let mut secrets = ChapSecrets::default();
    SECRETS.iter().for_each(|(user, secret)| secrets.insert(*user, Secret::new(secret).unwrap(), None));
    let volumes = ["open", "other", "disk"].map(|name| VolumeSpec::plain(name, 16 * MIB));
    Host::start_with_secrets(&volumes, secrets, |config| {
        config.workers = Some(2);
        config.listen = vec!["127.0.0.1:0".parse().unwrap(), "[::1]:0".parse().unwrap()];
        config.limits.session_connections_max = 3;
        let mut disk = config.plain[0].clone();
        config.plain[0].volumes = vec!["open".into(), "other".into()];
        disk.volumes = vec!["disk".into()];
        disk.chap = vec!["bob".into(), "eve".into()];
        config.plain.push(disk);
        for (user, _) in SECRETS {
            config.chap.push(ChapRule { user: user.into(), ..ChapRule::default() });
        }
    })
}

fn chap(user: &str, secret: &[u8]) -> ChapLogin {
    ChapLogin {
        ourselves: Credentials { name: user.into(), secret: Secret::new(secret).unwrap() },
        target: None,
        algorithms: Algorithm::ALL.to_vec(),
        challenge: Challenge::from_random([9; 33]),
    }
}

/// A session that may have several connections, and its handle.
fn lead(host: &Host, mut config: SessionConfig) -> (Initiator, u16) {
    config.offer.connections_max = 8;
    let mut initiator = Initiator::connect(host, None, config);
    let tsih = initiator.pump_until(|initiator| {
        initiator.events.drain(..).find_map(|event| match event {
            Event::LoggedIn { tsih, agreed, .. } => Some((tsih, agreed.connections_max)),
            _ => None,
        })
    });
    assert_eq!(tsih.1, 3);
    initiator.run(Command::without_data(LUN, cdb::test_unit_ready()));
    (initiator, tsih.0)
}

fn isid(which: u8) -> [u8; 6] {
    [0x80, 0, 0, 0, 0, which]
}

/// The first session of a volume keeps its worker, so that the second one is on another.
fn on_both_workers(host: &Host) -> [(Initiator, u16, [u8; 6]); 2] {
    let sessions = [1, 2].map(|which| {
        let config = SessionConfig { isid: isid(which), ..normal(ALICE, "open") };
        let (initiator, tsih) = lead(host, config);
        (initiator, tsih, isid(which))
    });
    both_workers_have_one(host);
    sessions
}

fn both_workers_have_one(host: &Host) {
    let report = status(host);
    let [first, second] = &report.sessions[..] else { panic!("{report:?}") };
    assert_ne!(first.worker, second.worker);
}

/// A login by hand, in one request.
struct Attempt<'a> {
    at: SocketAddr,
    initiator: &'a str,
    volume: &'a str,
    isid: [u8; 6],
    tsih: u16,
    cid: u16,
}

impl Attempt<'_> {
    /// What the target says, and the connection.
    fn make(&self) -> (LoginStatus, TcpStream) {
        let mut stream = self.begin();
        let status = Attempt::answer(&mut stream).expect("an answer");
        (status, stream)
    }

    fn begin(&self) -> TcpStream {
        let request = LoginRequest { tsih: self.tsih, cid: self.cid, ..LoginRequest::one_step(self.isid) };
        let (initiator, target) = (self.initiator, target_name(self.volume));
        let text = format!("InitiatorName={initiator}\0TargetName={target}\0SessionType=Normal\0");
        let pdu = Pdu::new(request.encode(), Bytes::new(), Buffer::copy_from(text.as_bytes()), false);
        let mut out = Vec::new();
        PlainFramer::encode(pdu, Digests::default(), &mut out);
        let mut stream = TcpStream::connect(self.at).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        out.iter().for_each(|bytes| stream.write_all(bytes).unwrap());
        stream
    }

    /// `None`: the connection ended without one.
    fn answer(stream: &mut TcpStream) -> Option<LoginStatus> {
        let mut header = [0; 48];
        stream.read_exact(&mut header).ok()?;
        let Ok(Answer::Login(answer)) = Answer::decode(&Bhs(header)) else { panic!("{header:?}") };
        Some(answer.status)
    }

    fn status(&self) -> LoginStatus {
        self.make().0
    }
}

#[track_caller]
fn works(session: &mut Initiator, mark: u8) {
    session.write(7, &pattern(mark, 2));
    assert_eq!(session.read(7, 2), pattern(mark, 2));
}

#[test]
fn who_does_not_name_the_session_rightly_is_turned_away() {
    let host = host();
    let mut sessions = on_both_workers(&host);
    for (session, tsih, isid) in &mut sessions {
        let right =
            || Attempt { at: host.address(), initiator: ALICE, volume: "open", isid: *isid, tsih: *tsih, cid: 1 };
        let unknown = LoginStatus::SESSION_DOES_NOT_EXIST;
        assert_eq!(Attempt { tsih: *tsih + 100, ..right() }.status(), unknown);
        assert_eq!(Attempt { isid: [0x80, 9, 9, 9, 9, 9], ..right() }.status(), unknown);
        assert_eq!(Attempt { initiator: EVE, ..right() }.status(), unknown);
        assert_eq!(Attempt { volume: "other", ..right() }.status(), unknown);
        works(session, 1);
        // From where the session did not come, nobody has proven to be who made it.
        let elsewhere = host.handle().local_addresses()[1];
        assert_eq!(Attempt { at: elsewhere, ..right() }.status(), LoginStatus::AUTHORIZATION_FAILED);
        works(session, 2);
        let (joined, stream) = right().make();
        assert_eq!(joined, LoginStatus::SUCCESS);
        assert_eq!(Attempt { cid: 2, ..right() }.make().0, LoginStatus::SUCCESS);
        drop(stream);
    }
}

/// Each replaces the one before (RFC 7143 §6.3.5), which may have been let in a moment ago, and may be on its way to another worker.
#[test]
fn logins_in_one_step_that_replace_each_other_at_once_harm_nobody() {
    const WORKERS: u8 = 3;
    let names: Vec<String> = (0..6).map(|which| format!("disk-{which}")).collect();
    let volumes: Vec<VolumeSpec> = names.iter().map(|name| VolumeSpec::plain(name, MIB)).collect();
    let host = Host::start_with(&volumes, |config| config.workers = Some(usize::from(WORKERS)));
    let at_once = |volume: &str| {
        let attempt = Attempt { at: host.address(), initiator: ALICE, volume, isid: isid(100), tsih: 0, cid: 0 };
        let mut streams: Vec<TcpStream> = (0..8).map(|_| attempt.begin()).collect();
        let answers: Vec<_> = streams.iter_mut().map(Attempt::answer).collect();
        assert!(answers.contains(&Some(LoginStatus::SUCCESS)), "the last one stays: {answers:?}");
        streams
    };
    // They wait together until the volume is open.
    for volume in &names {
        drop(at_once(volume));
    }
    // The unit has a session already: they go to other workers.
    for volume in &names {
        let mut first = Initiator::log_in(&host, None, normal(ALICE, volume)).expect("admitted");
        (0..3).for_each(|_| drop(at_once(volume)));
        works(&mut first, 5);
        assert_eq!(first.log_out(), "logged out");
    }
    eventually("nobody is left", || {
        let stats = host.handle().stats();
        (stats.connections, stats.sessions) == (0, 0)
    });
    // No worker came to grief.
    let volume = &names[0];
    let session = |which| SessionConfig { isid: isid(which), ..normal(ALICE, volume) };
    let mut all: Vec<Initiator> =
        (1..=WORKERS).map(|which| Initiator::log_in(&host, None, session(which)).expect("admitted")).collect();
    all.iter_mut().for_each(|session| works(session, 6));
    let report = status(&host);
    let workers: HashSet<usize> = report.sessions.iter().map(|session| session.worker).collect();
    assert_eq!(workers.len(), usize::from(WORKERS), "{workers:?}");
}

#[test]
fn no_more_join_than_were_agreed_on() {
    let host = host();
    let mut sessions = on_both_workers(&host);
    for (session, tsih, isid) in &mut sessions {
        let attempt =
            |cid| Attempt { at: host.address(), initiator: ALICE, volume: "open", isid: *isid, tsih: *tsih, cid };
        let (joined, held): (Vec<_>, Vec<_>) = [1, 2].map(|cid| attempt(cid).make()).into_iter().unzip();
        assert_eq!(joined, [LoginStatus::SUCCESS; 2]);
        assert_eq!(attempt(3).status(), LoginStatus::TOO_MANY_CONNECTIONS);
        works(session, 3);
        drop(held);
    }
}

/// A further connection of an initiator's session.
struct Further {
    stream: TcpStream,
    link: Link,
    id: ConnectionId,
    is_up: bool,
}

impl Further {
    fn begin(session: &mut Initiator, at: SocketAddr, chap: Option<ChapLogin>) -> Further {
        let stream = TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        let now = Instant::now();
        let id = session.session.add_connection(now, chap).unwrap();
        Further { stream, link: Link::initiator_plain(LinkOptions::default(), now), id, is_up: false }
    }

    fn pump(&mut self, session: &mut Initiator) {
        let mut bytes = [0; 65_536];
        match self.stream.read(&mut bytes) {
            Ok(0) => self.link.handle_eof(),
            Ok(len) => self.link.handle_input(&bytes[..len]),
            Err(_) => {}
        }
        let now = Instant::now();
        while let Some(event) = self.link.poll_event() {
            match event {
                LinkEvent::Established { .. } => self.is_up = true,
                LinkEvent::Pdu(pdu) => session.session.handle_pdu_on(now, self.id, pdu),
                LinkEvent::Corrupt(pdu) => session.session.handle_corrupt_pdu_on(now, self.id, &pdu),
                LinkEvent::Message(_) | LinkEvent::Packet(_) => panic!("iSCSI has none"),
                LinkEvent::Ended(end) => {
                    session.session.handle_closed_on(now, self.id, CloseReason::ConnectionLost(end.to_string()));
                }
            }
        }
        while self.is_up
            && let Some(pdu) = session.session.poll_transmit_on(self.id)
        {
            self.link.send_pdu(pdu);
        }
        let mut out = Vec::new();
        self.link.poll_transmit(&mut out);
        out.iter().for_each(|bytes| drop(self.stream.write_all(bytes)));
    }

    /// Whether the login comes to anything.
    fn joins(&mut self, session: &mut Initiator) -> Result<(), CloseReason> {
        session.pump_until(|session| {
            self.pump(session);
            session.events.drain(..).find_map(|event| match event {
                Event::ConnectionJoined { agreed, .. } => {
                    self.link.login_finished(agreed.digests);
                    Some(Ok(()))
                }
                Event::ConnectionLost { reason, .. } => Some(Err(reason)),
                Event::Closed(reason) => panic!("the session ended: {reason}"),
                _ => None,
            })
        })
    }
}

#[test]
fn every_connection_of_a_session_proves_the_same() {
    let host = host();
    // The first one stays, so that the next one is with another worker.
    let mut kept = Vec::new();
    for which in [1, 2] {
        let config =
            SessionConfig { isid: isid(which), chap: Some(chap("bob", SECRETS[0].1)), ..normal(ALICE, "disk") };
        let (mut session, tsih) = lead(&host, config);
        works(&mut session, 1);
        let refused = |status| Err(CloseReason::LoginRefused(status));
        let mut attempt = |chap| Further::begin(&mut session, host.address(), chap).joins(&mut session);
        assert_eq!(attempt(None), refused(LoginStatus::AUTHENTICATION_FAILED));
        assert_eq!(attempt(Some(chap("bob", SECRETS[1].1))), refused(LoginStatus::AUTHENTICATION_FAILED));
        // Somebody, but not who made the session.
        assert_eq!(attempt(Some(chap("eve", SECRETS[1].1))), refused(LoginStatus::AUTHORIZATION_FAILED));
        let elsewhere = host.handle().local_addresses()[1];
        let mut further = Further::begin(&mut session, elsewhere, Some(chap("bob", SECRETS[0].1)));
        assert_eq!(further.joins(&mut session), Ok(()), "who has proven it may come from anywhere");
        // Commands go by both.
        let tasks: Vec<_> = (0..16)
            .map(|_| session.submit(Command::read(LUN, cdb::read_16(strongroom_block::Lba(7), 2), 2 * BLOCK as u32)))
            .collect();
        let mut left = tasks.len();
        session.pump_until(|session| {
            further.pump(session);
            let done =
                session.events.drain(..).filter(|event| matches!(event, Event::Completed(done) if done.status == 0));
            left -= done.count();
            (left == 0).then_some(())
        });
        // Without a proof nobody ends the session, nor a connection of it, with all the names that it knows.
        for (tsih, cid) in [(0, 0), (tsih, 0), (tsih, further.id.0)] {
            for initiator in [ALICE, EVE] {
                let attempt = Attempt { at: host.address(), initiator, volume: "disk", isid: isid(which), tsih, cid };
                assert_eq!(attempt.status(), LoginStatus::AUTHENTICATION_FAILED, "{tsih} {cid}");
            }
        }
        let eve = SessionConfig { isid: isid(which), chap: Some(chap("eve", SECRETS[1].1)), ..normal(ALICE, "disk") };
        assert!(Initiator::log_in(&host, None, eve).is_err(), "somebody else's session is not replaced");
        let task = session.submit(Command::without_data(LUN, cdb::test_unit_ready()));
        session.pump_until(|session| {
            further.pump(session);
            session.events.drain(..).find(|event| matches!(event, Event::Completed(done) if done.task == task))
        });
        assert_eq!(host.handle().stats().sessions, u64::from(which));
        kept.push((session, further));
    }
    both_workers_have_one(&host);
}
