//! Errands between units: out to the worker that has the other unit, and back. An initiator reaches no unit by EXTENDED COPY that it
//! could not log in to: whoever asks is judged by the rules again, operation by operation, where the unit is.

use std::sync::Arc;

use strongroom_block::Token;

use super::units::Slot;
use super::{Message, Worker};
use crate::names::VolumeName;
use crate::neighbours::{Errand, ErrandReply, ErrandResult};
use crate::unit::OutwardErrand;

/// The answer to an errand, on its way to the unit that asked.
pub(crate) struct ErrandBack {
    volume: VolumeName,
    /// The opening of the unit that asked: another one knows nothing of it.
    opening: u64,
    token: Token,
    result: ErrandResult,
}

impl Worker {
    /// Sends what a unit asks of another one.
    pub(super) fn send_errand(&mut self, volume: &VolumeName, opening: u64, outward: OutwardErrand) {
        let OutwardErrand { token, to, asker, op } = outward;
        let (shared, home, asking) = (Arc::clone(&self.shared), self.index, volume.clone());
        let reply = ErrandReply::new(move |result| {
            let back = ErrandBack { volume: asking, opening, token, result };
            shared.tell(home, Message::ErrandBack(Box::new(back)));
        });
        // A unit that is closed is not reached: dropping the reply says so.
        if let Some(worker) = self.shared.environment.neighbours.worker_of(&to) {
            let errand = Errand { volume: to, asker, op, reply };
            self.shared.tell(worker, Message::Errand(Box::new(errand)));
        }
    }

    /// Another unit asks something of one of ours.
    pub(super) fn errand(&mut self, errand: Errand) {
        let now = self.now;
        let may_write = self.errand_may_write(&errand);
        let (Some(may_write), Some(Slot::Open(open))) = (may_write, self.units.get_mut(&errand.volume)) else { return };
        open.unit.take_errand(errand, may_write);
        open.activity(now);
    }

    /// Whether whoever asks could log in to the unit; inside, whether it could write.
    fn errand_may_write(&self, errand: &Errand) -> Option<bool> {
        let (volume, asker) = (self.shared.catalogue.load(&errand.volume).ok()?, &errand.asker);
        self.settings.rules.check_name(&asker.origin.identity, &asker.initiator_name).ok()?;
        // Less protection than the volume asks for would let others say what is read from it, and written to it.
        let admission = self.may_use(&asker.origin, &asker.initiator_name, &volume).ok()?;
        let drained = self.shared.drain().of(&errand.volume).is_some();
        (!drained).then_some(!admission.read_only)
    }

    /// What one of our units asked for is done, or is not.
    pub(super) fn errand_back(&mut self, back: ErrandBack) {
        let Some(Slot::Open(open)) = self.units.get_mut(&back.volume) else { return };
        if open.unit.opening() == back.opening {
            open.unit.take_errand_back(back.token, back.result);
            open.submitted = true;
        }
    }
}
