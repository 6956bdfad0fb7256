//! The target's end of an operator's link: one request after the other, each judged by the role that its node has at that moment, and each in
//! the log.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use strongroom_net::OPERATOR_MESSAGE_BYTES_MAX;

use super::message::{check, decode_request, encode, makes_a_volume, peers};
use super::{LinkPlace, RefusalPlace, VOLUMES_MAX};
use crate::admin::{Reply, Request, check_peers, execute};
use crate::channel_stream::{ChannelStream, ConnectionError};
use crate::detached_connection::DetachedConnection;
use crate::names::for_log;
use crate::services::TargetServices;

/// How long an operator may take until its next request is whole.
const REQUEST_PATIENCE: Duration = Duration::from_secs(30);
/// How long an answer may take to leave.
const SEND_PATIENCE: Duration = Duration::from_secs(30);
/// How long one that is turned away may take to hear why.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(2);

/// Serves a link until its end.
pub(super) fn run(services: &Arc<TargetServices>, incoming: DetachedConnection, place: &LinkPlace) {
    let from = incoming.from;
    if let Err(error) = serve(services, incoming, place) {
        tracing::info!(peer = %from, reason = %error, "a link of an operator has ended");
    }
}

/// Tells a node that is no operator, or has too many links, so.
pub(super) fn turn_away(incoming: DetachedConnection, is_operator: bool, _place: &RefusalPlace) {
    let text = match is_operator {
        true => {
            "there are as many links of operators as may be at the same time; try again when one has ended".to_owned()
        }
        false => no_operator(),
    };
    let deadline = Instant::now() + REFUSAL_PATIENCE;
    if let Ok(mut stream) = ChannelStream::new(incoming.stream, incoming.channel, deadline)
        && send(&mut stream, &Reply::Error(text), deadline).is_ok()
    {
        stream.close();
    }
}

fn no_operator() -> String {
    "this node is no operator of this target; its administrator makes it one with: strongroom peer role NAME operator"
        .to_owned()
}

fn serve(
    services: &Arc<TargetServices>,
    incoming: DetachedConnection,
    place: &LinkPlace,
) -> Result<(), ConnectionError> {
    let DetachedConnection { stream, channel, from, slot: _slot } = incoming;
    let key = channel.peer;
    let mut stream = ChannelStream::new(stream, channel, Instant::now() + REQUEST_PATIENCE)?;
    loop {
        let frame = match stream.receive(Instant::now() + REQUEST_PATIENCE) {
            Err(ConnectionError::Closed) => return Ok(()),
            frame => frame?,
        };
        // As it is now: it may have been taken away since the last request.
        let operator = services.settings().rules.operator(&key).map(str::to_owned);
        let Some(operator) = operator else {
            tracing::warn!(peer = %from, %key, "a node that is no operator any more made a request, and was refused");
            send(&mut stream, &Reply::Error(no_operator()), Instant::now() + SEND_PATIENCE)?;
            stream.close();
            return Ok(());
        };
        let reply = answer(services, place, &operator, &frame.header);
        send(&mut stream, &reply, Instant::now() + SEND_PATIENCE)?;
    }
}

fn answer(services: &Arc<TargetServices>, place: &LinkPlace, operator: &str, message: &[u8]) -> Reply {
    let request = match decode_request(message) {
        Ok(request) => request,
        Err(error) => {
            tracing::warn!(operator, %error, "an operator said something that is no request");
            return Reply::Error(error.to_string());
        }
    };
    // Names in it may be anything.
    let asked = for_log(&format!("{request:?}"));
    if let Err(error) = check(&request) {
        tracing::warn!(operator, asked, "an operator asked for something that is not for operators");
        return Reply::Error(error.to_string());
    }
    let reply = execute_for_operator(services, place, request).unwrap_or_else(Reply::Error);
    match &reply {
        Reply::Error(reason) => tracing::warn!(operator, asked, reason, "did not do what an operator asked for"),
        _ => tracing::info!(operator, asked, "did what an operator asked for"),
    }
    reply
}

fn execute_for_operator(services: &Arc<TargetServices>, place: &LinkPlace, request: Request) -> Result<Reply, String> {
    check_peers(services, peers(&request)).map_err(|error| error.to_string())?;
    let _making = makes_a_volume(&request)
        .then(|| place.table.making.lock().unwrap_or_else(PoisonError::into_inner))
        .map(|turn| match services.catalogue.names() {
            Ok(names) if names.len() >= VOLUMES_MAX => {
                Err(format!("there are {VOLUMES_MAX} volumes or more, and operators make no further ones; delete some"))
            }
            Ok(_) => Ok(turn),
            Err(error) => Err(error.to_string()),
        })
        .transpose()?;
    execute(services, request).map_err(|error| error.to_string())
}

/// Sends an answer, in as many messages as it takes; the last one ends with the end of the line.
fn send(stream: &mut ChannelStream, reply: &Reply, deadline: Instant) -> Result<(), ConnectionError> {
    encode(reply).chunks(OPERATOR_MESSAGE_BYTES_MAX).try_for_each(|part| stream.send(part, &[], deadline))
}
