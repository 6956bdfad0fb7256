//! The device server of a unit (SAM-5): takes the commands of its sessions, decides whether each may be executed now, has it executed, and gives
//! its response when it has ended. It connects who may use the unit (`access_control`), what commands work on
//! (`medium`), and which of them run (`task_set`).
//!
//! Absent: what each command does (`commands`, `answers`), administrative jobs, and snapshots that are received.

use strongroom_block::{Lba, Token};
use strongroom_channel::Scheme;
use strongroom_scsi::mode::ModeState;
use strongroom_scsi::transport::target as transport;
use strongroom_scsi::transport::target::{Response, TaskId};
use strongroom_scsi::{Command, Sense, Status, UnitAttention, UnitKind, VendorCommand, cdb};
use strongroom_store::{Completion, Op, OpError};

use super::access_control::AccessControl;
use super::answers::{self, REPORT_LUNS_UNIT};
use super::commands::{BlockCommand, CommandContext, SERVED_MAX};
use super::copies::{OutgoingRequest, ThirdPartyCopies};
use super::identity::UnitIdentity;
use super::image::Pin;
use super::medium::Medium;
use super::meter::UnitMeter;
use super::plan::{Advance, Plan, Verdict};
use super::request::{Request, gather};
use super::response::{check_condition, data, status};
use super::sanitize::{SanitizeStatus, Sanitizer};
use super::task::{Finished, SessionKey};
use super::task_set::{Ending, RunningCommand, TaskSet};
use crate::open_units::{CrossUnitError, CrossUnitRequest, CrossUnitResult, Requester};

/// Commands answered at once (IMMED) that continue at the same time.
const BACKGROUND_MAX: usize = 64;

/// What executes the commands of one unit.
pub(super) struct DeviceServer {
    pub(super) identity: UnitIdentity,
    pub(super) medium: Medium,
    pub(super) access: AccessControl,
    pub(super) sanitizer: Sanitizer,
    pub(super) tasks: TaskSet,
    pub(super) copies: ThirdPartyCopies,
    pub(super) meter: UnitMeter,
    /// An initiator has ordered that the unit take the place of the volume that it succeeds.
    takes_place: bool,
}

impl DeviceServer {
    pub(super) fn new(identity: UnitIdentity, medium: Medium, access: AccessControl) -> DeviceServer {
        DeviceServer {
            identity,
            medium,
            access,
            sanitizer: Sanitizer::default(),
            tasks: TaskSet::default(),
            copies: ThirdPartyCopies::default(),
            meter: UnitMeter::default(),
            takes_place: false,
        }
    }

    /// A session ends. Its running tasks continue without a response.
    pub(super) fn detach(&mut self, key: SessionKey) {
        self.access.detach(key, &mut self.tasks);
        self.medium.state.detach(key);
    }

    /// A session aborts its tasks, one or all. Returns those that are still running: they may still have effects.
    pub(super) fn abort(&mut self, key: SessionKey, task: Option<TaskId>) -> Vec<TaskId> {
        self.access.abort(key, task, &mut self.tasks)
    }

    /// Another session aborts the tasks of this one: each is answered with TASK ABORTED when it can have no effect any more.
    /// Returns those that are still running.
    pub(super) fn abort_for_others(&mut self, key: SessionKey) -> Vec<TaskId> {
        self.access.abort_for_others(key, &mut self.tasks)
    }

    /// LOGICAL UNIT RESET.
    pub(super) fn reset(&mut self) {
        self.access.reset();
        self.medium.state.reset();
    }

    /// Whether it keeps the unit from being closed.
    pub(super) fn is_busy(&self) -> bool {
        // An erase that the medium stopped continues when the store is opened again.
        let store = &self.medium.store;
        let erases = store.erase().progress().is_some() && !store.stats().writes_refused;
        !self.access.users.is_empty()
            || !self.tasks.is_empty()
            || self.access.is_writing()
            || self.sanitizer.is_renewing_key()
            || erases
    }

    /// Whether an initiator has ordered, since the last call, that the unit take the place of the volume that it succeeds.
    pub(super) fn take_place(&mut self) -> bool {
        std::mem::take(&mut self.takes_place)
    }

    /// Takes a command in. `sealed_blocks_max`: most sealed blocks that one PDU of this session takes. `pin`: what sessions see instead of the
    /// volume's head.
    pub(super) fn submit(
        &mut self,
        key: SessionKey,
        command: transport::Command,
        sealed_blocks_max: usize,
        pin: Option<Pin>,
    ) -> Verdict {
        let task = (key, command.task);
        let (command, op, ending) = match self.plan(key, command, sealed_blocks_max, pin) {
            Plan::Answer(response) => {
                self.meter.answered(&response);
                return Verdict::Answer(self.medium.in_format(response));
            }
            Plan::Violation(what) => return Verdict::Violation(what),
            Plan::Delayed => return Verdict::Later,
            Plan::Start(command, op) => (command, op, Ending::Response),
            Plan::WhenCertain(command, op) => (command, op, Ending::Certain),
            // Beyond the limit it is answered at its end: commands that were answered at once are counted nowhere else.
            Plan::Background(command, op) if self.background_count() >= BACKGROUND_MAX => {
                (command, op, Ending::Response)
            }
            Plan::Background(command, op) => (command, op, Ending::Background),
        };
        let timing = self.meter.begin(command.io_kind());
        self.start(RunningCommand { task, command, ending, timing }, op);
        match ending {
            Ending::Background => Verdict::Answer(Response::good()),
            _ => Verdict::Later,
        }
    }

    fn background_count(&self) -> usize {
        self.tasks.count(|running| running.ending == Ending::Background)
    }

    /// The checks before every command: whether it can be decoded, which unit it is for, and whether it may be executed now.
    fn plan(
        &mut self,
        key: SessionKey,
        command: transport::Command,
        sealed_blocks_max: usize,
        pin: Option<Pin>,
    ) -> Plan<BlockCommand> {
        let decoded = Command::decode(&command.cdb);
        // Only block data of a sealed unit may be left to its seal records; before anything else looks at the data.
        let may_be_sealed = decoded.as_ref().is_ok_and(|decoded| self.medium.takes_sealed_data(decoded));
        if !may_be_sealed && command.data.iter().any(|segment| segment.records.is_some()) {
            return Plan::Violation("a SEALED frame for data that is not block data of a sealed unit");
        }
        if may_be_sealed && command.data.iter().any(|segment| segment.records.is_none() && !segment.data.is_empty()) {
            return Plan::Violation("block data of a sealed unit in a PROTECTED frame");
        }
        let is_absent = command.lun.index() != Some(0);
        let decoded = match decoded {
            Ok(decoded) => decoded,
            Err(error) => {
                tracing::debug!(volume = %self.medium.volume.name, %error, "a CDB that is not understood");
                // An unknown command to an absent unit is answered for the unit, not for the command.
                return Plan::from(if is_absent { Sense::LUN_NOT_SUPPORTED } else { error.sense() });
            }
        };
        if command.lun == REPORT_LUNS_UNIT {
            return Plan::from(answers::on_report_luns_unit(&decoded));
        }
        if is_absent {
            return Plan::from(answers::on_absent_unit(&decoded));
        }
        if let Err(response) = self.admit(key, &decoded, pin.is_some()) {
            return Plan::Answer(response);
        }
        let is_checked = may_be_sealed && self.medium.is_checked_on_arrival(self.channel_checks(key));
        match decoded {
            Command::PersistentReserveOut { .. } => Plan::from(self.access.reserve_out(key, command, &mut self.tasks)),
            Command::Vendor(vendor) if vendor.is_about_leases() => {
                let unit = (&self.medium.volume.name, pin.is_some());
                Plan::from(self.access.lease_command(key, command, unit, &mut self.tasks))
            }
            _ => {
                let request = Request { command: &command, sealed_blocks_max, is_checked };
                match BlockCommand::plan(decoded, &request, &mut self.medium) {
                    Some(plan) => plan,
                    None => self.plan_other(key, decoded, &request, pin),
                }
            }
        }
    }

    /// Whether the session's channel proves on arrival that blocks are what their initiator sent.
    fn channel_checks(&self, key: SessionKey) -> bool {
        let scheme = self.access.users.get(key).and_then(|user| user.origin.scheme);
        scheme.is_some_and(Scheme::checks_on_arrival)
    }

    /// Unit attentions, whether this kind of unit has the command, reservations, SANITIZE, whether the unit is started, and whether the session
    /// may write. (SAM-5 §5.3.3 leaves the order to us, but a unit attention comes first.)
    fn admit(&mut self, key: SessionKey, command: &Command, is_pinned: bool) -> Result<(), Response> {
        let refuse = |sense: Sense| Err(check_condition(sense));
        let Some(user) = self.access.users.get_mut(key) else {
            return refuse(Sense::INTERNAL_FAILURE);
        };
        if let Some(sense) = user.attentions.intercept(command) {
            return refuse(sense);
        }
        let volume = &self.medium.volume;
        // A unit of any kind that was made to succeed another one has this command.
        let succeeds = volume.succeeds.is_some() && *command == Command::Vendor(VendorCommand::TakePlace);
        if !succeeds && !volume.unit_kind().supports(command) {
            return refuse(match command {
                Command::Verify { .. } => Sense::INVALID_FIELD_IN_CDB.in_cdb(1, Some(2)),
                Command::Sanitize { .. } => Sense::INVALID_FIELD_IN_CDB.in_cdb(1, Some(4)),
                _ => Sense::INVALID_OPCODE,
            });
        }
        if !self.access.reservations.allows(&user.nexus, command) {
            return Err(status(Status::ReservationConflict));
        }
        let read_only = user.read_only || is_pinned;
        let touches_medium = command.reads_medium() || command.writes_medium();
        // The store may be executing an erase that was ordered at the target, or one from before a restart.
        if let Some(sense) = self.sanitizer.refusal(command, self.medium.store.erase().progress()) {
            return refuse(sense);
        }
        if !self.medium.state.started && (touches_medium || matches!(command, Command::TestUnitReady)) {
            return refuse(Sense::STOPPED);
        }
        // A session that may only read must not exclude those that write, either.
        let holds_up = matches!(
            command,
            Command::StartStopUnit { start: false, .. }
                | Command::Reserve
                | Command::PersistentReserveOut { .. }
                | Command::PreventAllowMediumRemoval { prevent: 1.. }
                | Command::ModeSelect { .. }
        );
        if read_only && (command.writes_medium() || holds_up) {
            return refuse(Sense::WRITE_PROTECTED);
        }
        if self.medium.state.mode.write_protect && command.writes_medium() {
            return refuse(Sense::SOFTWARE_WRITE_PROTECTED);
        }
        self.access.check_lease(key, command, &volume.name).map_err(status)
    }

    /// Plans what does not work on blocks alone: SANITIZE and EXTENDED COPY, and what is answered at once.
    fn plan_other(
        &mut self,
        key: SessionKey,
        command: Command,
        request: &Request<'_>,
        pin: Option<Pin>,
    ) -> Plan<BlockCommand> {
        match command {
            Command::Sanitize { immediate, action, parameter_list_len: 0 } => {
                let keys_destroyed = request.command.parameters.keys_destroyed;
                let plan =
                    self.sanitizer.plan(action, keys_destroyed, immediate, &self.medium.volume, &self.medium.store);
                plan.map_or_else(Plan::from, |plan| plan.map(|()| BlockCommand::Sanitize))
            }
            Command::Sanitize { .. } => Plan::from(Sense::INVALID_FIELD_IN_CDB.in_cdb(7, None)),
            Command::ExtendedCopy { parameter_list_len } => self.plan_copy(key, parameter_list_len, request),
            Command::Vendor(VendorCommand::TakePlace) if self.medium.volume.succeeds.is_some() => {
                // The worker does it, outside; the answer says that it begins.
                self.takes_place = true;
                Plan::Answer(Response::good())
            }
            _ => Plan::from(self.answer(key, command, request, pin)),
        }
    }

    fn plan_copy(&self, key: SessionKey, parameter_list_len: u32, request: &Request<'_>) -> Plan<BlockCommand> {
        let Some(user) = self.access.users.get(key) else { return Plan::from(Sense::INTERNAL_FAILURE) };
        let initiator_name = std::sync::Arc::clone(&user.nexus.initiator_name);
        let requester = Requester { initiator_name, origin: user.origin.clone() };
        let running = self.tasks.count(|running| matches!(running.command, BlockCommand::Copy(_)));
        let others = &self.identity.environment().open_units;
        let medium = &self.medium;
        BlockCommand::plan_copy(parameter_list_len, request, (&user.nexus, requester), running, medium, others)
    }

    /// Answers what needs no operation of the store.
    fn answer(
        &mut self,
        key: SessionKey,
        command: Command,
        request: &Request<'_>,
        pin: Option<Pin>,
    ) -> Result<Response, Sense> {
        let nexus = self.access.users.nexus(key).ok_or(Sense::INTERNAL_FAILURE)?;
        let volume = &self.medium.volume;
        Ok(match command {
            Command::TestUnitReady => Response::good(),
            Command::Inquiry { vpd_page, allocation_len } => {
                let page = self.identity.inquiry(vpd_page, nexus.target_portal_group, &self.medium, pin);
                let page = page.ok_or(Sense::INVALID_FIELD_IN_CDB.in_cdb(2, None))?;
                data(page, allocation_len.into())
            }
            Command::ReportTargetPortGroups { extended, allocation_len } => {
                data(self.identity.port_groups(extended), allocation_len)
            }
            Command::Reserve => self.access.reservations.reserve(nexus),
            Command::Release => self.access.reservations.release(nexus),
            Command::PersistentReserveIn { service_action, allocation_len } => {
                self.access.reservations.report(service_action, allocation_len)
            }
            Command::ReceiveCopyResults { service_action, list_id, allocation_len } => {
                let shift = volume.geometry.block_size.shift();
                data(self.copies.report(nexus, service_action, list_id, shift)?, allocation_len)
            }
            Command::RequestSense { descriptor, allocation_len } => {
                let sense = match self.sanitizer.in_progress(self.medium.store.erase().progress()) {
                    Some(sense) => sense,
                    None => self.access.users.take_attention(key).unwrap_or(Sense::NONE),
                };
                answers::request_sense(sense, descriptor, allocation_len)
            }
            Command::PreventAllowMediumRemoval { prevent } => {
                self.medium.state.prevent_removal(key, prevent & 1 != 0);
                Response::good()
            }
            Command::ModeSelect { ten, page_format, save, parameter_list_len } => {
                // Pages in the standard's format (PF=1), and nowhere to save them.
                if !page_format || save {
                    return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(1, Some(if save { 0 } else { 4 })));
                }
                let list = gather(request.command, parameter_list_len.into())?;
                let mode = self.medium.state.mode.select(ten, &list, volume.geometry)?;
                self.set_mode(key, mode);
                Response::good()
            }
            _ => {
                let is_read_only = self.access.users.get(key).is_none_or(|user| user.read_only) || pin.is_some();
                return answers::about_medium(&command, &self.medium, is_read_only);
            }
        })
    }

    /// MODE SELECT: what is changed is changed for every session, and all others get a unit attention.
    fn set_mode(&mut self, key: SessionKey, mode: ModeState) {
        if std::mem::replace(&mut self.medium.state.mode, mode) != mode {
            self.access.users.establish(UnitAttention::ModeParametersChanged, |other, _| other != key);
        }
    }

    /// Executes an operation for a command of another unit, if a session of its initiator could do the same here.
    pub(super) fn serve(&mut self, request: CrossUnitRequest, may_write: bool) {
        let CrossUnitRequest { requester, mut op, reply, .. } = request;
        let key = match self.session_for(&requester, &op, may_write) {
            Ok(Some(key)) => key,
            Ok(None) => return,
            Err(busy) => return reply.tell(Err(CrossUnitError::Store(busy))),
        };
        if self.tasks.count(|running| matches!(running.command, BlockCommand::Served(_))) >= SERVED_MAX {
            return reply.tell(Err(CrossUnitError::Store(OpError::Busy)));
        }
        if let Op::Write { fua, .. } = &mut op {
            *fua = self.medium.state.forces_unit_access(*fua);
        }
        let command = BlockCommand::serve(reply);
        // No session can abort it, but other tasks can wait for its end.
        let task = (key, self.tasks.next_foreign_task());
        let timing = self.meter.begin(command.io_kind());
        self.start(RunningCommand { task, command, ending: Ending::Background, timing }, op);
    }

    /// A session of the same initiator that could execute `op` now by a command of its own.
    fn session_for(&mut self, requester: &Requester, op: &Op, may_write: bool) -> Result<Option<SessionKey>, OpError> {
        let writes = match op {
            Op::Read { .. } => false,
            Op::Write { .. } | Op::Discard { .. } => true,
            _ => return Ok(None),
        };
        let medium = &self.medium;
        let is_available = medium.state.started
            && self.sanitizer.status() == SanitizeStatus::Idle
            && medium.store.erase().progress().is_none()
            && medium.volume.unit_kind() == UnitKind::Plain;
        if !is_available || writes && (!may_write || medium.state.mode.write_protect) {
            return Ok(None);
        }
        let like = if writes { cdb::write_16(Lba(0), 1, false) } else { cdb::read_16(Lba(0), 1) };
        let Ok(like) = Command::decode(&like) else { return Ok(None) };
        self.access.session_for(requester, &like, &medium.volume.name).map_err(|_| OpError::Busy)
    }

    fn start(&mut self, running: RunningCommand, op: Op) {
        let waits = matches!(running.command, BlockCommand::Sanitize) && !self.tasks.is_empty();
        let elsewhere = running.command.other_unit();
        let token = self.tasks.begin(running);
        if waits {
            self.sanitizer.hold_back(token, op);
        } else if let Some((to, requester)) = elsewhere {
            self.copies.send(OutgoingRequest { token, to, requester, op });
        } else {
            self.medium.store.submit(token, op);
        }
    }

    /// The store has executed an operation. Gives it back if it is of no command.
    pub(super) fn completed(&mut self, completion: Completion, finished: &mut Vec<Finished>) -> Option<Completion> {
        let Some(running) = self.tasks.end(completion.token) else { return Some(completion) };
        self.advance(running, finished, |command, context| match completion.result {
            Ok(outcome) => command.advance(outcome, context),
            Err(error) => command.failed(&error, context),
        });
        None
    }

    /// Advances commands to whose operations other units have replied; returns how many replies there were.
    pub(super) fn poll_replies(&mut self, finished: &mut Vec<Finished>) -> usize {
        let replies = self.copies.poll();
        let count = replies.len();
        for (token, result) in replies {
            self.replied(token, result, finished);
        }
        count
    }

    fn replied(&mut self, token: Token, result: CrossUnitResult, finished: &mut Vec<Finished>) {
        let Some(running) = self.tasks.end(token) else { return };
        self.advance(running, finished, |command, context| command.replied(result, context));
    }

    /// Submits the erase of a SANITIZE that waited until only it is left.
    pub(super) fn release_sanitize(&mut self) {
        if self.tasks.len() == 1
            && let Some((token, op)) = self.sanitizer.release()
        {
            self.medium.store.submit(token, op);
        }
    }

    /// An operation of a command has ended; `go_on` decides what follows.
    fn advance(
        &mut self,
        running: RunningCommand,
        finished: &mut Vec<Finished>,
        go_on: impl FnOnce(BlockCommand, CommandContext<'_>) -> Advance<BlockCommand>,
    ) {
        let RunningCommand { task, command, ending, timing } = running;
        let writes_to_cache = command.writes_to_cache();
        let (medium, sanitizer, copies) = (&mut self.medium, &mut self.sanitizer, &mut self.copies);
        let next = match go_on(command, CommandContext { medium, sanitizer, copies }) {
            Advance::Done(response)
                if writes_to_cache && response.status == 0 && self.medium.state.forces_unit_access(false) =>
            {
                Advance::Again(BlockCommand::settle(&response), Op::Flush)
            }
            next => next,
        };
        let response = match next {
            // An aborted command stops between two of its operations; but nothing stops a SANITIZE (SBC-3 §4.11.2).
            Advance::Again(command, _) if ending.is_aborted() && !matches!(command, BlockCommand::Sanitize) => {
                (ending == Ending::TaskAborted).then(Response::task_aborted)
            }
            // Nor does a command write once a SANITIZE waits to discard everything.
            Advance::Again(command, _)
                if self.sanitizer.status() == SanitizeStatus::InProgress && !command.may_go_on_while_sanitizing() =>
            {
                let response = command.end_for_sanitize(&mut self.copies);
                (ending == Ending::Response).then(|| self.medium.in_format(response))
            }
            Advance::Again(command, op) => {
                return self.start(RunningCommand { task, command, ending, timing }, op);
            }
            Advance::Done(response) => match ending {
                Ending::Response | Ending::Certain => Some(self.medium.in_format(response)),
                Ending::TaskAborted => Some(Response::task_aborted()),
                Ending::Aborted | Ending::Background => None,
            },
        };
        self.meter.ended(timing, response.as_ref());
        finished.push(Finished { connection: task.0, task: task.1, response });
    }

    /// Puts changes of access in force that have been written, and gives the responses that wait for nothing any more.
    pub(super) fn poll_access(&mut self, is_pinned: bool, finished: &mut Vec<Finished>) {
        if self.access.has_changes() {
            self.access.poll((&self.medium.volume.name, is_pinned), &mut self.tasks);
        }
        for (task, response) in self.tasks.poll_delayed() {
            self.meter.answered(&response);
            finished.push(Finished::answered(task, self.medium.in_format(response)));
        }
    }

    /// Forgets ended sessions of which no task is executing any more.
    pub(super) fn drop_left(&mut self) {
        let tasks = &self.tasks;
        self.access.users.drop_left(|key| tasks.has_tasks(key));
    }
}
