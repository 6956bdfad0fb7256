//! Persistent reservations (SPC-4 §5.13): who is registered, who holds the unit, and what PERSISTENT RESERVE OUT changes. Pure state:
//! keeping it over a restart is the target's, which asks for [`PersistentReservations::to_keep`] after every change.

pub mod parameters;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::attention::UnitAttention;
use crate::command::Command;
use crate::nexus::NexusId;
use crate::opcode as op;
use crate::sense::Sense;
use parameters::{Move, Register};

/// Upper bound on registrations of one unit; more are refused.
pub const REGISTRATIONS_MAX: usize = 256;

/// What a reservation keeps others from (SPC-4 table 67).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ReservationType {
    /// The holder alone writes.
    WriteExclusive = 1,
    /// The holder alone reads and writes.
    ExclusiveAccess = 3,
    /// The registered write.
    WriteExclusiveRegistrantsOnly = 5,
    /// The registered read and write.
    ExclusiveAccessRegistrantsOnly = 6,
    /// The registered write, and all of them hold it.
    WriteExclusiveAllRegistrants = 7,
    /// The registered read and write, and all of them hold it.
    ExclusiveAccessAllRegistrants = 8,
}

impl ReservationType {
    /// From its number.
    pub fn from_bits(bits: u8) -> Option<ReservationType> {
        use ReservationType as T;
        Some(match bits {
            1 => T::WriteExclusive,
            3 => T::ExclusiveAccess,
            5 => T::WriteExclusiveRegistrantsOnly,
            6 => T::ExclusiveAccessRegistrantsOnly,
            7 => T::WriteExclusiveAllRegistrants,
            8 => T::ExclusiveAccessAllRegistrants,
            _ => return None,
        })
    }

    /// Every registered nexus holds it.
    pub fn is_all_registrants(self) -> bool {
        matches!(self, Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants)
    }

    /// Being registered is enough to use the unit.
    fn admits_registered(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    fn excludes_reading(self) -> bool {
        matches!(
            self,
            Self::ExclusiveAccess | Self::ExclusiveAccessRegistrantsOnly | Self::ExclusiveAccessAllRegistrants
        )
    }
}

/// A nexus with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Who.
    pub nexus: NexusId,
    /// Its reservation key; never 0.
    pub key: u64,
    /// Registered by ALL_TG_PT on a target with one port; with several there is a registration for each.
    pub all_target_ports: bool,
}

/// The reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldReservation {
    /// Who made it. With an all-registrants type every registered nexus holds it.
    pub by: NexusId,
    /// What it keeps others from.
    pub kind: ReservationType,
}

/// What survives a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedReservations {
    /// The registrations, in order.
    pub registrations: Vec<Registration>,
    /// The reservation.
    pub held: Option<HeldReservation>,
}

/// Why a PERSISTENT RESERVE OUT did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// RESERVATION CONFLICT.
    Conflict,
    /// CHECK CONDITION.
    Sense(Sense),
}

impl From<Sense> for Refusal {
    fn from(sense: Sense) -> Refusal {
        Refusal::Sense(sense)
    }
}

/// What a PERSISTENT RESERVE OUT did to others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Who must be told what.
    pub attentions: Vec<(NexusId, UnitAttention)>,
    /// Whose tasks are to be ended (PREEMPT AND ABORT).
    pub abort: Vec<NexusId>,
}

impl Effects {
    fn tell(&mut self, nexus: &NexusId, attention: UnitAttention) {
        self.attentions.push((nexus.clone(), attention));
    }
}

/// How a command uses the unit, as reservations see it (SPC-4 table 68, SBC-3 table 13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Allowed under any reservation.
    Any,
    /// Allowed unless reading is excluded too.
    Read,
    /// For holders, and for the registered where that is enough.
    Write,
}

fn access_of(command: &Command) -> Access {
    match command {
        Command::TestUnitReady
        | Command::RequestSense { .. }
        | Command::Inquiry { .. }
        | Command::ReadCapacity10
        | Command::ReadCapacity16 { .. }
        | Command::ReportLuns { .. }
        | Command::LogSense { .. }
        | Command::ReportSupportedOperationCodes { .. }
        | Command::ReportSupportedTmfs { .. }
        | Command::ReportTargetPortGroups { .. }
        | Command::PersistentReserveIn { .. }
        // These look after themselves.
        | Command::PersistentReserveOut { .. }
        | Command::Reserve
        | Command::Release
        | Command::PreventAllowMediumRemoval { prevent: 0 }
        | Command::StartStopUnit { start: true, power_condition: 0, .. } => Access::Any,
        Command::Read { .. }
        | Command::Verify { .. }
        | Command::PreFetch { .. }
        | Command::GetLbaStatus { .. }
        | Command::ReadDefectData { .. }
        | Command::ModeSense { .. } => Access::Read,
        Command::Vendor(vendor) if vendor.is_about_leases() => Access::Any,
        Command::Vendor(_) if !command.writes_medium() => Access::Read,
        _ => Access::Write,
    }
}

/// The persistent reservations of one unit.
#[derive(Clone, Debug, Default)]
pub struct PersistentReservations {
    /// PRGENERATION: counts changes of registrations since the unit was opened.
    generation: u32,
    registrations: Vec<Registration>,
    held: Option<HeldReservation>,
    /// APTPL of the last registration: survives a restart.
    kept: bool,
    /// The target's ports, by relative identifier: what ALL_TG_PT means. Empty: the one that is asked through.
    ports: Arc<[u16]>,
}

impl PersistentReservations {
    /// As it was before a restart.
    pub fn restore(kept: SavedReservations) -> PersistentReservations {
        let mut registrations = kept.registrations;
        registrations.truncate(REGISTRATIONS_MAX);
        let known = |held: &HeldReservation| registrations.iter().any(|one| one.nexus == held.by);
        let held = kept.held.filter(known);
        let kept = !registrations.is_empty();
        PersistentReservations { generation: 0, kept, registrations, held, ports: Arc::default() }
    }

    /// The same on a target with these ports.
    pub fn with_ports(self, ports: Arc<[u16]>) -> PersistentReservations {
        PersistentReservations { ports, ..self }
    }

    /// `nexus` through each of the target's ports, itself first.
    fn through_all_ports(&self, nexus: &NexusId) -> Vec<NexusId> {
        let others = self.ports.iter().filter(|port| **port != nexus.target_portal_group);
        let through = |port: &u16| NexusId { target_portal_group: *port, ..nexus.clone() };
        std::iter::once(nexus.clone()).chain(others.map(through)).collect()
    }

    /// What must survive a restart now; empty unless the last registration asked for it (APTPL).
    pub fn to_keep(&self) -> SavedReservations {
        if !self.kept {
            return SavedReservations::default();
        }
        SavedReservations { registrations: self.registrations.clone(), held: self.held.clone() }
    }

    /// APTPL is active.
    pub fn is_kept(&self) -> bool {
        self.kept
    }

    /// PRGENERATION.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Who is registered.
    pub fn registrations(&self) -> &[Registration] {
        &self.registrations
    }

    /// The reservation.
    pub fn held(&self) -> Option<&HeldReservation> {
        self.held.as_ref()
    }

    fn key_of(&self, nexus: &NexusId) -> Option<u64> {
        self.registrations.iter().find(|one| one.nexus == *nexus).map(|one| one.key)
    }

    /// Whether `nexus` holds the reservation.
    pub fn holds(&self, nexus: &NexusId) -> bool {
        self.held.as_ref().is_some_and(|held| {
            if held.kind.is_all_registrants() { self.key_of(nexus).is_some() } else { held.by == *nexus }
        })
    }

    /// Whether `nexus` may do `command` now; otherwise it is a reservation conflict.
    pub fn allows(&self, nexus: &NexusId, command: &Command) -> bool {
        let Some(held) = &self.held else { return true };
        let access = access_of(command);
        let reads = access == Access::Read && !held.kind.excludes_reading();
        let registered = held.kind.admits_registered() && self.key_of(nexus).is_some();
        access == Access::Any || reads || registered || self.holds(nexus)
    }

    /// RESERVE and RELEASE beside persistent reservations (SPC-4 §5.13.3, CRH=1): `None` if these are unused; otherwise whether the
    /// command is good, without effect.
    pub fn compatible(&self, nexus: &NexusId) -> Option<bool> {
        if self.registrations.is_empty() {
            return None;
        }
        let free = self.held.as_ref().is_none_or(|held| held.kind.admits_registered());
        Some(self.key_of(nexus).is_some() && (free || self.holds(nexus)))
    }

    /// PERSISTENT RESERVE OUT.
    ///
    /// # Errors
    /// [`Refusal`]; nothing has changed then.
    pub fn change(
        &mut self,
        nexus: &NexusId,
        service_action: u8,
        scope_and_type: u8,
        list: &[u8],
    ) -> Result<Effects, Refusal> {
        if service_action == op::SA_PR_REGISTER_AND_MOVE {
            let own = [nexus.target_portal_group];
            return self
                .register_and_move(nexus, &Move::parse(list, if self.ports.is_empty() { &own } else { &self.ports })?);
        }
        let register = Register::parse(list, nexus.target_portal_group)?;
        let registering = matches!(service_action, op::SA_PR_REGISTER | op::SA_PR_REGISTER_AND_IGNORE);
        if register.names_others() && service_action != op::SA_PR_REGISTER {
            return Err(Sense::INVALID_FIELD_IN_PARAMETERS.in_parameters(20).into());
        }
        if registering {
            return self.register(nexus, &register, service_action == op::SA_PR_REGISTER_AND_IGNORE);
        }
        // Everything else is for the registered, by their key.
        if self.key_of(nexus) != Some(register.key) {
            return Err(Refusal::Conflict);
        }
        match service_action {
            op::SA_PR_CLEAR => Ok(self.clear(nexus)),
            op::SA_PR_RESERVE => self.reserve(nexus, kind_of(scope_and_type)?),
            op::SA_PR_RELEASE => self.release(nexus, kind_of(scope_and_type)?),
            op::SA_PR_PREEMPT | op::SA_PR_PREEMPT_AND_ABORT => {
                let abort = service_action == op::SA_PR_PREEMPT_AND_ABORT;
                self.preempt(nexus, register.action_key, scope_and_type, abort)
            }
            _ => Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(1, Some(4)).into()),
        }
    }

    fn register(&mut self, nexus: &NexusId, register: &Register, ignore: bool) -> Result<Effects, Refusal> {
        let registered = self.key_of(nexus);
        if !ignore && registered.unwrap_or(0) != register.key {
            return Err(Refusal::Conflict);
        }
        // SPEC_I_PT registers others along with an unregistered nexus; a registered one cannot register others.
        if registered.is_some() && !register.others.is_empty() {
            return Err(Sense::INVALID_FIELD_IN_CDB.into());
        }
        let mut effects = Effects::default();
        // ALL_TG_PT: the initiator port through each of our ports. Each is a registration of its own from then on.
        let of = |nexus: &NexusId| match register.all_target_ports {
            true => self.through_all_ports(nexus),
            false => vec![nexus.clone()],
        };
        let own = of(nexus);
        match (registered, register.action_key) {
            (None, 0) => return Ok(effects),
            (Some(_), 0) => own.iter().for_each(|nexus| self.unregister(nexus, &mut effects)),
            (_, key) => {
                let others: Vec<NexusId> =
                    register.others.iter().filter(|other| *other != nexus).flat_map(of).collect();
                if others.iter().any(|other| self.key_of(other).is_some()) {
                    return Err(Refusal::Conflict);
                }
                let added = own.iter().filter(|nexus| self.key_of(nexus).is_none()).chain(&others);
                let added: Vec<NexusId> = added.cloned().collect();
                if self.registrations.len() + added.len() > REGISTRATIONS_MAX {
                    return Err(Sense::INSUFFICIENT_REGISTRATION_RESOURCES.into());
                }
                self.registrations.iter_mut().filter(|one| own.contains(&one.nexus)).for_each(|one| one.key = key);
                let all_target_ports = register.all_target_ports && self.ports.len() <= 1;
                let registration = |nexus| Registration { nexus, key, all_target_ports };
                self.registrations.extend(added.into_iter().map(registration));
            }
        }
        self.generation = self.generation.wrapping_add(1);
        self.kept = register.persist && !self.registrations.is_empty();
        Ok(effects)
    }

    /// SPC-4 §5.13.11.2.3: a holder that goes takes the reservation with it, unless others hold it too.
    fn unregister(&mut self, nexus: &NexusId, effects: &mut Effects) {
        self.registrations.retain(|one| one.nexus != *nexus);
        let Some(held) = &mut self.held else { return };
        if held.kind.is_all_registrants()
            && let Some(other) = self.registrations.first()
        {
            // Somebody who is still there stands for all of them.
            held.by = other.nexus.clone();
        } else if held.kind.is_all_registrants() || held.by == *nexus {
            let tell = held.kind.admits_registered();
            self.held = None;
            if tell {
                self.tell_others(nexus, UnitAttention::ReservationsReleased, effects);
            }
        }
    }

    fn tell_others(&self, nexus: &NexusId, attention: UnitAttention, effects: &mut Effects) {
        for other in self.registrations.iter().filter(|one| one.nexus != *nexus) {
            effects.tell(&other.nexus, attention);
        }
    }

    fn reserve(&mut self, nexus: &NexusId, kind: ReservationType) -> Result<Effects, Refusal> {
        match &self.held {
            Some(held) if self.holds(nexus) && held.kind == kind => {}
            Some(_) => return Err(Refusal::Conflict),
            None => self.held = Some(HeldReservation { by: nexus.clone(), kind }),
        }
        Ok(Effects::default())
    }

    fn release(&mut self, nexus: &NexusId, kind: ReservationType) -> Result<Effects, Refusal> {
        let mut effects = Effects::default();
        let Some(held) = self.held.as_ref().filter(|_| self.holds(nexus)) else { return Ok(effects) };
        if held.kind != kind {
            return Err(Sense::INVALID_RELEASE.into());
        }
        self.held = None;
        if kind.admits_registered() {
            self.tell_others(nexus, UnitAttention::ReservationsReleased, &mut effects);
        }
        Ok(effects)
    }

    fn clear(&mut self, nexus: &NexusId) -> Effects {
        let mut effects = Effects::default();
        self.tell_others(nexus, UnitAttention::ReservationsPreempted, &mut effects);
        self.registrations.clear();
        self.held = None;
        self.kept = false;
        self.generation = self.generation.wrapping_add(1);
        effects
    }

    /// SPC-4 §5.13.11.2.6, table 74.
    fn preempt(&mut self, nexus: &NexusId, victim: u64, scope_and_type: u8, abort: bool) -> Result<Effects, Refusal> {
        let all_registrants = self.held.as_ref().is_some_and(|held| held.kind.is_all_registrants());
        let holder_key = self.held.as_ref().and_then(|held| self.key_of(&held.by));
        // Whether the reservation itself is taken over, or registrations are merely removed.
        let takes_over = if all_registrants { victim == 0 } else { self.held.is_some() && holder_key == Some(victim) };
        if victim == 0 && !all_registrants {
            return Err(Sense::INVALID_FIELD_IN_PARAMETERS.in_parameters(8).into());
        }
        let goes = |one: &Registration| one.nexus != *nexus && (victim == 0 || one.key == victim);
        if !takes_over && !self.registrations.iter().any(|one| one.key == victim) {
            return Err(Refusal::Conflict);
        }
        let new =
            if takes_over { Some(HeldReservation { by: nexus.clone(), kind: kind_of(scope_and_type)? }) } else { None };
        let mut effects = Effects::default();
        let (gone, stay) = std::mem::take(&mut self.registrations).into_iter().partition::<Vec<_>, _>(goes);
        self.registrations = stay;
        for one in &gone {
            effects.tell(&one.nexus, UnitAttention::RegistrationsPreempted);
            if abort {
                effects.abort.push(one.nexus.clone());
            }
        }
        // A nexus that names its own key without holding anything removes itself.
        if !takes_over && self.key_of(nexus) == Some(victim) {
            self.registrations.retain(|one| one.nexus != *nexus);
        }
        if let Some(new) = new {
            let changes = self.held.as_ref().is_some_and(|held| held.kind != new.kind);
            self.held = Some(new);
            if changes {
                self.tell_others(nexus, UnitAttention::ReservationsReleased, &mut effects);
            }
        } else if self.registrations.is_empty() {
            self.held = None;
        } else if let Some(held) = self.held.as_mut().filter(|held| held.kind.is_all_registrants()) {
            // Somebody who is still there stands for all of them.
            held.by = self.registrations[0].nexus.clone();
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(effects)
    }

    fn register_and_move(&mut self, nexus: &NexusId, wanted: &Move) -> Result<Effects, Refusal> {
        if self.key_of(nexus) != Some(wanted.key) || !self.holds(nexus) {
            return Err(Refusal::Conflict);
        }
        let kind = self.held.as_ref().map(|held| held.kind).ok_or(Refusal::Conflict)?;
        if kind.is_all_registrants() {
            return Err(Refusal::Conflict);
        }
        if wanted.to == *nexus || wanted.action_key == 0 {
            let byte = if wanted.action_key == 0 { 8 } else { 24 };
            return Err(Sense::INVALID_FIELD_IN_PARAMETERS.in_parameters(byte).into());
        }
        let full = self.registrations.len() >= REGISTRATIONS_MAX;
        let known = self.registrations.iter_mut().find(|one| one.nexus == wanted.to);
        match known {
            Some(known) => known.key = wanted.action_key,
            None if full => {
                return Err(Sense::INSUFFICIENT_REGISTRATION_RESOURCES.into());
            }
            None => self.registrations.push(Registration {
                nexus: wanted.to.clone(),
                key: wanted.action_key,
                all_target_ports: false,
            }),
        }
        self.held = Some(HeldReservation { by: wanted.to.clone(), kind });
        if wanted.unregister {
            self.registrations.retain(|one| one.nexus != *nexus);
        }
        self.generation = self.generation.wrapping_add(1);
        self.kept = wanted.persist;
        Ok(Effects::default())
    }
}

/// SPC-4 §6.16.2: scope 0 is the whole unit, others are obsolete.
fn kind_of(scope_and_type: u8) -> Result<ReservationType, Sense> {
    let bad = |bit| Sense::INVALID_FIELD_IN_CDB.in_cdb(2, Some(bit));
    if scope_and_type >> 4 != 0 {
        return Err(bad(7));
    }
    ReservationType::from_bits(scope_and_type & 0x0f).ok_or(bad(3))
}
