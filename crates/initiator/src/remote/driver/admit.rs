//! Whether a unit that has said what it is may be used: by its protection, its identity, and the key that was given. Asked at every
//! session, before anything is sealed or sent.

use std::sync::Arc;
use std::time::Instant;

use strongroom_block::{CryptoCounters, Custody, Mode};
use strongroom_seal::{BlockKeys, SealContext, VolumeSealer};

use super::{Attached, Driver, Purpose, State};
use crate::completion::lock;
use crate::remote::engine::Engine;
use crate::remote::sealing::Sealing;
use crate::remote::stamps::fill_random;
use crate::remote::unit::UnitDescription;
use crate::{AttachError, DamagedReads, KeyRequest};

impl Driver {
    /// The unit has said what it is.
    pub(super) fn probed(&mut self, mut unit: UnitDescription) -> Result<(), AttachError> {
        if let Some(sealed) = &unit.sealed {
            if !self.options.url.is_channel() {
                return Err(AttachError::Unsupported(
                    "a sealed volume is only served inside a channel; use its strongroom:// URL".into(),
                ));
            }
            self.options.expected.check(&sealed.claims)?;
        }
        self.check_protection(&unit)?;
        if self.purpose == Purpose::Inquire {
            self.tell_first(Ok(Attached { unit: Arc::new(unit), sealing: None }));
            return Ok(());
        }
        let before = self.unit.clone();
        if before.as_ref().is_some_and(|before| !before.is_same_unit(&unit)) {
            return Err(AttachError::Unsupported(
                "it is not the volume that was attached before the connection was lost; detach, and attach again"
                    .into(),
            ));
        }
        if let Some(before) = &before
            && before.geometry.blocks < unit.geometry.blocks
        {
            // Its users were told a size; this attachment keeps to it.
            let blocks = unit.geometry.blocks;
            tracing::info!(blocks, "the volume has grown; attach it again to use all of it");
            unit.geometry = before.geometry;
        }
        let epoch = |unit: &UnitDescription| unit.sealed.map(|sealed| sealed.claims.epoch);
        let keys_are_current = before.as_ref().is_some_and(|before| epoch(before) == epoch(&unit));
        if !keys_are_current || self.sealing.is_none() {
            let sealer = self.sealer(&unit)?;
            match (&self.sealing, sealer) {
                (Some(sealing), sealer) => sealing.renew(sealer),
                (None, sealer) => self.sealing = sealer.map(|sealer| Arc::new(Sealing::new(sealer))),
            }
        } else if let Some(sealing) = &self.sealing {
            // A machine resumed from a snapshot has lost its connection: its stamps must not be used again.
            sealing.renew(None);
        }
        let restarted = before.as_ref().is_some_and(|before| match (before.incarnation, unit.incarnation) {
            (Some(before), Some(now)) => before != now,
            _ => true,
        });
        self.opened(Arc::new(unit), restarted);
        Ok(())
    }

    /// The protection that the caller counts on, not the one that the target claims: a key was given to be used, by us. Asked
    /// at every connection, before anything is sealed or sent.
    fn check_protection(&self, unit: &UnitDescription) -> Result<(), AttachError> {
        let attaches = self.purpose == Purpose::Attach;
        let has_key = attaches && self.options.key_source.is_some();
        let refused = |what: &str| Err(AttachError::Unsupported(what.to_owned()));
        let scheme = self.options.scheme();
        if attaches && unit.sealed.as_ref().is_some_and(|sealed| scheme.would_show(sealed.mode)) {
            return refused(
                "the volume is sealed in the mode authenticate-only, so its blocks would be readable on the way, which the \
                 chosen scheme promises against; use --scheme S1-2 (lazy-auth) or S2-1 (encrypt-all)",
            );
        }
        if attaches
            && self.options.damaged_reads == DamagedReads::Previous
            && !unit.sealed.as_ref().is_some_and(|sealed| sealed.allows_previous)
        {
            return refused(
                "older versions of damaged blocks were asked for, which this volume does not allow; leave --previous-versions out, \
                 or allow it at the target with 'strongroom volume access'",
            );
        }
        if let Some(sealed) = &unit.sealed
            && attaches
            && sealed.suite.is_for_benchmarks_only()
            && !self.options.benchmark_suites
        {
            return refused(
                "the target says that the volume is sealed by aes192-cbc+hmac-md5, which protects nothing today and is for \
                 benchmarks alone; make a volume of another suite, and do not trust this target if it should be one",
            );
        }
        match &unit.sealed {
            None => {
                self.options.expected.check_plain()?;
                if has_key {
                    return refused(
                        "a key was given, but the target says that the volume is plain: nothing would be sealed; leave the \
                         key out if that is right, and do not trust this target if not",
                    );
                }
            }
            Some(sealed) if has_key && !sealed.claims.custody.is_blind() => {
                return refused(
                    "a key was given, but the target says that it holds the keys itself and would be sent the key of every \
                     block; leave the key out if that is right, and do not trust this target if not",
                );
            }
            // Reading reveals nothing, whatever the mode.
            Some(sealed) if attaches && !self.options.read_only && sealed.mode != self.options.mode => {
                return refused(match sealed.mode {
                    Mode::AuthenticateOnly => {
                        "the target says that the volume is sealed in the mode authenticate-only: it could read what is \
                         written; add --authenticate-only if that is right, and do not trust this target if not"
                    }
                    Mode::Encrypt => "the volume is encrypted, and --authenticate-only was asked for; leave that out",
                });
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Commands may flow.
    fn opened(&mut self, unit: Arc<UnitDescription>, restarted: bool) {
        self.unit = Some(unit.clone());
        let engine = self.engine.get_or_insert_with(|| {
            let feedback = self.options.verified_feedback && !self.options.read_only;
            Engine::new(unit.clone(), self.sealing.clone(), self.options.limits, feedback)
        });
        engine.connected(unit.clone(), restarted);
        if let State::Active(nexus) = &mut self.state {
            nexus.open(Instant::now(), unit.sealed.is_some());
        }
        self.backoff = self.options.timeouts.backoff_min;
        self.hops = 0;
        self.found(restarted);
        let mut status = lock(&self.status);
        status.is_connected = true;
        status.connections += 1;
        drop(status);
        let sealing = self.sealing.clone();
        self.tell_first(Ok(Attached { unit, sealing }));
    }

    /// Commands flow again: requests are taken, and need not wait.
    pub(super) fn found(&mut self, restarted: bool) {
        if let Some(lost_at) = self.lost_at.take() {
            tracing::info!(seconds = lost_at.elapsed().as_secs_f32(), restarted, "connected to the target again");
        }
        self.gave_up = false;
        if !self.intake.is_detaching() {
            self.intake.refuse(None);
        }
    }

    /// What seals and opens for this unit; `None` for a plain one.
    fn sealer(&self, unit: &UnitDescription) -> Result<Option<VolumeSealer>, AttachError> {
        let Some(sealed) = &unit.sealed else { return Ok(None) };
        let claims = &sealed.claims;
        let context = SealContext::new(claims.domain, claims.block_size, claims.epoch)
            .with_mode(sealed.mode)
            .with_suite(sealed.suite);
        let counters: Arc<CryptoCounters> = self.options.counters.clone();
        if claims.custody == Custody::Target {
            let keys = BlockKeys::new(context, Box::new(fill_random), counters);
            return Ok(Some(VolumeSealer::BlockKeys(Box::new(keys))));
        }
        let source = self.options.key_source.as_ref().ok_or(AttachError::KeyNeeded)?;
        let request = KeyRequest {
            volume: self.options.url.file_name().to_owned(),
            volume_id: claims.volume_id,
            domain: claims.domain,
            epoch: claims.epoch,
        };
        let keys = source.volume_keys(&request)?;
        let sealer = VolumeSealer::blind(&keys, context, counters)
            .map_err(|error| AttachError::Key(crate::KeySourceError::Refused(error.to_string())))?;
        Ok(Some(sealer))
    }
}
