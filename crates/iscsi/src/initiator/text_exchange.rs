//! What an initiator asks beside commands: targets, by a text exchange whose answer may come in parts (RFC 7143 §11.10), and echoes.

use std::collections::VecDeque;

use strongroom_block::Buffer;

use super::connection::{Connection, REQUESTS_MAX};
use super::connection_id::ConnectionId;
use super::requests::{self, ControlTags};
use super::types::{TEXT_BYTES_MAX, TargetEntry};
use crate::PeerMisbehaved;
use crate::pdu::{TAG_NONE, TextResponse};
use crate::text::{Collector, Pairs};

/// Parts of one text exchange.
const TEXT_ROUNDS_MAX: usize = 1024;

/// The text exchange that is open, and the echoes in flight.
#[derive(Debug, Default)]
pub(super) struct Exchanges {
    text: Option<TextExchange>,
    /// Tags of echoes in flight.
    echoes: VecDeque<u32>,
}

#[derive(Debug)]
struct TextExchange {
    tag: u32,
    /// `None`: the connection was lost, and it is to be requested again.
    connection: Option<ConnectionId>,
    text: Buffer,
    collector: Collector,
    pairs: Vec<Pairs>,
    /// By the application; else by the target, which wanted one.
    is_asked: bool,
}

impl Exchanges {
    pub(super) fn has_text(&self) -> bool {
        self.text.is_some()
    }

    /// Begins a text exchange, by the application or because the target wants one.
    pub(super) fn start_text(
        &mut self,
        connection: &mut Connection,
        tags: &mut ControlTags,
        text: Buffer,
        is_asked: bool,
    ) {
        let tag = tags.next();
        connection.request(requests::text(tag, TAG_NONE), text.clone());
        let (collector, pairs) = (Collector::default(), Vec::new());
        self.text = Some(TextExchange { tag, connection: Some(connection.id), text, collector, pairs, is_asked });
    }

    /// Takes a part of the answer; gives the targets once it is complete and the application has asked.
    pub(super) fn take_text(
        &mut self,
        connection: &mut Connection,
        header: &TextResponse,
        data: &[u8],
    ) -> Result<Option<Vec<TargetEntry>>, PeerMisbehaved> {
        let is_its = |exchange: &&mut TextExchange| {
            exchange.tag == header.initiator_task_tag && exchange.connection == Some(connection.id)
        };
        let unknown = PeerMisbehaved::UnknownTask { what: "a text response", task_tag: header.initiator_task_tag };
        let exchange = self.text.as_mut().filter(is_its).ok_or(unknown)?;
        if let Some(pairs) = exchange.collector.push(data, header.continues, TEXT_BYTES_MAX)? {
            exchange.pairs.push(pairs);
            if exchange.pairs.len() > TEXT_ROUNDS_MAX {
                return Err(PeerMisbehaved::Flood { what: "text responses", limit: TEXT_ROUNDS_MAX });
            }
        }
        if header.is_final && !header.continues {
            return Ok(self
                .text
                .take()
                .filter(|exchange| exchange.is_asked)
                .map(|exchange| targets_of(&exchange.pairs)));
        }
        connection.check_flood()?;
        connection.request_header(requests::text(exchange.tag, header.target_transfer_tag));
        Ok(None)
    }

    /// A connection is lost: its exchange is to be requested again.
    pub(super) fn lose_connection(&mut self, id: ConnectionId) {
        if let Some(exchange) = self.text.as_mut().filter(|exchange| exchange.connection == Some(id)) {
            exchange.connection = None;
        }
    }

    /// Begins an exchange again that was on a lost connection.
    pub(super) fn repeat_text(&mut self, connection: &mut Connection, tags: &mut ControlTags) {
        if let Some(exchange) = self.text.take_if(|exchange| exchange.connection.is_none()) {
            self.start_text(connection, tags, exchange.text, exchange.is_asked);
        }
    }

    /// Sends an echo; `None` if there are too many.
    pub(super) fn start_echo(
        &mut self,
        connection: &mut Connection,
        tags: &mut ControlTags,
        data: Buffer,
    ) -> Option<u32> {
        if self.echoes.len() >= REQUESTS_MAX {
            return None;
        }
        let tag = tags.next();
        self.echoes.push_back(tag);
        connection.request(requests::ping(tag), data);
        Some(tag)
    }

    /// Whether an answer is that of an echo, which is over with it.
    pub(super) fn take_echo(&mut self, tag: u32) -> bool {
        let found = self.echoes.iter().position(|echo| *echo == tag);
        found.is_some_and(|at| self.echoes.remove(at).is_some())
    }

    pub(super) fn clear(&mut self) {
        *self = Exchanges::default();
    }
}

fn targets_of(parts: &[Pairs]) -> Vec<TargetEntry> {
    let mut targets: Vec<TargetEntry> = Vec::new();
    for (key, value) in parts.iter().flat_map(Pairs::iter) {
        match key {
            "TargetName" => targets.push(TargetEntry { name: value.to_owned(), addresses: Vec::new() }),
            "TargetAddress" => {
                if let Some(target) = targets.last_mut() {
                    target.addresses.push(value.to_owned());
                }
            }
            _ => {}
        }
    }
    targets
}
