//! `wan`: the WAN paper's experiment (Kamisaka, Yamaguchi, Oguchi: Figures 9 to 16) over an emulated link, beside its model.
//!
//! Sequential writes of every size, one-way delay by one-way delay, in each setting: one at a time in a channel that encrypts
//! everything (what IPsec gives such an initiator), one at a time sealed, OP-*n*, and the depth found by itself. All settings have the
//! same target, the same R2T and ImmediateData, and differ in what encrypts and in how many writes are under way. What a plain TCP
//! connection carries is measured at each delay, and what one thread seals once: the model knows nothing else.
//!
//! What is measured is the steady state of a connection that has carried more than one small write: each begins with writes that fill the
//! link (`setting::TEACHING_BYTES`). Writes count with the share of their time that lies in the measurement.
//!
//! Absent: the link (`strongroom_wan`), and the model (`strongroom_initiator::model`).

mod setting;

use std::rc::Rc;
use std::time::{Duration, Instant};

use strongroom::seal_rate;
use strongroom::units::long_size;
use strongroom_block::{BlockSize, Suite};
use strongroom_initiator::model::{Conditions, Paper, SEALED_BLOCK_BYTES, block_data_rate};
use strongroom_wan::{End, Lab, Profile};

use crate::cell::{CellKey, LinkConditions, ModelPrediction};
use crate::engine::{AttachSettings, Engine};
use crate::rawio::{self, RawioPlan};
use crate::schedule::{Watch, interleaved, measure_all, pause};
use crate::{
    BenchError, Cell, Contender, Grid, Identity, InitiatorPool, InitiatorProcess, Ours, Pattern, Placement, Point,
    ProcessKind, TargetWork,
};

pub use setting::Setting;
use setting::{OFFERED_TIMES, TEACHING_WRITE_BYTES};

/// How long a target may take to write down what it has done.
const COUNTERS_LATE: Duration = Duration::from_millis(300);
/// The plain connection sends for this many round trips at least.
const ROUND_TRIPS_SOCKET: u32 = 40;
/// TCP needs this many to find the link's rate from rest.
const ROUND_TRIPS_TEACHING: u32 = 16;
/// Then, at the depth and size that are measured, this many pass before the measurement.
const ROUND_TRIPS_WARM_UP: u32 = 4;
/// A measurement lasts for this many writes one after the other at the link's rate at least,
const WRITES_MIN: u32 = 8;
/// and for this many times what all that is under way takes.
const CYCLES_MIN: u32 = 2;
/// BBR stops sending for a fifth of a second when it has not seen the path without a queue for ten seconds, and sees it after a pause. A
/// connection that is used for less than this at a time never does that in the middle of a measurement.
const PAUSE_AFTER: Duration = Duration::from_secs(9);
const PAUSE_EXPIRED: Duration = Duration::from_millis(10_200);
/// How many round trips are measured before their median is believed.
const PINGS: usize = 15;

/// What to measure, and for how long.
#[derive(Clone, Debug)]
pub struct WanPlan {
    /// The name in results: `wan`, or one that begins with it.
    pub bench: String,
    /// The link; its delay is set by `delays`.
    pub link: Profile,
    /// What the link is like beside its delay, in words.
    pub link_in_words: String,
    /// One way.
    pub delays: Vec<Duration>,
    /// Bytes of one write.
    pub sizes: Vec<u64>,
    /// Initiators at once.
    pub initiators: Vec<u32>,
    /// Repetitions.
    pub runs: u32,
    /// How long each measurement lasts at least; longer where round trips are long.
    pub time: Duration,
    /// This many round trips a measurement lasts at least.
    pub round_trips: u32,
    /// How long I/O of the same kind runs before it, at least.
    pub warm_up: Duration,
    /// How long the plain TCP connection of equation (2) sends, in seconds.
    pub socket_seconds: usize,
    /// Up to this many bytes a write's data goes with its command; beyond, the rest waits for an R2T.
    pub first_burst_bytes: u64,
    /// Who runs where.
    pub placement: Placement,
}

impl WanPlan {
    fn check(&self) -> Result<(), BenchError> {
        let asked = |what: &str| Err(BenchError::Asked(what.to_owned()));
        if self.delays.is_empty() || self.socket_seconds < 2 {
            return asked(
                "name at least one delay, and give the plain connection 2 seconds or more: TCP does not find its rate sooner",
            );
        }
        self.grid(1).check()
    }

    /// The link at a delay; its jitter is no longer than that.
    pub fn link_at(&self, delay: Duration) -> Profile {
        Profile { delay, jitter: self.link.jitter.min(delay), ..self.link.clone() }
    }

    fn grid(&self, depth: u32) -> Grid {
        let (sizes, initiators) = (self.sizes.clone(), self.initiators.clone());
        Grid { patterns: vec![Pattern::SeqWrite], sizes, depths: vec![depth], initiators }
    }

    /// A point of the grid with the depth that a setting has there.
    fn point_of(&self, setting: Setting, delay: Duration, point: Point) -> Point {
        Point { depth: setting.depth(point.size, 2 * self.link_at(delay).flight_bytes()), ..point }
    }

    /// The same, as a measurement of `depth` writes of `size` bytes under way at this delay wants it.
    fn as_rawio(&self, delay: Duration, size: u64, depth: u32) -> RawioPlan {
        let bytes_per_second = self.link.payload_bits_per_s().map_or(f64::INFINITY, |rate| rate / 8.0);
        let one = Duration::from_secs_f64(size as f64 / bytes_per_second);
        let (writes, cycle) = (one * WRITES_MIN, one * depth);
        RawioPlan {
            bench: self.bench.clone(),
            grid: self.grid(1),
            runs: self.runs,
            time: self.time.max(2 * delay * self.round_trips).max(writes).max(cycle * CYCLES_MIN),
            warm_up: self.warm_up.max(2 * delay * ROUND_TRIPS_WARM_UP).max(cycle),
            verify: false,
            parts: false,
            sealed_beforehand_bytes: None,
            rate: 0,
            is_prorated: true,
            placement: Some(self.placement.clone()),
        }
    }
}

/// One setting's initiators, over the targets that it shares with other settings of its kind.
#[derive(Debug)]
pub struct WanContender {
    identity: Identity,
    setting: Setting,
    suite: Suite,
    targets: Rc<Vec<Ours>>,
    pool: InitiatorPool,
    size_max: u64,
    /// `None`: the next measurement begins with new connections.
    connections: Option<Connections>,
}

/// Connections that know the link.
#[derive(Clone, Copy, Debug)]
struct Connections {
    delay: Duration,
    initiators: u32,
    /// When TCP last began to send after a long pause, and when it was last used.
    since: Instant,
    used: Instant,
}

impl Connections {
    /// The same for another measurement that begins `now` and ends `then`, unless TCP would pause in it.
    fn again(self, now: Instant, then: Instant) -> Option<Connections> {
        if now.saturating_duration_since(self.used) > PAUSE_EXPIRED {
            return Some(Connections { since: now, used: then, ..self });
        }
        let is_short = then.saturating_duration_since(self.since) < PAUSE_AFTER;
        is_short.then_some(Connections { used: then, ..self })
    }
}

impl WanContender {
    /// Initiators in `namespace`, for `targets` (one or more, all of the same scheme and suite), none started yet.
    pub fn new(
        setting: Setting,
        suite: Suite,
        targets: Rc<Vec<Ours>>,
        pool: InitiatorPool,
        size_max: u64,
    ) -> WanContender {
        let contender = setting.to_string();
        let scheme = setting.scheme().name().to_owned();
        let (row, process) = (String::new(), ProcessKind::default().name().to_owned());
        let medium = targets.first().map(|target| target.identity().medium.clone()).unwrap_or_default();
        let identity = Identity { contender, scheme, row, process, medium, ..Identity::default() };
        let size_max = size_max.max(TEACHING_WRITE_BYTES);
        WanContender { identity, setting, suite, targets, pool, size_max, connections: None }
    }
}

impl WanContender {
    /// The same, where several suites are compared.
    #[must_use]
    pub fn named_by_suite(mut self) -> WanContender {
        if self.suite != Suite::default() {
            self.identity.contender += &format!(" {}", self.suite);
        }
        self
    }
}

impl WanContender {
    /// Sees to it that there are connections that know the link at this delay.
    fn prepare(
        &mut self,
        rawio: &RawioPlan,
        delay: Duration,
        point: Point,
        run: u32,
        watch: &dyn Watch,
    ) -> Result<(), BenchError> {
        let now = Instant::now();
        let known = self.connections.take().filter(|it| it.delay == delay && it.initiators == point.initiators);
        self.connections = known.and_then(|it| it.again(now, now + rawio.warm_up + rawio.time));
        if self.connections.is_some() {
            return Ok(());
        }
        self.pool.reconnect();
        let size = self.setting.teaching_size(point.size);
        let initiators = self.initiators(point.initiators, size)?;
        let since = Instant::now();
        let mut jobs = rawio::jobs(rawio, Point { size, ..point }, initiators[0].volume.bytes, run);
        // Who waits for each write finds the link by itself, and would not find all of it beside others.
        let together = if point.depth == 1 { 1 } else { initiators.len() };
        for group in initiators.chunks_mut(together) {
            let jobs = jobs.drain(..group.len()).collect::<Vec<_>>();
            group.iter_mut().zip(jobs).try_for_each(|(initiator, job)| initiator.begin(job))?;
            pause(2 * delay * ROUND_TRIPS_TEACHING, watch)?;
            group.iter_mut().try_for_each(InitiatorProcess::say_stop)?;
            for initiator in group {
                let outcome = initiator.wait_stopped()?;
                if let Some(what) = outcome.first_error {
                    return Err(BenchError::process("an initiator", format!("its first writes failed: {what}")));
                }
            }
        }
        // Of what was sent until now the targets have told.
        pause(COUNTERS_LATE, watch)?;
        let used = Instant::now() + rawio.warm_up + rawio.time;
        self.connections = Some(Connections { delay, initiators: point.initiators, since, used });
        Ok(())
    }
}

impl Contender for WanContender {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn target_pids(&self) -> Vec<u32> {
        self.targets.iter().flat_map(Contender::target_pids).collect()
    }

    fn initiators(&mut self, count: u32, size: u64) -> Result<&mut [InitiatorProcess], BenchError> {
        let mut targets: Vec<AttachSettings> = Vec::new();
        for target in self.targets.iter() {
            targets.push(target.attach_settings(target.block_size_for(size)?));
        }
        let is_sealed = self.setting.scheme().sealing().is_some();
        let (setting, size_max) = (self.setting, self.size_max);
        self.pool.attach_with(count, &targets[0].url, false, |index, is_new| {
            let mut settings = targets[index % targets.len()].clone();
            settings.initiator_name = Some(format!("iqn.2026-11.org.strongroom:wan-{}-{index}", setting.pipeline()));
            settings.pipeline = Some(setting.pipeline());
            settings.in_flight = setting.depth(SEALED_BLOCK_BYTES, u64::MAX / OFFERED_TIMES);
            // One write of any size is one command.
            settings.transfer_bytes_max = Some(size_max);
            // Each target's volume is sealed once.
            settings.format = is_sealed && is_new && index < targets.len();
            Engine::Strongroom(Box::new(settings))
        })
    }

    fn target_work(&mut self) -> Option<TargetWork> {
        self.targets.iter().map(Ours::work).try_fold(TargetWork::default(), |sum, work| {
            let work = work?;
            Some(TargetWork {
                crypto_bytes: sum.crypto_bytes + work.crypto_bytes,
                data_bytes: sum.data_bytes + work.data_bytes,
            })
        })
    }
}

/// What was measured of the link alone, at one delay.
#[derive(Clone, Copy, Debug)]
struct LinkMeasurement {
    rtt: Duration,
    socket_bytes_per_second: f64,
}

/// Measures all of it, delay by delay. A cell that fails is kept as one that failed.
///
/// # Errors
/// [`BenchError::Asked`] for what cannot be, [`BenchError::Stopped`], or what the watcher says.
pub fn run(
    plan: &WanPlan,
    lab: &Lab,
    contenders: &mut [WanContender],
    watch: &mut dyn Watch,
) -> Result<(), BenchError> {
    plan.check()?;
    let points = plan.grid(1).points();
    let names: Vec<String> = contenders.iter().map(|contender| contender.identity.contender.clone()).collect();
    let settings: Vec<Setting> = contenders.iter().map(|contender| contender.setting).collect();
    let mut steps = Vec::new();
    for &delay in &plan.delays {
        steps.extend(interleaved(points.len(), contenders.len(), plan.runs).into_iter().map(|step| (delay, step)));
    }
    let words = |(delay, step): &(Duration, crate::MeasurementStep)| {
        format!("{}: {} over {delay:?}", names[step.contender], long_size(points[step.point].size))
    };
    let weight = |(delay, step): &(Duration, crate::MeasurementStep)| {
        let point = plan.point_of(settings[step.contender], *delay, points[step.point]);
        let rawio = plan.as_rawio(*delay, point.size, point.depth);
        (rawio.time + rawio.warm_up + COUNTERS_LATE).as_secs_f64()
    };
    let seal_rates = SealRates::measure(contenders);
    let mut at: Option<(Duration, LinkMeasurement)> = None;
    measure_all(&steps, watch, words, weight, |(delay, step), watch| {
        let link = match at {
            Some((at, link)) if at == *delay => link,
            _ => at.insert((*delay, measure_link(plan, lab, *delay)?)).1,
        };
        let measurement = CellMeasurement { plan, lab, link, delay: *delay, seal_rates: &seal_rates };
        measurement.run(&mut contenders[step.contender], points[step.point], step.run, watch)
    })
}

/// How fast one thread seals, by suite.
struct SealRates(Vec<(Suite, f64)>);

impl SealRates {
    fn measure(contenders: &[WanContender]) -> SealRates {
        let block_size = BlockSize::new(SEALED_BLOCK_BYTES).expect("a power of two");
        let mut rates: Vec<(Suite, f64)> = Vec::new();
        for contender in contenders {
            if !rates.iter().any(|(suite, _)| *suite == contender.suite) {
                rates.push((contender.suite, seal_rate(contender.suite, block_size)));
            }
        }
        SealRates(rates)
    }

    /// In bytes a second.
    fn of(&self, suite: Suite) -> f64 {
        self.0.iter().find(|(of, _)| *of == suite).map_or(0.0, |(_, rate)| *rate)
    }
}

/// One cell to measure: over which link, at which delay.
struct CellMeasurement<'a> {
    plan: &'a WanPlan,
    lab: &'a Lab,
    link: LinkMeasurement,
    delay: Duration,
    seal_rates: &'a SealRates,
}

impl CellMeasurement<'_> {
    fn run(&self, contender: &mut WanContender, point: Point, run: u32, watch: &dyn Watch) -> Result<Cell, BenchError> {
        let point = self.plan.point_of(contender.setting, self.delay, point);
        let rawio = self.plan.as_rawio(self.delay, point.size, point.depth);
        let empty = self.empty_cell(&rawio, contender, point, run);
        let measured = self.measure(&rawio, contender, point, empty.clone(), watch);
        if !matches!(&measured, Ok(cell) if cell.error.is_none()) {
            contender.connections = None;
        }
        match measured {
            Err(BenchError::Stopped) => Err(BenchError::Stopped),
            Err(error) => Ok(empty.failed(error)),
            Ok(cell) => Ok(cell),
        }
    }

    fn empty_cell(&self, rawio: &RawioPlan, contender: &WanContender, point: Point, run: u32) -> Cell {
        let mut cell = rawio::empty_cell(rawio, contender, point, run);
        // The depth is the setting's, and so no place in the grid.
        cell.key.depth = 0;
        cell.key.pattern = format!("{} one way", milliseconds(self.delay));
        cell.link = LinkConditions {
            delay_ms: Some(self.delay.as_secs_f64() * 1e3),
            description: self.plan.link_in_words.clone(),
            targets: Some(contender.targets.len() as u32),
            ..LinkConditions::default()
        };
        cell
    }

    fn measure(
        &self,
        rawio: &RawioPlan,
        contender: &mut WanContender,
        point: Point,
        empty: Cell,
        watch: &dyn Watch,
    ) -> Result<Cell, BenchError> {
        contender.prepare(rawio, self.delay, point, empty.key.run, watch)?;
        let (sent_before, written_before) = (self.lab.counts(End::Near).offered_bytes, contender.target_work());
        let mut cell = rawio::measure(rawio, contender, point, empty, watch)?;
        if cell.error.is_some() {
            return Ok(cell);
        }
        let seal_rate = self.seal_rates.of(contender.suite);
        cell.model = predict(self.plan, &cell.key, contender.setting, self.link, seal_rate);
        pause(COUNTERS_LATE, watch)?;
        // From the first byte of the warm-up to the last answer, on both sides of the division.
        let sent = self.lab.counts(End::Near).offered_bytes - sent_before;
        let written = written_before.zip(contender.target_work());
        let written = written.and_then(|(before, after)| after.data_bytes.checked_sub(before.data_bytes));
        cell.model.wire_per_byte = written.filter(|bytes| *bytes > 0).map(|bytes| sent as f64 / bytes as f64);
        Ok(cell)
    }
}

/// Sets the link's delay, and measures the link alone.
fn measure_link(plan: &WanPlan, lab: &Lab, delay: Duration) -> Result<LinkMeasurement, BenchError> {
    let failed = |error: strongroom_wan::LabError| BenchError::Asked(error.to_string());
    lab.change(&plan.link_at(delay)).map_err(failed)?;
    let mut trips = lab.measure_round_trips(PINGS).map_err(failed)?;
    trips.sort_unstable();
    let rtt = trips.get(trips.len() / 2).copied().unwrap_or(2 * delay);
    let seconds = plan.socket_seconds.max((2 * delay * ROUND_TRIPS_SOCKET).as_secs_f64().ceil() as usize);
    let stream = lab.measure_stream(seconds).map_err(failed)?;
    Ok(LinkMeasurement { rtt, socket_bytes_per_second: stream.bits_per_s(seconds / 2) / 8.0 })
}

/// What the paper's equations say of this cell.
fn predict(plan: &WanPlan, key: &CellKey, setting: Setting, link: LinkMeasurement, seal_rate: f64) -> ModelPrediction {
    let conditions = Conditions {
        rtt: link.rtt,
        link_bytes_per_second: block_data_rate(link.socket_bytes_per_second, key.size),
        seal_bytes_per_second_per_worker: seal_rate,
        // S2-1 is decrypted by the target; sealed blocks are stored as they come.
        target_bytes_per_second: if setting == Setting::EagerOneAtATime { seal_rate } else { f64::INFINITY },
        block_bytes: key.size,
        round_trips: if key.size <= plan.first_burst_bytes { 1 } else { 2 },
    };
    let (one, limit) = setting.modelled(&conditions);
    let all = conditions.throughput_of_several(one, setting.depth_modelled(&conditions), key.initiators);
    let is_full = one * f64::from(key.initiators.max(1)) > conditions.link_bytes_per_second;
    let limit = if is_full { "link" } else { limit.name() };
    let paper = Paper {
        rtt: link.rtt,
        socket: conditions.link_bytes_per_second,
        enc_th: seal_rate,
        dec_th: conditions.target_bytes_per_second,
    };
    const MIB: f64 = 1_048_576.0;
    ModelPrediction {
        link_payload_mib_s: plan.link.payload_bits_per_s().map(|rate| rate / 8.0 / MIB),
        socket_mib_s: Some(link.socket_bytes_per_second / MIB),
        model_mib_s: Some(all / MIB),
        limit: limit.to_owned(),
        ideal_n: Some(paper.ideal_n(key.size as f64)),
        wire_per_byte: None,
    }
}

/// `64 ms`, `0.5 ms`.
fn milliseconds(delay: Duration) -> String {
    let text = format!("{:.1}", delay.as_secs_f64() * 1e3);
    format!("{} ms", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_named_without_needless_zeros() {
        assert_eq!(milliseconds(Duration::from_micros(500)), "0.5 ms");
        assert_eq!(milliseconds(Duration::from_millis(64)), "64 ms");
    }

    #[test]
    fn the_model_stands_beside_each_cell() {
        let plan = WanPlan {
            bench: "wan".into(),
            link: Profile::default(),
            link_in_words: String::new(),
            delays: vec![Duration::from_millis(64)],
            sizes: vec![16 << 10],
            initiators: vec![1],
            runs: 1,
            time: Duration::ZERO,
            round_trips: 40,
            warm_up: Duration::ZERO,
            socket_seconds: 2,
            first_burst_bytes: 256 << 10,
            placement: Placement::usual(),
        };
        let link = LinkMeasurement { rtt: Duration::from_millis(128), socket_bytes_per_second: 12e6 };
        let cell = |setting: Setting, size, initiators| {
            let key = CellKey { size, initiators, ..CellKey::default() };
            let model = predict(&plan, &key, setting, link, 1e9);
            (model.model_mib_s.unwrap(), model.limit)
        };
        let (one, limit) = cell(Setting::SealedOneAtATime, 16 << 10, 1);
        assert!((0.115..0.125).contains(&one) && limit == "latency", "{one} {limit}");
        let (ten, limit) = cell(Setting::Fixed(10), 16 << 10, 1);
        assert!((1.1..1.25).contains(&ten) && limit == "latency", "{ten} {limit}");
        let (auto, limit) = cell(Setting::Auto, 64 << 10, 1);
        assert!((11.0..11.4).contains(&auto) && limit == "link", "{auto} {limit}");
        let (many, limit) = cell(Setting::Auto, 64 << 10, 4);
        assert!((many / auto - 1.0).abs() < 0.01 && limit == "link", "they share it: {many} {limit}");
        assert_eq!(cell(Setting::Fixed(2), 1 << 20, 1).1, "latency", "two round trips");
        assert_eq!(plan.as_rawio(plan.delays[0], 16 << 10, 1).time, Duration::from_millis(5120));
        let slow = WanPlan { link: Profile { rate_bits_per_s: Some(10_000_000), ..Profile::default() }, ..plan };
        let times = [1, 10].map(|depth| slow.as_rawio(slow.delays[0], 2 << 20, depth).time.as_secs_f64());
        assert!((13.5..14.5).contains(&times[0]), "8 writes of 2 MiB at 9.65 Mbit/s: {times:?}");
        assert!((34.0..36.0).contains(&times[1]), "twice the 10 that are under way: {times:?}");
    }

    #[test]
    fn connections_are_used_again_unless_tcp_would_pause() {
        let begun = Instant::now();
        let at = |seconds: f64| begun + Duration::from_secs_f64(seconds);
        let connections = Connections { delay: Duration::ZERO, initiators: 1, since: begun, used: at(3.0) };
        let again = connections.again(at(4.0), at(6.0)).unwrap();
        assert_eq!((again.since, again.used), (begun, at(6.0)));
        assert!(again.again(at(8.0), at(9.5)).is_none(), "ten seconds are nearly over");
        let rested = again.again(at(16.5), at(19.5)).unwrap();
        assert_eq!((rested.since, rested.used), (at(16.5), at(19.5)), "it sees the path when it begins again");
    }
}
