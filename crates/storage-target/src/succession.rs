//! A volume takes the place of the one that it was made to succeed, while the target runs: the sessions of both end, both are closed, and
//! the next login finds the successor under the other one's name.
//!
//! Absent: what is on the disk at each moment, and how a crash in between is finished, which is the catalogue's.

use std::sync::mpsc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::error::CatalogueError;
use crate::names::VolumeName;
use crate::services::TargetServices;
use crate::worker::message::Message;
use crate::worker::order::{Order, SessionFilter};

/// How often both are asked for at first, and at last.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Begins, in a thread of its own: it syncs, and it waits for other workers.
pub(crate) fn begin(shared: &Arc<TargetServices>, successor: &VolumeName) {
    let (shared, successor) = (Arc::clone(shared), successor.clone());
    let name = successor.clone();
    let body = move || {
        let committed = {
            // Nobody makes snapshots of either, or makes one larger, meanwhile.
            let replaced = shared.catalogue.load(&successor).ok().and_then(|volume| volume.succeeds);
            let _turn = shared.operations.turns.take([successor.clone()].into_iter().chain(replaced));
            shared.catalogue.successions().commit(&successor)
        };
        match committed {
            Ok(name) => settle(Arc::downgrade(&shared), shared, &name, &successor),
            Err(error) => tracing::error!(volume = %successor, %error, "the volume does not take another one's place"),
        }
    };
    if let Err(error) = std::thread::Builder::new().name("succession".to_owned()).spawn(body) {
        tracing::error!(volume = %name, %error, "the volume does not take its place: no thread to do it in");
    }
}

/// Until it is done, or the target ends: the next start finishes it then. New logins are refused from the commit on.
fn settle(weak: Weak<TargetServices>, shared: Arc<TargetServices>, name: &VolumeName, successor: &VolumeName) {
    let (mut shared, mut pause) = (Some(shared), PAUSE);
    while let Some(here) = shared {
        match here.catalogue.successions().settle(name) {
            Ok(()) => return tracing::warn!(volume = %name, "what the volume was resealed as has taken its place"),
            Err(CatalogueError::InUse { .. }) => {}
            Err(error) => {
                tracing::error!(volume = %name, %error, "the volume's new form has not its directory yet; trying again")
            }
        }
        for volume in [name, successor] {
            let which = SessionFilter { volume: Some(volume.to_string()), ..SessionFilter::default() };
            let (reply, _) = mpsc::channel();
            here.tell_all(|| Message::Order(Order::Drop { which: which.clone(), reply: reply.clone() }));
            here.tell_all(|| Message::Order(Order::Close { volume: volume.clone() }));
        }
        drop(here);
        std::thread::sleep(pause);
        pause = (pause * 5 / 4).min(PAUSE_MAX);
        shared = weak.upgrade();
    }
}
