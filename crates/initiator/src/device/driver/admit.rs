//! Whether a unit that has said what it is may be used: by its protection, its identity, and the key that was given. Asked at every
//! session, before anything is sealed or sent.

use std::sync::Arc;
use std::time::Instant;

use strongroom_block::{CryptoCounters, Custody};
use strongroom_seal::{BlockKeys, SealContext, VolumeSealer};

use super::{Attached, Driver, Purpose, SessionState};
use crate::completion::lock;
use crate::device::attachment::ProbedUnit;
use crate::device::protection;
use crate::pipeline::boot_time::BootTime;
use crate::pipeline::key_renewal::{KeyOrigin, KeyRenewer};
use crate::pipeline::sealing::Sealing;
use crate::pipeline::stamps::fill_random;
use crate::pipeline::unit::UnitDescription;
use crate::session::reservation::{OwnPort, ReservationTalk};
use crate::session::transport::SessionTransport;
use crate::session::writer_lease::LeaseTalk;
use crate::{AttachError, KeyRequest, KeySourceError, VolumeKeys};

/// What seals and opens; and whom to follow, if the keys are lent, what was lent, and when it was asked for.
type Sealer = (VolumeSealer, Option<(KeyOrigin, VolumeKeys, BootTime)>);

impl<T: SessionTransport> Driver<T> {
    /// The unit has said what it is.
    pub(super) fn probed(&mut self, now: Instant, mut unit: UnitDescription) -> Result<(), AttachError> {
        protection::check_any(&self.options, &unit)?;
        match self.purpose.clone() {
            Purpose::Attach => protection::check_attachment(&self.options, &unit)?,
            Purpose::AskWriters if unit.has_leases => {
                let talk = LeaseTalk::report(&unit);
                self.ask(now, Arc::new(unit), talk);
                return Ok(());
            }
            Purpose::Fence(request) => {
                let talk = ReservationTalk::request(&unit, &request, OwnPort::new(&self.options, self.port));
                self.ask(now, Arc::new(unit), talk);
                return Ok(());
            }
            Purpose::Inquire | Purpose::AskWriters => {
                self.tell_first(Ok(Attached::unused(Arc::new(unit))));
                return Ok(());
            }
        }
        // As large as it was shown to be: what is smaller than that is not the same.
        let before = self.attachment.unit.as_deref().cloned();
        let before = before.map(|unit| UnitDescription { geometry: self.intake.grown(unit.geometry), ..unit });
        if let Some(before) = &before {
            before.check_continues(&mut unit)?;
        }
        let epoch = |unit: &UnitDescription| unit.sealed.map(|sealed| sealed.claims.epoch);
        let keys_are_current = before.as_ref().is_some_and(|before| epoch(before) == epoch(&unit));
        self.renew_keys(&mut unit, keys_are_current)?;
        let restarted = before.as_ref().is_some_and(|before| before.may_have_lost_writes(&unit));
        self.claim(now, ProbedUnit { unit: Arc::new(unit), restarted });
        Ok(())
    }

    /// A machine resumed from a snapshot has lost its connection: its stamps must not be used again.
    fn renew_keys(&mut self, unit: &mut UnitDescription, keys_are_current: bool) -> Result<(), AttachError> {
        match &self.attachment.sealing {
            Some(sealing) if keys_are_current => sealing.renew(None),
            Some(sealing) => sealing.renew(self.sealer(unit)?.map(|(sealer, _)| sealer)),
            None => {
                if let Some((sealer, lent)) = self.sealer(unit)? {
                    let sealing = Arc::new(Sealing::new(sealer));
                    if let Some((lent, keys, asked)) = lent {
                        self.keep(&sealing, lent, &keys, asked)?;
                    }
                    self.attachment.sealing = Some(sealing);
                }
            }
        }
        Ok(())
    }

    /// Commands may flow.
    pub(super) fn opened(&mut self, now: Instant, probed: ProbedUnit) {
        let nexus = match &mut self.state {
            SessionState::Active(nexus) => Some(&mut **nexus),
            SessionState::Idle { .. } | SessionState::Refused => None,
        };
        self.attachment.open(now, &self.options, self.options.timeouts.give_up, &probed, nexus);
        self.reconnection.succeeded(self.options.timeouts.backoff_min);
        self.found(probed.restarted);
        let mut status = lock(&self.status);
        status.is_connected = true;
        status.connections += 1;
        status.lease_lost = self.attachment.lost().map(|error| error.message.clone());
        drop(status);
        let sealing = self.attachment.sealing.clone();
        self.tell_first(Ok(Attached { sealing, ..Attached::unused(probed.unit) }));
    }

    /// Commands flow again: requests are taken, and need not wait.
    pub(super) fn found(&mut self, restarted: bool) {
        if let Some(lost_at) = self.reconnection.found() {
            tracing::info!(seconds = lost_at.elapsed().as_secs_f32(), restarted, "connected to the target again");
        }
        if !self.intake.is_detaching() {
            self.intake.refuse(None);
        }
    }

    /// Follows the source of keys that are lent.
    fn keep(
        &self,
        sealing: &Arc<Sealing>,
        lent: KeyOrigin,
        keys: &VolumeKeys,
        asked: BootTime,
    ) -> Result<(), AttachError> {
        sealing.lend(keys, asked);
        let intake = Arc::downgrade(&self.intake);
        let notify = move || {
            if let Some(intake) = intake.upgrade() {
                intake.keys_changed();
            }
        };
        let renewer = KeyRenewer::start(lent, keys, asked, sealing.keys(), Box::new(notify))?;
        assert!(sealing.key_renewer.set(renewer).is_ok(), "made for this one");
        Ok(())
    }

    /// What seals and opens for this unit, `None` for a plain one; and whom to follow if the keys are lent. The unit's claim of an
    /// epoch is put right.
    fn sealer(&self, unit: &mut UnitDescription) -> Result<Option<Sealer>, AttachError> {
        let Some(sealed) = &mut unit.sealed else { return Ok(None) };
        let claims = &mut sealed.claims;
        let context = SealContext::new(claims.domain, claims.block_size, claims.epoch)
            .with_mode(sealed.mode)
            .with_suite(claims.suite);
        let counters: Arc<CryptoCounters> = self.options.counters.clone();
        if claims.custody == Custody::Target {
            let keys = BlockKeys::new(context, Box::new(fill_random), counters);
            let keys = keys.with_blocks_per_key(self.options.sealing.blocks_per_key);
            return Ok(Some((VolumeSealer::BlockKeys(Box::new(keys)), None)));
        }
        let source = self.options.sealing.key_source.as_ref().ok_or(AttachError::KeyNeeded)?;
        let request = KeyRequest {
            volume: self.options.url.file_name().to_owned(),
            volume_id: claims.volume_id,
            domain: claims.domain,
        };
        let asked = BootTime::now();
        let keys = source.volume_keys(&request)?;
        self.options.expected.check_epoch(keys.current_epoch)?;
        claims.epoch = keys.current_epoch;
        if !keys.may_seal && !self.options.read_only {
            let refusal = "the key server lets this identity read the volume, not write it; attach it read-only, or ask its owner \
                           for the right 'seal'";
            return Err(AttachError::Key(KeySourceError::Refused(refusal.to_owned())));
        }
        // What the target claims is a label, where the volume's initiator has drawn the domain.
        let domain = keys.domain.unwrap_or(claims.domain);
        let context = SealContext { domain, epoch: keys.current_epoch, ..context };
        let sealer = VolumeSealer::blind(&keys.keys, context, counters.clone())
            .map_err(|error| AttachError::Key(KeySourceError::Refused(error.to_string())))?;
        let lent = keys
            .lease
            .is_some()
            .then(|| (KeyOrigin { source: source.clone(), request, context, counters }, keys, asked));
        Ok(Some((sealer, lent)))
    }
}
