//! A volume takes the place of the one that it was made to succeed, while the target runs: the sessions of both end, both are closed, and
//! the next login finds the successor under the other one's name.
//!
//! Absent: what is on the disk at each moment, and how a crash in between is finished, which is the catalogue's.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::error::CatalogueError;
use crate::names::VolumeName;
use crate::server::Shared;
use crate::worker::{Message, Order, Which};

/// How long the sessions and stores of both may take to end. Beyond, the next start of the target finishes it.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often both are asked for.
const PAUSE: Duration = Duration::from_millis(20);

/// Begins, in a thread of its own: it syncs, and it waits for other workers.
pub(crate) fn begin(shared: &Arc<Shared>, successor: &VolumeName) {
    let (shared, successor) = (Arc::clone(shared), successor.clone());
    let name = successor.clone();
    let body = move || match take_place(&shared, &successor) {
        Ok(name) => tracing::warn!(volume = %name, "what the volume was sealed anew as has taken its place"),
        Err(error) => tracing::error!(volume = %successor, %error, "the volume does not take its place"),
    };
    if let Err(error) = std::thread::Builder::new().name("succession".to_owned()).spawn(body) {
        tracing::error!(volume = %name, %error, "the volume does not take its place: no thread to do it in");
    }
}

fn take_place(shared: &Arc<Shared>, successor: &VolumeName) -> Result<VolumeName, CatalogueError> {
    // Nobody makes snapshots of either, or makes one larger, meanwhile.
    let _turn = shared.operating.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let name = shared.catalogue.commit_succession(successor)?;
    let until = Instant::now() + PATIENCE;
    loop {
        match shared.catalogue.settle_succession(&name) {
            Err(CatalogueError::InUse { .. }) if Instant::now() < until => {}
            outcome => return outcome.map(|()| name),
        }
        for volume in [&name, successor] {
            // New logins are refused from the moment of the commit on.
            let which = Which { volume: Some(volume.to_string()), ..Which::default() };
            let (reply, _) = mpsc::channel();
            shared.tell_all(|| Message::Order(Order::Drop { which: which.clone(), reply: reply.clone() }));
            shared.tell_all(|| Message::Order(Order::Close { volume: volume.clone() }));
        }
        std::thread::sleep(PAUSE);
    }
}
