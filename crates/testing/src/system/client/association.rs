//! An initiator's login of ECL, up to its association.

use strongroom_channel::{ChannelKeys, Role};
use strongroom_ecl::login::{Carrier, LoginAnswer, LoginRequest};

use super::Client;
use crate::system::association::{LoginChannel, exporter};
use crate::system::clock::{Clock, MILLI, Time};
use crate::system::layout::{OPERATOR, VIEWS, initiator_name, isid_of, node, target_address, target_name};

/// How long a login may take.
const LOGIN_MAX: Time = 200 * MILLI;

/// How far a login is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Opening,
    Asked,
    /// The association is there.
    Done,
    /// The connection is of no use any more.
    Over,
}

/// The connection of a login, which stays open as long as the association.
pub(in crate::system) struct Login {
    channel: LoginChannel,
    stage: Stage,
    until: Time,
}

impl Client {
    /// Begins a login over a new connection.
    pub(in crate::system) fn log_in(&mut self, now: Time, id: u64) {
        let keys = ChannelKeys::new(exporter(id), self.setup.associations.scheme);
        let channel = LoginChannel::new(Role::Initiator, keys);
        self.login = Some(Login { channel, stage: Stage::Opening, until: now + LOGIN_MAX });
    }

    /// Whether there is a connection, or a login by which there may be one.
    pub(in crate::system) fn is_connected(&self) -> bool {
        match &self.login {
            Some(Login { stage: Stage::Opening | Stage::Asked, .. }) => true,
            Some(Login { stage: Stage::Over, .. }) => false,
            Some(Login { stage: Stage::Done, .. }) | None => self.machine.is_connected(),
        }
    }

    /// Bytes from the target.
    pub(in crate::system) fn handle_input(&mut self, clock: &Clock, id: u64, bytes: &[u8]) {
        let Some(login) = &mut self.login else { return self.machine.handle_input(clock.instant(), bytes) };
        let Ok(messages) = login.channel.handle_input(bytes) else { return self.connection_lost(clock) };
        if login.stage == Stage::Opening && login.channel.is_confirmed() {
            let target_name = target_name(VIEWS[self.view]);
            let (isid, initiator_name) = (isid_of(self.number), initiator_name(self.number));
            let (carrier, parity) = (Carrier::Udp, self.setup.associations.parity);
            login.channel.send(&LoginRequest { carrier, parity, isid, initiator_name, target_name }.encode());
            login.stage = Stage::Asked;
        }
        for message in messages {
            let answer = message.map(|message| LoginAnswer::decode(&message).expect("it is authentic"));
            match answer {
                Some(LoginAnswer::Granted(grant)) => {
                    assert_eq!(u64::from(grant.connection_id), id, "each association has a connection of its own");
                    self.login.as_mut().expect("it is asked").stage = Stage::Done;
                    let config = self.setup.associations.config(id, target_address());
                    self.machine.associated(clock.instant(), config, node(OPERATOR));
                }
                Some(LoginAnswer::Refused { .. }) | None => return self.connection_lost(clock),
            }
        }
    }

    /// The connection is over.
    pub(in crate::system) fn connection_lost(&mut self, clock: &Clock) {
        if let Some(login) = &mut self.login {
            login.stage = Stage::Over;
        }
        self.machine.connection_lost(clock.instant());
    }

    /// Whether the connection that is over was noted; there is none any more.
    pub(in crate::system) fn forget_connection(&mut self) {
        self.connection.id = None;
        self.login = None;
    }

    /// When its login has to be over.
    pub(in crate::system) fn login_timeout(&self) -> Option<Time> {
        let login = self.login.as_ref()?;
        matches!(login.stage, Stage::Opening | Stage::Asked).then_some(login.until)
    }

    /// Gives a login up that takes too long.
    pub(in crate::system) fn expire_login(&mut self, now: Time) {
        if self.login_timeout().is_some_and(|until| until <= now)
            && let Some(login) = &mut self.login
        {
            login.stage = Stage::Over;
        }
    }

    /// What is to be sent over its connection.
    pub(in crate::system) fn take_bytes(&mut self, clock: &Clock) -> Vec<u8> {
        self.is_woken = false;
        if let Some(login) = &mut self.login {
            return login.channel.take_output();
        }
        let mut bytes = Vec::new();
        loop {
            let made = self.machine.poll_transmit(clock.instant());
            if made.is_empty() {
                return bytes;
            }
            bytes.extend(made.iter().flat_map(|buffer| buffer.iter().copied()));
        }
    }
}
