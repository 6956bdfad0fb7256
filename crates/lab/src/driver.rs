//! An initiator's process: Strongroom's own initiator, the stock one, or a client of QEMU's block layer, under orders from its standard input.
//!
//! One thread listens for orders, another drives the block device with a fixed number of I/Os in flight. Absent: when to
//! begin and to stop, which the runner decides (`protocol`).

mod addresses;
mod beforehand;
mod contents;
mod load;
mod pace;
mod tally;

use std::fs;
use std::io::{BufRead, Write};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use strongroom_block::{
    BlockDevice, BlockSize, BufferMut, Completion, CryptoCounters, Geometry, Lba, Mode, Request, Suite, Token,
};
use strongroom_handshake::NodeKey;
use strongroom_initiator::{AttachOptions, KeyFileSource, LeaseOptions, RemoteDevice, describe_process};

use crate::btio;
use crate::engine::{AttachSettings, Engine};
use crate::grid::{DEPTH_MAX, SIZE_MAX};
use crate::libiscsi::{LibiscsiDevice, LibiscsiOptions};
use crate::nbd::NbdDevice;
use crate::pattern;
use crate::protocol::{Answer, IoJob, Order, Outcome, Volume};
use crate::stream::{self, Protection, StreamLoad};

pub(crate) use load::Load;

/// Bytes of one write while filling.
const FILL_BYTES: u64 = 1 << 20;
/// Writes in flight while filling.
const FILL_DEPTH: usize = 8;

/// Carries out orders from `input` until it ends; answers go to `output`.
///
/// # Errors
/// If an answer cannot be written: nobody listens any more.
pub fn serve(input: impl BufRead + Send + 'static, mut output: impl Write) -> std::io::Result<()> {
    let orders = listen(input);
    let mut attached: Option<Attached> = None;
    while let Ok(order) = orders.recv() {
        let answer = match order {
            Err(message) => Answer::Failed { message },
            Ok(order) => carry_out(order, &orders, &mut attached, &mut output)
                .unwrap_or_else(|message| Answer::Failed { message }),
        };
        say(&mut output, &answer)?;
    }
    if let Some(attached) = attached {
        let _ = attached.leave();
    }
    Ok(())
}

type Orders = Receiver<Result<Order, String>>;

fn listen(input: impl BufRead + Send + 'static) -> Orders {
    let (sender, orders) = channel();
    std::thread::spawn(move || {
        for line in input.lines().map_while(Result::ok) {
            let order = serde_json::from_str(&line).map_err(|error| format!("'{line}' is no order: {error}"));
            if sender.send(order).is_err() {
                return;
            }
        }
    });
    orders
}

fn say(output: &mut impl Write, answer: &Answer) -> std::io::Result<()> {
    let mut line = serde_json::to_string(answer).expect("answers are plain data");
    line.push('\n');
    output.write_all(line.as_bytes())?;
    output.flush()
}

/// A volume, and what its cryptography is counted by.
struct Attached {
    device: Device,
    /// `None`: this engine does not count.
    counters: Option<Arc<CryptoCounters>>,
    volume: Volume,
}

/// A device that may know how to say goodbye.
enum Device {
    Ours(RemoteDevice),
    Libiscsi(LibiscsiDevice),
    Nbd(NbdDevice),
    Stream { address: String, protection: Protection },
}

/// What runs until it is stopped.
trait Running {
    fn mark(&mut self);
    fn step(&mut self);
    /// It cannot go on much longer.
    fn is_spent(&self) -> bool {
        false
    }
    fn stop(self) -> Result<Outcome, String>;
}

impl Running for Load<'_> {
    fn mark(&mut self) {
        Load::mark(self);
    }
    fn step(&mut self) {
        Load::step(self);
    }
    fn is_spent(&self) -> bool {
        Load::is_spent(self)
    }
    fn stop(self) -> Result<Outcome, String> {
        Load::stop(self)
    }
}

impl Running for StreamLoad {
    fn mark(&mut self) {
        StreamLoad::mark(self);
    }
    fn step(&mut self) {
        StreamLoad::step(self);
    }
    fn stop(self) -> Result<Outcome, String> {
        Ok(StreamLoad::stop(self))
    }
}

impl Attached {
    fn device(&self) -> Result<&dyn BlockDevice, String> {
        match &self.device {
            Device::Ours(device) => Ok(device),
            Device::Libiscsi(device) => Ok(device),
            Device::Nbd(device) => Ok(device),
            Device::Stream { .. } => Err("a stream is no volume".into()),
        }
    }

    /// Logs out.
    fn leave(self) -> Result<(), String> {
        match self.device {
            Device::Ours(device) => device.detach().map_err(|error| format!("cannot leave the volume before: {error}")),
            // Dropping them says goodbye.
            Device::Libiscsi(_) | Device::Nbd(_) | Device::Stream { .. } => Ok(()),
        }
    }
}

fn carry_out(
    order: Order,
    orders: &Orders,
    attached: &mut Option<Attached>,
    output: &mut impl Write,
) -> Result<Answer, String> {
    match order {
        Order::Attach { how } => {
            // The volume before is left first: one initiator name has one session.
            if let Some(before) = attached.take() {
                before.leave()?;
            }
            let engine = serde_json::from_value(how).map_err(|error| format!("cannot attach so: {error}"))?;
            let new = attach(&engine)?;
            let volume = new.volume.clone();
            *attached = Some(new);
            Ok(Answer::Attached(volume))
        }
        Order::Fill => fill(of(attached)?.device()?).map(|()| Answer::Filled),
        Order::Start(job) => {
            let attached = of(attached)?;
            if let Device::Stream { address, protection } = &attached.device {
                return run(StreamLoad::new(address, *protection, job)?, false, orders, output);
            }
            let mut load = Load::new(attached.device()?, attached.counters.as_deref(), job)?;
            if job.sealed_beforehand_bytes > 0 {
                let Device::Ours(device) = &attached.device else {
                    return Err("only our own initiator seals, beforehand or not".into());
                };
                load.prepare(device)?;
            }
            run(load, job.sealed_beforehand_bytes > 0, orders, output)
        }
        Order::Btio(job) => btio::carry_out(of(attached)?.device()?, &job).map(Answer::Stopped),
        Order::Go | Order::Mark | Order::Stop => Err("nothing has been started".into()),
    }
}

fn of(attached: &mut Option<Attached>) -> Result<&Attached, String> {
    attached.as_ref().ok_or_else(|| "no volume is attached".into())
}

fn run(mut load: impl Running, waits_for_go: bool, orders: &Orders, output: &mut impl Write) -> Result<Answer, String> {
    say(output, &Answer::Started).map_err(|error| error.to_string())?;
    if waits_for_go {
        match orders.recv().map_err(|_| "nobody gives orders any more")?? {
            Order::Go => {}
            Order::Stop => return load.stop().map(Answer::Stopped),
            other => return Err(format!("{other:?} cannot be done before I/O runs")),
        }
    }
    let (mut is_marked, mut is_told) = (false, false);
    loop {
        match orders.try_recv() {
            Ok(Ok(Order::Mark)) => {
                load.mark();
                is_marked = true;
                say(output, &Answer::Marked).map_err(|error| error.to_string())?;
            }
            Ok(Ok(Order::Stop)) => return load.stop().map(Answer::Stopped),
            Ok(Ok(other)) => return Err(format!("{other:?} cannot be done while I/O runs")),
            Ok(Err(message)) => return Err(message),
            Err(std::sync::mpsc::TryRecvError::Empty) => {
                load.step();
                if is_marked && !is_told && load.is_spent() {
                    is_told = true;
                    say(output, &Answer::Spent).map_err(|error| error.to_string())?;
                }
            }
            Err(std::sync::mpsc::TryRecvError::Disconnected) => return Err("nobody gives orders any more".into()),
        }
    }
}

fn attach(engine: &Engine) -> Result<Attached, String> {
    match engine {
        Engine::Strongroom(settings) => attach_ours(settings),
        Engine::Libiscsi { portal, target_name, lun, initiator_name, initial_r2t } => {
            let options = LibiscsiOptions {
                portal: portal.clone(),
                target_name: target_name.clone(),
                lun: *lun,
                initiator_name: initiator_name.clone(),
                initial_r2t: *initial_r2t,
            };
            let device = LibiscsiDevice::attach(&options).map_err(|error| error.to_string())?;
            let volume = describe_foreign(device.geometry());
            Ok(Attached { device: Device::Libiscsi(device), counters: None, volume })
        }
        Engine::Stream { address, protection } => {
            let device = Device::Stream { address: address.clone(), protection: *protection };
            Ok(Attached { device, counters: None, volume: stream::as_volume(*protection) })
        }
        Engine::Nbd { socket, block_bytes } => {
            let block_size = BlockSize::new(*block_bytes).map_err(|error| error.to_string())?;
            let device = NbdDevice::attach(socket, block_size)
                .map_err(|error| format!("cannot use the NBD server at {}: {error}", socket.display()))?;
            let volume = describe_foreign(device.geometry());
            Ok(Attached { device: Device::Nbd(device), counters: None, volume })
        }
    }
}

/// What is not ours says nothing of its cryptography.
fn describe_foreign(geometry: Geometry) -> Volume {
    Volume { bytes: geometry.bytes(), block_bytes: geometry.block_size.len() as u64, suite: "none".into() }
}

fn attach_ours(settings: &AttachSettings) -> Result<Attached, String> {
    let url = settings.url.parse().map_err(|error| format!("{error}"))?;
    let mut options = AttachOptions::new(url);
    if let Some(name) = &settings.initiator_name {
        options.iscsi.initiator_name.clone_from(name);
    }
    if let Some(base) = &settings.base_name {
        options.iscsi.base_iqn.clone_from(base);
    }
    if let Some(path) = &settings.channel.identity {
        let text = fs::read_to_string(path)
            .map_err(|error| format!("cannot read the identity {}: {error}", path.display()))?;
        options.channel.node_key = Some(Arc::new(NodeKey::parse(&text).map_err(|error| error.to_string())?));
    }
    for key in &settings.channel.target_keys {
        options.channel.target_keys.push(key.parse().map_err(|error| format!("the target's key '{key}': {error}"))?);
    }
    if let Some(scheme) = &settings.channel.scheme {
        options.channel.scheme = Some(scheme.parse().map_err(|error| format!("{error}"))?);
    }
    if let Some(suite) = &settings.channel.suite {
        options.channel.suite = suite.parse().map_err(|error| format!("{error}"))?;
    }
    options.benchmark_suites = settings.channel.benchmark_suites;
    options.sealing.blocks_per_key = settings.sealing.blocks_per_key.unwrap_or(NonZeroU32::MIN);
    let channel_suite = options.url.is_channel().then_some(options.channel.suite);
    if settings.sealing.authenticate_only {
        options.sealing.mode = Mode::AuthenticateOnly;
    }
    options.sealing.key_source =
        settings.sealing.key_file.clone().map(|path| Arc::new(KeyFileSource::new(path)) as Arc<_>);
    options.read_only = settings.read_only;
    // Several processes load one volume.
    options.lease = LeaseOptions { description: describe_process("bench"), ..LeaseOptions::shared() };
    options.iscsi.connections = settings.connections.max(1);
    if let Some(pipeline) = &settings.pipeline {
        options.pipeline = pipeline.parse().map_err(|error| format!("{error}"))?;
    }
    if let Some(busy_poll) = &settings.busy_poll {
        options.busy_poll = busy_poll.parse().map_err(|error| format!("{error}"))?;
    }
    // What is measured is the depth that was asked for, not a limit of ours.
    let depth = settings.in_flight.max(DEPTH_MAX) as usize;
    options.limits.requests_max = options.limits.requests_max.max(2 * depth);
    options.limits.commands_max = options.limits.commands_max.max(depth);
    options.limits.request_bytes_max = options.limits.request_bytes_max.max(DEPTH_MAX as usize * FILL_BYTES as usize);
    if let Some(bytes) = settings.transfer_bytes_max {
        options.limits.transfer_bytes_max = u32::try_from(bytes).map_err(|_| "commands cannot be that long")?;
    }
    let counters = options.counters.clone();
    let device = RemoteDevice::attach(options).map_err(|error| format!("cannot attach {}: {error}", settings.url))?;
    if settings.format {
        device.format().map_err(|error| format!("cannot format {}: {error}", settings.url))?;
    }
    let volume = describe(&device, channel_suite);
    Ok(Attached { device: Device::Ours(device), counters: Some(counters), volume })
}

fn describe(device: &RemoteDevice, channel_suite: Option<Suite>) -> Volume {
    let unit = device.unit();
    Volume {
        bytes: unit.geometry.bytes(),
        block_bytes: unit.geometry.block_size.len() as u64,
        suite: unit.sealed.map(|sealed| sealed.claims.suite).or(channel_suite).map_or("none", Suite::name).to_owned(),
    }
}

/// Writes every byte once, so that reads find data and a memory-backed target has its memory.
fn fill(device: &dyn BlockDevice) -> Result<(), String> {
    let total = device.geometry().bytes();
    let block_bytes = device.geometry().block_size.len() as u64;
    let mut next = 0;
    let mut in_flight = 0;
    let mut completions: Vec<Completion> = Vec::new();
    while next < total || in_flight > 0 {
        while next < total && in_flight < FILL_DEPTH {
            let len = FILL_BYTES.min(total - next);
            let mut data = BufferMut::zeroed(len as usize);
            pattern::fill(&mut data, next, 0);
            let lba = Lba(next / block_bytes);
            device.submit(Token(next), Request::Write { lba, data: data.freeze(), fua: false });
            next += len;
            in_flight += 1;
        }
        device.wait(None);
        in_flight -= device.poll_completions(&mut completions);
        for completion in completions.drain(..) {
            completion.result.map_err(|error| format!("cannot fill the volume: {error}"))?;
        }
    }
    strongroom_initiator::flush_blocking(device).map_err(|error| format!("cannot fill the volume: {error}"))
}

/// What cannot be done with this volume.
fn refuse_impossible(job: &IoJob, device: &dyn BlockDevice) -> Result<(), String> {
    let geometry = device.geometry();
    let block_bytes = geometry.block_size.len() as u64;
    let is_part = job.parts && job.size > 0 && job.size < block_bytes;
    if is_part && (!block_bytes.is_multiple_of(job.size) || !job.len.is_multiple_of(block_bytes)) {
        return Err(format!("I/Os of {} bytes are no equal parts of blocks of {block_bytes}", job.size));
    }
    if !is_part && (job.size == 0 || job.size > SIZE_MAX || !job.size.is_multiple_of(block_bytes)) {
        return Err(format!("I/Os of {} bytes are not whole blocks of {block_bytes}", job.size));
    }
    let fits = job.start.checked_add(job.len).is_some_and(|end| end <= geometry.bytes());
    if !fits || job.len < job.size || !job.start.is_multiple_of(block_bytes) {
        return Err(format!(
            "{} bytes from {} on do not hold I/Os of {} bytes in a volume of {}; make the volume larger",
            job.len,
            job.start,
            job.size,
            geometry.bytes()
        ));
    }
    if job.depth == 0 {
        return Err("a queue depth of 0 does nothing".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_that_cannot_be_carried_out_are_answered() {
        let orders = b"nonsense\n{\"order\":\"fill\"}\n{\"order\":\"mark\"}\n\
            {\"order\":\"attach\",\"how\":{\"engine\":\"strongroom\",\"url\":\"http://x\"}}\n";
        let mut said = Vec::new();
        serve(&orders[..], &mut said).unwrap();
        let said = String::from_utf8(said).unwrap();
        let lines: Vec<&str> = said.lines().collect();
        for (line, part) in
            lines.iter().zip(["no order", "no volume", "nothing has been started", "not a volume's URL"])
        {
            assert!(line.contains("\"failed\"") && line.contains(part), "{line}");
        }
        assert_eq!(lines.len(), 4);
    }
}
