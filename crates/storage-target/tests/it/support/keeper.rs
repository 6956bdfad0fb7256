//! What the keeper of a target asks it over its own socket.

use strongroom_target::admin::{Client, Reply, Request, StatusReport, default_socket};
use strongroom_target::operate::{Description, Operation};

use super::{Host, PATIENCE};

pub(crate) fn client(host: &Host) -> Client {
    Client::connect(&default_socket(host.dir.path())).unwrap().expect("it listens")
}

pub(crate) fn ask(host: &Host, request: &Request) -> Result<Reply, String> {
    client(host).ask(request, PATIENCE).map_err(|error| error.to_string())
}

#[track_caller]
pub(crate) fn status(host: &Host) -> StatusReport {
    match ask(host, &Request::Status) {
        Ok(Reply::Status(report)) => *report,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn operate(host: &Host, volume: &str, operation: Operation) -> Result<Description, String> {
    match ask(host, &Request::Volume { volume: volume.into(), operation })? {
        Reply::Volume(description) => Ok(*description),
        other => panic!("{other:?}"),
    }
}
