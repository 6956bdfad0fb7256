//! Logins of ECL and the associations that they make, as the workers do them. A login is accepted by any worker, and handed over to the one
//! that owns the volume, and then to the one that gets the association.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

use strongroom_channel::{ChannelKeys, Role};
use strongroom_ecl::Datagram;
use strongroom_ecl::login::{LoginAnswer, LoginGrant, LoginRequest};
use strongroom_handshake::PublicKey;
use strongroom_iscsi::LoginStatus;
use strongroom_scsi::NexusId;
use strongroom_target::machine::{Admission, Grant};

use super::connections::Output;
use super::volume::ServedVolume;
use super::workers::Workers;
use crate::system::association::{AssociationSetup, LoginChannel, exporter};
use crate::system::layout::{BLOCK_BYTES, VIEWS, initiator_address, target_name};

/// How far a login is.
enum Stage {
    Before,
    /// It waits: for the volume to be opened, or for the end of the association that it replaces.
    Waiting {
        request: LoginRequest,
        is_due: bool,
    },
    /// It begins this session, at the worker that is to have it.
    Admitted(Box<Grant>),
    InSession(u64),
}

struct Association {
    channel: LoginChannel,
    node: PublicKey,
    /// The host that its datagrams come from.
    peer: SocketAddr,
    stage: Stage,
    /// The login's connection is of no use any more.
    is_over: bool,
    /// The worker that has it.
    worker: usize,
    /// It is on its way to another worker.
    is_moving: bool,
}

/// The associations of the target, by the connections of their logins.
pub(super) struct AssociationTable {
    setup: AssociationSetup,
    table: BTreeMap<u64, Association>,
    output: Vec<Output>,
    /// Associations that did not begin at the worker of their unit.
    pub(super) remote_sessions: u64,
    /// Quanta of writes that parity restored.
    pub(super) quanta_repaired: u64,
}

impl Association {
    fn refuse(&mut self) {
        let status = LoginStatus::SERVICE_UNAVAILABLE;
        let reason = "not now".to_owned();
        self.channel.send(&LoginAnswer::Refused { status: u16::from_be_bytes([status.class(), 1]), reason }.encode());
        self.stage = Stage::Before;
        self.is_over = true;
    }

    fn flush(&mut self, id: u64, output: &mut Vec<Output>) {
        let bytes = self.channel.take_output();
        if !bytes.is_empty() {
            output.push(Output::Bytes(id, bytes));
        }
    }
}

impl AssociationTable {
    pub(super) fn new(setup: AssociationSetup) -> AssociationTable {
        AssociationTable { setup, table: BTreeMap::new(), output: Vec::new(), remote_sessions: 0, quanta_repaired: 0 }
    }

    /// The process is gone, with everything that it had in memory.
    pub(super) fn crash(&mut self) {
        self.table.clear();
        self.output.clear();
    }

    /// The process ends in order.
    pub(super) fn close_all(&mut self) {
        for (id, association) in std::mem::take(&mut self.table) {
            self.end(id, association);
        }
    }

    /// The connection of an initiator's login has come to a worker.
    pub(super) fn accept(&mut self, id: u64, (initiator, node): (u64, PublicKey), worker: usize) {
        let channel = LoginChannel::new(Role::Target, ChannelKeys::new(exporter(id), self.setup.scheme));
        let peer = SocketAddr::new(initiator_address(initiator).ip(), 0);
        let (stage, is_over, is_moving) = (Stage::Before, false, false);
        self.table.insert(id, Association { channel, node, peer, stage, is_over, worker, is_moving });
    }

    /// Bytes of a login's connection.
    pub(super) fn handle_input(&mut self, id: u64, bytes: &[u8], workers: &mut Workers) {
        let Some(association) = self.table.get_mut(&id) else { return };
        let Ok(messages) = association.channel.handle_input(bytes) else { return self.handle_closed(id, workers) };
        for message in messages {
            match message {
                Some(message) if matches!(association.stage, Stage::Before) => {
                    let request = LoginRequest::decode(&message).expect("it is authentic");
                    association.stage = Stage::Waiting { request, is_due: true };
                }
                Some(_) => panic!("an initiator asks once"),
                None => return self.handle_closed(id, workers),
            }
        }
    }

    /// A login's connection is over, and with it its association.
    pub(super) fn handle_closed(&mut self, id: u64, workers: &mut Workers) {
        let Some(association) = self.table.get_mut(&id) else { return };
        association.is_over = true;
        if let Stage::InSession(session) = association.stage
            && let Some(session) = workers.get_mut(association.worker).association(session)
        {
            session.close("the connection of its login has ended".to_owned());
        }
    }

    /// A datagram has arrived. Whether it was used.
    pub(super) fn handle_datagram(&mut self, now: Instant, id: u64, datagram: Datagram, workers: &mut Workers) -> bool {
        let Some(Association { stage: Stage::InSession(session), worker, .. }) = self.table.get(&id) else {
            return false;
        };
        let Some(session) = workers.get_mut(*worker).association(*session) else { return false };
        let before = session.statistics();
        session.handle_datagram(now, datagram);
        let after = session.statistics();
        self.quanta_repaired += after.quanta_repaired - before.quanta_repaired;
        after.packets_received > before.packets_received
    }

    /// A login arrives at the worker to which it was handed over. If it waits, the volume may have another owner by now.
    pub(super) fn arrive(&mut self, id: u64, worker: usize) {
        let Some(association) = self.table.get_mut(&id) else { return };
        (association.worker, association.is_moving) = (worker, false);
        self.retry_login(id);
    }

    /// A login that waited is tried again.
    pub(super) fn retry_login(&mut self, id: u64) {
        if let Some(Association { stage: Stage::Waiting { is_due, .. }, .. }) = self.table.get_mut(&id) {
            *is_due = true;
        }
    }

    /// A login that waited is refused.
    pub(super) fn reject(&mut self, id: u64) {
        if let Some(association) = self.table.get_mut(&id)
            && matches!(association.stage, Stage::Waiting { .. })
        {
            association.refuse();
        }
    }

    /// A session was ended before its login was over: the login's connection ends.
    pub(super) fn reject_session(&mut self, session: u64) {
        let begins = |stage: &Stage| matches!(stage, Stage::Admitted(grant) if grant.session() == session);
        self.table.values_mut().filter(|one| begins(&one.stage)).for_each(|one| one.is_over = true);
    }

    /// Moves logins forward; whether anything happened. `next_session`: names the next session.
    pub(super) fn drive(
        &mut self,
        now: Instant,
        workers: &mut Workers,
        volume: &mut ServedVolume,
        next_session: &mut dyn FnMut() -> u64,
    ) -> bool {
        let mut has_progressed = false;
        for id in self.table.keys().copied().collect::<Vec<_>>() {
            if self.table.get(&id).is_none_or(|association| association.is_moving) {
                continue;
            }
            let Some(mut association) = self.table.remove(&id) else { continue };
            has_progressed |= self.try_login(now, id, &mut association, workers, volume, next_session);
            has_progressed |= self.begin(now, id, &mut association, workers);
            if association.is_over && !association.is_moving && !matches!(association.stage, Stage::InSession(_)) {
                if let Stage::Admitted(grant) = &association.stage {
                    workers.get_mut(association.worker).abandon(now, grant);
                }
                self.end(id, association);
                has_progressed = true;
            } else {
                self.table.insert(id, association);
            }
        }
        has_progressed
    }

    /// Lets a login in at the worker that owns the volume, if the volume is open and nothing of the session that it replaces is left.
    fn try_login(
        &mut self,
        now: Instant,
        id: u64,
        association: &mut Association,
        workers: &mut Workers,
        volume: &mut ServedVolume,
        next_session: &mut dyn FnMut() -> u64,
    ) -> bool {
        let Stage::Waiting { request, is_due } = &mut association.stage else { return false };
        if association.is_over || !std::mem::take(is_due) {
            return false;
        }
        let nexus = NexusId {
            initiator_name: request.initiator_name.to_ascii_lowercase().into(),
            isid: request.isid,
            target_portal_group: 1,
        };
        let view = VIEWS.iter().position(|view| target_name(view) == request.target_name);
        let owner = volume.take_owner(workers);
        if owner != association.worker {
            workers.hand_over(now, association.worker, owner, id);
            association.is_moving = true;
            return true;
        }
        let admission = match view {
            Some(view) => volume.admit(now, workers, (id, next_session()), view, (&nexus, association.node)),
            None => Admission::NotOpen,
        };
        match admission {
            Admission::Waits => {}
            Admission::NotOpen => association.refuse(),
            Admission::Granted(grant) => {
                if grant.worker() != owner {
                    self.remote_sessions += 1;
                    workers.hand_over(now, owner, grant.worker(), id);
                    association.is_moving = true;
                }
                association.stage = Stage::Admitted(Box::new(grant));
            }
        }
        true
    }

    /// Begins the association of a login that was let in, at the worker that is to have it.
    fn begin(&mut self, now: Instant, id: u64, association: &mut Association, workers: &mut Workers) -> bool {
        if association.is_moving || association.is_over || !matches!(association.stage, Stage::Admitted(_)) {
            return false;
        }
        let Stage::Admitted(grant) = std::mem::replace(&mut association.stage, Stage::Before) else { return false };
        let session = grant.session();
        let config = self.setup.config(id, association.peer);
        workers.get_mut(association.worker).begin_association(now, *grant, &config, id);
        association.stage = Stage::InSession(session);
        let answer = LoginAnswer::Granted(LoginGrant {
            udp_port: 3260,
            connection_id: id as u32,
            quantum_bytes: BLOCK_BYTES as u32,
            window_bytes: config.window_bytes,
            transfer_bytes_max: config.transfer_bytes_max,
            queue_depth: config.queue_depth,
            portal_group_tag: 1,
        });
        association.channel.send(&answer.encode());
        true
    }

    /// The session of an association has ended.
    pub(super) fn forget(&mut self, id: u64) {
        if let Some(association) = self.table.remove(&id) {
            self.end(id, association);
        }
    }

    fn end(&mut self, id: u64, mut association: Association) {
        association.channel.close();
        association.flush(id, &mut self.output);
        self.output.push(Output::Close(id));
    }

    /// What is to be sent and closed.
    pub(super) fn take_output(&mut self) -> Vec<Output> {
        for (id, association) in self.table.iter_mut().filter(|(_, association)| !association.is_moving) {
            association.flush(*id, &mut self.output);
        }
        std::mem::take(&mut self.output)
    }
}
