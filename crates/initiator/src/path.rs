//! How good the way to a target is: round trip and rate, by echoes (NOP-Out with data, RFC 7143 §11.18) in a session of their own.
//!
//! No volume is attached, read or written, and any iSCSI target answers. An echo crosses both directions, so the rate is that of the
//! slower one. Absent: what follows from it (`model`).

use std::time::{Duration, Instant};

use strongroom_block::Buffer;
use strongroom_iscsi::initiator::Event;

use crate::conversation::Conversation;
use crate::discover::following;
use crate::{AttachError, DiscoverOptions};

/// Small echoes, one at a time, of which the fastest counts.
const ROUND_TRIPS: usize = 8;
/// Bytes of one large echo, at most.
const SEGMENT_BYTES: u32 = 64 << 10;
/// Large echoes under way at first, and at most: 16 MiB, the product of 1 Gbit/s and 128 ms.
const WINDOW_MIN: usize = 4;
const WINDOW_MAX: usize = 255;
/// A window is looked at for so long at least.
const EPOCH_MIN: Duration = Duration::from_millis(250);
/// A rate that is higher by less than this is the same.
const GROWTH: f64 = 1.1;
/// This many looks without growth end the measurement.
const LOOKS_WITHOUT_GROWTH: u32 = 3;

/// What a measurement may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathLimits {
    /// Bytes echoed at most; this many cross the link in each direction.
    pub bytes_max: u64,
    /// How long it lasts at most, the login not counted.
    pub time_max: Duration,
}

impl Default for PathLimits {
    fn default() -> PathLimits {
        PathLimits { bytes_max: 128 << 20, time_max: Duration::from_secs(10) }
    }
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathMeasurement {
    /// The fastest of a few echoes without data, the target's work on it included.
    pub rtt: Duration,
    /// The rate of the slower direction, in bytes of echoed data per second: the best of the looks.
    pub bytes_per_second: f64,
    /// Bytes that were echoed.
    pub bytes: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// The rate had stopped growing; otherwise a limit ended the measurement first, and the way may carry more.
    pub is_settled: bool,
}

/// Measures the way to the target at `options`, without touching a volume.
///
/// # Errors
/// [`AttachError`]: not reachable, refused, no answer in time, or a target that does not echo.
pub fn measure_path(options: &DiscoverOptions, limits: PathLimits) -> Result<PathMeasurement, AttachError> {
    following(options, |options| measure(options, limits))
}

fn measure(options: &DiscoverOptions, limits: PathLimits) -> Result<PathMeasurement, AttachError> {
    let deadline = Instant::now() + options.timeout + 3 * limits.time_max;
    let mut conversation = Conversation::begin(options, deadline, "measuring the way to the target")?;
    let segment = loop {
        match conversation.next()? {
            Event::LoggedIn { agreed, .. } => {
                break agreed.send_segment_bytes_max.min(agreed.recv_segment_bytes_max).min(SEGMENT_BYTES);
            }
            Event::Closed(reason) => return Err(AttachError::Unreachable(reason.to_string())),
            _ => {}
        }
    };
    let mut echoes = Echoes { conversation };
    let mut rtt = Duration::MAX;
    for _ in 0..ROUND_TRIPS {
        let begun = Instant::now();
        echoes.send(&Buffer::empty())?;
        echoes.wait()?;
        rtt = rtt.min(begun.elapsed());
    }
    let mut found = echoes.rate(rtt, &Buffer::copy_from(&noise(segment as usize)), limits)?;
    found.rtt = rtt;
    echoes.conversation.session()?.logout(Instant::now());
    while !matches!(echoes.conversation.next(), Ok(Event::Closed(_)) | Err(_)) {}
    Ok(found)
}

struct Echoes {
    conversation: Conversation,
}

impl Echoes {
    fn send(&mut self, data: &Buffer) -> Result<(), AttachError> {
        let sent = self.conversation.session()?.echo(data.clone());
        sent.map(drop).map_err(|error| AttachError::Unsupported(error.to_string()))
    }

    /// Waits for the next one that comes back: how much of its data did.
    fn wait(&mut self) -> Result<usize, AttachError> {
        loop {
            match self.conversation.next()? {
                Event::Echoed { bytes, .. } => return Ok(bytes),
                Event::Closed(reason) => return Err(AttachError::Unreachable(reason.to_string())),
                _ => {}
            }
        }
    }

    /// Keeps a window of echoes under way, which doubles as long as that makes it faster.
    fn rate(&mut self, rtt: Duration, data: &Buffer, limits: PathLimits) -> Result<PathMeasurement, AttachError> {
        let begun = Instant::now();
        let epoch = EPOCH_MIN.max(2 * rtt);
        let (mut window, mut under_way, mut sent_bytes, mut bytes) = (WINDOW_MIN, 0, 0, 0u64);
        let (mut best, mut without_growth) = (0.0f64, 0);
        let (mut epoch_begun, mut epoch_bytes) = (begun, 0);
        loop {
            let is_over = sent_bytes >= limits.bytes_max || begun.elapsed() >= limits.time_max;
            let is_settled = without_growth >= LOOKS_WITHOUT_GROWTH;
            if (is_over || is_settled) && under_way == 0 {
                if epoch_bytes > 0 && best == 0.0 {
                    best = epoch_bytes as f64 / epoch_begun.elapsed().as_secs_f64();
                }
                let elapsed = begun.elapsed();
                return Ok(PathMeasurement { rtt, bytes_per_second: best, bytes, elapsed, is_settled });
            }
            while under_way < window && sent_bytes < limits.bytes_max && !is_over && !is_settled {
                self.send(data)?;
                under_way += 1;
                sent_bytes += data.len() as u64;
            }
            let back = self.wait()?;
            if back == 0 {
                return Err(AttachError::Unsupported("the target answers pings without their data".to_owned()));
            }
            under_way -= 1;
            bytes += back as u64;
            epoch_bytes += back as u64;
            if epoch_begun.elapsed() >= epoch && !is_settled && !is_over {
                let rate = epoch_bytes as f64 / epoch_begun.elapsed().as_secs_f64();
                if rate > best * GROWTH {
                    window = (2 * window).min(WINDOW_MAX);
                    without_growth = 0;
                } else {
                    without_growth += 1;
                }
                best = best.max(rate);
                (epoch_begun, epoch_bytes) = (Instant::now(), 0);
            }
        }
    }
}

/// What nothing on the way can shorten (xorshift64).
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}
