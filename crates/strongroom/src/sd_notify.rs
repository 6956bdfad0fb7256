//! Tells a service manager that the process is ready or stopping (the `sd_notify` protocol), if one asked to be told.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends `state`, such as `READY=1`, to the socket that `NOTIFY_SOCKET` names; whether there is one. A failure is not worth failing for.
pub(crate) fn notify(state: &str) -> bool {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return false };
    let bytes = name.as_encoded_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(abstract_name) => SocketAddr::from_abstract_name(abstract_name),
        None => SocketAddr::from_pathname(&name),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = sent {
        tracing::warn!(%error, "cannot tell the service manager: {state}");
    }
    true
}
