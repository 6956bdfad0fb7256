//! Sends an operation on a whole volume to the running target that serves it, or performs it on the store directly.
//!
//! Absent: what the operations do (the target's `operate`).

use anyhow::{Result, bail};
use strongroom_target::admin::{Client, Description, Operation, Reply, Request};

use crate::admin::ask;
use crate::root_args::RootArgs;

/// Performs an operation on a volume.
///
/// # Errors
/// What the target or the store says.
pub(crate) fn operate(target: &RootArgs, volume: &str, operation: Operation) -> Result<Description> {
    let Some(mut client) = Client::connect(&target.admin_socket()?)? else {
        return target.open()?.operate(volume, &operation).map_err(anyhow::Error::msg);
    };
    match ask(&mut client, &Request::Volume { volume: volume.to_owned(), operation })? {
        Reply::Volume(description) => Ok(*description),
        other => bail!("the target answered something else: {other:?}; it is of another version, restart it"),
    }
}
