//! The tasks of an association: what arrives is put together, ordered and handed over, and answers are cut into packets.

use std::collections::{BTreeMap, VecDeque};

use strongroom_scsi::transport::target::{Command, Event, ManagementId, Response, TaskId, TaskManagement};
use strongroom_scsi::transport::{Direction, Lun, Parameters, TaskFunction, TaskManagementResult};

use super::functions::{Concerns, FunctionRequest, Functions};
use super::order::CommandOrder;
use super::respond::{ResponseContent, ResponseTransfer};
use super::table::{CommandHead, Phase, Task, TaskTable, Use};
use crate::body;
use crate::config::Config;
use crate::connection::{Fault, Outgoing, Packet};
use crate::credit::GrantedCredits;
use crate::error::{Dropped, PeerMisbehaved};
use crate::header::{Flags, Header, Operation, Segment};
use crate::mtu::PathReduction;
use crate::parity::Parity;
use crate::planted::{Planted, PlantedFault};
use crate::quantum;
use crate::tag::SinkTag;

/// What a packet to the initiator carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskContent {
    Response(SinkTag, ResponseContent),
    Managed(u64),
}

/// What the login has settled.
#[derive(Debug)]
struct Settings {
    quantum_bytes: u32,
    transfer_bytes_max: u32,
    parity: Option<Parity>,
    planted: Planted,
}

/// What became of payloads.
#[derive(Debug, Default)]
pub(super) struct TransferCounts {
    /// Packets of transfers that were over.
    pub(super) stale: u64,
    /// Bytes of segments, which are joined by copying.
    pub(super) joined_bytes: u64,
    /// Quanta that parity has restored.
    pub(super) repaired: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct TaskSet {
    settings: Settings,
    tasks: TaskTable,
    order: CommandOrder,
    /// Commands that are whole and wait for those before them.
    ready: BTreeMap<u64, SinkTag>,
    functions: Functions,
    /// Functions whose result was never sent.
    results: VecDeque<u64>,
    credits: GrantedCredits,
    /// Tasks with something that was never sent; each in turn sends one packet.
    responding: VecDeque<SinkTag>,
    events: VecDeque<Event<PathReduction>>,
    pub(super) transfers: TransferCounts,
}

impl TaskSet {
    pub(super) fn new(config: &Config) -> TaskSet {
        TaskSet {
            settings: Settings {
                quantum_bytes: config.quantum_bytes,
                transfer_bytes_max: config.transfer_bytes_max,
                parity: config.parity,
                planted: config.planted,
            },
            tasks: TaskTable::default(),
            order: CommandOrder::default(),
            ready: BTreeMap::new(),
            functions: Functions::default(),
            results: VecDeque::new(),
            credits: GrantedCredits::new(config.window_bytes),
            responding: VecDeque::new(),
            events: VecDeque::new(),
            transfers: TransferCounts::default(),
        }
    }

    pub(super) fn poll_event(&mut self) -> Option<Event<PathReduction>> {
        self.events.pop_front()
    }

    /// The session is over.
    pub(super) fn clear(&mut self) {
        self.tasks.clear();
        self.ready.clear();
        self.functions.clear();
        self.results.clear();
        self.responding.clear();
    }

    /// The tag of the transfer that a packet means.
    fn named(&self, packet: &Packet) -> SinkTag {
        let is_data = packet.header.operation != Operation::Command;
        match is_data && self.settings.planted.has(PlantedFault::TagWithoutGeneration) {
            true => self.tasks.present(packet.sink),
            false => packet.sink,
        }
    }

    /// Whether a packet belongs to a transfer that goes on or begins; `None`: to one that is over.
    fn transfer(&mut self, packet: &Packet) -> Result<Option<SinkTag>, PeerMisbehaved> {
        let tag = self.named(packet);
        let misplaced = |why| PeerMisbehaved::Data { tag: tag.0, why };
        match self.tasks.use_of(tag) {
            Use::Impossible => Err(misplaced("there is no such slot")),
            Use::Present => Ok(Some(tag)),
            Use::New => {
                // The initiator ends a use of a slot with the answer, or with the result of a function.
                let earlier = self.tasks.get(self.tasks.present(tag));
                match earlier.map(|task| &task.phase) {
                    None | Some(Phase::Responding(_)) => Ok(Some(tag)),
                    Some(Phase::Receiving(_) | Phase::Executing) => Err(misplaced("its slot is in use")),
                }
            }
            Use::Over => {
                self.transfers.stale += 1;
                Ok(None)
            }
        }
    }

    /// Begins a transfer if it is new.
    fn begin(&mut self, tag: SinkTag) -> &mut Task {
        if self.tasks.use_of(tag) == Use::New {
            let earlier = self.tasks.present(tag);
            self.responding.retain(|responding| *responding != earlier);
            drop(self.tasks.begin(tag, self.settings.parity));
        }
        self.tasks.get_mut(tag).expect("it has begun")
    }

    pub(super) fn take_data(&mut self, packet: &Packet) -> Result<(), Fault> {
        let Some(tag) = self.transfer(packet)? else { return Ok(()) };
        let Settings { quantum_bytes, transfer_bytes_max, planted, .. } = self.settings;
        let is_sealed = packet.header.operation == Operation::DataOut;
        if is_sealed {
            quantum::check(packet, &packet.body, quantum_bytes, planted)?;
        }
        let command = self.tasks.get(tag).and_then(|task| task.command.as_ref());
        let limit_bytes = command.map_or(transfer_bytes_max, CommandHead::write_bytes);
        if command.is_none() && !self.credits.admits(self.early_bytes() + u64::from(quantum_bytes)) {
            return Err(Dropped::NoRoom.into());
        }
        self.begin(tag);
        let Some(Task { phase: Phase::Receiving(assembly), .. }) = self.tasks.get_mut(tag) else {
            // It was answered before its data was there.
            return Ok(());
        };
        match packet.header.operation {
            Operation::Parity => self.transfers.repaired += assembly.take_parity(packet, quantum_bytes, limit_bytes)?,
            Operation::PlainOut => assembly.take_plain(packet, limit_bytes)?,
            _ => {
                let entry = packet.body.clone();
                self.transfers.repaired += assembly.take_quantum(packet, entry, quantum_bytes, limit_bytes)?;
            }
        }
        self.tasks.recount(tag);
        if is_sealed && packet.header.segment != Segment::WHOLE && packet.is_placed {
            self.transfers.joined_bytes += packet.payload.len() as u64;
        }
        Ok(self.advance_task(tag)?)
    }

    /// Data that came before its command.
    fn early_bytes(&self) -> u64 {
        let early = self.tasks.iter().filter(|(_, task)| task.command.is_none());
        early.map(|(_, task)| task.memory_bytes()).sum()
    }

    pub(super) fn take_command(&mut self, packet: &Packet) -> Result<(), Fault> {
        let Some(tag) = self.transfer(packet)? else { return Ok(()) };
        if self.tasks.get(tag).is_some_and(|task| task.command.is_some()) {
            if self.settings.planted.has(PlantedFault::CommandRepeated) {
                self.repeat(packet);
            }
            return Ok(());
        }
        let (command, entry) = self.decode_command(packet)?;
        let Settings { quantum_bytes, transfer_bytes_max, planted, .. } = self.settings;
        if !packet.payload.is_empty() {
            quantum::check(packet, &entry, quantum_bytes, planted)?;
        }
        let (number, write_bytes) = (command.number, command.write_bytes());
        let task = self.begin(tag);
        task.command = Some(command);
        let Phase::Receiving(assembly) = &mut task.phase else { unreachable!("it has no command yet") };
        if assembly.end_bytes() > u64::from(write_bytes) {
            return Err(PeerMisbehaved::Command { number, why: "data beyond its end" }.into());
        }
        if !packet.payload.is_empty() {
            let repaired = assembly.take_quantum(packet, entry, quantum_bytes, write_bytes)?;
            self.transfers.repaired += repaired;
            self.tasks.recount(tag);
        }
        if !self.credits.admits(write_bytes.into()) {
            return Err(PeerMisbehaved::Command { number, why: "more data than its credits allow" }.into());
        }
        self.credits.take(write_bytes);
        if write_bytes > transfer_bytes_max {
            self.refuse(tag, Response::check_condition(too_long()));
            return Ok(self.advance()?);
        }
        Ok(self.advance_task(tag)?)
    }

    /// The command of a packet, and the seal record of the quantum that it carries.
    fn decode_command(&self, packet: &Packet) -> Result<(CommandHead, bytes::Bytes), PeerMisbehaved> {
        let header = &packet.header;
        let (number, epoch) = self.order.place(header.task, header.order_epoch)?;
        let misbehaved = |why| PeerMisbehaved::Command { number, why };
        if !self.order.is_new(number) {
            return Err(misbehaved("its number was used before"));
        }
        let direction = match (header.flags.has(Flags::READ), header.flags.has(Flags::WRITE)) {
            (false, false) => Direction::None,
            (true, false) => Direction::Read,
            (false, true) => Direction::Write,
            (true, true) => return Err(misbehaved("it reads and writes")),
        };
        let is_sealed = header.flags.has(Flags::SEALED);
        let (parameters, entry) = match header.flags.has(Flags::PARAMETERS) {
            true => {
                let (parameters, len) = body::parameters(&packet.body)?;
                (parameters, packet.body.slice(len..))
            }
            false => (Parameters::default(), packet.body.clone()),
        };
        let carries_first = !packet.payload.is_empty();
        let whole = header.length.is_multiple_of(self.settings.quantum_bytes);
        if carries_first && (!is_sealed || header.segment != Segment::WHOLE) || !carries_first && !entry.is_empty() {
            return Err(misbehaved("data that a command does not carry"));
        }
        if is_sealed && (direction != Direction::Write || !whole) {
            return Err(misbehaved("sealed data of no whole quanta"));
        }
        let command = CommandHead {
            number,
            epoch,
            lun: header.lun,
            cdb: header.specific,
            parameters,
            attribute: header.flags.attribute().expect("checked when it was decoded"),
            direction,
            expected_bytes: header.length,
            is_sealed,
        };
        Ok((command, entry))
    }

    /// The planted fault: a command that came again is executed again.
    fn repeat(&mut self, packet: &Packet) {
        let Ok((parameters, _)) =
            body::parameters(&packet.body).or(Ok::<_, PeerMisbehaved>((Parameters::default(), 0)))
        else {
            return;
        };
        let direction = if packet.header.flags.has(Flags::WRITE) { Direction::Write } else { Direction::Read };
        self.events.push_back(Event::Command(Command {
            task: TaskId(u64::MAX),
            lun: packet.header.lun,
            cdb: packet.header.specific,
            parameters,
            attribute: Default::default(),
            direction,
            expected_bytes: packet.header.length,
            immediate: false,
            data: Vec::new(),
        }));
    }

    /// A task may be whole: then it is handed over when those before it were.
    fn advance_task(&mut self, tag: SinkTag) -> Result<(), PeerMisbehaved> {
        let Some(Task { command: Some(command), phase: Phase::Receiving(assembly) }) = self.tasks.get(tag) else {
            return Ok(());
        };
        if !assembly.is_whole(command.write_bytes()) {
            return Ok(());
        }
        self.ready.insert(command.number, tag);
        self.advance()
    }

    /// Hands over what can be handed over, in the order of numbers.
    fn advance(&mut self) -> Result<(), PeerMisbehaved> {
        loop {
            let reached = |tag: &SinkTag| {
                let command = self.tasks.get(*tag).and_then(|task| task.command.as_ref());
                command.is_none_or(|command| self.order.has_reached(command.epoch))
            };
            let next = self.ready.iter().find(|(_, tag)| reached(tag)).map(|(number, tag)| (*number, *tag));
            if let Some((number, tag)) = next {
                self.ready.remove(&number);
                self.hand_over(tag)?;
                continue;
            }
            let Some(number) = self.functions.first_waiting().filter(|number| self.order.has_reached(*number)) else {
                return Ok(());
            };
            self.order.hand_over(number);
            if let Some(request) = self.functions.take_waiting(number) {
                self.carry_out(number, request);
            }
        }
    }

    fn hand_over(&mut self, tag: SinkTag) -> Result<(), PeerMisbehaved> {
        let Some(task) = self.tasks.get_mut(tag) else { return Ok(()) };
        let Some(id) = task.id(tag) else { return Ok(()) };
        let Phase::Receiving(assembly) = std::mem::replace(&mut task.phase, Phase::Executing) else { return Ok(()) };
        let command = task.command.as_ref().expect("it has a name");
        let number = command.number;
        let data = assembly.finish(command.is_sealed).map_err(|why| PeerMisbehaved::Command { number, why })?;
        self.order.hand_over(number);
        self.events.push_back(Event::Command(Command {
            task: id,
            lun: command.lun,
            cdb: command.cdb,
            parameters: command.parameters,
            attribute: command.attribute,
            direction: command.direction,
            expected_bytes: command.expected_bytes,
            immediate: false,
            data,
        }));
        self.tasks.recount(tag);
        Ok(())
    }

    pub(super) fn take_function(&mut self, packet: &Packet) -> Result<(), Fault> {
        let header = &packet.header;
        let (function, task) = body::function_of(&header.specific)?;
        let (number, epoch) = self.order.place(header.task, header.order_epoch)?;
        if epoch != number {
            return Err(PeerMisbehaved::Command { number, why: "a function that does not wait for commands" }.into());
        }
        if !self.order.is_new(number) {
            return Ok(());
        }
        if !self.functions.has_room() {
            return Err(Dropped::NoRoom.into());
        }
        let task_number = self.order.named(task);
        self.functions.wait(number, FunctionRequest { function, lun: header.lun, task_number });
        Ok(self.advance()?)
    }

    /// The commands before a function were handed over.
    fn carry_out(&mut self, number: u64, request: FunctionRequest) {
        let concerns = |task: &Task| {
            let Some(command) = &task.command else { return false };
            match request.concerns() {
                Concerns::Task => command.number == request.task_number,
                Concerns::Unit => command.number < number && command.lun == request.lun,
                Concerns::All => command.number < number,
                Concerns::None => false,
            }
        };
        let (mut tags, mut executing) = (Vec::new(), Vec::new());
        for (tag, task) in self.tasks.iter().filter(|(_, task)| concerns(task)) {
            tags.push(tag);
            if matches!(task.phase, Phase::Executing) {
                executing.extend(task.id(tag));
            }
        }
        match request.function {
            TaskFunction::AbortTask if executing.is_empty() => {
                return self.set_result(number, TaskManagementResult::TaskDoesNotExist, [0; 3]);
            }
            TaskFunction::QueryTask => {
                let is_there = !executing.is_empty();
                let result = if is_there { TaskManagementResult::Succeeded } else { TaskManagementResult::Complete };
                return self.set_result(number, result, [0; 3]);
            }
            _ => {}
        }
        let function = request.for_target(&executing);
        let (tags, tasks) = match request.function {
            TaskFunction::QueryTaskSet => (Vec::new(), Vec::new()),
            _ => (tags, executing),
        };
        let id = self.functions.ask(number, tags);
        self.events.push_back(Event::TaskManagement(TaskManagement { id, function, tasks }));
    }

    fn set_result(&mut self, number: u64, result: TaskManagementResult, found: [u8; 3]) {
        self.functions.set_result(number, result, found);
        self.results.push_back(number);
    }

    /// Answers a task management request. With `Complete`, the tasks that it named are forgotten.
    pub(super) fn answer_task_management(&mut self, id: ManagementId, result: TaskManagementResult) {
        let Some((number, tags)) = self.functions.answered(id) else { return };
        if result == TaskManagementResult::Complete {
            tags.into_iter().for_each(|tag| self.forget(tag));
        }
        self.set_result(number, result, [0; 3]);
    }

    /// Answers a query with `Succeeded` and what was found.
    pub(super) fn answer_query(&mut self, id: ManagementId, found: [u8; 3]) {
        if let Some((number, _)) = self.functions.answered(id) {
            self.set_result(number, TaskManagementResult::Succeeded, found);
        }
    }

    /// A task is over without an answer, or its answer was acknowledged.
    fn forget(&mut self, tag: SinkTag) {
        let Some(task) = self.tasks.remove(tag) else { return };
        if let (Phase::Executing | Phase::Receiving(_), Some(command)) = (&task.phase, &task.command) {
            self.credits.give_back(command.write_bytes());
        }
        self.responding.retain(|responding| *responding != tag);
    }

    /// Answers a command. False when the task is gone: nothing will be sent.
    ///
    /// # Panics
    /// If the task was completed before: a command has one answer.
    pub(super) fn complete(&mut self, id: TaskId, response: Response) -> bool {
        let Some(tag) = self.tasks.tag_of(id) else { return false };
        self.respond(tag, response);
        true
    }

    fn respond(&mut self, tag: SinkTag, response: Response) {
        let Some(task) = self.tasks.get_mut(tag) else { return };
        assert!(!matches!(task.phase, Phase::Responding(_)), "a command has one answer");
        let Some(command) = &task.command else { return };
        let transferred = command.transferred();
        self.credits.give_back(command.write_bytes());
        task.phase = Phase::Responding(ResponseTransfer::new(
            response,
            transferred,
            self.settings.quantum_bytes,
            self.settings.parity,
        ));
        self.tasks.recount(tag);
        self.responding.push_back(tag);
    }

    /// Answers a command that the logical unit does not get.
    fn refuse(&mut self, tag: SinkTag, response: Response) {
        let number = self.tasks.get(tag).and_then(|task| task.command.as_ref()).map(|command| command.number);
        if let Some(number) = number {
            self.ready.remove(&number);
            self.order.hand_over(number);
            self.respond(tag, response);
        }
    }

    /// Another session ends the tasks on a logical unit (`None`: on all). Returns those that the logical unit is executing.
    ///
    /// # Errors
    /// [`PeerMisbehaved`] in what can be handed over now.
    pub(super) fn abort_tasks(&mut self, lun: Option<Lun>) -> Result<Vec<TaskId>, PeerMisbehaved> {
        let (mut executing, mut arriving) = (Vec::new(), Vec::new());
        for (tag, task) in self.tasks.iter() {
            let Some(command) = task.command.as_ref().filter(|command| lun.is_none_or(|lun| lun == command.lun)) else {
                continue;
            };
            debug_assert!(self.order.is_new(command.number) || !matches!(task.phase, Phase::Receiving(_)));
            match task.phase {
                Phase::Executing => executing.extend(task.id(tag)),
                Phase::Receiving(_) => arriving.push(tag),
                Phase::Responding(_) => {}
            }
        }
        arriving.into_iter().for_each(|tag| self.refuse(tag, Response::task_aborted()));
        self.advance()?;
        Ok(executing)
    }

    /// The planted fault: what a lost response granted is gone.
    fn lose_credit(&mut self, tag: SinkTag, content: ResponseContent) {
        if content == ResponseContent::End && self.settings.planted.has(PlantedFault::CreditLost) {
            let command = self.tasks.get(tag).and_then(|task| task.command.as_ref());
            self.credits.withdraw(command.map_or(0, CommandHead::write_bytes));
        }
    }

    fn transfer_of(&mut self, tag: SinkTag) -> Option<&mut ResponseTransfer> {
        match &mut self.tasks.get_mut(tag)?.phase {
            Phase::Responding(transfer) => Some(transfer),
            _ => None,
        }
    }

    /// A packet with this content has arrived.
    pub(super) fn acknowledged(&mut self, content: TaskContent) {
        match content {
            TaskContent::Response(tag, content) => {
                if self.transfer_of(tag).is_some_and(|transfer| transfer.acknowledged(content)) {
                    self.forget(tag);
                }
            }
            TaskContent::Managed(number) => self.functions.acknowledged(number),
        }
    }

    /// A packet with this content was lost. Whether it has to be sent again.
    pub(super) fn lost(&mut self, content: TaskContent) -> bool {
        let TaskContent::Response(tag, content) = content else { return true };
        let is_wanted = self.transfer_of(tag).is_some_and(|transfer| transfer.is_waiting_for(content));
        if is_wanted {
            self.lose_credit(tag, content);
        }
        is_wanted
    }

    /// Whether something was never sent.
    pub(super) fn wants_to_send(&self) -> bool {
        !self.results.is_empty() || !self.responding.is_empty()
    }

    /// What is to be sent next for the first time.
    pub(super) fn next_content(&mut self, segment_bytes: usize) -> Option<TaskContent> {
        if let Some(number) = self.results.pop_front() {
            return Some(TaskContent::Managed(number));
        }
        let quantum_bytes = self.settings.quantum_bytes;
        let tag = self.responding.pop_front()?;
        let transfer = self.transfer_of(tag)?;
        let content = transfer.next_content(quantum_bytes, segment_bytes)?;
        if !transfer.is_sent() {
            self.responding.push_back(tag);
        }
        self.tasks.recount(tag);
        Some(TaskContent::Response(tag, content))
    }

    /// Makes the packet of a content: `Err` for the contents that take its place since packets have become smaller, none if it is not
    /// wanted any more.
    pub(super) fn packet(&mut self, content: TaskContent, segment_bytes: usize) -> Result<Outgoing, Vec<TaskContent>> {
        let (quantum_bytes, credits) = (self.settings.quantum_bytes, self.credits.as_sent());
        let mut outgoing = match content {
            TaskContent::Response(tag, content) => {
                let command = self.tasks.get(tag).and_then(|task| task.command.as_ref());
                let number = command.map(|command| command.number).ok_or_else(Vec::new)?;
                let transfer = self.transfer_of(tag).filter(|transfer| transfer.is_waiting_for(content));
                let transfer = transfer.ok_or_else(Vec::new)?;
                if let Some(smaller) = transfer.cut_further(content, quantum_bytes, segment_bytes) {
                    return Err(smaller.into_iter().map(|content| TaskContent::Response(tag, content)).collect());
                }
                transfer.packet(tag, number, content, quantum_bytes)
            }
            TaskContent::Managed(number) => {
                let (result, found) = self.functions.result(number).ok_or_else(Vec::new)?;
                let specific = body::result_fields(result, found);
                let header = Header { task: number as u32, specific, ..Header::new(Operation::Managed) };
                Outgoing::message(header, SinkTag::NONE, Vec::new())
            }
        };
        outgoing.header.credits = credits;
        Ok(outgoing)
    }

    /// Units that were granted in all, as headers show it.
    pub(super) fn credits(&self) -> u32 {
        self.credits.as_sent()
    }

    /// Bytes of read data that have not left yet.
    pub(super) fn unsent_bytes(&self) -> u64 {
        self.tasks.bytes().unsent
    }

    /// How many commands the logical unit executes.
    pub(super) fn executing(&self) -> usize {
        self.tasks.iter().filter(|(_, task)| matches!(task.phase, Phase::Executing)).count()
    }

    /// Memory that the session's commands occupy, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.tasks.bytes().memory
    }
}

/// Sense data for a write that is longer than the target takes: ILLEGAL REQUEST, INVALID FIELD IN CDB.
fn too_long() -> Vec<u8> {
    let mut sense = vec![0; 18];
    (sense[0], sense[2], sense[7], sense[12]) = (0x70, 5, 10, 0x24);
    sense
}
